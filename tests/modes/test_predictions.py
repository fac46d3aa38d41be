"""Prediction files: resumed by the same prediction alone, written by one process at a time."""

import json
import os

import pytest

from bertjax.errors import UserError
from bertjax.modes import predictions, streams
from bertjax.runs import checkpoints


def write_run(folder, weights):
    """A run with two checkpoints, as far as identifying its parameters reads it."""
    for step in ("2", "4"):
        (folder / "checkpoints" / step / "meta").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / step / "meta" / "metadata").write_text("{}")
        (folder / "checkpoints" / step / "manifest.json").write_text(json.dumps({"params/a": f"{weights}{step}"}))
    (folder / "config.json").write_text(json.dumps({"checkpoint": {"final": "last:2"}}))
    (folder / "vocab.txt").write_text("[PAD]\n")
    return folder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("one\ntwo\n")
    return str(path)


def test_a_retrained_run_has_another_fingerprint(tmp_path, source):
    workdir = write_run(tmp_path / "run", "first")
    ours = [predictions.fingerprint({}, checkpoints.digest(workdir, which), source) for which in ("final", "latest")]
    assert ours[0] != ours[1]
    write_run(workdir, "second")
    assert predictions.fingerprint({}, checkpoints.digest(workdir, "latest"), source) not in ours


@pytest.mark.parametrize("content", ['"a"', "[]", '{"params/a": 1}', "[" * 10**5])
def test_a_damaged_list_of_digests_is_reported(tmp_path, content):
    workdir = write_run(tmp_path / "run", "first")
    (workdir / "checkpoints" / "4" / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json: got .*; expected the digests of the checkpoint's files"):
        checkpoints.digest(workdir, "latest")


@pytest.mark.parametrize("kind", ["published", "run"])
def test_init_from_is_identified_by_its_content(tmp_path, source, kind):
    folder = tmp_path / "weights"
    file = folder / ("model.safetensors" if kind == "published" else "checkpoints/4/manifest.json")
    if kind == "run":
        write_run(folder, "first")
    else:
        folder.mkdir()
        file.write_bytes(b"first")
    before = predictions.fingerprint({"init_from": str(folder)}, "", source)
    assert predictions.fingerprint({"init_from": str(folder)}, "", source) == before
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes().replace(b"first", b"other"))
    os.utime(file, ns=times)
    assert predictions.fingerprint({"init_from": str(folder)}, "", source) != before


def test_a_run_in_init_from_may_still_be_training(tmp_path, source):
    folder = write_run(tmp_path / "weights", "first")
    before = predictions.fingerprint({"init_from": str(folder)}, "", source)
    (folder / "metrics.jsonl").write_text("{}\n")
    assert predictions.fingerprint({"init_from": str(folder)}, "", source) == before


@pytest.mark.parametrize(
    "opened",
    [
        lambda name: predictions.open_lines(name, True, "abc"),
        lambda name: predictions.open_lines(name, True, "of another model"),
        lambda name: streams.open_output(name, True),
    ],
)
def test_one_process_writes_an_output(tmp_path, opened):
    name = str(tmp_path / "out.jsonl")
    with predictions.open_lines(name, True, "abc") as (file, _):
        file.write("1\n")
        message = f"--output={name}: got .*another process is writing.*; expected one process.*another --output"
        with pytest.raises(UserError, match=message), opened(name):
            pass
        file.write("2\n")
    assert (tmp_path / "out.jsonl").read_text() == "1\n2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_an_interrupted_file_is_resumed(tmp_path):
    name = str(tmp_path / "out.jsonl")
    with pytest.raises(UserError), predictions.open_lines(name, True, "abc") as (file, done):
        file.write("1\n")
        raise UserError("line 2", got="nothing", expected="a text", fix="delete it")
    assert done == 0 and not (tmp_path / "out.jsonl").exists()
    with predictions.open_lines(name, True, "abc") as (file, done):
        assert done == 1
        file.write("2\n")
    assert (tmp_path / "out.jsonl").read_text() == "1\n2\n"
