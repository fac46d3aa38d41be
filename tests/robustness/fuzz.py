"""Fuzzing: damages files at random, and reads them with every data reader and every task that predicts.

    python -m tests.robustness.fuzz --minutes=60 --seed=0

Each case must end with a success whose results are right and in the right order, or with a UserError of one line. An
independent reader (`fuzz_checks`) decides what is right: the number of rows, and that undamaged rows have the same
results as before. All cases run in one process with small random models. Each finding is printed with its case, which
`--case=CASE` repeats. At the end, a table of outcomes is printed. The exit status is 1 after a finding.
"""

import argparse
import collections
import contextlib
import dataclasses
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from bertjax import model
from bertjax.errors import as_user_error
from tests.robustness import fuzz_mutations, fuzz_predictions, fuzz_targets, small_runs
from tests.robustness.fuzz_checks import fault
from tests.robustness.fuzz_predictions import CachedModels
from tests.robustness.fuzz_targets import Target

_MOST_SECONDS = 300  # the limit for one case; a longer one is a finding
_MOST_MESSAGE = 4000
OUTCOMES = ("success", "refused", "traceback", "wrong success", "long or split message", "too slow")


class TooSlowError(Exception):
    """A case took too long."""


@dataclasses.dataclass
class Fuzz:
    """The fuzzing targets, and their results for undamaged files.

    Attributes:
      targets: the targets, by name.
      known: for each target, the results of the parts of its files, by their keys.
      folder: the folder for files.
    """

    targets: dict[str, Target]
    known: dict[str, dict[Any, Any]]
    folder: Path

    def case(self, name: str) -> tuple[str, str]:
        """Runs a case "SEED/TARGET/NUMBER". Returns its outcome, and the description of a finding."""
        rng, target = random.Random(name), self.targets[name.split("/")[1]]
        files, is_packed = self._damaged(target, rng)
        skips = rng.random() < 0.5
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        for path, content in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content)
        try:
            with limited():
                results = target.read(place, skips)
        except TooSlowError:
            return "too slow", f"more than {_MOST_SECONDS} s"
        except Exception as error:
            return outcome_of(error)
        wrong = "" if is_packed else self._fault(target, files, results, skips)
        return ("wrong success", f"{wrong} (skips: {skips})") if wrong else ("success", "")

    def _damaged(self, target: Target, rng: random.Random) -> tuple[dict[str, bytes], bool]:
        """Returns the target's files with one of them damaged, and whether that file is compressed (not checked)."""
        files = dict(target.files)
        name = rng.choice(sorted(files))
        is_json = name.endswith((".json", ".jsonl", "METADATA", ".zarray"))
        content = fuzz_mutations.mutate(files[name], rng, is_json)
        if target.packs and rng.random() < 0.1:
            del files[name]
            packed = fuzz_mutations.damage_gzip(content, rng)
            return {**files, f"{name}.gz": packed}, True
        return {**files, name: content}, False

    def _fault(self, target: Target, files: dict[str, bytes], results: list[Any], skips: bool) -> str:
        parts = target.split(files)
        if parts is None:
            return ""
        known = self.known[target.name]
        if skips and target.drops:
            parts = [part._replace(least=0) for part in parts]
            known = known if target.repeats else {}  # a bad part's id can equal another part's id
        elif skips and not target.repeats:
            known = {}
        return fault(parts, known, results)


