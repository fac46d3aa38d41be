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
    """Of ours, in the LCS that is found from the ends."""
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
    """As ROUGE-1.5.5 counts: word by word, each taken away from what is left of the candidate's."""
    left, count = Counter(word for sentence in candidate for word in sentence), 0
    for sentence in reference:
        for position in sorted(set().union(*(positions(sentence, other) for other in candidate))):
            if left[sentence[position]]:
                left[sentence[position]] -= 1
                count += 1
    return count


def test_n_grams_count_as_often_as_in_both():
    assert shared_ngrams([1, 1, 1, 2], [1, 1, 3, 2, 2], 1) == 3
    assert shared_ngrams([1, 2, 1, 2], [1, 2, 3, 1, 2, 1], 2) == 3
    assert shared_ngrams([1, 2, 3], [1, 2, 3], 4) == 0
    assert shared_ngrams([], [1], 1) == 0


def test_of_several_subsequences_one_is_taken():
    # 1 2 or 2 1 of either sentence; from the end, the reference's last word goes where it is not needed.
    assert positions([1, 2, 1], [2, 1, 2]) == {0, 1}
    assert union_lcs_length([[1, 2, 1]], [[2, 1, 2]]) == 2
    # Two sentences that choose differently make the union longer than either.
    assert union_lcs_length([[1, 2, 3, 4]], [[1, 3], [2, 4]]) == 4
    assert union_lcs_length([[1, 1]], [[1], [1]]) == 1


@given(WORDS, WORDS)
def test_length_is_the_tables(ours, theirs):
    assert lcs_length(ours, theirs) == lengths(ours, theirs)[-1][-1] == lcs_length(theirs, ours)


@given(SENTENCES, SENTENCES)
def test_union_is_the_programs(reference, candidate):
    assert union_lcs_length(reference, candidate) == union(reference, candidate)


@settings(max_examples=20)
@given(LONG, LONG)
def test_long_sentences(ours, theirs):
    assert lcs_length(ours, theirs) == lengths(ours, theirs)[-1][-1]
    assert union_lcs_length([ours], [theirs, ours[:70]]) == union([ours], [theirs, ours[:70]])
