from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.scoring.rouge_overlap import lcs_length, shared_ngrams, union_lcs_length

WORDS = st.lists(st.integers(0, 3), max_size=12)
LONG = st.lists(st.integers(0, 5), min_size=60, max_size=140)
SENTENCES = st.lists(WORDS, max_size=4)


def lengths(ours, theirs):
    """table[i][j] is the length of the LCS of the first i of ours and the first j of theirs."""
    table = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i, our in enumerate(ours):
        for j, their in enumerate(theirs):
            table[i + 1][j + 1] = table[i][j] + 1 if our == their else max(table[i][j + 1], table[i + 1][j])
    return table


def positions(ours, theirs):
    """The positions of ours in the LCS that is built from the ends."""
    table, i, j, found = lengths(ours, theirs), len(ours), len(theirs), set()
    while i and j:
        if ours[i - 1] == theirs[j - 1]:
            i, j = i - 1, j - 1
            found.add(i)
        elif table[i - 1][j] >= table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def union(reference, candidate):
    """The count of ROUGE-1.5.5: each matching word is removed from the candidate's remaining words."""
    left, count = Counter(word for sentence in candidate for word in sentence), 0
    for sentence in reference:
        for position in sorted(set().union(*(positions(sentence, other) for other in candidate))):
            if left[sentence[position]]:
                left[sentence[position]] -= 1
                count += 1
    return count


def test_n_grams_count_with_their_lower_frequency():
    assert shared_ngrams([1, 1, 1, 2], [1, 1, 3, 2, 2], 1) == 3
    assert shared_ngrams([1, 2, 1, 2], [1, 2, 3, 1, 2, 1], 2) == 3
    assert shared_ngrams([1, 2, 3], [1, 2, 3], 4) == 0
    assert shared_ngrams([], [1], 1) == 0


def test_the_choice_among_several_subsequences():
    # Each sentence has two LCS, 1 2 and 2 1. The reference's last word is dropped if it is not needed.
    assert positions([1, 2, 1], [2, 1, 2]) == {0, 1}
    assert union_lcs_length([[1, 2, 1]], [[2, 1, 2]]) == 2
    # If two sentences have different LCS, the union is longer than each.
    assert union_lcs_length([[1, 2, 3, 4]], [[1, 3], [2, 4]]) == 4
    assert union_lcs_length([[1, 1]], [[1], [1]]) == 1


@given(WORDS, WORDS)
def test_length_matches_dynamic_programming(ours, theirs):
    assert lcs_length(ours, theirs) == lengths(ours, theirs)[-1][-1] == lcs_length(theirs, ours)


@given(SENTENCES, SENTENCES)
def test_union_matches_the_perl_program(reference, candidate):
    assert union_lcs_length(reference, candidate) == union(reference, candidate)


@settings(max_examples=20)
@given(LONG, LONG)
def test_long_sentences(ours, theirs):
    assert lcs_length(ours, theirs) == lengths(ours, theirs)[-1][-1]
    assert union_lcs_length([ours], [theirs, ours[:70]]) == union([ours], [theirs, ours[:70]])
