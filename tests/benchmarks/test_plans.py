"""The table of plans: the commands, and the format of a plan's row."""

import pytest

from benchmarks import plans

RECORD = {
    "fits": True,
    "hbm_bytes": 16 * 2**30,
    "bytes_per_device": {"total": 8 * 2**30},
    "seconds": {"compute": 0.1, "memory": 0.2, "interconnect": 0.01},
    "step_seconds": 0.2,
    "bound": "memory",
    "utilization": 0.25,
    "tokens_per_second": 1234567.0,
    "compiler_seconds": None,
}


@pytest.mark.parametrize(
    ("case", "variant", "rows", "remat"),
    [
        (("base", 128, "v5e:4x4"), "base", 64 * 16, "none"),
        (("large", 512, "v5p:4x4x4"), "large,phase2", 16 * 64, "norms"),
        (("large", 128, "h100:4x8"), "large", 256 * 32, "none"),
    ],
)
def test_each_device_has_the_same_number_of_tokens(case, variant, rows, remat):
    words = plans.command(*case)
    assert f"--config=configs/bert_pretraining.py:{variant}" in words
    assert f"--config.batch_size={rows}" in words and f"--config.model.remat={remat}" in words


def test_existing_plans_are_not_made_again(tmp_path, capsys, monkeypatch):
    (tmp_path / "base_128_v5e_4x4.json").write_text(plans.json.dumps(RECORD))
    monkeypatch.setattr(plans.subprocess, "run", lambda *args, **kwargs: pytest.fail("nothing is to be planned"))
    plans.main([f"--folder={tmp_path}", "--cases=base 128 v5e:4x4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[2].startswith("| base 128 v5e:4x4 | 8.0 of 16.0 |")


def test_a_failed_case_is_reported_and_the_others_continue(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plans.subprocess, "run", lambda *args, **kwargs: plans.subprocess.CompletedProcess(args, -11))
    plans.main([f"--folder={tmp_path}", "--cases=512 v6e"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["no plan: status -11"] * 2
