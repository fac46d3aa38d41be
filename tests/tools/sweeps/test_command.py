"""`launch.py --sweep` from end to end: a small ablation is trained, and errors are reported before anything runs."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import jax
import pytest

from bertjax.runs.checkpoints import restore_params
from bertjax.tools.sweeps import running
from bertjax.training import loop
from tests import tiny
from tests.experiments import commands
from tests.tiny import check_message as check
from tests.tiny import run_on_one

# Two rows that share a pretraining; one of them has another learning rate of fine-tuning.
SWEEP = """
from bertjax.configs.sweeps import parts

TINY = {
    "num_steps": 2, "batch_size": 8, "log_every": 1, "evaluate_every": 2, "checkpoint.save_every": 1,
    "optimizer.warmup_steps": 0,
}
MODEL = {
    "model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.intermediate_size": 16,
    "model.max_positions": 16,
}
TEXT = {
    "data.seq_len": 16, "data.stages": (), "data.lines": "sentence", "data.vocab_size": 120, "data.workers": 1,
    "data.valid_fraction": 0.2, "data.prepared_dir": "{workdir}/prepared",
}
ROWS = {"data.seq_len": 16, "data.valid_fraction": 0.3}


def get_sweep(variant=""):
    return {
        "stages": [
            parts.stage("pretrain", "configs/bert_pretraining.py:tiny", {**TINY, **MODEL, **TEXT}),
            parts.stage("task", "configs/classification.py", {**TINY, **ROWS}, "pretrain"),
        ],
        "rows": [
            parts.row("slow", {}, {"accuracy": 60.0}),
            parts.row("fast", {"task.optimizer.learning_rate": 1e-2}),
        ],
        "base": "slow",
        "seeds": (0, 1),
        "metrics": [
            parts.metric("accuracy", "task", "valid/accuracy", "percent"),
            parts.metric("loss", "task", "valid/loss", digits=4),
        ],
        "source": "nobody",
        "needs": {"pretrain.data.source": "a text", "task.data.source": "rows"},
    }
"""
NAMES = ["fast-task-seed0", "fast-task-seed1", "slow-task-seed0", "slow-task-seed1"]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The command without the folder."""
    home = tmp_path_factory.mktemp("files")
    (home / "sweep.py").write_text(SWEEP)
    rows = tiny.write_table(home)["data.source"]
    text = tiny.write_text(home / "text.txt")
    return [f"--sweep={home / 'sweep.py'}", f"--set=pretrain.data.source={text}", f"--set=task.data.source={rows}"]


def scores(folder: Path) -> dict[str, dict[str, float]]:
    """The last validation metrics of each run of the first seed."""
    last = {name: commands.lines_of(folder / "runs" / name / "metrics.jsonl")[-1] for name in NAMES[::2]}
    return {name: {key: line[key] for key in ("valid/accuracy", "valid/loss")} for name, line in last.items()}


@pytest.fixture(scope="module")
def done(flags, tmp_path_factory):
    """A finished sweep: its folder, and the table."""
    folder = tmp_path_factory.mktemp("sweep")
    outcome = commands.done(*flags, f"--workdir={folder}")
    return folder, outcome.stdout


@pytest.mark.slow
def test_a_sweep_writes_run_folders_and_a_table(done):
    folder, table = done
    names = {path.name for path in folder.iterdir()}
    assert names == {"prepared", "runs", "sweep.json", "table.csv", "table.json", "table.md", "table.tex"}
    runs = sorted(path.name for path in (folder / "runs").iterdir())
    assert [name for name in runs if "task" in name] == NAMES
    assert len([name for name in runs if name.startswith("pretrain-")]) == 2 == len(runs) - len(NAMES)
    for seed in (0, 1):
        configs = [json.loads((folder / "runs" / name / "config.json").read_text()) for name in NAMES[seed::2]]
        assert configs[0]["init_from"] == configs[1]["init_from"]
        assert [config["optimizer"]["learning_rate"] for config in configs] == [1e-2, 5e-5]
    lines = [line.split() for line in table.splitlines()[:3]]
    assert " ".join(lines[0]) == "row seeds accuracy vs slow paper loss vs slow minutes tokens parameters"
    assert [line[:2] for line in lines[1:]] == [["slow", "2"], ["fast", "2"]]
    last = [commands.lines_of(folder / "runs" / name / "metrics.jsonl")[-1] for name in NAMES]
    mean = sum(record["valid/loss"] for record in last[2:]) / 2
    assert f"{mean:.4f} ± " in table.splitlines()[1]
    model = jax.tree.leaves(restore_params(folder / "runs" / "slow-task-seed0", "latest", None))
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [int(row["parameters"]) for row in rows] == [sum(array.size for array in model)] * 2


