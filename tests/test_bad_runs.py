"""One-line messages for damaged runs and weights, full disks and bad inputs."""

import contextlib
import json
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import tiny
from tests.experiments.commands import done
from tests.tiny import check_message as check
from tests.tiny import run_on_one as launch

MASKED = b"the [MASK] sees a cat\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text, `text.txt`; a `run` trained on it; and its export, `published`."""
    home = tmp_path_factory.mktemp("bad_runs")
    text = tiny.write_text(home / "text.txt")
    done(*tiny.arguments(text, home / "run", evaluate_every=2))
    assert launch("--mode=export", f"--workdir={home / 'run'}", f"--output={home / 'published'}").status is None
    return home


@pytest.fixture
def train(home, tmp_path):
    """Returns a function that trains on the text with other values, and returns the error message."""

    def call(workdir: Path = tmp_path / "run", **overrides: object) -> str:
        return launch(*tiny.arguments(home / "text.txt", workdir, **overrides)).error

    return call


@pytest.fixture
def copied(home, tmp_path):
    """Returns a function that copies the run, or another folder of `home`, to be damaged."""

    def call(name: str = "run") -> Path:
        return shutil.copytree(home / name, tmp_path / name)

    return call


def predict(workdir: Path, *flags: str, stdin: bytes = MASKED) -> str:
    return launch("--mode=predict", f"--workdir={workdir}", *flags, stdin=stdin).error


# Runs and their checkpoints.


def test_the_folder_of_a_run_with_another_config(train, home):
    before = (home / "run" / "config.json").read_text()
    message = train(workdir=home / "run", seed=3, model__activation="relu", evaluate_every=2)
    got = "another config: model.activation: 'gelu' before, 'relu' now; seed: 0 before, 3 now$"
    expected = "an empty folder, or a run with the same config"
    check(message, f"--workdir={home / 'run'}", got, expected, "another --workdir")
    assert (home / "run" / "config.json").read_text() == before


@pytest.mark.parametrize("mode", ["evaluate", "predict", "export"])
def test_a_folder_that_is_not_a_run(tmp_path, mode):
    message = launch(f"--mode={mode}", f"--workdir={tmp_path}", f"--output={tmp_path / 'out'}", stdin=MASKED).error
    check(message, f"--workdir={tmp_path}", "no readable config.json", "a run", "train it first")
    assert not (tmp_path / "out").exists()


def test_a_published_folder_is_not_a_run(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    check(predict(tmp_path), f"--workdir={tmp_path}", "without experiment", "a run", f"--config.init_from={tmp_path}")


@pytest.mark.parametrize(("content", "got"), [("{", "Expecting property name"), ("[]", "a JSON list")])
def test_a_damaged_config(copied, content, got):
    run = copied()
    (run / "config.json").write_text(content)
    check(predict(run), f"--workdir={run}", got, "the folder of a run", "correct the path")


def test_a_run_without_checkpoints(copied):
    run = copied()
    shutil.rmtree(run / "checkpoints")
    for mode in ("evaluate", "predict", "export"):
        message = launch(f"--mode={mode}", f"--workdir={run}", f"--output={run / 'out'}", stdin=MASKED).error
        check(message, "checkpoint 'latest'", "no checkpoints", "latest, best", "train the run")
        assert not (run / "out").exists()


@pytest.mark.parametrize("which", ["77", "newest", "-2", "last:0", "last:five", "best:x"])
def test_a_missing_checkpoint(home, which):
    message = predict(home / "run", f"--checkpoint={which}")
    check(message, f"checkpoint '{which}'", "steps 2, 4, 6", "one of the existing steps", "--checkpoint")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("damage", "got"), [(flip_a_bit, "sha256"), (Path.unlink, "no such file")])
