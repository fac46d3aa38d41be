"""Runs the cases of a benchmark in processes of their own: they compile at the same time, and are timed in turn."""

import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import common
from bertjax.contract import TrainingTask
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig

Wait = Callable[[], None]
_POLL = 0.2  # seconds
PEAK = 989.5e12  # dense bfloat16 operations per second of an H100 or H200 (data sheet)


class Clock:
    """The used and the remaining time."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    def used(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self._began

    def left(self) -> float:
        """Returns the remaining seconds."""
        return self._seconds - self.used()


def take_turns(
    run: Callable[..., dict[str, Any]], cases: Sequence[tuple[Any, ...]], jobs: int, clock: Clock
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the index and the result of each case.

    The cases of a group of `jobs` compile at the same time. When all of them have compiled, they are timed one after
    another, so that no measurement is disturbed. When half of the time is gone, those that have compiled no longer wait
    for the others; such results have `disturbed`.

    Args:
      run: a function of a module, called in a new process with a case's arguments and a function that it must call
        before it measures, which waits for the case's turn.
      cases: the arguments of each case.
      jobs: the number of processes.
      clock: the processes are ended when no time is left.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share the device
    for first in range(0, len(cases), jobs):
        group = list(range(first, min(first + jobs, len(cases))))
        workers = {index: _Worker(run, cases[index]) for index in group if clock.left() > 0}
        half = clock.left() / 2
        try:
            while workers and clock.left() > 0:
                ready = [index for index, worker in workers.items() if worker.is_ready()]
                if ready and (len(ready) == len(workers) or clock.left() < half):
                    disturbed = {"disturbed": True} if len(ready) < len(workers) else {}
                    group.remove(ready[0])
                    yield ready[0], {**workers.pop(ready[0]).result(clock), **disturbed}
                else:
                    time.sleep(_POLL)
        finally:
            for worker in workers.values():
                worker.end()
        yield from ((index, {"skipped": "no time left"}) for index in group)


class _Worker:
    """The process of a case."""

    def __init__(self, run: Callable[..., dict[str, Any]], case: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(run, case, other))
        self._process.start()
        other.close()

    def is_ready(self) -> bool:
        """Returns whether the case waits for its turn, or has failed."""
        return self._pipe.poll()

    def result(self, clock: Clock) -> dict[str, Any]:
        """Gives the case its turn, and returns its result."""
        try:
            while clock.left() > 0:
                if self._pipe.poll(_POLL):
                    result: dict[str, Any] | None = self._pipe.recv()
                    if result is not None:
                        return result
                    self._pipe.send(None)
            return {"skipped": "no time left"}
        except (EOFError, ConnectionError):
            self._process.join()
            return {"error": f"the process ended with status {self._process.exitcode}"}
        finally:
            self.end()

    def end(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.join()


def _work(
    run: Callable[..., dict[str, Any]], case: tuple[Any, ...], pipe: multiprocessing.connection.Connection
) -> None:
    waited = False

    def wait() -> None:
        nonlocal waited
        if not waited:
            waited = True
            pipe.send(None)
            pipe.recv()

    try:
        result = run(*case, wait)
    except Exception as error:  # any library can fail; the other cases continue
        result = {"error": message(error)}
    pipe.send(result)


def message(error: Exception) -> str:
    """Returns the beginning of an error's message, as one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def compile_ahead(
    task: TrainingTask, settings: TrainingConfig, cache: Path, spec: Mapping[str, jax.ShapeDtypeStruct] | None = None
) -> float:
    """Compiles the initialization and the update on the first device. Returns the seconds.

    Args:
      task: the task.
      settings: its settings.
      cache: the folder in which the programs are kept, from which training in this process then reads them.
      spec: the shapes of the batch, one of `TrainingTask.batch_specs`; default: the first.
    """
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    began = time.perf_counter()
    mesh, optimizer, init, shapes, shardings = steps.assemble(task, settings, jax.devices()[:1])
    jax.jit(init, out_shardings=shardings).lower(steps.seed_of(settings)).compile()
    update = steps.jit_update(task, optimizer, mesh, shardings, settings)
    with jax.set_mesh(mesh):
        update.lower(shapes, dict(spec or task.batch_specs()[0]), steps.make_numbers(settings)(0, 1)).compile()
    return time.perf_counter() - began


def parser(description: str, jobs: int) -> argparse.ArgumentParser:
    """Returns the options of a benchmark whose cases take turns; `jobs` is the default number of processes."""
    options = argparse.ArgumentParser(description=description.splitlines()[0])
    options.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options.add_argument("--folder", type=Path, help="keep prepared text and compiled programs for later runs")
    options.add_argument("--cases", default="", help="only cases with one of these texts in their names: A;B")
    options.add_argument("--jobs", type=int, default=jobs, help="how many cases compile at the same time")
    options.add_argument("--seconds", type=float, default=510.0, help="no case goes on after this time")
    options.add_argument("--peak", type=float, default=PEAK, help="operations per second that count as 100 %%")
    options.add_argument("--smoke", action="store_true")
    return options


def obstacle_of(result: Mapping[str, Any]) -> str:
    """Returns why a case has no measurement, as a short cell."""
    return str(result.get("error") or result.get("skipped"))[:60]


def gibibytes(result: Mapping[str, Any]) -> str:
    """Returns the cell of the memory that a case used; the device reports no peak below an earlier one."""
    return f"{result['memory_bytes'] / 2**30:.2f}" if result.get("memory_bytes") else ""


@contextlib.contextmanager
def folder_of(args: argparse.Namespace) -> Iterator[Path]:
    """Yields the folder of `--folder`, or one that is deleted in the end."""
    with contextlib.nullcontext(args.folder) if args.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def report(
    run: Callable[..., dict[str, Any]],
    cases: Sequence[tuple[Mapping[str, Any], tuple[Any, ...]]],
    args: argparse.Namespace,
    clock: Clock,
    header: Sequence[str],
    row: Callable[[Mapping[str, Any], float], list[str]],
) -> None:
    """Runs cases in turns. Writes and prints each result after its case, and a table at the end.

    Args:
      run: see `take_turns`.
      cases: the fields of each case that its result repeats, and its arguments.
      args: the options of `parser`.
      clock: see `take_turns`.
      header: the header of the table.
      row: returns the table row of a result and the peak.
    """
    results: list[dict[str, Any]] = []
    for index, result in take_turns(run, [arguments for _, arguments in cases], args.jobs, clock):
        results.append({**cases[index][0], **result})
        print(f"{clock.used():4.0f} s  " + ", ".join(filter(None, row(results[-1], args.peak))), flush=True)
        common.write_json(args.output, {"peak": args.peak, "results": results})
    machine = next((result["machine"] for result in results if "machine" in result), "no case has run")
    print(f"\n{machine}; bfloat16\n\n" + common.table(header, [row(result, args.peak) for result in results]))
    if args.smoke and any("error" in result for result in results):
        sys.exit("error: a case failed")
