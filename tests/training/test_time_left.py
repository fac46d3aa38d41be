"""The expected time to the end of a run."""

from types import SimpleNamespace

import pytest

from bertjax.training.time_left import TimeLeft


def test_updates_evaluations_and_saves_have_times_of_their_own():
    """The first update and all before it do not count. At update 40, the evaluation and the save of it are left."""
    spent = {"evaluation": 100.0, "checkpoint": 10.0}
    ledger = SimpleNamespace(trained_seconds=50.0, spent=spent.__getitem__)
    settings = SimpleNamespace(num_steps=100, evaluate_every=20, checkpoint=SimpleNamespace(save_every=40))
    left = TimeLeft(ledger, settings)
    assert left(11) is None
    for done in range(11, 41):
        if done == 40:
            assert left(40) == pytest.approx(60 * 2 + 4 * 7)  # no save has been timed
            spent["evaluation"] += 7
            spent["checkpoint"] += 3
        elif done == 20:
            spent["evaluation"] += 7
        left.finish(done)
        ledger.trained_seconds += 2
    ledger.trained_seconds -= 2
    assert left(40) == pytest.approx(60 * 2 + 3 * 7 + 2 * 3)
    left.finish(100)
    assert left(100) == 0