@pytest.mark.slow
def test_finished_runs_are_skipped_and_a_failed_one_is_listed(flags, done, tmp_path, monkeypatch):
    def train(*_):
        raise MemoryError("no room")

    folder, name = done[0], "fast-task-seed1"
    kept = shutil.move(folder / "runs" / name, tmp_path / "kept")
    times = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")}
    listed = run_on_one(*flags, f"--workdir={folder}", "--dry_run").stdout.splitlines()
    assert [line.split()[0] for line in listed[:-1]] == ["finished"] * 5 + ["new"]
    monkeypatch.setattr(loop, "train", train)
    outcome = run_on_one(*flags, f"--workdir={folder}")
    shutil.rmtree(folder / "runs" / name)
    shutil.move(kept, folder / "runs" / name)
    assert outcome.status == 1
    assert f"run {name} failed: MemoryError: no room" in outcome.stderr
    assert "1 of 6 runs failed; repeat the command to retry them" in outcome.stderr
    assert [line.split()[:2] for line in outcome.stdout.splitlines()[1:3]] == [["slow", "2"], ["fast", "1"]]
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.slow
def test_a_killed_sweep_resumes_to_the_same_scores(flags, done, tmp_path, monkeypatch):
    folder, calls, settle = tmp_path / "sweep", [], loop.Trainer.settle

    def killed(self, state):
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return settle(self, state)

    command = [*flags, f"--workdir={folder}", "--seeds=0"]
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "settle", killed)
        outcome = run_on_one(*command)
    assert outcome.status == 75 and outcome.stdout == ""
    assert not (folder / "table.csv").exists()
    unfinished = [run for run in (folder / "runs").iterdir() if not running.is_trained(run)]
    assert 0 < len(list((folder / "runs").iterdir())) < 3 and len(unfinished) <= 1
    outcome = commands.done(*command)
    assert [line.split()[:2] for line in outcome.stdout.splitlines()[1:3]] == [["slow", "1"], ["fast", "1"]]
    assert (folder / "table.csv").exists()
    assert scores(folder) == scores(done[0])


# Errors are reported before anything runs.


@pytest.mark.parametrize(
    ("flag", "what", "got", "fix"),
    [
        ("--set=task.optimizer.learning_rat=1", "row 'slow', stage task: config key", "an unknown", "learning_rate"),
        ("--set=task.model.hidden_size=32", "config key model.hidden_size", "32", "omit this key"),
        ("--set=task.data.source=nowhere.tsv", "row 'slow', stage task", "a path that does not exist", "correct the"),
        (
            "--set=*.log_every=0",
            "row 'slow', stage pretrain: config key log_every",
            "0",
            r"change --set=pretrain\.log_every",
        ),
        ("--mode=evaluate", "--sweep", "--mode=evaluate", "omit it"),
        ("--config=configs/classification.py:tiny", "--sweep", "--config in addition", "omit it"),
        ("--backend=ray", "--backend", "'ray'", "choose"),
        ("--workers=0", "--workers", "0", "the number of devices"),
        ("--slurm=gpu", "--slurm=gpu", "no value", "slurm_partition"),
    ],
)
def test_errors_name_flag_and_cause(flags, tmp_path, flag, what, got, fix):
    backend = {"--workers": ["--backend=submitit_local"], "--slurm": ["--backend=slurm"]}.get(flag.split("=")[0], [])
    message = tiny.run(*flags, f"--workdir={tmp_path / 'sweep'}", *backend, flag).error
    check(message, what, got, ".", fix)
    assert not (tmp_path / "sweep").exists()


def test_no_folder(flags):
    check(tiny.run(*flags).error, "--workdir", "none", "a folder", "--workdir=runs")


def test_a_dry_run_writes_nothing(flags, tmp_path):
    outcome = commands.done(*flags, f"--workdir={tmp_path / 'sweep'}", "--dry_run", "--seeds=5")
    assert outcome.stdout.splitlines()[-1] == "3 runs of 2 rows"
    assert "(slow, fast)" in outcome.stdout.splitlines()[0]
    assert not (tmp_path / "sweep").exists()
