import unicodedata

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from bertjax import progress
from bertjax.data.text import fit
from bertjax.data.text.library_encoders import LibraryEncoderTokenizer, byte_splitter
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.wordpiece import WordPiece

TEXT = "한국어 위키백과는 누구나 기여할 수 있는 백과사전이다 " * 3
JAMO = sorted(set(unicodedata.normalize("NFD", TEXT)) - {" "})
SYLLABLES = sorted(set(TEXT) - {" "})


def vocabulary(chars, lowercase=True, **changes):
    return WordPiece([*SPECIALS, *chars, *(f"##{char}" for char in chars)], lowercase, **changes)


def byte_vocabulary():
    ids = [*("<pad>", "<unk>", "<s>", "</s>", "<mask>"), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    library = Tokenizer(models.BPE({token: number for number, token in enumerate(ids)}, []))
    library.pre_tokenizer = byte_splitter()
    return LibraryEncoderTokenizer(library.to_str(), ids[:5])


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (vocabulary(SYLLABLES, nfc=True), TEXT, ""),
        (vocabulary(SYLLABLES, nfc=True), unicodedata.normalize("NFD", TEXT), ""),
        (vocabulary(SYLLABLES, lowercase=False), unicodedata.normalize("NFD", TEXT), "decomposed Unicode (NFD"),
        (vocabulary(JAMO), TEXT, "100% of the tokens are conjoining Jamo"),
        (
            vocabulary(SYLLABLES),
            f"{TEXT} ‘…’",
            "of the tokens are unknown in the first 22 words, but fewer with accents",
        ),
        (vocabulary(SYLLABLES[1:], nfc=True), TEXT, f"the first 21 words ({SYLLABLES[0]!r}): is it the vocabulary of"),
        (vocabulary("abcdef"), "abcdef fedcbaab " * 9, "7.0 tokens per word in the first 18 words: is it the"),
        (vocabulary("abcdef"), "abcdefa", ""),
        (vocabulary("a"), "a ?", ""),
        (vocabulary("一二三四五"), "一二三四五", ""),
        (vocabulary("a"), "a [MASK] [MASK] [MASK]", ""),
        (WordPiece(SPECIALS, lowercase=True), TEXT, ""),
        (byte_vocabulary(), " " * 12, ""),
    ],
)
def test_misfits_are_warned_of_with_their_cause(caplog, monkeypatch, tokenizer, text, expected):
    monkeypatch.setattr(fit, "_SAMPLE", len(text) + 1)
    progress._logged.clear()
    sample = fit.Sample(tokenizer)
    sample.add([text])
    assert not caplog.messages
    sample.check()
    sample.check()
    assert bool(caplog.messages) == bool(expected) and expected in caplog.text


def test_a_full_sample_is_checked_and_reads_no_further(caplog, monkeypatch):
    monkeypatch.setattr(fit, "_SAMPLE", 8)
    sample = fit.Sample(vocabulary("a"))
    texts = iter(["b b b b", "bbbb", "c"])
    sample.add(texts)
    assert "are unknown in the first 5 words ('b')" in caplog.text
    sample.add(texts)
    assert list(texts) == ["c"]
    fit.Sample(None).add(texts)
