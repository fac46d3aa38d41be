"""Best checkpoints, means of several checkpoints, and warnings of a resumed run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.runs import checkpoints as module
from bertjax.runs.checkpoints import CheckpointConfig, Checkpoints, find_steps, restore_params


def test_the_best_are_kept_and_averaged(tmp_path):
    config = CheckpointConfig(
        save_every=1, keep=1, best_metric="valid/bleu", best_mode="max", keep_best=2, final="best:2"
    )
    (tmp_path / "config.json").write_text(json.dumps({"checkpoint": dataclasses.asdict(config)}))
    scores = {1: 3.0, 2: 9.0, 3: 1.0, 4: 8.0, 5: 2.0}
    params = {
        step: {"table": jax.random.normal(jax.random.key(step), (3, 2)), "bias": jax.numpy.full(2, step * 1.0)}
        for step in scores
    }
    with Checkpoints(tmp_path, config) as checkpoints, (tmp_path / "metrics.jsonl").open("w") as log:
        for step, score in scores.items():
            checkpoints.save(step, params[step], {"count": jax.numpy.zeros(())})
            checkpoints.finish(step, {"valid/bleu": score})
            log.write(json.dumps({"step": step, "valid/bleu": score}) + "\n")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4", "5"]
    for which, steps in (("best:2", [2, 4]), ("final", [2, 4]), ("best", [2]), ("last:2", [4, 5]), ("latest", [5])):
        assert find_steps(tmp_path, which) == steps
        found = restore_params(tmp_path, which, params[1])
        for name, leaf in found.items():
            mean = np.mean([params[step][name] for step in steps], axis=0)
            np.testing.assert_allclose(leaf, mean, atol=1e-7)
    with pytest.raises(UserError, match=r"'last:4'.*several existing checkpoints"):
        find_steps(tmp_path, "last:4")


def test_a_run_of_another_version_or_machine_resumes_with_a_warning(tmp_path, monkeypatch, caplog):
    def warnings():
        caplog.clear()
        with Checkpoints(tmp_path, CheckpointConfig(**config)) as checkpoints:
            checkpoints.restore(1, jax.eval_shape(lambda: state), jax.eval_shape(lambda: state))
        return [record.message for record in caplog.records if record.name == module.__name__]

    config = {"save_every": 1, "keep": 1, "best_metric": "", "best_mode": "max", "keep_best": 1, "final": "latest"}
    state = {"count": jax.numpy.zeros(())}
    with Checkpoints(tmp_path, CheckpointConfig(**config)) as checkpoints:
        checkpoints.save(1, state, state)
        checkpoints.finish(1, {})
    assert warnings() == []
    monkeypatch.setattr(module, "_NUMERICS", 0)
    (found,) = warnings()
    assert found.startswith("saved by another version") and "dropout and rounding may differ" in found
    monkeypatch.setattr(module, "_machine", lambda: {"cores": 0})
    assert [message[:14] for message in warnings()] == ["saved on {'jax", "saved by anoth"]