def test_a_damaged_checkpoint(home, copied, damage, got):
    run = copied()
    files = [path for path in (run / "checkpoints" / "6" / "params").rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    damage(path)
    parts = {"what": f"checkpoint file {path}$", "got": got, "expected": "sha256 .* as saved"}
    fix = f"restore the file, or delete {run}/checkpoints/6"
    check(predict(run), **parts, fix=fix)
    again = launch(*tiny.arguments(home / "text.txt", run, evaluate_every=2)).error
    check(again, **parts, fix=fix)
    # The fix works.
    shutil.rmtree(run / "checkpoints" / "6")
    done("--mode=predict", f"--workdir={run}", stdin=MASKED)


def test_a_checkpoint_without_its_digests_or_scores(copied):
    run = copied()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "valid/mask')  # an incomplete line, as after a kill
    done("--mode=predict", f"--workdir={run}", "--checkpoint=best", stdin=MASKED)
    (run / "metrics.jsonl").unlink()
    message = predict(run, "--checkpoint=best")
    check(message, "checkpoint 'best'", "2, 4, 6", "best .by checkpoint.best_metric in metrics", "--ch")
    (run / "checkpoints" / "6" / "manifest.json").unlink()
    check(predict(run), "manifest.json", "No such file", "digests", "restore the file")


def test_a_checkpoint_of_another_size(copied):
    run = copied()
    config = json.loads((run / "config.json").read_text())
    config["model"]["intermediate_size"] = 64
    (run / "config.json").write_text(json.dumps(config))
    check(predict(run), "checkpoint .*/6", "64", "names and shapes of this run's model", "config")


# Published weights.


@pytest.mark.parametrize(("from_published", "learned"), [(True, 49), (False, 8), (True, -1)])
def test_more_positions_than_learned(train, home, from_published, learned):
    source = {"init_from": home / "published"} if from_published else {}
    message = train(learned_positions=learned, **source)
    check(message, "learned_positions", str(learned), "0, or up to model.max_positions=", "data.seq_len")


# Disks and folders.


@contextlib.contextmanager
def no_room(size: int):
    """Simulates a full disk by limiting the size of all files to `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_no_room(message: str, what: object, got: str = "File too large") -> None:
    check(message, re.escape(str(what)), got, "with free space", "free some space")


def test_a_full_disk_while_writing_predictions(home, tmp_path):
    message = predict(home / "run", "--output=/dev/full", stdin=MASKED * 9)
    check_no_room(message, "/dev/full", "No space left on device")
    output = tmp_path / "out.jsonl"
    with no_room(500):
        message = predict(home / "run", f"--output={output}", stdin=MASKED * 9)
    check_no_room(message, output)
    assert not output.exists() and not list(tmp_path.glob("*partial*"))


@pytest.mark.slow
def test_a_full_disk_while_preparing_the_text(home, tmp_path):
    prepared = tmp_path / "prepared"
    command = tiny.arguments(home / "text.txt", tmp_path / "run", data__prepared_dir=prepared)
    with no_room(4_000):  # the config has about 2,000 bytes
        message = launch(*command).error
    check_no_room(message, "")
    # Finished parts are kept under a temporary name, and preparation resumes from them when there is space.
    assert [path.suffix for path in prepared.glob("*/")] == [".partial"]
    done("--mode=prepare", *command)
    assert [path.suffix for path in prepared.glob("*/")] == ["", ""]  # the text, and the duplicates in it


@pytest.mark.slow
def test_a_full_disk_while_training(train, home, tmp_path):
    with no_room(16_000):
        message = train(evaluate_every=2)
    check_no_room(message, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("*") if path.name.isdigit()] == []
    done(*tiny.arguments(home / "text.txt", tmp_path / "run", evaluate_every=2))


@pytest.mark.parametrize("folder", ["/proc/run", "/dev/null/run", "a file"])
def test_a_folder_that_cannot_be_written(train, home, folder):
    reasons = "No such file|not permitted|Not a directory|Read-only|Permission denied|File exists"
    calls = [lambda path: launch("--mode=export", f"--workdir={home / 'run'}", f"--output={path}").error]
    if folder != "/dev/null/run":
        calls.append(lambda path: train(workdir=Path(path)))
    if folder != "a file":
        calls.append(lambda path: predict(home / "run", f"--output={path}"))
    path = str(home / "text.txt") if folder == "a file" else folder
    for call in calls:
        check(call(path), path, reasons, "writable", "another path")


def test_an_export_without_a_folder(home):
    message = launch("--mode=export", f"--workdir={home / 'run'}").error
    check(message, "--output", "none", "a folder to export to", "--output=FOLDER")


# Input lines of predictions.


@pytest.mark.parametrize("is_file", [False, True])
def test_a_line_that_cannot_be_predicted_on(home, tmp_path, is_file):
    lines, output = MASKED + b"a \xff [MASK]\n" + MASKED, tmp_path / "out.jsonl"
    (tmp_path / "in.txt").write_bytes(lines)
    source = [f"--input={tmp_path / 'in.txt'}"] if is_file else []
    message = predict(home / "run", f"--output={output}", *source, stdin=b"" if is_file else lines)
    check(message, "input line 2$", "byte 0xff", "UTF-8", "convert the input")
    assert not output.exists() and not list(tmp_path.glob("*partial*"))


def test_a_missing_input(home, tmp_path):
    message = predict(home / "run", f"--input={tmp_path / 'none.txt'}")
    check(message, f"--input={tmp_path}/none.txt", "No such file", "an existing file", "path")
    check(predict(home / "run", f"--input={tmp_path}"), "--input", "Is a directory", "an existing file", "path")


# Values that are not finite.


def test_published_weights_that_are_not_finite(copied, tmp_path):
    folder, name = copied("published"), "bert.embeddings.LayerNorm.weight"
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, folder / "model.safetensors")
    output = tmp_path / "out.jsonl"
    flags = ["--config=configs/bert_pretraining.py", f"--config.init_from={folder}", "--config.data.seq_len=32"]
    message = launch("--mode=predict", *flags, f"--output={output}", stdin=MASKED).error
    check(message, "the model's output", "not finite", "probabilities", "other weights")
    assert not output.exists()
