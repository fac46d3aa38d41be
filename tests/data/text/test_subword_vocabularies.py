"""Tests of the vocabularies of two languages: given or trained, joint or separate."""

import itertools

import pytest

from bertjax.data.text import subword_vocabularies, subwords, word_counts
from bertjax.data.text.subword_vocabularies import SubwordConfig, save_side
from bertjax.data.text.subwords import SPECIALS, Splitter
from bertjax.errors import UserError
from bertjax.interop.vocabularies import SavedVocabularies, open_vocabularies
from tests.data.text.test_bpe_trainer import train
from tests.experiments.commands import settings_of

PAIRS = [("the new cat", "die neue Katze"), ("the newest cat.", "die neueste Katze.")]


def config(**changes):
    return settings_of(SubwordConfig, "translation", **{"vocab_size": 40, **changes})


def made(**changes):
    return subword_vocabularies.make(config(**changes), lambda: iter(PAIRS))


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "characters"])
@pytest.mark.parametrize("joint", [True, False])
def test_vocabularies_are_trained_saved_and_loaded(tmp_path, kind, joint):
    both = SavedVocabularies(*made(subwords=kind, joint=joint))
    assert (both.source is both.target) == joint
    both.save(tmp_path)
    loaded = open_vocabularies(tmp_path)
    assert (loaded.source is loaded.target) == joint
    assert loaded.fingerprint == both.fingerprint
    assert both.target.template.row([[7]])[0] == [7, both.target.sep_id]
    for side, texts in zip(loaded, zip(*PAIRS, strict=True), strict=True):
        assert [side.decode(ids) for ids in side.encode_batch(texts)] == [
            text.replace(".", " .") if kind == "wordpiece" else text for text in texts
        ]
    knows = loaded.source.unk_id not in loaded.source.encode_batch(["Katze"])[0]
    assert knows == joint, "K and z occur only in German"


def test_training_in_blocks_gives_the_same_vocabulary(monkeypatch):
    texts = list(itertools.chain.from_iterable(PAIRS))
    counts = Splitter("nfc", lowercase=False).count_words(texts)
    whole = subwords.byte_pair(train(counts, 40, SPECIALS), "nfc", False)
    monkeypatch.setattr(subword_vocabularies, "_BLOCK", 1)
    for order in (texts, texts[::-1]):
        assert subword_vocabularies.train(config(), order).fingerprint == whole.fingerprint


def test_rare_words_contribute_their_characters(monkeypatch):
    """In text without spaces, each clause is a word that occurs once."""
    clauses = ["".join(map(chr, range(start, start + 5))) for start in range(0x4E00, 0x4E00 + 500, 5)]
    monkeypatch.setattr(word_counts, "MAX_WORDS", 10)
    trained = subword_vocabularies.train(config(vocab_size=1000), clauses)
    assert all(trained.unk_id not in ids for ids in trained.encode_batch(clauses))


def test_given_vocabularies_are_used(tmp_path):
    one, other = made(joint=False)
    save_side(one, tmp_path / "one")
    save_side(other, tmp_path / "other")
    paths = {"vocab_file": str(tmp_path / "one"), "target_vocab_file": str(tmp_path / "other")}
    both = made(joint=False, **paths)
    assert (both.source.fingerprint, both.target.fingerprint) == (one.fingerprint, other.fingerprint)
    joint = made(vocab_file=paths["vocab_file"])
    assert joint.source is joint.target and joint.source.fingerprint == one.fingerprint


def test_too_little_text_is_reported(caplog):
    with caplog.at_level("INFO", "bertjax"):
        size = made(vocab_size=500).source.vocab_size
    assert caplog.messages == [
        f"trained a vocabulary of {size} tokens on 9 different words",
        f"the text gives only {size} of the 500 requested tokens",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"vocab_file": "a", "joint": False},
            r"data\.\{vocab_file,target_vocab_file,joint\}: got 'a', '' and False; expected no file, one file with "
            r"joint=True, or two files with joint=False\. Fix: set both files, or set --config\.data\.joint=True",
        ),
        ({"subwords": "characters", "lowercase": True}, "data.lowercase: got True; expected False with data.subwords"),
    ],
)
def test_wrong_configs_are_errors(changes, message):
    with pytest.raises(UserError, match=message):
        made(**changes)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "characters"])
def test_training_without_text_is_an_error(kind):
    with pytest.raises(UserError, match="got no words; expected text"):
        subword_vocabularies.make(config(subwords=kind), lambda: iter(()))
