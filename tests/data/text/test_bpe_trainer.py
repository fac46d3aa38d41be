"""Tests of byte-pair merges: a worked example, and a naive trainer."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.text import bpe_trainer
from bertjax.data.text.subwords import SPECIALS, byte_pair
from bertjax.errors import UserError

PLENTY = 1000
COUNTS = st.dictionaries(st.text("abcd", min_size=1, max_size=8), st.integers(1, 9), min_size=1, max_size=12)


def train(counts, vocab_size=PLENTY, specials=("<unk>",), coverage=1.0):
    characters = Counter("".join(word * count for word, count in counts.items()))
    return bpe_trainer.train(counts, characters, vocab_size, specials, coverage)


def test_worked_example():
    # Sennrich et al. 2016, figure 1, with "." as the end of a word and our order of equally frequent pairs:
    # es 9, est 9, est. 9; lo 7, low 7; ew 6 before ne, because "we" has 8 - 2 left; ...
    counts = {"low.": 5, "lower.": 2, "newest.": 6, "widest.": 3}
    bpe = train(counts, 1 + 11 + 6)
    assert bpe.vocab[:12] == ["<unk>", *".deilnorstw"]
    assert bpe.merges == [("e", "s"), ("es", "t"), ("est", "."), ("l", "o"), ("lo", "w"), ("e", "w")]
    assert bpe.vocab[12:] == ["es", "est", "est.", "lo", "low", "ew"]


def test_a_character_outside_the_alphabet_splits_its_word():
    bpe = train({"abzab": 3, "c": 3, "z": 1}, coverage=0.8)  # a 6, b 6, z 4, c 3
    assert bpe.vocab == ["<unk>", "a", "b", "z", "ab", "abz", "abzab"]
    bpe = train({"abzab": 3, "c": 30}, coverage=0.9)
    assert bpe.vocab == ["<unk>", "a", "b", "c", "ab"]


def test_the_alphabet_covers_the_requested_fraction():
    frequency = {"a": 50, "c": 25, "b": 25}
    assert bpe_trainer.alphabet(frequency, 0.5) == ["a"]
    assert bpe_trainer.alphabet(frequency, 0.51) == ["a", "b"]
    assert bpe_trainer.alphabet(frequency, 0.75) == ["a", "b"]
    assert bpe_trainer.alphabet(frequency, 1.0) == ["a", "b", "c"]


def test_long_words_are_not_merged():
    assert train({"ab" * 101: 50, "ba": 2}).merges == [("b", "a")]


def test_user_errors():
    with pytest.raises(
        UserError,
        match=r"vocabulary size: got 4; expected at least 5: 1 special tokens and the 4 characters that cover 100\."
        r".*Fix: raise the vocabulary size, or lower config\.data\.character_coverage",
    ):
        train({"abcd": 1}, 4)
    assert train({"abcd": 1}, 5).vocab == ["<unk>", *"abcd"]
    with pytest.raises(UserError, match=r"got no words; expected text\. Fix: check the source files"):
        train({})


@given(COUNTS, st.integers(5, 60))
def test_equals_the_naive_trainer(counts, vocab_size):
    bpe = train(counts, vocab_size)
    assert (bpe.vocab, bpe.merges) == naive(counts, vocab_size)


def naive(counts, vocab_size):
    vocab = ["<unk>", *sorted(set("".join(counts)))]
    return vocab, naive_merges([(list(word), n) for word, n in counts.items()], vocab, vocab_size, "".join)


def naive_merges(words, vocab, vocab_size, join):
    """Adds merged pieces to a vocabulary and returns their pairs. Counts all pairs again for every merge."""
    merges = []
    while len(vocab) < vocab_size:
        pairs = Counter()
        for pieces, n in words:
            for i in range(len(pieces) - 1):
                pairs[pieces[i], pieces[i + 1]] += n
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        for pieces, _ in words:
            for i in range(len(pieces)):
                if tuple(pieces[i : i + 2]) == best:
                    pieces[i : i + 2] = [join(best)]
        if join(best) not in vocab:
            vocab.append(join(best))
    return merges


@given(COUNTS, st.integers(10, 40))
def test_encoding_a_word_gives_its_merged_pieces(counts, vocab_size):
    bpe = train({"▁" + word: n for word, n in counts.items()}, vocab_size, SPECIALS)
    ids = byte_pair(bpe, "nfc", lowercase=False).encode_batch(list(counts))
    for word, got in zip(counts, ids, strict=True):
        pieces = ["▁", *word]
        for left, right in bpe.merges:
            for i in range(len(pieces)):
                if pieces[i : i + 2] == [left, right]:
                    pieces[i : i + 2] = [left + right]
        assert [bpe.vocab[i] for i in got] == pieces
