"""The lock, text fingerprint and environment of a run's folder, and differences of configs."""

import errno
import fcntl
import hashlib
import importlib
import json
import subprocess
import time

import pytest
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.files import Fingerprint
from bertjax.runs import run_folder
from bertjax.runs.run_folder import (
    check_text,
    differences,
    lasting,
    locked,
    save_environment,
    save_usage,
    source_commit,
    without_off,
)


def test_one_training_at_a_time_in_a_folder(tmp_path, monkeypatch):
    with locked(tmp_path / "run"):
        message = "run: got a folder that another training is using"
        with pytest.raises(UserError, match=message), locked(tmp_path / "run"):
            pass
        with locked(tmp_path / "other"):
            pass

        def no_locks(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
        with locked(tmp_path / "run"):
            pass
    monkeypatch.undo()
    with locked(tmp_path / "run"):
        pass


def test_the_text_of_a_run_must_not_change(tmp_path):
    check_text(tmp_path, "one")
    check_text(tmp_path, "two")  # allowed, because no update was made with text one
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "valid/x": 1.0}\n{"step": 2, "train/loss": 1.0}\n')
    check_text(tmp_path, "two")
    with pytest.raises(UserError, match="got prepared text three; expected two, which the run started with"):
        check_text(tmp_path, "three")
    assert (tmp_path / "text_fingerprint").read_text() == "two\n"


def test_renamed_files_are_the_text_of_a_run_and_earlier_fingerprints_match(tmp_path):
    def text(name):
        return Fingerprint.of([[{"name": name, "bytes": 4, "sha256": "ab"}], True])

    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "train/loss": 1.0}\n')
    by_name = '[[{"name": "a.tsv.gz", "bytes": 4, "sha256": "ab"}], true]'
    (tmp_path / "text_fingerprint").write_text(hashlib.sha256(by_name.encode()).hexdigest())
    check_text(tmp_path, text("a.tsv.gz"))
    check_text(tmp_path, text("b.TSV.gz"))
    with pytest.raises(UserError, match="got prepared text"):
        check_text(tmp_path, text("a.csv.gz"))  # the suffix determines how a file is read


def test_the_environment_of_the_first_start_is_kept(tmp_path):
    for command in ("mistaken", "first"):
        save_environment(tmp_path, {"command": [command]})
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "valid/x": 1.0}\n{"step": 2, "train/loss": 1.0}\n')
    save_environment(tmp_path, {"command": ["second"]})
    kept = json.loads((tmp_path / "environment.json").read_text())
    assert kept["command"] == ["first"] and kept["processes"] == 1 and sum(kept["devices"].values()) == 8


def test_the_durations_of_commands_add_up_and_memory_is_the_largest(tmp_path, monkeypatch):
    save_usage(tmp_path, 0.0)  # which does nothing without a file
    save_environment(tmp_path, {"command": ["first"]})
    peaks = iter([3 * 2**30, 2**30])
    monkeypatch.setattr(run_folder, "_peak_memory", lambda: next(peaks))
    for seconds in (100, 50):
        save_usage(tmp_path, time.perf_counter() - seconds)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["usage"] == {"seconds": pytest.approx(150, abs=2), "memory": 3 * 2**30}
    assert environment["command"] == ["first"]


def test_the_commit_of_a_file_that_git_tracks(tmp_path):
    def git(*arguments):
        author = ["-c", "user.name=n", "-c", "user.email=e@x"]
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    for name in ("tracked.py", "other.py"):
        (tmp_path / name).write_text("1")
    assert source_commit(tmp_path / "tracked.py") == ""
    git("init")
    git("add", "tracked.py")
    git("commit", "--message=first")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert source_commit(tmp_path / "tracked.py") == commit
    assert source_commit(tmp_path / "other.py") == ""
    (tmp_path / "tracked.py").write_text("2")
    assert source_commit(tmp_path / "tracked.py") == f"{commit}-dirty"


