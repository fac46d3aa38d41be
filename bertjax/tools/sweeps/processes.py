"""Runs in separate processes: workers on this machine, which share its cores and devices, or cluster jobs."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bertjax.errors import UserError
from bertjax.tools.sweeps.expansion import Run
from bertjax.tools.sweeps.running import Ended, StoppedError, dependency_failed, is_finished, is_trained
from bertjax.training.preemption import Preemption

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.5
_MINUTES = 24 * 60  # the default time limit of a SLURM job; repeating the command resumes runs that it stopped


@runtime_checkable
class Job(Protocol):
    """A run that has been started in another process."""

    def is_over(self) -> bool:
        """Returns whether its process has ended."""

    def stop(self) -> None:
        """Asks it to save a checkpoint and exit."""

    def error(self) -> str:
        """Returns its last error message; "" if it succeeded."""


class Share(NamedTuple):
    """The cores and devices that a worker may use; empty for no restriction."""

    cores: frozenset[int]
    devices: tuple[str, ...]


Start = Callable[[Run, int], Job]


def in_jobs(runs: Sequence[Run], start: Start, slots: int) -> Generator[Ended]:
    """Runs at most `slots` jobs at a time until all runs have ended.

    Args:
      runs: the runs. Finished runs are not started.
      start: starts a run in a slot.
      slots: the maximum number of jobs at a time.
    Raises:
      StoppedError: after SIGTERM or Ctrl-C, when all jobs have been stopped and have ended.
    """
    waiting = list(runs)
    going = dict[int, tuple[Run, Job]]()
    done = set[Path]()
    failed = set[Path]()
    finished = {run.folder for run in runs if is_finished(run)}
    with Preemption() as preempted:
        try:
            while waiting or going:
                for ended in [*_over(going), *_settled(waiting, failed, finished)]:
                    (failed if ended.error else done).add(ended.run.folder)
                    yield ended
                for slot in sorted(set(range(slots)) - going.keys()):
                    ready = next((run for run in waiting if run.needs is None or run.needs in done), None)
                    if ready and not preempted():
                        waiting.remove(ready)
                        _log.info("starting run %s", ready.name)
                        going[slot] = ready, start(ready, slot)
                if preempted():
                    raise StoppedError
                time.sleep(_SECONDS_BETWEEN_LOOKS if going else 0)
        finally:
            for _, job in going.values():
                job.stop()
            while not all(job.is_over() for _, job in going.values()):
                time.sleep(_SECONDS_BETWEEN_LOOKS)


def _over(going: dict[int, tuple[Run, Job]]) -> Iterator[Ended]:
    """Yields the jobs that have just ended, and frees their slots."""
    for slot, (run, job) in list(going.items()):
        if job.is_over():
            del going[slot]
            yield Ended(run, job.error() or ("" if is_trained(run.folder) else "it ended before its last step"))


def _settled(waiting: list[Run], failed: set[Path], finished: set[Path]) -> Iterator[Ended]:
    """Yields the waiting runs that are already finished or cannot start, and removes them from `waiting`."""
    for run in list(waiting):
        if run.needs in failed or run.folder in finished:
            waiting.remove(run)
            yield Ended(run, dependency_failed(run) if run.needs in failed else "")


class Workers:
    """Child processes, each with its share of the machine."""

    def __init__(self, count: int, program: Path, logs: Path) -> None:
        """Initializes with the number of workers, the path of `launch.py`, and the folder for logs."""
        self._program = program
        self._logs = logs
        self._shares = shares(count, _cores(), _devices(os.environ))

    def __call__(self, run: Run, slot: int) -> Job:
        """Starts a run with the share of a slot."""
        share = self._shares[slot]
        environment = dict(os.environ)
        if share.devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(share.devices)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{run.name}.txt"
        with log.open("a") as output:
            log_start = output.tell()
            process = subprocess.Popen(
                [sys.executable, str(self._program), "--distributed=off", *run.command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if share.cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, share.cores)  # before it starts threads
        return _Child(process, log, log_start)


class _Child:
    """Implements `Job`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, log_start: int) -> None:
        self._process = process
        self._log = log
        self._log_start = log_start

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def error(self) -> str:
        if not self._process.returncode:
            return ""
        output = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        return last_error(output) or f"exit status {self._process.returncode}"


def last_error(text: str) -> str:
    """Returns the last error in the output of `launch.py`, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]


def shares(count: int, cores: Sequence[int], devices: Sequence[str]) -> list[Share]:
    """Divides cores and devices among workers. If there are fewer than workers, every worker gets all of them.

    >>> shares(2, [0, 1, 2], ["4", "5"])
    [Share(cores=frozenset({0, 2}), devices=('4',)), Share(cores=frozenset({1}), devices=('5',))]
    """
    return [
        Share(
            frozenset(cores[number::count] if count <= len(cores) else cores),
            tuple(devices[number::count] if count <= len(devices) else devices),
        )
        for number in range(count)
    ]


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _devices(environment: Mapping[str, str]) -> list[str]:
    """Returns the NVIDIA devices that this process may use. A query to the driver would allocate device memory."""
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        return [name for name in devices.split(",") if name]
    return sorted((path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")), key=int)


class Cluster:
    """Jobs that submitit starts, each with the command of a run."""

    def __init__(self, cluster: str, parameters: Mapping[str, Any], program: Path, folder: Path) -> None:
        """Initializes submitit.

        Args:
          cluster: "slurm" or "local".
          parameters: parameters of submitit.
          program: the path of `launch.py`.
          folder: the folder for scripts and logs.
        Raises:
          UserError: if submitit or SLURM is missing, or a parameter does not exist.
        """
        backend = "--backend=slurm" if cluster == "slurm" else f"--backend=submitit_{cluster}"
        try:
            import submitit
        except ImportError as error:
            got = "no submitit"
            expected = "the extra slurm"
            fix = "pip install -e '.[slurm]'"
            raise UserError(backend, got=got, expected=expected, fix=fix) from error
        self._submitit = submitit
        self._cluster = cluster
        self._program = program
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._executor = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
            self._executor.update_parameters(**{"timeout_min": _MINUTES, **parameters})
        except Exception as error:  # submitit has several error types for invalid parameters
            raise UserError(
                backend,
                got=f"{type(error).__name__}: {error}",
                expected="a machine with SLURM, and parameters of submitit.AutoExecutor",
                fix="correct --slurm=NAME=VALUE, or choose --backend=workers",
            ) from error

    def __call__(self, run: Run, slot: int) -> Job:
        """Submits a run, unless its earlier job still exists."""
        id_file = self._folder / f"{run.name}.id"
        if self._cluster == "slurm" and id_file.exists():
            before = self._submitit.SlurmJob(self._folder / "%j", id_file.read_text())
            if not before.done(force_check=True):
                return _Submitted(before)
        command = [sys.executable, str(self._program.absolute()), *run.command]
        self._executor.update_parameters(name=run.name)
        job = self._executor.submit(self._submitit.helpers.CommandFunction(command, cwd=Path.cwd()))
        id_file.write_text(job.job_id)
        return _Submitted(job)


class _Submitted:
    """Implements `Job`."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def is_over(self) -> bool:
        return bool(self._job.done())

    def stop(self) -> None:
        self._job.cancel(check=False)

    def error(self) -> str:
        error = self._job.exception()
        output = f"{self._job.stderr() or ''}\n{self._job.stdout() or ''}"
        return "" if error is None else last_error(output) or str(error)
