import dataclasses
import itertools
import json
import logging
import os
import shutil
import threading
import time
import types
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bertjax import progress
from bertjax.data.pretraining import corpus, preparation
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation
from bertjax.data.readers import records
from bertjax.data.text.templates import Template
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from tests.data.folders import TRAINED, counts_of, digests, fingerprint, left_behind, read_whole, texts_of


def test_a_prepared_folder_contains_the_documents(make_config, prepare, tiny_documents):
    prepared = prepare(make_config())
    train, valid = texts_of(prepared, "train"), texts_of(prepared, "valid")
    documents = [" ".join(lines) for lines in tiny_documents]
    # The documents of each split are in the order of the text.
    assert train == [text for text in documents if text in set(train)]
    assert valid == [text for text in documents if text in set(valid)]
    assert sorted(train + valid) == sorted(documents)
    assert len(train) > len(valid) > 3

    tokenizer = prepared.tokenizer
    for name in corpus.SPLITS:
        split = prepared.splits[name]
        lines = [lines for lines in tiny_documents if " ".join(lines) in set(texts_of(prepared, name))]
        encoded = [tokenizer.encode_batch(document) for document in lines]
        sentences = [len(ids) for document in encoded for ids in document]
        assert split.sentences.lengths.tolist() == sentences
        assert np.diff(split.sentences.first).tolist() == [len(document) for document in lines]
        found = [ids.tolist() for ids in read_whole(split, [2, 0])]
        assert found == [list(itertools.chain(*encoded[i])) for i in (2, 0)]
        counts = counts_of(prepared)[name]
        assert (counts["documents"], counts["sentences"]) == (len(lines), len(sentences))
        assert counts["tokens"] == sum(sentences)
    tokens = np.concatenate(read_whole(prepared.splits["train"]))
    assert prepared.unigrams.tolist() == np.bincount(tokens, minlength=tokenizer.vocab_size).tolist()


def test_prepared_text_is_reused(make_config, monkeypatch):
    config = make_config()
    first = Preparation(config, Path("unused"))
    assert not first.is_finished()
    assert not first.folder.exists()
    first.run()
    assert first.is_finished()
    before, modified = digests(first.folder), first.folder.stat().st_mtime_ns
    monkeypatch.setattr(corpus, "_write", None)
    again = Preparation(config, Path("unused"))
    assert again.is_finished()
    again.run()
    assert again.folder == first.folder
    assert digests(again.folder) == before
    assert again.folder.stat().st_mtime_ns == modified
    assert left_behind(config) == [first.fingerprint]


def test_prepared_text_is_reused_with_the_vocabulary_that_it_trained(make_config, prepare, tmp_path):
    first = prepare(make_config(**TRAINED))
    first.tokenizer.save(tmp_path / "run")
    second = make_config(vocab_file=str(tmp_path / "run"))
    assert Preparation(second, Path("unused")).folder == first.folder
    assert fingerprint(second) != first.folder.name
    again = prepare(dataclasses.replace(second, prepared_dir=str(tmp_path / "other")))
    ours, theirs = digests(first.folder), digests(again.folder)
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} == {"manifest.json"}

    other = [*first.tokenizer.vocab, "more"]
    WordPiece(other, lowercase=True).save(tmp_path / "other_run")
    for changes in ({"vocab_file": str(tmp_path / "other_run")}, {"lines": "paragraph"}):
        config = dataclasses.replace(second, **changes)
        assert Preparation(config, Path("unused")).folder.name == fingerprint(config)


def test_duplicates_are_counted_and_many_cause_a_warning(make_config, tmp_path, caplog):
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    train.write_text("the cat\na dog\n\n" * 3 + "the tree\n")
    valid.write_text("the cat\n\na dog\n")
    preparing = Preparation(make_config(source=str(train), valid_source=str(valid)), tmp_path)
    with caplog.at_level(logging.INFO):
        preparing.run()
    fractions = json.loads((preparing.folder / "manifest.json").read_text())["duplicate_fractions"]
    assert fractions["train"] == {"lines": round(4 / 7, 6), "documents": 0.5}
    assert "4 duplicate lines, 2 duplicate documents" in caplog.text
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith("train split: 50.00 % of documents are duplicates, which a model overfits")
    assert warnings[1].startswith("train split: 57.14 % of lines are duplicates, which a model overfits")


