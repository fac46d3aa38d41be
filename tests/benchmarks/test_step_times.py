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
    runs = [step_times.Timed("", str(tmp_path / name)) for name in ("long", "short")]
    assert [run.stages for run in runs] == [[0] * 8, [0] * 6 + [1] * 2]
    shapes = [[step.batches[0]["input_ids"].shape for step in run.steps.values()] for run in runs]
    assert shapes == [[(8, 32)], [(16, 16), (8, 32)]]
    records = [
        {"step": 0, "valid/masked_lm_loss": 9.0},
        {"step": 7, "train/loss": 4.0},
        {"step": 8, "valid/masked_lm_loss": 5.0},
    ]
    (tmp_path / "short/metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    long, short = step_times.measure(runs, updates=2, rounds=3)
    assert long[:2] == ["long", "8"] and long[4] == "1.00 (1.00 to 1.00)" and "8 x 32: " in long[2]
    assert short[:2] == ["short", "8"] and "16 x 16: " in short[2] and "8 x 32: " in short[2]
    assert float(short[3].split()[0]) > 0 and float(short[4].split()[0]) > 0
    runs[1].ms = {0: [30.0, 20.0, 40.0], 1: [60.0, 60.0, 60.0]}
    assert runs[1].means() == [37.5, 30.0, 45.0]
    (time,), (loss,) = runs[1].curve()
    assert time == pytest.approx((6 * 30 + 2 * 60) / 6e4) and loss == 5.0
    step_times.draw(runs[1:], str(tmp_path / "curves.svg"))
    assert (tmp_path / "curves.svg").read_text().count("<svg") == 1
