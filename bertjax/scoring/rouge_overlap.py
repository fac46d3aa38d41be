"""The overlap of two summaries: common n-grams and longest common subsequences (LCS) of words encoded as numbers.

LCS are computed for all positions of one text in parallel, as the bits of one integer (Crochemore et al. 2001, "A fast
and practical bit-vector algorithm for the longest common subsequence problem").
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from bertjax.words import ngram_counts

Words = Sequence[int]


def shared_ngrams(ours: Words, theirs: Words, n: int) -> int:
    """Returns the number of n-grams in both texts. Each counts as often as in the text with fewer occurrences."""
    return (ngram_counts(ours, n) & ngram_counts(theirs, n)).total()


def lcs_length(ours: Words, theirs: Words) -> int:
    """Returns the length of the longest common subsequence.

    >>> lcs_length([1, 2, 3, 4], [1, 3, 2, 4])
    3
    """
    rows = _growth(_places(ours), len(ours), theirs)
    return rows[-1].bit_count() if rows else 0


def union_lcs_length(reference: Sequence[Words], candidate: Sequence[Words]) -> int:
    """Returns the number of words of the reference's sentences that are in an LCS with a sentence of the candidate.

    A word counts at most as often as it occurs in the candidate. If two sentences have several LCS, the one that
    ROUGE-1.5.5 and rouge-score find is used. It is built from the ends: a common last word is always taken; otherwise
    the reference's last word is dropped if the rest has an equally long LCS, else the candidate's.
    """
    available = Counter(word for sentence in candidate for word in sentence)
    overlap: Counter[int] = Counter()
    for sentence in reference:
        places = _places(sentence)
        union = 0
        for other in candidate:
            union |= _lcs(places, len(sentence), other)
        overlap.update(word for place, word in enumerate(sentence) if union >> place & 1)
    return (overlap & available).total()


def _places(words: Words) -> Mapping[int, int]:
    """Returns the positions of each word, as bits."""
    places: dict[int, int] = {}
    for position, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << position
    return places


def _growth(places: Mapping[int, int], length: int, other: Words) -> list[int]:
    """Returns for each prefix of `other` the positions of our text where the length of their LCS grows, as bits.

    Bit i of a row is set if our first i + 1 words have a longer LCS with the prefix than our first i words.

    Args:
      places: the positions of our text's words, from `_places`.
      length: the length of our text.
      other: the other text.
    """
    all_bits = (1 << length) - 1
    same = all_bits  # positions where the LCS does not grow
    rows = []
    for word in other:
        matches = same & places.get(word, 0)
        same = (same + matches | same ^ matches) & all_bits
        rows.append(same ^ all_bits)
    return rows


def _lcs(places: Mapping[int, int], length: int, other: Words) -> int:
    """Returns the positions of our text that are in its LCS with `other`, as bits; see `_growth` for the arguments."""
    rows = _growth(places, length, other)
    prefix = (1 << length) - 1
    chosen = 0
    for word, grows in zip(reversed(other), reversed(rows), strict=True):
        matches = places.get(word, 0)
        # Our last words are dropped while they differ from this word and the LCS is equally long without them.
        last = ((matches | grows) & prefix).bit_length() - 1
        if last < 0:
            break
        here = 1 << last
        if matches & here:
            chosen |= here
            prefix = here - 1
        else:
            prefix = here | here - 1
    return chosen
