"""Overlaps of single texts; `test_rouge.py` compares whole scores with the Perl program."""

from bertjax.scoring.rouge_overlap import shared_ngrams, union_lcs_length


def test_n_grams_count_with_their_lower_frequency():
    assert shared_ngrams([1, 1, 1, 2], [1, 1, 3, 2, 2], 1) == 3
    assert shared_ngrams([1, 2, 1, 2], [1, 2, 3, 1, 2, 1], 2) == 3
    assert shared_ngrams([1, 2, 3], [1, 2, 3], 4) == 0
    assert shared_ngrams([], [1], 1) == 0


def test_the_choice_among_several_subsequences():
    # Each sentence has two LCS, 1 2 and 2 1. The reference's last word is dropped if it is not needed.
    assert union_lcs_length([[1, 2, 1]], [[2, 1, 2]]) == 2
    # If two sentences have different LCS, the union is longer than each.
    assert union_lcs_length([[1, 2, 3, 4]], [[1, 3], [2, 4]]) == 4
    assert union_lcs_length([[1, 1]], [[1], [1]]) == 1
