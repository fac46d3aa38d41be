"""Several seeds in one command: a run per seed, and the summary of their metrics."""

import json
import math
import shutil
from pathlib import Path

import pytest

from bertjax.tools.reporting.runs import Run
from bertjax.tools.sweeps.evaluations import Evaluation, evaluation, summarize
from bertjax.tools.sweeps.seeds import as_json, parse_seeds, table
from tests import tiny
from tests.experiments.commands import done, lines_of, sizes
from tests.tiny import check_message as check

VALUES = {
    "num_steps": 4,
    "batch_size": 8,
    "log_every": 2,
    "evaluate_every": 2,
    **sizes(1, 16, 2, 16, 16),
    "data.seq_len": 8,  # one bucket, so that one program is compiled
    "data.valid_fraction": 0.3,
    "optimizer.learning_rate": 1e-2,
    "checkpoint.best_metric": "valid/loss",
    "checkpoint.best_mode": "min",
}


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The command without the folder and the seeds."""
    values = {**VALUES, **tiny.write_table(tmp_path_factory.mktemp("rows"))}
    return ["--config=configs/classification.py:tiny", *(f"--config.{key}={value}" for key, value in values.items())]


@pytest.fixture(scope="module")
def sweep(flags, tmp_path_factory):
    """The folder of a finished sweep of two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    done(*flags, f"--workdir={folder}", "--seeds=3,0")
    return folder


def test_each_seed_has_its_own_run(sweep):
    assert {path.name for path in sweep.iterdir()} == {"prepared", "seed0", "seed3", "seeds.json"}
    configs = [json.loads((sweep / name / "config.json").read_text()) for name in ("seed0", "seed3")]
    assert [config.pop("seed") for config in configs] == [0, 3]
    assert configs[0] == configs[1]
    lines = [line for name in ("seed0", "seed3") for line in lines_of(sweep / name / "metrics.jsonl")]
    losses = [line["valid/loss"] for line in lines if line["step"] == 4 and "valid/loss" in line]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("bad", [{"0"}, {"0", "3"}])
def test_the_summary_excludes_failed_seeds(flags, sweep, tmp_path, monkeypatch, bad):
    folder = shutil.copytree(sweep, tmp_path / "sweep")
    (folder / "seeds.json").unlink()
    failed = {f"seed{seed}" for seed in bad}
    for name in failed:
        shutil.rmtree(folder / name)
    error = "no space left on device"
    monkeypatch.setattr("bertjax.tools.sweeps.running._trained", lambda run, *_: error if run.name in failed else "")
    outcome = tiny.run(*flags, f"--workdir={folder}", "--seeds=3,0")
    assert outcome.status == 1 and "run seed0 failed: no space left on device" in outcome.stderr
    if len(bad) == 2:
        assert outcome.stdout == "" and not (folder / "seeds.json").exists()
        return
    assert [line.split()[0] for line in outcome.stdout.splitlines()] == ["seed", "3", "mean", "std", "n"]
    assert json.loads((folder / "seeds.json").read_text())["steps"].keys() == {"3"}


# Errors are reported before training.


@pytest.mark.parametrize("seeds", ["1,x", "", "1,,2", "0,1,0", "1,01", "-1", "1.5", "0 1", "²", "0,4294967296"])
def test_an_invalid_list_of_seeds(flags, tmp_path, seeds):
    message = tiny.run(*flags, f"--workdir={tmp_path / 'sweep'}", f"--seeds={seeds}").error
    check(message, "--seeds", f"'{seeds}'", "different integers", "--seeds=0,1,2")
    assert not (tmp_path / "sweep").exists()


def test_a_seed_that_the_config_also_sets(flags, tmp_path):
    message = tiny.run(*flags, f"--workdir={tmp_path / 'sweep'}", "--seeds=0,1", "--config.seed=0").error
    check(message, "--seeds", "--config.seed in addition", "only one of them", "omit")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("mode", ["evaluate", "prepare"])
