from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.text.normalization import Chain
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.wordpiece_trainer import ALPHABET_LIMIT, count_words, train
from bertjax.errors import UserError
from tests.data.text.test_bpe_trainer import COUNTS, PLENTY, naive_merges


def trained(counts, vocab_size=PLENTY):
    vocab = train(counts, vocab_size)
    assert vocab[:5] == list(SPECIALS)
    return vocab[5:]


def test_characters_beyond_the_limit_are_omitted():
    chars = [chr(0x4E00 + i) for i in range(ALPHABET_LIMIT + 5)]
    counts = dict.fromkeys(chars, 2) | {chars[-1] + chars[0]: 9, chars[-2] + chars[0]: 1}
    vocab = trained(counts, 5000)
    plain = [token for token in vocab if len(token) == 1]
    assert sorted(plain) == plain
    assert set(plain) == {*chars[: ALPHABET_LIMIT - 2], *chars[-2:]}
    assert chars[-1] + chars[0] in vocab


@pytest.mark.parametrize(("vocab_size", "coverage", "count"), [(5000, 0.0, 0), (5000, 1.0, 4), (2005, 1.0, 0)])
def test_further_characters_cover_the_text_in_half_of_the_vocabulary(vocab_size, coverage, count):
    common = [chr(0x4E00 + i) for i in range(ALPHABET_LIMIT)]
    further = [*"abcd", "\u1100"]
    vocab = train(dict.fromkeys(common, 9) | dict.fromkeys(further, 2), vocab_size, coverage=coverage)
    assert vocab == [*SPECIALS, *further[:count], *common]


def test_count_words():
    assert count_words(["The cat, the CAT", "", "été\u0301 the"], Chain.of(True)) == {
        "the": 3, "cat": 2, ",": 1, "ete": 1
    }  # fmt: skip
    assert count_words(["The the"], Chain.of(False)) == {"The": 1, "the": 1}


@given(COUNTS, st.integers(10, 60))
def test_equals_the_naive_trainer(counts, vocab_size):
    assert train(counts, vocab_size) == naive(counts, vocab_size)


def naive(counts, vocab_size):
    frequency = Counter("".join(word * count for word, count in counts.items()))
    inside = {char for word in counts for char in word[1:]}
    kept = set()
    for char, _ in sorted(frequency.items(), key=lambda item: (-item[1], item[0])):
        if 5 + len(kept) + len(kept & inside) + 1 + (char in inside) > vocab_size:
            break
        kept.add(char)
    vocab = [*SPECIALS, *sorted(kept), *(f"##{char}" for char in sorted(kept & inside))]
    words = [([word[0], *(f"##{char}" for char in word[1:])], n) for word, n in counts.items() if set(word) <= kept]
    naive_merges(words, vocab, vocab_size, lambda pair: pair[0] + pair[1][2:])
    return vocab


def test_words_too_long_to_encode_are_not_merged():
    assert trained({"ab" * 101: 50, "ba": 2}) == ["a", "b", "##a", "##b", "ba"]


def test_user_errors():
    with pytest.raises(UserError, match="got 9; expected at least 10"):
        train({"a": 1}, 9)
    with pytest.raises(UserError, match="got no words"):
        train({}, 100)
