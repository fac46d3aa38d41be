"""A run that resumes without the folder in its `init_from` is the uninterrupted run, bit for bit."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.modes import lost_weights
from bertjax.runs.checkpoints import restore_params
from tests import published, tiny
from tests.experiments.commands import done, flags, metrics_of

UPDATES = {
    "num_steps": 4,
    "batch_size": 8,
    "log_every": 1,
    "evaluate_every": 2,
    "optimizer.warmup_steps": 1,
    "checkpoint.save_every": 2,
    "checkpoint.keep": 2,
    "checkpoint.final": "latest",
    "checkpoint.best_metric": "",
}
EPOCHS = {**UPDATES, "num_epochs": 0.6, "optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
del EPOCHS["num_steps"]  # 48 rows: 3.6 updates, that is 4
ROWS = {"data.seq_len": 24, "data.valid_fraction": 0.2}


def command_of(config, values):
    return [f"--config=configs/{config}", *flags(values)]


def interrupted(run, copy):
    """A copy of a run that was killed before its last checkpoint."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "4")
    return copy


def untimed_metrics_of(run):
    timed = ("seconds", "per_second", "fraction")
    return [{key: value for key, value in line.items() if not key.endswith(timed)} for line in metrics_of(run)]


def config_of(run):
    """The config of a run, without the place of its prepared rows, which several seeds share."""
    config = json.loads((run / "config.json").read_text())
    return {**config, "data": {key: value for key, value in config["data"].items() if key != "prepared_dir"}}


def check_same(one, two):
    """Compares weights, config and metrics of two runs."""
    params = (restore_params(run, "latest", None) for run in (one, two))
    jax.tree.map(np.testing.assert_array_equal, *params)
    assert config_of(one) == config_of(two)
    assert untimed_metrics_of(one) == untimed_metrics_of(two)


# A classifier whose weights are gone.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run without its weights, and its command without --workdir."""
    folder = tmp_path_factory.mktemp("classification")
    rows = tiny.write_table(folder / "rows")
    values = {
        **EPOCHS,
        **ROWS,
        "data.source": rows["data.source"],
        "init_from": published.write_huggingface(folder / "bert"),
    }
    command = command_of("classification.py", values)
    done(*command, f"--workdir={folder / 'run'}")
    shutil.rmtree(folder / "bert")
    return folder / "run", command


def test_it_resumes(run, tmp_path):
    whole, command = run
    copy = interrupted(whole, tmp_path / "copy")
    assert "resuming after step 2" in done(*command, f"--workdir={copy}").stderr
    check_same(whole, copy)


@pytest.mark.parametrize(
    ("values", "differing"),
    [
        ({"model.num_layers": 2}, r"model\.num_layers: 4 before, 2 now"),
        ({"init_from": "elsewhere"}, r"init_from: '.*/bert' before, 'elsewhere' now"),
        ({"num_epochs": 0.3}, r"num_steps: 4 before, 2 now"),
    ],
)
def test_another_config_is_refused(run, values, differing):
    whole, command = run
    outcome = tiny.run_on_one(*command, *flags(values), f"--workdir={whole}")
    tiny.check_message(outcome.error, what="--workdir", got=differing, expected="the same config", fix="--workdir")


