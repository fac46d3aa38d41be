"""Tests of training byte-level BPE."""

import collections
import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertjax.data.parts import Parts
from bertjax.data.pretraining import preparation
from bertjax.data.text import byte_bpe_trainer, library_encoders, word_counts
from bertjax.data.text.library_encoders import BYTE_CHARS
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import TrainedVocabularyConfig
from bertjax.errors import UserError
from tests.data.text import byte_bpe


def whole_words(text, lowercase):
    """The words of a text as the library splits it in one piece."""
    normalized = library_encoders.byte_normalizer(lowercase).normalize_str(text)
    return [word for word, _ in library_encoders.byte_splitter().pre_tokenize_str(normalized)]


@given(
    st.lists(
        st.sampled_from(["a", "bc", " ", "  ", "\t", "\u3000", "한", "é", "e\u0301", "\u0301", "'s", "1", ".", "É"]),
        max_size=12,
    )
)
@example(["\t", " ", "\t"])
def test_words_between_spaces_are_counted_as_in_the_whole_text(pieces):
    text = "".join(pieces).strip(" ")
    for lowercase in (False, True):
        expected = collections.Counter(whole_words(text, lowercase))
        assert byte_bpe_trainer.count_words([text], lowercase) == expected


@pytest.mark.parametrize(("workers", "block_characters"), [(1, 1 << 18), (2, 40)])
def test_the_number_of_processes_does_not_matter(workers, block_characters, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_BLOCK_CHARACTERS", block_characters)
    parts = Parts(tmp_path / "words", ".txt")
    config = TrainedVocabularyConfig(lowercase=False, vocab_size=300, tokenizer="byte_bpe")
    documents = [[text, text] for text in byte_bpe.TEXTS]
    preparation.count_words(iter(documents), config.chain, workers, parts, kind="byte_bpe")
    counts = word_counts.most_frequent(parts.paths, tmp_path)
    expected = byte_bpe_trainer.count_words(itertools.chain(*documents), False)
    assert counts.words == expected
    assert preparation.train_tokenizer(counts, config) == byte_bpe_trainer.train(expected, 300, False)


def test_a_trained_vocabulary_has_special_tokens_bytes_and_pieces_that_do_not_change():
    pieces = Path(__file__).with_suffix(".txt").read_text().split()
    assert byte_bpe.trained().vocab == (*SPECIALS, *BYTE_CHARS, *pieces)
    assert byte_bpe.trained(more=("[unused0]",)).vocab[5] == "[unused0]"


@pytest.mark.parametrize(("size", "more"), [(260, ()), (261, ("[unused0]",))])
def test_a_vocabulary_without_room_for_all_bytes_is_an_error(size, more):
    with pytest.raises(UserError, match=r"data\.vocab_size: got 26.; expected at least 26.*all bytes"):
        byte_bpe_trainer.train({"Ġa": 1}, size, False, more)
