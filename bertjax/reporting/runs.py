"""What a run left in its folder, for those who draw it."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's config and figures.

    Attributes:
      folder: where it is.
      config: its `config.json`.
      records: the lines of its `metrics.jsonl`, in order; each has a "step".
    """

    folder: Path
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def objective(self) -> str:
        """What its loss of predicted tokens is called: "masked_lm" or "causal_lm"."""
        return self.config.get("objective", "masked_lm")

    @property
    def num_steps(self) -> int:
        """The last step that was logged."""
        return max(int(record["step"]) for record in self.records)

    def series(self, name: str) -> list[tuple[int, float]]:
        """The figure of that name at each step that has it."""
        return [(int(record["step"]), record[name]) for record in self.records if name in record]

    def tokens_seen(self) -> list[tuple[int, float]]:
        """The tokens that the run was trained on up to each step, padding aside; of an encoder-decoder, the target's.

        By the pace in each window. One without a pace (the first, if it is one step long) counts as the one after it.
        """
        paced = [
            (int(record["step"]), record["train/tokens_per_second"] * record["train/step_seconds"])
            for record in self.records
            if "train/tokens_per_second" in record and "train/step_seconds" in record
        ]
        seen, before, total = [(0, 0.0)], 0, 0.0
        for step, tokens_per_step in paced:
            total += (step - before) * tokens_per_step
            before = step
            seen.append((step, total))
        return seen

    def seconds_trained(self) -> list[tuple[int, float]]:
        """The seconds of training up to each step, evaluation and saving aside; paced as `tokens_seen`."""
        found, before, total = [(0, 0.0)], 0, 0.0
        for step, seconds in self.series("train/step_seconds"):
            total += (step - before) * seconds
            before = step
            found.append((step, total))
        return found

    @property
    def is_finished(self) -> bool:
        """Whether the last update of the config is logged."""
        return self.num_steps >= (self.config.get("num_steps") or math.inf)

    def final_metrics(self) -> dict[str, float]:
        """The validation metrics of the evaluation that `checkpoint.final` selects, and the last test metrics.

        That evaluation is the best one by `checkpoint.best_metric` if `checkpoint.final` is "best", else the last.
        """
        evaluated = [record for record in self.records if record["step"] > 0 and _of_split(record, "valid/")]
        settings = self.config.get("checkpoint") or {}
        best: str = settings.get("best_metric") or ""
        scored = [record for record in evaluated if math.isfinite(record.get(best, math.nan))]
        if settings.get("final") == "best" and scored:
            choose = min if settings.get("best_mode") == "min" else max
            evaluated = [choose(scored, key=lambda record: record[best])]
        tests = {name: value for name, (_, value) in self.last_figures().items() if name.startswith("test/")}
        return {**(_of_split(evaluated[-1], "valid/") if evaluated else {}), **tests}

    def levels(self) -> dict[str, float]:
        """The validation metrics that are logged at step 0 alone, without their split: baselines."""
        found = {name for record in self.records if record["step"] > 0 for name in record}
        first = [record for record in self.records if record["step"] == 0]
        names = [(name, value) for record in first for name, value in _of_split(record, "valid/").items()]
        return {name.removeprefix("valid/"): value for name, value in names if name not in found}

    def last_figures(self) -> dict[str, tuple[int, float]]:
        """Each metric's last value, and the step it is of."""
        return {
            name: (int(record["step"]), value)
            for record in self.records
            for name, value in record.items()
            if name != "step"
        }


def _of_split(record: Mapping[str, Any], split: str) -> dict[str, float]:
    return {name: value for name, value in record.items() if name.startswith(split)}


def named(arguments: Sequence[str]) -> dict[str, Path]:
    """Folders by the names of the command line, NAME=FOLDER, or by their own. Raises UserError if two have one name."""
    found: dict[str, Path] = {}
    for argument in arguments:
        name, _, folder = argument.partition("=")
        if not (name and folder) or Path(argument).exists():  # whose own name has a = in it, perhaps
            name, folder = Path(argument).name, argument
        if name in found:
            got, expected = f"{found[name]} and {folder}, both as {name}", "a name for each run"
            raise UserError("arguments", got=got, expected=expected, fix="write NAME=FOLDER")
        found[name] = Path(folder)
    return found


def read_run(folder: Path) -> Run:
    """Reads a run, which may be under way or have been killed: a last line that is not whole is left out.

    Raises:
      UserError: the folder is not a run's, has no figures yet, or has a line that was not written by a run.
    """
    log = folder / "metrics.jsonl"
    if not (folder / "config.json").exists() or not log.exists():
        raise UserError(
            f"run {folder}",
            got="no config.json with metrics.jsonl" if folder.exists() else "no such folder",
            expected="the folder of a run, --workdir of a training",
            fix="correct the path, or train first",
        )
    records = []
    for number, record in enumerate(read_lines(log, numbers=("step",)), start=1):
        for name, value in record.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                got, fix = f"{value!r} for {name}", "delete the line"
                raise UserError(f"{log}, line {number}", got=got, expected="numbers", fix=fix)
        records.append(record)
    if not records:
        raise UserError(f"run {folder}", got="no figures yet", expected="at least one", fix="wait for the first step")
    return Run(folder, read_object(folder / "config.json"), records)


def read_lines(path: Path, *, numbers: Sequence[str] = (), names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The objects of a file with one a line, but for a last line that is not whole.

    Args:
      path: the file.
      numbers: keys that each has, of numbers.
      names: other keys that each has.
    Raises:
      UserError: a line of anything else, by its number.
    """
    lines = path.read_bytes().splitlines()
    for place, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            for name in numbers:
                float(record[name])
            for name in names:
                record[name]
        except (ValueError, KeyError, TypeError, RecursionError):
            if place == len(lines):  # the line that was being written
                continue
            raise UserError(
                f"{path}, line {place}",
                got=repr(line[:80].decode(errors="replace")),
                expected="an object with " + " and ".join(f'"{name}"' for name in (*numbers, *names)),
                fix="delete the line",
            ) from None
        yield record


def read_object(path: Path) -> dict[str, Any]:
    """The object that a file of JSON holds. Raises UserError for anything else, such as half of one."""
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError(f"a JSON {type(found).__name__}")
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            str(path),
            got=f"a file that cannot be read ({error})",
            expected="a JSON object, as a run writes it",
            fix="copy it again from where the run was made, or delete it where the run can make it anew",
        ) from error


def continued(run: Run) -> list[Run]:
    """The runs that `run` goes on from by `init_from`, the first of them first, and `run` itself at the end.

    Published weights, and runs that have been moved away since, are where the chain begins.
    """
    chain = [run]
    while chain[0].config.get("init_from"):
        before = Path(chain[0].config["init_from"])
        if not (before / "metrics.jsonl").exists() or any(before.resolve() == r.folder.resolve() for r in chain):
            break
        chain.insert(0, read_run(before))
    return chain