def test_a_run_that_has_not_begun_and_a_check_need_the_folder(run, tmp_path):
    whole, command = run
    copy = interrupted(whole, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")  # killed before the first checkpoint
    for workdir, *mode in ((tmp_path / "new",), (copy,), (whole, "--mode=check")):
        message = tiny.run_on_one(*mode, *command, f"--workdir={workdir}").error
        tiny.check_message(message, what="init_from", got="no such folder$", expected="a run, a folder", fix="path$")


@pytest.mark.parametrize("content", [None, "", "[1]", '{"given": 1}'])
def test_an_older_or_damaged_run_needs_the_folder(run, tmp_path, content):
    whole, command = run
    copy = interrupted(whole, tmp_path / "copy")
    (copy / "init_from.json").unlink()
    if content is not None:
        (copy / "init_from.json").write_text(content)
    outcome = tiny.run_on_one(*command, f"--workdir={copy}")
    tiny.check_message(
        outcome.error,
        what="config key init_from=",
        got=r"no such folder, and no readable init_from\.json in .*/copy",
        expected=r"the folder that the run was started from, or the init_from\.json that the run saved",
        fix=r"restore the folder, or start another run with --config\.init_from=.*/copy",
    )


def test_it_is_extended(run, tmp_path):
    """To 8 updates, as a run of that length from the start."""
    whole, command = run
    weights = Path(json.loads((whole / "config.json").read_text())["init_from"])
    longer = [*command, "--config.num_epochs=1.3"]
    copy = shutil.copytree(whole, tmp_path / "copy")
    done(*longer, f"--workdir={copy}")
    published.write_huggingface(weights)
    done(*longer, f"--workdir={tmp_path / 'whole'}")
    shutil.rmtree(weights)
    check_same(tmp_path / "whole", copy)


def test_it_is_evaluated_on_its_own_rows(run):
    whole, _ = run
    found = json.loads(done("--mode=evaluate", f"--workdir={whole}").stdout)
    (logged,) = (line for line in metrics_of(whole) if line["step"] == 4 and "valid/loss" in line)
    assert found["valid/loss"] == pytest.approx(logged["valid/loss"], rel=1e-5)


def test_several_seeds_resume(run, tmp_path):
    whole, command = run
    interrupted(whole, tmp_path / "seed0")
    done(*command, f"--workdir={tmp_path}", "--seeds=0")
    check_same(whole, tmp_path / "seed0")


# Other weights.


@pytest.mark.slow
def test_a_vocabulary_without_weights(tmp_path):
    rows = tiny.write_table(tmp_path / "rows")
    shutil.move(rows["data.vocab_file"], tmp_path / "vocabulary")
    values = {**UPDATES, **ROWS, **rows, "data.vocab_file": tmp_path / "vocabulary" / "vocab.txt"}
    values |= {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2}
    command = command_of("classification.py:tiny", values)
    done(*command, f"--workdir={tmp_path / 'whole'}")
    copy = interrupted(tmp_path / "whole", tmp_path / "copy")
    shutil.rmtree(tmp_path / "vocabulary")
    assert "resuming after step 2" in done(*command, f"--workdir={copy}").stderr
    check_same(tmp_path / "whole", copy)


# What a run's folder keeps.


def test_restoring_a_config(tmp_path):
    given = {"init_from": "bert", "seed": 0, "model": {"size": None, "other": 1, "gone": 2}, "data": {"labels": []}}
    resolved = {"init_from": "bert", "seed": 0, "model": {"size": 8, "other": 3}, "data": {"labels": ["a"]}}
    lost_weights.save_record(tmp_path, lost_weights.record_of(given, resolved, ["seed"]))
    assert lost_weights.restored(tmp_path, given, ["seed"]) == resolved
    assert lost_weights.restored(tmp_path, given, []) == resolved
    now = {**given, "seed": 1, "model": {"size": 9, "other": 1, "new": 0}}
    expected = {**resolved, "seed": 1, "model": {"size": 9, "other": 3, "new": 0}}
    assert lost_weights.restored(tmp_path, now, []) == expected
    assert lost_weights.restored(tmp_path, given, ["model.other"])["model"] == {"size": 8, "other": 1}
    lost_weights.save_record(tmp_path, lost_weights.record_of(given, resolved, ["model.other"]))
    assert lost_weights.restored(tmp_path, given, ["model.other"]) == resolved  # it was set when the run was started


def test_what_is_gone(tmp_path):
    assert lost_weights.is_gone(tmp_path / "none")
    (tmp_path / "folder" / "data" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "data" / "deep" / "text").touch()
    assert lost_weights.is_gone(tmp_path / "folder")
    (tmp_path / "folder" / "vocab.txt").touch()
    assert not lost_weights.is_gone(tmp_path / "folder") and not lost_weights.is_gone(tmp_path / "folder" / "vocab.txt")
    (tmp_path / "model.ckpt.index").touch()
    assert not lost_weights.is_gone(tmp_path / "model.ckpt")
    (tmp_path / "sentences" / "0_Transformer").mkdir(parents=True)
    (tmp_path / "sentences" / "0_Transformer" / "config.json").touch()
    assert not lost_weights.is_gone(tmp_path / "sentences")