def outcome_of(error: Exception) -> tuple[str, str]:
    """Returns the outcome of an error."""
    told = as_user_error(error, "the output")
    if told is None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "bertjax" in frame.filename]
        where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*ours[-2:], last)]
        return "traceback", f"{type(error).__name__}: {str(error)[:200]!r} at {', '.join(where)}"
    message = str(told)
    if "\n" in message or "\r" in message or len(message) > _MOST_MESSAGE:
        return "long or split message", f"{len(message)} characters: {message[:200]!r}"
    return "refused", ""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def prepare(folder: Path, runs: Path, names: str) -> Fuzz:
    """Trains the runs that predictions need, and reads all undamaged files once.

    Args:
      folder: the folder for files.
      runs: the folder for runs; existing runs are used.
      names: parts of target names, separated by commas; "" for all targets.
    """
    wanted = [name for name in names.split(",") if name]
    targets = list(fuzz_targets.readers())
    if not wanted or any("predict" in name or "of" in name or "folder" in name or "vocab" in name for name in wanted):
        if not (runs / "exported").exists():
            runs.mkdir(parents=True, exist_ok=True)
            small_runs.write_vocabulary(runs / "vocab.txt")
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda name: small_runs.train(name, runs, seed=0), small_runs.KINDS))
            small_runs.export("classification", runs, runs / "exported")
        targets += [*fuzz_predictions.predictions(runs, folder), *fuzz_predictions.folders(runs, folder)]
    targets = [t for t in targets if not wanted or any(name in t.name for name in wanted)]
    fuzz = Fuzz({target.name: target for target in targets}, {}, folder)
    for target in targets:
        fuzz.known[target.name] = known(target, folder / "case")
    return fuzz


def known(target: Target, place: Path) -> dict[Any, Any]:
    """Returns the results of a target's parts without damage."""
    shutil.rmtree(place, ignore_errors=True)
    for path, content in target.files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    results, parts = target.read(place, False), target.split(target.files)
    assert results, f"{target.name}: no results"
    if parts is None:
        return {}
    assert len(parts) == len(results) and all(part.most == 1 for part in parts), f"{target.name}: other parts"
    return dict(zip([part.key for part in parts], results, strict=True))


def table(counts: collections.Counter[tuple[str, str]]) -> list[str]:
    """Formats the counts of each target and outcome as the lines of a table."""
    rows = ["| reader | cases | " + " | ".join(OUTCOMES) + " |", "| --- |" + " --- |" * (len(OUTCOMES) + 1)]
    for name in [*sorted({name for name, _ in counts}), "all"]:
        each = [sum(n for (t, o), n in counts.items() if o == outcome and name in (t, "all")) for outcome in OUTCOMES]
        rows.append(f"| {name} | {sum(each)} | " + " | ".join(map(str, each)) + " |")
    return rows


def main() -> None:
    """Runs one case, or random cases until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="parts of target names, separated by commas")
    parser.add_argument("--runs", default="", help="a folder to keep the small runs in for the next time")
    parser.add_argument("--case", default="", help="SEED/TARGET/NUMBER of a finding")
    args = parser.parse_args()
    logging.disable(logging.ERROR)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with mock.patch.object(model, "Model", CachedModels(folder)):
            fuzz = prepare(folder, Path(args.runs or folder), args.case.split("/")[1] if args.case else args.only)
            if args.case:
                print(*fuzz.case(args.case), sep=": ")
                return
            _run(fuzz, args.seed, args.minutes, counts)
    print("\n".join(table(counts)))
    sys.exit(any(outcome not in OUTCOMES[:2] for _, outcome in counts))


def _run(fuzz: Fuzz, seed: int, minutes: float, counts: collections.Counter[tuple[str, str]]) -> None:
    """Runs cases until the time is over. Prints findings, but at most three of the same kind."""
    names, shares = zip(*((target.name, target.share) for target in fuzz.targets.values()), strict=True)
    rng, until = random.Random(seed), time.monotonic() + 60 * minutes
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    number, last = 0, time.monotonic()
    while time.monotonic() < until:
        case = f"{seed}/{rng.choices(names, shares)[0]}/{number}"
        number += 1
        began = time.monotonic()
        outcome, told = fuzz.case(case)
        took = time.monotonic() - began
        counts[case.split("/")[1], outcome] += 1
        kind = (case.split("/")[1], told.split(" at ")[-1] if outcome == "traceback" else outcome)
        seen[kind] += 1
        if outcome not in OUTCOMES[:2] and seen[kind] <= 3:
            print(f"{outcome}, case {case!r}, {took:.1f} s: {told}", flush=True)
        if time.monotonic() - last > 300:
            last = time.monotonic()
            print(f"{number} cases", flush=True)


if __name__ == "__main__":
    main()
