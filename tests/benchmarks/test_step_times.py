import json

import pytest

from benchmarks import step_times
from tests import tiny


@pytest.mark.slow
def test_each_stage_is_timed_and_weighted_by_its_updates(tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    keys = {"num_steps": 8, "batch_size": 8, "data.packing": True, "data.seq_len": 32}
    for name, stages in (("long", ()), ("short", ((0.75, 16),))):
        (tmp_path / name).mkdir()
        config = tiny.config(text, **keys, **{"data.stages": stages})
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    runs = [step_times.Stages(tmp_path / name) for name in ("long", "short")]
    assert [run.counts for run in runs] == [{0: 8}, {0: 6, 1: 2}]
    shapes = [[step.batches[0]["input_ids"].shape for step in run.steps.values()] for run in runs]
    assert shapes == [[(8, 32)], [(16, 16), (8, 32)]]
    long, short = step_times.measure(runs, updates=2, rounds=3)
    assert long[:2] == ["long", "8"] and long[4] == "1.00 (1.00 to 1.00)" and "8 x 32: " in long[2]
    assert short[:2] == ["short", "8"] and "16 x 16: " in short[2] and "8 x 32: " in short[2]
    assert float(short[3].split()[0]) > 0 and float(short[4].split()[0]) > 0
