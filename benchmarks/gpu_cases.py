"""The options and the report of the benchmarks on one GPU, whose cases take turns."""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common, turns

PEAK = 989.5e12  # dense bfloat16 operations per second of an H100 or H200 (data sheet)


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
    clock: turns.Clock,
    header: Sequence[str],
    row: Callable[[Mapping[str, Any], float], list[str]],
) -> None:
    """Runs cases in turns. Writes and prints each result as soon as it is known, and a table at the end.

    Args:
      run: see `turns.take_turns`.
      cases: the fields of each case that its result repeats, and its arguments.
      args: the options of `parser`.
      clock: see `turns.take_turns`.
      header: the header of the table.
      row: returns the table row of a result and the peak.
    """
    results: list[dict[str, Any]] = []
    for index, result in turns.take_turns(run, [arguments for _, arguments in cases], args.jobs, clock):
        results.append({**cases[index][0], **result})
        print(f"{clock.used():4.0f} s  " + ", ".join(filter(None, row(results[-1], args.peak))), flush=True)
        common.write_json(args.output, {"peak": args.peak, "results": results})
    machine = next((result["machine"] for result in results if "machine" in result), "no case has run")
    print(f"\n{machine}; bfloat16\n\n" + common.table(header, [row(result, args.peak) for result in results]))
    if args.smoke and any("error" in result for result in results):
        sys.exit("error: a case failed")
