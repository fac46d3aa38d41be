"""What two summaries have in common: n-grams, and longest common subsequences (LCS), of words given as numbers.

LCS are found for all positions of one text at once, in the bits of one integer (Crochemore et al. 2001, "A fast and
practical bit-vector algorithm for the longest common subsequence problem").
"""

from collections import Counter
from collections.abc import Mapping, Sequence

Words = Sequence[int]


def shared_ngrams(ours: Words, theirs: Words, n: int) -> int:
    """Returns how many n-grams are in both, each as often as in the text that has it less often."""
    return (_ngrams(ours, n) & _ngrams(theirs, n)).total()


def lcs_length(ours: Words, theirs: Words) -> int:
    """Returns the length of the longest common subsequence.

    >>> lcs_length([1, 2, 3, 4], [1, 3, 2, 4])
    3
    """
    rows = _growth(_places(ours), len(ours), theirs)
    return rows[-1].bit_count() if rows else 0


def union_lcs_length(reference: Sequence[Words], candidate: Sequence[Words]) -> int:
    """Returns how many words of the reference's sentences are in an LCS with any of the candidate's sentences.

    A word counts at most as often as it is in the candidate. Of several LCS of two sentences it is the one that
    ROUGE-1.5.5 and rouge-score find: from the ends, a common word is always taken; else the reference's last word is
    left out if the rest has an LCS as long, and the candidate's otherwise.
    """
    available = Counter(word for sentence in candidate for word in sentence)
    found: Counter[int] = Counter()
    for sentence in reference:
        places, union = _places(sentence), 0
        for other in candidate:
            union |= _lcs(places, len(sentence), other)
        found.update(word for place, word in enumerate(sentence) if union >> place & 1)
    return (found & available).total()


def _ngrams(words: Words, n: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _places(words: Words) -> Mapping[int, int]:
    """Returns for each word the positions at which it stands, as bits."""
    places: dict[int, int] = {}
    for position, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << position
    return places


def _growth(places: Mapping[int, int], length: int, other: Words) -> list[int]:
    """Returns for each prefix of `other` the positions at which its LCS with the prefixes of our text grows, as bits.

    Args:
      places: of the words of our text, as `_places` gives them.
      length: of our text.
      other: the other text.
    """
    everywhere = (1 << length) - 1
    same, rows = everywhere, []  # where it does not grow
    for word in other:
        matches = same & places.get(word, 0)
        same = (same + matches | same ^ matches) & everywhere
        rows.append(same ^ everywhere)
    return rows


def _lcs(places: Mapping[int, int], length: int, other: Words) -> int:
    """Returns the positions of our text that are in its LCS with `other`, as bits; arguments as in `_growth`."""
    rows, left, chosen = _growth(places, length, other), (1 << length) - 1, 0
    for word, grows in zip(reversed(other), reversed(rows), strict=True):
        matches = places.get(word, 0)
        # Our last words go as long as none of them is this word and the LCS is as long without them.
        last = ((matches | grows) & left).bit_length() - 1
        if last < 0:
            break
        here = 1 << last
        if matches & here:
            chosen |= here
            left = here - 1
        else:
            left = here | here - 1
    return chosen
