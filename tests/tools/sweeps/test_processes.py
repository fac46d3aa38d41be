"""Runs in separate processes: their order, their shares of the machine, and failures."""

import json
import os
import signal
import sys
import textwrap
import types
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.tools.sweeps import processes
from bertjax.tools.sweeps.expansion import Key, Run
from bertjax.tools.sweeps.running import StoppedError
from tests.tiny import check_message as check
from tests.tools.sweeps import made

# Replaces launch.py: writes a finished run with its arguments, or acts as the name of its stage says.
PROGRAM = """
import json, os, pathlib, signal, sys, time
flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
folder = pathlib.Path(flags["workdir"])
folder.mkdir(parents=True)
if "fail" in folder.name:
    print("error: this: got that", "some more", sep="\\n")
    sys.exit(1)
if "wait" in folder.name:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    (folder / "waits").touch()
    time.sleep(60)
if "idle" in folder.name:
    sys.exit(0)
(folder / "config.json").write_text('{"num_steps": 1}')
(folder / "checkpoints" / "1").mkdir(parents=True)
time.sleep(0.2)  # in which the share has been set
given = {"cores": sorted(os.sched_getaffinity(0)), "devices": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
(folder / "given.json").write_text(json.dumps({**flags, **given, "began": time.time()}))
(folder / "metrics.jsonl").write_text('{"step": 1, "valid/f1": 0.5}')
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS_BETWEEN_LOOKS", 0.02)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "launch.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def run_of(workdir: Path, name: str, needs: str = "") -> Run:
    before = workdir / "runs" / needs if needs else None
    return Run(workdir / "runs" / name, ("--config=x",), {}, before, (Key(name, "train", 0),), ("valid/f1",))


def chain(workdir, *names):
    """Runs in which "b<a" means that "b" needs "a"."""
    return [run_of(workdir, *name.split("<")) for name in names]


class Job:
    """A job that is over after a number of checks."""

    going = 0

    def __init__(self, run, log, error=""):
        self._run, self._left, self._log, self._error = run, 3, log, error
        Job.going += 1
        log.append((run.name, Job.going))

    def is_over(self):
        self._left -= 1
        if self._left == 0:
            Job.going -= 1
            if not self._error:
                made.write_run(self._run.folder, {"valid/f1": 0.5})
        return self._left <= 0

    def stop(self):
        self._left = min(self._left, 2)
        self._log.append((self._run.name, "stopped"))

    def error(self):
        return self._error


def test_stages_wait_for_the_runs_they_start_from(tmp_path):
    log = []
    runs = chain(tmp_path, "a", "b", "c<a", "d<b", "e<c")
    ended = list(processes.in_jobs(runs, lambda run, slot: Job(run, log), 2))
    assert [name for name, _ in log] == ["a", "b", "c", "d", "e"]
    assert max(going for _, going in log) == 2
    assert [one.run.name for one in ended] == ["a", "b", "c", "d", "e"]
    assert not any(one.error for one in ended)


def test_a_failure_stops_only_dependent_runs(tmp_path):
    log = []
    runs = chain(tmp_path, "a", "b<a", "c<b", "d")
    ended = processes.in_jobs(runs, lambda run, slot: Job(run, log, "bad" if run.name == "a" else ""), 1)
    assert {one.run.name: one.error for one in ended} == {
        "a": "bad",
        "b": "not started, because a failed",
        "c": "not started, because b failed",
        "d": "",
    }
    assert [name for name, _ in log] == ["a", "d"]


def test_finished_runs_are_not_started(tmp_path):
    log = []
    made.write_run(tmp_path / "runs" / "a", {"valid/f1": 0.5})
    made.write_run(tmp_path / "runs" / "b", {"valid/loss": 0.5})  # lacks a metric
    ended = list(processes.in_jobs(chain(tmp_path, "a", "b", "c<a"), lambda run, slot: Job(run, log), 1))
    assert [name for name, _ in log] == ["b", "c"]
    assert sorted(one.run.name for one in ended) == ["a", "b", "c"]


def test_an_unexpected_error_stops_the_jobs(tmp_path):
    log = []

    def start(run, slot):
        if run.name == "b":
            raise RuntimeError("a bug")
        return Job(run, log)

    with pytest.raises(RuntimeError, match="a bug"):
        list(processes.in_jobs(chain(tmp_path, "a", "b"), start, 2))
    assert log[-1] == ("a", "stopped")


def test_workers_use_their_shares(tmp_path, program, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    workers = processes.Workers(2, program, tmp_path / "logs")
    runs = chain(tmp_path, "a", "b", "c<a")
    assert not any(one.error for one in processes.in_jobs(runs, workers, 2))
    given = [json.loads((run.folder / "given.json").read_text()) for run in runs]
    assert [one["devices"] for one in given[:2]] == ["4", "5"]
    assert [one["cores"] for one in given[:2]] == ([cores[0::2], cores[1::2]] if len(cores) > 1 else [cores, cores])
    assert given[2]["began"] > given[0]["began"]
    assert given[0]["config"] == "x" and given[0]["distributed"] == "off"
    assert Path(given[0]["workdir"]) == runs[0].folder


def test_the_last_error_of_a_worker_is_reported(tmp_path, program):
    workers = processes.Workers(1, program, tmp_path / "logs")
    ended = {one.run.name: one.error for one in processes.in_jobs(chain(tmp_path, "fail", "idle", "a"), workers, 1)}
    assert ended == {"fail": "this: got that", "idle": "it ended before its last step", "a": ""}
    assert (tmp_path / "logs" / "fail.txt").read_text() == "error: this: got that\nsome more\n"


def test_errors_of_an_earlier_start_are_not_reported(tmp_path, program):
    workers = processes.Workers(1, program, tmp_path / "logs")
    first, again = ([one.error for one in processes.in_jobs(chain(tmp_path, "fail"), workers, 1)] for _ in range(2))
    assert first == ["this: got that"]
    assert again[0].startswith("FileExistsError")  # because the folder exists now


def test_sigterm_is_passed_on(tmp_path, program, monkeypatch):
    workers = processes.Workers(2, program, tmp_path / "logs")
    looks = []

    def look(seconds):
        looks.append(seconds)
        if len(looks) > 5 and (tmp_path / "runs" / "wait" / "waits").exists():
            os.kill(os.getpid(), signal.SIGTERM)
            monkeypatch.setattr(processes.time, "sleep", sleep)
        sleep(seconds)

    sleep = processes.time.sleep
    monkeypatch.setattr(processes.time, "sleep", look)
    with pytest.raises(StoppedError):
        list(processes.in_jobs(chain(tmp_path, "wait", "b<wait"), workers, 2))
    assert not (tmp_path / "runs" / "b").exists()


@pytest.mark.parametrize(
    ("count", "cores", "devices", "expected"),
    [
        (1, [0, 1], ["0"], [({0, 1}, ("0",))]),
        (2, [0, 1, 2, 3], [], [({0, 2}, ()), ({1, 3}, ())]),
        (3, [0, 1], ["0"], [({0, 1}, ("0",))] * 3),
        (2, [], ["0", "1", "2"], [(set(), ("0", "2")), (set(), ("1",))]),
    ],
)
def test_shares_of_a_machine(count, cores, devices, expected):
    assert [(set(share.cores), share.devices) for share in processes.shares(count, cores, devices)] == expected


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", ""),
        ("a\n\nb\n", "b"),
        ("x\nerror: a: got b\nlater\n", "a: got b"),
        ("Traceback\nValueError: x", "ValueError: x"),
    ],
)
def test_last_error(text, last):
    assert processes.last_error(text) == last


# Jobs of submitit.


@pytest.mark.slow
def test_local_jobs_of_submitit(tmp_path, program):
    pytest.importorskip("submitit")
    cluster = processes.Cluster("local", {"timeout_min": 2}, program, tmp_path / "jobs")
    ended = processes.in_jobs(chain(tmp_path, "a", "b<a", "fail", "c<fail"), cluster, 2)
    errors = {one.run.name: one.error for one in ended}
    assert (errors["a"], errors["b"], errors["c"]) == ("", "", "not started, because fail failed")
    assert errors["fail"] == "this: got that"
    given = [json.loads((tmp_path / "runs" / name / "given.json").read_text()) for name in "ab"]
    assert given[1]["began"] > given[0]["began"]


class _Executor:
    def __init__(self, folder, cluster):
        self.parameters, self.submitted = {}, []

    def update_parameters(self, **parameters):
        if "nonsense" in parameters:
            raise NameError("nonsense is no parameter")
        self.parameters |= parameters

    def submit(self, function):
        self.submitted.append(function)
        return types.SimpleNamespace(job_id="77", done=lambda: True, exception=lambda: None)


@pytest.fixture
def slurm(monkeypatch):
    """A submitit without jobs."""
    module = types.ModuleType("submitit")
    module.AutoExecutor, module.jobs = _Executor, {}
    module.helpers = types.SimpleNamespace(CommandFunction=lambda command, cwd: command)
    module.SlurmJob = lambda folder, job_id: module.jobs[job_id]
    monkeypatch.setitem(sys.modules, "submitit", module)
    return module


def test_jobs_of_slurm_are_commands(tmp_path, program, slurm):
    cluster = processes.Cluster("slurm", {"slurm_partition": "gpu"}, program, tmp_path / "jobs")
    cluster(run_of(tmp_path, "a"), 0)
    executor = cluster._executor
    assert executor.parameters == {"timeout_min": 1440, "slurm_partition": "gpu", "name": "a"}
    assert executor.submitted == [[sys.executable, str(program), "--config=x", f"--workdir={tmp_path / 'runs' / 'a'}"]]


@pytest.mark.parametrize("is_over", [True, False])
def test_an_active_job_is_not_submitted_again(tmp_path, program, slurm, is_over):
    cluster = processes.Cluster("slurm", {}, program, tmp_path / "jobs")
    cluster(run_of(tmp_path, "a"), 0)
    slurm.jobs["77"] = types.SimpleNamespace(done=lambda force_check=False: is_over)
    again = processes.Cluster("slurm", {}, program, tmp_path / "jobs")
    job = again(run_of(tmp_path, "a"), 0)
    assert len(again._executor.submitted) == is_over
    assert is_over or not job.is_over()


def test_an_unknown_parameter_of_submitit(tmp_path, program, slurm):
    with pytest.raises(UserError) as error:
        processes.Cluster("slurm", {"nonsense": 1}, program, tmp_path / "jobs")
    check(f"error: {error.value}", "--backend=slurm", "NameError", "parameters", "--slurm=NAME")


def test_without_submitit(tmp_path, program, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError) as error:
        processes.Cluster("slurm", {}, program, tmp_path / "jobs")
    check(f"error: {error.value}", "--backend=slurm", "no submitit", "the extra slurm", "pip ")
