import collections
import functools
import itertools
import logging
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.parts import Parts
from bertjax.data.pretraining import preparation
from bertjax.data.pretraining.preparation import SplitCounter, Tokenized, count_duplicates
from bertjax.data.text import word_counts
from bertjax.data.text.normalization import Chain
from bertjax.data.text.vocabulary_config import TrainedVocabularyConfig
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.data.workers import map_blocks
from bertjax.errors import UserError

SMALL = TrainedVocabularyConfig(lowercase=True, vocab_size=100)
WORDS = ("walk", "the", "##ing", "##s", ".")


@pytest.fixture
def vocab_dir(tmp_path) -> Path:
    WordPiece([*SPECIALS, *WORDS], lowercase=True).save(tmp_path / "vocabulary")
    return tmp_path / "vocabulary"


def test_text_hash_is_the_same_on_every_machine():
    # The output of `b2sum --length=64`, in reverse byte order.
    assert preparation.text_hash("") == 0xB4B2797457A0A6E4
    assert preparation.text_hash("Où est-ce?") == 0x8EB127FA1B209E9E


@given(st.lists(st.lists(st.text("ab", max_size=9), max_size=4), max_size=12), st.integers(1, 20))
def test_blocks_are_consecutive_documents_up_to_a_size(documents, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_BLOCK_CHARACTERS", limit)
        made = list(preparation.blocks(iter(documents)))
    assert list(itertools.chain(*made)) == documents
    for number, block in enumerate(made):
        sizes = [sum(map(len, document)) for document in block]
        assert block
        assert sum(sizes[:-1]) < limit
        assert sum(sizes) >= limit or number == len(made) - 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_user_error_in_a_worker_keeps_its_message(workers, tmp_path):
    tokenize = functools.partial(preparation._tokenize, vocab_dir=tmp_path / "missing", splitter="")
    with pytest.raises(UserError, match=r"missing: got .*tokenizer_config\.json.*\. Fix: .*\.$"):
        list(map_blocks(tokenize, [[["line"]]] * 3, workers))


@pytest.mark.parametrize(("workers", "block_characters"), [(1, 500), (1, 1 << 18), (2, 500)])
def test_word_counts_do_not_depend_on_workers_and_blocks(
    workers, block_characters, tiny_documents, tmp_path, monkeypatch
):
    monkeypatch.setattr(preparation, "_BLOCK_CHARACTERS", block_characters)
    parts = Parts(tmp_path / "words", ".txt")
    preparation.count_words(iter(tiny_documents), Chain.of(True), workers, parts)
    expected = collections.Counter(word for document in tiny_documents for line in document for word in line.split())
    assert word_counts.most_frequent(parts.paths, tmp_path).words == expected
    assert parts.num_documents == len(tiny_documents)


def test_a_text_too_small_for_its_vocabulary_causes_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        words = {"Aa": 1, "aa": 1, "ab": 1}
        counts = word_counts.TrainingCounts(words, collections.Counter("".join(words)))
        vocab = preparation.train_tokenizer(counts, SMALL).vocab
    assert {"A", "##a", "a", "##b"} < set(vocab)
    assert f"only {len(vocab)} of the 100 requested tokens" in caplog.text


def test_characters_of_rare_words_are_in_the_vocabulary(monkeypatch, tmp_path):
    monkeypatch.setattr(word_counts, "MAX_WORDS", 1)
    parts = Parts(tmp_path / "words", ".txt")
    preparation.count_words(iter([["the the the жук жаба", "the"]]), Chain.of(True), 1, parts)
    tokenizer = preparation.train_tokenizer(word_counts.most_frequent(parts.paths, tmp_path), SMALL)
    vocab = tokenizer.vocab
    assert {"ж", "##ж", "the"} < set(vocab) and "ж##у" not in vocab
    assert [vocab[i] for i in tokenizer.encode("жаба")] == ["ж", "##а", "##б", "##а"]


def counted(documents: list[list[str]], vocab_dir: Path, folder: Path, splitter: str = "") -> tuple[list, dict]:
    parts = Parts(Path(tempfile.mkdtemp(dir=folder)), ".npz")
    preparation.tokenize(iter(documents), vocab_dir, splitter, 1, parts)
    assert parts.num_documents == len(documents)
    counter = SplitCounter(folder, "train", len(SPECIALS) + len(WORDS))
    tokens = []
    for part in map(Tokenized.load, parts.paths):
        if counter.add(part):
            tokens += part.documents()
    counts, fractions = counter.finish()
    every = np.concatenate([[], *tokens]).astype(int)
    np.testing.assert_array_equal(counter.unigrams, np.bincount(every, minlength=10))
    return [ids.tolist() for ids in tokens], counts | {"fractions": fractions}


@pytest.mark.parametrize("part_tokens", [1, 7, 1 << 24])
@pytest.mark.parametrize("block_characters", [1, 20, 1 << 18])
def test_documents_lines_and_tokens_are_counted(block_characters, part_tokens, vocab_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_BLOCK_CHARACTERS", block_characters)
    monkeypatch.setattr(preparation, "_PART_TOKENS", part_tokens)
    unseen = "\u200b"  # a zero-width space, which normalization drops
    documents = [
        ["the walk", "walking ."],
        ["the walk", unseen, "Walks"],
        ["the walk", "walking ."],
        [unseen, unseen],
        ["the " * 512, "the " * 513],
    ]
    tokens, counts = counted(documents, vocab_dir, tmp_path)
    assert tokens == [[6, 5, 5, 7, 9], [6, 5, 5, 8], [6, 5, 5, 7, 9], [6] * 1025]
    assert counts == {
        "documents": 4,
        "sentences": 8,
        "tokens": 5 + 4 + 5 + 1025,
        "empty_documents": 1,
        "empty_lines": 3,
        "over_long_sentences": 1,
        "duplicate_lines": 3,
        "duplicate_documents": 1,
        "fractions": {"lines": round(3 / 9, 6), "documents": 0.25},
    }
    assert np.fromfile(tmp_path / "train.sentence_lengths.int32", np.int32).tolist() == [2, 3, 2, 2, 2, 3, 512, 513]
    assert np.fromfile(tmp_path / "train.document_sizes.int32", np.int32).tolist() == [2, 2, 2, 2]
    assert np.fromfile(tmp_path / "train.document_lengths.int32", np.int32).tolist() == [5, 4, 5, 1025]
    kinds = ("document_lengths", "document_sizes", "sentence_lengths")
    assert sorted(path.name for path in tmp_path.glob("train.*")) == [f"train.{kind}.int32" for kind in kinds]


def test_documents_that_differ_only_in_line_breaks_are_not_duplicates(vocab_dir, tmp_path):
    _, counts = counted([["the walk"], ["the", "walk"], ["the walk"], ["walk", "the"]], vocab_dir, tmp_path)
    assert (counts["duplicate_documents"], counts["duplicate_lines"]) == (1, 3)


def test_paragraphs_are_split_and_sentences_are_not(vocab_dir, tmp_path):
    paragraph = [["The walk. The walks. Walking the walk."]]
    whole, counts = counted(paragraph, vocab_dir, tmp_path)
    assert counts["sentences"] == 1
    split, counts = counted(paragraph, vocab_dir, tmp_path, "punkt")
    assert counts["sentences"] == 3
    assert np.fromfile(tmp_path / "train.sentence_lengths.int32", np.int32).tolist() == [3, 4, 5]
    assert split == whole


def test_kiwi_splits_paragraphs(vocab_dir, tmp_path):
    pytest.importorskip("kiwipiepy")
    paragraph = [["밥 먹고 왔지 이제 잘래 내일 보자"]]
    counts = [counted(paragraph, vocab_dir, tmp_path, splitter)[1]["sentences"] for splitter in ("punkt", "kiwi")]
    assert counts == [1, 3]


HASH = st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@given(st.lists(HASH, max_size=40), st.integers(1, 50))
def test_duplicates_are_counted_by_range(tmp_path_factory, hashes, at_once):
    path = tmp_path_factory.mktemp("hashes") / "hashes"
    np.array(hashes, np.uint64).tofile(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_HASHES_AT_ONCE", at_once)
        assert count_duplicates(path) == len(hashes) - len(set(hashes))