def test_a_key_added_later_is_off_in_older_runs():
    old = {"batch_size": 8, "data": {"source": "a"}}
    for off in (False, 0, "", []):
        new = {"batch_size": 8, "data": {"source": "a", "later": off}}
        assert differences(old, new) == differences(new, old) == []
    on = {"batch_size": 8, "data": {"source": "a", "later": True}}
    assert differences(old, on) == ["data.later: None before, True now"]
    assert differences(new, on) == ["data.later: [] before, True now"]
    assert differences({"batch_size": 8, "data": {"source": ""}}, {"batch_size": 0, "data": {"source": ""}}) == [
        "batch_size: 8 before, 0 now"
    ]


def test_a_key_added_later_has_its_earlier_value_in_older_runs():
    for key, value in run_folder._ADDED_LATER.items():
        values = ({}, {key: value}, {key: 0.25}, {key: type(value)()})
        old, same, other, off = (traverse_util.unflatten_dict({"old.key": 1, **each}, sep=".") for each in values)
        assert differences(old, same) == differences(same, old) == []
        assert differences(old, other) == differences(same, other) == [f"{key}: {value!r} before, 0.25 now"]
        assert lasting(same) == lasting(old)
        if value:  # then a value that is off is a change
            assert len(differences(old, off)) == len(differences(off, old)) == len(differences(same, off)) == 1
            assert without_off(off) != without_off(old) == without_off(same)
    seen = set()
    for name in ("bert_pretraining", "bertsum_abs", "classification", "question_answering", "tagging", "translation"):
        variant = "base" if name == "bert_pretraining" else "tiny"
        tree = importlib.import_module(f"bertjax.configs.{name}").get_config(variant).to_dict()
        values = traverse_util.flatten_dict(tree, sep=".")
        seen |= values.items() & run_folder._ADDED_LATER.items()
        always = {*run_folder._KEPT, *run_folder._NOT_ADDED.get(name, ())}
        assert lasting(tree).keys() & run_folder._ADDED_LATER.keys() <= always
    unseen = dict(run_folder._ADDED_LATER.items() - seen)
    assert unseen.keys() - {*run_folder._KEPT} == {"data.row_lengths"}, "unset"


def test_older_runs_have_many_row_lengths():
    unset, new = {"data": {"row_lengths": None}}, {"data": {"row_lengths": (16, 64)}}
    assert run_folder.with_recorded(unset, {}) == unset
    assert run_folder.with_recorded(unset, {"data": {"seq_len": 64}}) == {"data": {"row_lengths": ()}}
    assert run_folder.with_recorded(unset, new) == run_folder.with_recorded(new, {"data": {}}) == new


def test_a_run_keeps_the_draws_of_its_validation_rows():
    new, older, other = ({"data": {"valid_seed": seed}} for seed in (0, None, 5))
    assert run_folder.with_recorded(new, {}) == new
    assert run_folder.with_recorded(new, {"data": {}}) == older
    assert run_folder.with_recorded(new, other) == other
    assert run_folder.with_recorded(new, other, ["data.valid_seed"]) == new
    assert differences(new, other) == [] and without_off(new) == without_off({"data": {}})
    assert run_folder.with_recorded({"data": {}}, other) == {"data": {}}, "another experiment"


@pytest.mark.parametrize("experiment", ["bert_pretraining", "replaced_tokens", "bertsum_ext", "bertsum_abs"])
@pytest.mark.parametrize(("key", "before"), [("normalization", "bert"), ("character_coverage", 0.0)])
def test_a_run_trains_the_vocabulary_that_it_started_with(experiment, key, before):
    new = importlib.import_module(f"bertjax.configs.{experiment}").get_config("tiny").data[key]
    assert new == {"normalization": "nfc", "character_coverage": 0.9999}[key]
    config = {"experiment": experiment, "data": {key: new}}
    assert run_folder.with_recorded(config, {"data": {}})["data"] == {key: before}
    assert run_folder.with_recorded(config, {"data": {}}, [f"data.{key}"]) == config
    of_translation = {**config, "experiment": "translation"}
    assert run_folder.with_recorded(of_translation, {"data": {}}) == of_translation


def test_translation_always_had_positions_and_tied_output():
    tree = importlib.import_module("bertjax.configs.translation").get_config("tiny").to_dict()
    assert {"model.positions", "model.tie_output"} <= lasting(tree).keys()
