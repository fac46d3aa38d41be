"""Accuracy on minimal pairs: ties, groups and intervals."""

import numpy as np
import pytest

from bertjax.scoring.minimal_pairs import METRICS, ScoredPair, accuracies, outcomes, wilson


def test_a_tie_counts_half_and_rounding_does_not_break_it():
    good = np.array([-3.0, -5.0, -4.0, -4.0, -4.0 * (1 + 2e-6)])
    bad = np.array([-5.0, -3.0, -4.0, -4.0 * (1 + 5e-7), -4.0])
    assert outcomes(good, bad).tolist() == [1, 0, 0.5, 0.5, 0]


def test_constant_log_probabilities_are_at_chance():
    level = -np.log(30522)
    pairs = [ScoredPair(("p", "q"), (level * n, level * m), (n, m)) for n in range(1, 40) for m in range(1, 40)]
    assert accuracies(pairs)["pairs/per_token_accuracy"] == 0.5
    same = [pair for pair in pairs if pair.counts[0] == pair.counts[1]]
    assert accuracies(same)["pairs/accuracy"] == 0.5
    shorter = [pair for pair in pairs if pair.counts[0] < pair.counts[1]]
    assert accuracies(shorter)["pairs/accuracy"] == 1


def test_sums_and_means_rank_differently():
    found = accuracies([ScoredPair(("", ""), (-9.0, -8.0), (9, 4))])
    assert [found[name] for name in METRICS] == [0, 1]


def test_the_interval_of_two_right_pairs_is_wide():
    pairs = [ScoredPair(("", ""), (-8.0, -9.0), (4, 5)), ScoredPair(("", ""), (-8.0, -9.0), (5, 4))]
    found = accuracies(pairs)
    assert [found[f"pairs/accuracy{end}"] for end in ("_low", "", "_high")] == pytest.approx([0.342, 1, 1], abs=1e-3)
    assert (found["pairs/total"], found["pairs/shorter_accuracy"]) == (2, 0.5)


def test_every_group_has_its_accuracy_with_its_interval():
    rng = np.random.default_rng(0)
    groups = [("islands", "adjunct"), ("islands", "wh"), ("ellipsis", "n_bar"), ("", "")]
    pairs = [ScoredPair(groups[i % 4], tuple(rng.normal(size=2) - 9), (5, 5)) for i in range(90)]
    found = accuracies(pairs)
    members = {"pairs": pairs, "pairs/islands": [p for p in pairs if p.groups[0] == "islands"]}
    members["pairs/islands/wh"] = [p for p in pairs if p.groups[1] == "wh"]
    for name, of_group in members.items():
        right = np.array([float(pair.sums[0] > pair.sums[1]) for pair in of_group])
        low, high = wilson(right.mean(), len(right))
        expected = [right.mean(), low, high]
        assert [found[f"{name}/accuracy{end}"] for end in ("", "_low", "_high")] == pytest.approx(expected)
        assert low < right.mean() < high
    of_groups = {"", "islands/", "islands/adjunct/", "islands/wh/", "ellipsis/", "ellipsis/n_bar/"}
    assert {name for name in found if name.endswith("/accuracy")} == {f"pairs/{group}accuracy" for group in of_groups}