def test_another_mode(sweep, mode):
    message = tiny.run(f"--mode={mode}", f"--workdir={sweep / 'seed0'}", "--seeds=0").error
    check(message, "--seeds", f"--mode={mode}", "--mode=train", "folder of one seed")


def test_no_folder_and_no_config(flags, tmp_path):
    check(tiny.run(*flags, "--seeds=0").error, "--workdir", "none", "a folder", "--workdir=runs")
    message = tiny.run(f"--workdir={tmp_path}", "--seeds=0").error
    check(message, "--config", "none", "a file of configs/", "add --config=")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_runs_of_a_different_config(flags, sweep, tmp_path):
    (tmp_path / "seed5").symlink_to(sweep / "seed3")
    message = tiny.run(*flags, f"--workdir={tmp_path}", "--seeds=0,5").error
    what = f"--workdir={tmp_path / 'seed5'}"
    check(message, what, "seed: 3 before, 5 now", "an empty folder", "choose another --workdir")
    assert not (tmp_path / "seed0").exists()


def test_lists_of_seeds_are_parsed():
    assert parse_seeds(f"7, 0,{2**32 - 1}") == (7, 0, 2**32 - 1)


# Summaries.


def run_of(folder: Path, best_metric: str, saved: tuple[int, ...]) -> Run:
    records = [
        {"step": 0, "valid/majority_accuracy": 0.5},
        {"step": 2, "train/loss": 1.0},
        {"step": 2, "valid/f1": 0.9, "valid/loss": 1.0},
        {"step": 4, "valid/f1": 0.8, "valid/loss": 2.0},
        {"step": 6, "valid/f1": 0.7, "valid/loss": 3.0},
        {"step": 7, "train/loss": 0.5},
    ]
    config = {"checkpoint": {"best_metric": best_metric, "best_mode": "max"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for step in saved:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    return Run(folder, config, records)


@pytest.mark.parametrize(
    ("best_metric", "saved", "step"), [("valid/f1", (2, 6), 2), ("valid/f1", (4, 6), 4), ("", (2, 6), 6)]
)
def test_the_evaluation_of_the_best_checkpoint_or_the_last(tmp_path, best_metric, saved, step):
    figures = {"valid/f1": 1 - step / 20, "valid/loss": step / 2}
    assert evaluation(run_of(tmp_path, best_metric, saved)) == Evaluation(step, pytest.approx(figures))


def test_a_summary_computed_by_hand():
    evaluations = {seed: Evaluation(8, {"valid/f1": value}) for seed, value in ((0, 0.25), (1, 0.5), (7, 0.75))}
    summary = summarize(evaluations)
    seeds = {"0": 0.25, "1": 0.5, "7": 0.75}
    metrics = {"valid/f1": {"seeds": seeds, "mean": 0.5, "std": 0.25, "n": 3}}
    assert as_json(evaluations, summary) == {"steps": dict.fromkeys(seeds, 8), "metrics": metrics}
    assert table(evaluations, summary) == (
        "seed  step  valid/f1\n"
        "   0     8    0.2500\n"
        "   1     8    0.5000\n"
        "   7     8    0.7500\n"
        "mean          0.5000\n"
        " std          0.2500\n"
        "   n               3\n"
    )


def test_one_seed_has_no_deviation():
    evaluations = {4: Evaluation(8, {"valid/f1": 0.25})}
    summary = summarize(evaluations)
    figure = as_json(evaluations, summary)["metrics"]["valid/f1"]
    assert figure == {"seeds": {"4": 0.25}, "mean": 0.25, "std": None, "n": 1}
    assert table(evaluations, summary).splitlines()[-2].split() == ["std", "-"]


def test_a_nonfinite_number_makes_the_mean_nonfinite():
    evaluations = {0: Evaluation(8, {"valid/loss": math.nan}), 1: Evaluation(8, {"valid/loss": 1.0})}
    summary = summarize(evaluations)
    figure = as_json(evaluations, summary)["metrics"]["valid/loss"]
    assert figure == {"seeds": {"0": None, "1": 1.0}, "mean": None, "std": None, "n": 2}
    assert "nan" in table(evaluations, summary)
