"""Early stopping, decided by the metrics of a run alone."""

import json
import math

import pytest

from bertjax.runs.early_stopping import find_stop
from bertjax.tools.sweeps import running

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "mode", "patience", "reason"),
    [
        ([1, 3, 2, 3], "max", 2, "x has not improved in 2 evaluations (best: 3 after step 20)"),
        ([1, 3, 2, 4], "max", 2, None),
        ([1, 3, 2], "max", 2, None),
        ([3, 2, 5, 1, 1], "min", 1, "x has not improved in 1 evaluations (best: 1 after step 40)"),
        ([NAN, 1, NAN, math.inf], "max", 2, "x has not improved in 2 evaluations (best: 1 after step 20)"),
        ([NAN, NAN, 1], "max", 2, None),
        ([NAN, NAN], "max", 2, "x has not improved in 2 evaluations (no value was finite)"),
        ([3, 2, 1], "max", 0, None),
        ([], "max", 1, None),
    ],
)
def test_a_run_stops_after_evaluations_without_improvement(scores, mode, patience, reason):
    config = {"evaluate_patience": patience, "checkpoint": {"best_metric": "x", "best_mode": mode}}
    records = [{"step": 0, "x": -9.0}, *({"step": 10 * n, "x": score} for n, score in enumerate(scores, 1))]
    stop = find_stop(config, [*records, {"step": 99, "train/loss": 1.0}, {"error": "damaged"}])
    assert (stop and stop.reason) == reason
    assert stop is None or stop.step == 10 * len(scores)


@pytest.mark.parametrize(
    ("patience", "latest", "ends"), [(1, 20, True), (2, 20, False), (1, 25, False), (0, 20, False)]
)
def test_a_sweep_takes_a_run_that_stopped_early_for_finished(tmp_path, patience, latest, ends):
    config = {"num_steps": 100, "evaluate_patience": patience, "checkpoint": {"best_metric": "valid/f1"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "valid/f1": 0.5}\n{"step": 20, "valid/f1": 0.4}\n')
    (tmp_path / "checkpoints" / str(latest)).mkdir(parents=True)
    assert running.is_trained(tmp_path) == ends
