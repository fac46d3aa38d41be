import dataclasses
import json
import logging

import pytest

from bertjax.data.codecs.summarization import article_rows
from bertjax.data.codecs.summarization.article_text import ArticleText
from bertjax.data.text.normalization import Chain
from bertjax.data.text.vocabulary_config import TrainedVocabularyConfig
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests.data.codecs.summarization.test_articles import config

SENTENCES = ["the cat sat", "a dog ran off", "no", "it rained all day"]


def articles(folder, count=20, **changes):
    """Writes articles whose summary is their second sentence; the last article is too short for training."""
    rows = [{"article": [*SENTENCES, f"{i} times again"], "summary": SENTENCES[1:2]} for i in range(count)]
    path = folder / "articles.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"article": ["too short"], "summary": ["a b"]}]))
    values = {"source": str(path), "valid_source": str(path), "test_source": "", "splitter": "lines"}
    return config(**{**values, **changes})


def text(folder, vocab_size=30, vocab_file="", lowercase=True, words="bert", **changes):
    vocabulary = TrainedVocabularyConfig(vocab_file, lowercase, vocab_size=vocab_size)
    return ArticleText(folder / "data", articles(folder, **changes), vocabulary, words, ())


def vocabulary(prepared):
    prepared.run()
    return WordPiece.load(prepared.folder).vocab


def test_a_vocabulary_is_trained_again_only_if_its_sources_change(tmp_path, monkeypatch, caplog):
    with caplog.at_level(logging.INFO, "bertjax"):
        first = vocabulary(text(tmp_path))
    assert caplog.messages[0] == "training a vocabulary of 30 tokens"
    assert len(first) == 30 and first[:5] == tuple(SPECIALS)
    with monkeypatch.context() as patch:
        patch.setattr(ArticleText, "_trained", lambda self: pytest.fail("trained again"))
        assert vocabulary(text(tmp_path)) == first
    assert len(vocabulary(text(tmp_path, vocab_size=40))) == 40  # replaces the vocabulary of other settings
    other = text(tmp_path, vocab_size=40, count=9)
    assert vocabulary(other) != first


def test_a_named_vocabulary_is_used(tmp_path):
    given = tmp_path / "vocab.txt"
    given.write_text("\n".join([*SPECIALS, "a", "the"]) + "\n")
    assert vocabulary(text(tmp_path, vocab_file=str(given))) == (*SPECIALS, "a", "the")
    given.write_text("\n".join([*SPECIALS, "a", "cat"]) + "\n")
    assert vocabulary(text(tmp_path, vocab_file=str(given))) == (*SPECIALS, "a", "cat")
    with pytest.raises(UserError, match=r"none\.txt"):
        text(tmp_path, vocab_file=str(tmp_path / "none.txt")).run()


@pytest.mark.parametrize("words", ["bert", "spaces"])
def test_a_vocabulary_is_trained_on_the_words_that_are_encoded(tmp_path, words):
    sentences = ["(the dog ran home.", "He barked, didn't he?)"]
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps({"article": sentences * 2, "summary": sentences[:1], "n": n}) + "\n" for n in range(4))
    )
    prepared = text(tmp_path, vocab_size=200, words=words, source=str(tmp_path / "own.jsonl"), valid_source="")
    prepared.run()
    tokenizer = WordPiece.load(prepared.folder)
    assert all(tokenizer.unk_id not in ids for ids in article_rows.encode(sentences, tokenizer, words))


def test_a_vocabulary_is_trained_with_the_normalization_of_the_config(tmp_path):
    before = text(tmp_path)
    changes = {"normalization": "nfc", "strip_accents": False}
    prepared = dataclasses.replace(before, vocabulary=dataclasses.replace(before.vocabulary, **changes))
    prepared.run()
    assert WordPiece.load(prepared.folder).chain == prepared.vocabulary.chain == Chain.of(True, False, nfc=True)
    assert prepared.fingerprint != before.fingerprint


def test_the_fingerprint_depends_on_articles_and_vocabulary(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"article": SENTENCES, "summary": SENTENCES[:1]}) + "\n")
    before = text(tmp_path).fingerprint
    assert text(tmp_path).fingerprint == before
    changed = [
        text(tmp_path, vocab_size=31),
        text(tmp_path, lowercase=False),
        text(tmp_path, words="spaces"),
        text(tmp_path, valid_source=""),
        text(tmp_path, test_source=str(tmp_path / "test.jsonl")),
    ]
    found = {before, *(each.fingerprint for each in changed)}
    assert len(found) == 6