@pytest.mark.parametrize("size", [1, 3, 4, 1000])
def test_a_long_document_is_read_in_parts(make_config, tmp_path, monkeypatch, size):
    monkeypatch.setattr(records, "_RECORD_TOKENS", size)
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    train.write_text("the cat sees\n" * 4 + "\nthe cat\n\na dog sees the cat\n")  # 12, 2 and 5 tokens
    valid.write_text("the cat sees a dog .\n")
    preparing = Preparation(make_config(source=str(train), valid_source=str(valid)), tmp_path)
    preparing.run()
    split = Corpus(preparing.folder).splits["train"]
    assert len(split._records) == split._records.num_expected == sum(-(-length // size) for length in (12, 2, 5))
    whole = read_whole(split, [0, 1, 2])
    assert [len(tokens) for tokens in whole] == [12, 2, 5] and whole[0].tolist() == 4 * whole[0][:3].tolist()
    every = np.array([(d, s, n) for d, t in enumerate(whole) for s in range(len(t)) for n in range(1, len(t) - s + 1)])
    for (document, start, length), tokens in zip(every.tolist(), split.read(*every.T), strict=True):
        np.testing.assert_array_equal(tokens, whole[document][start : start + length])
    read_numbers, (reader,) = [], split._records._readers.values()
    watched = types.SimpleNamespace(read=lambda numbers: read_numbers.extend(numbers) or reader.read(numbers))
    monkeypatch.setattr(split._records, "_readers", {0: watched})
    split.read(np.array([0]), np.array([11]), np.array([1]))
    assert read_numbers == [11 // size], "only the record with the requested token is read"


def test_a_second_process_waits_for_the_first(make_config, monkeypatch):
    config, writes = make_config(), []
    write = corpus._write

    def slow(config: CorpusConfig, folder: Path) -> tuple[dict, dict]:
        writes.append(folder)
        time.sleep(0.2)
        return write(config, folder)

    monkeypatch.setattr(corpus, "_write", slow)
    # A lock belongs to an open file, so it separates threads in the same way as processes.
    threads = [threading.Thread(target=Preparation(config, Path("unused")).run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writes) == 1
    assert Preparation(config, Path("unused")).is_finished()


def test_text_of_an_earlier_splitter_is_reused(make_config, prepare, monkeypatch):
    config = make_config(lines="paragraph")
    now, before, _ = corpus._splitters(config)
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_splitters", lambda config: [before])
        earlier = prepare(config).folder
    assert Preparation(config, Path("unused")).folder == earlier
    monkeypatch.setattr(corpus, "_splitters", lambda config: [now])
    assert Preparation(config, Path("unused")).folder != earlier


def test_only_the_fingerprint_of_korean_text_has_its_splitter(make_config, tmp_path):
    source = tmp_path / "a.txt"
    names = []
    for text, splitter in (("It rained.", "punkt"), ("It rained.\n비가 왔다", "punkt"), ("비가 왔다", "kiwi")):
        source.write_text(text)
        config = make_config(lines="paragraph", source=str(source), splitter=splitter)
        names.append(corpus._splitters(config)[0].rpartition(", ")[2].split()[0])
    assert names == ["British", "Korean", "kiwipiepy"]


def test_the_fingerprint_does_not_depend_on_folders_times_and_workers(make_config, tiny_text, vocab_file, tmp_path):
    config = make_config()
    elsewhere = tmp_path / "else" / "where"
    elsewhere.mkdir(parents=True)
    copy = Path(shutil.copy(tiny_text, elsewhere / tiny_text.name))
    os.utime(copy, (1, 1))
    vocabulary = Path(shutil.copy(vocab_file, elsewhere / "other_name.txt"))
    for changes in (
        {"source": str(copy)},
        {"vocab_file": str(vocabulary)},
        {"workers": 2},
        {"workers": 0},
        {"prepared_dir": str(elsewhere)},
        {"prepared_dir": ""},
        # These keys have no influence if the vocabulary is given and the text has no fields.
        {"vocab_size": 70},
        {"text_field": "body"},
    ):
        assert fingerprint(dataclasses.replace(config, **changes)) == fingerprint(config), changes


def test_the_fingerprint_depends_on_everything_that_changes_the_result(make_config, tiny_text, vocab_file, tmp_path):
    other_text = tmp_path / tiny_text.name
    other_text.write_text(tiny_text.read_text().replace("walk", "talk", 1))
    other_vocabulary = tmp_path / vocab_file.name
    tokens = vocab_file.read_text().split("\n")
    other_vocabulary.write_text("\n".join([*tokens[:5], tokens[6], tokens[5], *tokens[7:]]))
    configs = [
        make_config(),
        make_config(source=str(other_text)),
        make_config(source=f"{tiny_text},{other_text}"),
        make_config(source=f"{other_text},{tiny_text}"),
        make_config(vocab_file=str(other_vocabulary)),
        make_config(lines="paragraph"),
        make_config(lowercase=False),
        make_config(valid_fraction=0.31),
        make_config(valid_source=str(tiny_text)),
        make_config(valid_source=str(other_text)),
        make_config(on_bad_row="skip"),
        make_config(vocab_file=""),
        make_config(vocab_file="", vocab_size=101),
        make_config(vocab_file="", normalization="nfc"),
        make_config(vocab_file="", character_coverage=0.9),
        make_config(vocab_file="", strip_accents=False),
        make_config(strip_accents=False),
    ]
    assert len({fingerprint(config) for config in configs}) == len(configs)
    for tokenizer, description in (("wordpiece", "300 trained tokens"), ("byte_bpe", "300 trained tokens of byte_bpe")):
        config = make_config(vocab_file="", vocab_size=300, tokenizer=tokenizer)
        assert corpus._fingerprint_parts(config)["vocabulary"] == description


@pytest.mark.parametrize(("normalization", "pieces"), [("nfc", ["한국어", "글"]), ("bert", None)])
def test_korean_text_becomes_syllables_in_any_form(make_config, tmp_path, caplog, normalization, pieces):
    progress._logged.clear()
    rows = []
    for form in ("NFC", "NFD"):
        source = tmp_path / f"{form}.txt"
        source.write_text("\n\n".join(unicodedata.normalize(form, "한국어 글 " + "한" * i) for i in range(1, 9)))
        texts = {"source": str(source), "valid_source": str(source)}
        made = make_config(**texts, vocab_file="", vocab_size=25, normalization=normalization)
        preparing = Preparation(made, tmp_path)
        preparing.run()
        prepared = Corpus(preparing.folder)
        rows.append(texts_of(prepared, "train"))
    assert rows[0] == rows[1]
    assert ("tokens are conjoining Jamo" in caplog.text) == (pieces is None)
    assert not pieces or prepared.tokenizer.names(prepared.tokenizer.encode("한국어 글")) == pieces


def test_copies_of_a_document_are_in_the_same_split(make_config, prepare, tiny_documents, tmp_path):
    path = tmp_path / "copies.txt"
    documents = [*tiny_documents, *reversed(tiny_documents), *tiny_documents]
    path.write_text("\n\n".join("\n".join(lines) for lines in documents))
    prepared = prepare(make_config(source=str(path)))
    train, valid = texts_of(prepared, "train"), texts_of(prepared, "valid")
    assert set(train).isdisjoint(valid)
    assert sorted(train + valid) == sorted(" ".join(lines) for lines in documents)
    for name, texts in (("train", train), ("valid", valid)):
        assert counts_of(prepared)[name]["duplicate_documents"] == len(texts) - len(set(texts)) > 0
    # Adding documents does not move others to another split.
    assert set(texts_of(prepare(make_config()), "valid")) == set(valid)


def test_the_vocabulary_is_trained_without_validation_documents(make_config, prepare, tiny_documents, monkeypatch):
    seen: list[list[str]] = []
    count = preparation.count_words

    def watched(documents: Iterator[list[str]], **named: object) -> None:
        seen.extend(documents)
        count(seen, **named)

    monkeypatch.setattr(preparation, "count_words", watched)
    prepared = prepare(make_config(**TRAINED))
    assert prepared.tokenizer.vocab_size == 60
    assert len(seen) == counts_of(prepared)["train"]["documents"] < len(tiny_documents)
    tokens = [list(itertools.chain(*prepared.tokenizer.encode_batch(document))) for document in seen]
    assert [ids.tolist() for ids in read_whole(prepared.splits["train"])] == tokens


def raised(make: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        make()
    return str(error.value)


def test_words_of_the_training_documents_are_added_to_a_vocabulary(make_config, prepare, tmp_path):
    before = prepare(make_config())
    config = make_config(add_words=4)
    after = prepare(config)
    size = before.tokenizer.vocab_size
    saved = [counts_of(each)["train"]["tokens"] for each in (before, after)]
    assert after.tokenizer.vocab[:size] == before.tokenizer.vocab and after.tokenizer.vocab_size == size + 4
    trained = " ".join(texts_of(before, "train")).split()
    pieces = dict(zip(trained, before.tokenizer.encode_batch(trained), strict=True))
    gains = {word: trained.count(word) * (len(ids) - 1) for word, ids in pieces.items()}
    assert saved[0] - saved[1] == sum(gains[word] for word in after.tokenizer.vocab[size:])  # none begins another
    assert digests(prepare(make_config(add_words=4, workers=2, prepared_dir="other")).folder) == digests(after.folder)
    assert prepare(make_config(add_words=5)).tokenizer.vocab_size == size + 5
    again = Preparation(config, tmp_path / "unused")
    assert again.is_finished() and again.folder == after.folder


def test_words_are_added_to_a_given_vocabulary_alone(make_config):
    with pytest.raises(UserError, match=r"data\.add_words: got 4; expected a vocabulary .*--config\.init_from"):
        make_config(**TRAINED, add_words=4)


def test_a_split_without_documents_is_reported_and_leaves_no_files(make_config, tmp_path):
    assert "the train split" in raised(Preparation(make_config(**TRAINED, valid_fraction=1 - 1e-9), tmp_path).run)
    few = make_config(valid_fraction=1e-9)
    message = raised(Preparation(few, tmp_path).run)
    assert "the valid split" in message
    assert "data.valid_source" in message
    assert left_behind(few) == []
    unseen = tmp_path / "unseen.txt"
    unseen.write_text("\u200b\n")
    assert "the train split" in raised(Preparation(make_config(source=str(unseen)), tmp_path).run)


def test_unreadable_text_is_reported_before_anything_is_written(make_config, tmp_path):
    assert "no.txt" in raised(lambda: Preparation(make_config(source=str(tmp_path / "no.txt")), tmp_path))
    assert "no.txt" in raised(lambda: Preparation(make_config(valid_source=str(tmp_path / "no.txt")), tmp_path))
    assert "no.txt" in raised(lambda: Preparation(make_config(vocab_file=str(tmp_path / "no.txt")), tmp_path))
    assert not (tmp_path / "prepared").exists()


def test_a_trained_vocabulary_needs_room(make_config):
    assert "config key data.vocab_size: got" in raised(lambda: make_config(vocab_file="", vocab_size=9))


def test_runs_of_several_templates_share_a_text_and_each_keeps_its_own(make_config, vocab_file, tmp_path):
    bert = WordPiece.from_file(vocab_file, lowercase=True)
    for name, template in (("bert", bert.template), ("roberta", Template.of_roberta(bert.cls_id, bert.sep_id))):
        bert.with_template(template).save(tmp_path / name)
        preparation = Preparation(make_config(vocab_file=str(tmp_path / name)), tmp_path / "run")
        preparation.run()
        assert preparation.corpus().tokenizer.template == template
    assert len(list((tmp_path / "prepared").glob("*/manifest.json"))) == 1
    bert.save(tmp_path / "run")
    assert preparation.corpus().tokenizer == bert
