"""Reads the config and the metrics of runs, for reports."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.runs.early_stopping import find_stop

ROWS = "rows.json"  # the counts of the prepared rows


@dataclasses.dataclass(frozen=True)
class Run:
    """The config and the metrics of a run.

    Attributes:
      folder: the run's folder.
      config: the content of `config.json`.
      records: the lines of `metrics.jsonl`, in order; each has a "step".
    """

    folder: Path
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def objective(self) -> str:
        """The pretraining objective, "masked_lm" or "causal_lm", which is the prefix of its metrics."""
        return self.config.get("objective", "masked_lm")

    @property
    def num_steps(self) -> int:
        """The last step that was logged."""
        return max(int(record["step"]) for record in self.records)

    @property
    def losses_compare(self) -> bool:
        """Whether `train/loss` has the reduction and the weights of `valid/loss`; see docs/reference/metrics.md."""
        return self.config.get("experiment") != "bertsum_ext" and not self.config.get("class_weights")

    def series(self, name: str) -> list[tuple[int, float]]:
        """Returns the steps that have a metric, each with its value."""
        return [(int(record["step"]), record[name]) for record in self.records if name in record]

    def tokens_seen(self) -> list[tuple[int, float]]:
        """Returns the number of training tokens up to each step, without padding.

        For an encoder-decoder, only target tokens count. The numbers are computed from the speed in each window of the
        log. A window without a speed, such as a first window of one step, gets the speed of the next window.
        """
        paced = [
            (int(record["step"]), record["train/tokens_per_second"] * record["train/step_seconds"])
            for record in self.records
            if "train/tokens_per_second" in record and "train/step_seconds" in record
        ]
        return _totals(paced)

    def seconds_trained(self) -> list[tuple[int, float]]:
        """Returns the seconds of training up to each step, without evaluation and saving; see `tokens_seen`."""
        return _totals(self.series("train/step_seconds"))

    @property
    def is_finished(self) -> bool:
        """Whether the last update of the config is logged, or the run has stopped early."""
        return self.stopped_early or self.num_steps >= (self.config.get("num_steps") or math.inf)

    @property
    def stopped_early(self) -> bool:
        """Whether early stopping has ended the run."""
        stop = find_stop(self.config, self.records)
        return stop is not None and stop.step == self.num_steps

    def final_metrics(self) -> dict[str, float]:
        """Returns the validation metrics of `final_evaluation`, and the last test metrics."""
        tests = {name: value for name, (_, value) in self.last_metrics().items() if name.startswith("test/")}
        return {**_of_split(self.final_evaluation(), "valid/"), **tests}

    def final_evaluation(self) -> Mapping[str, Any]:
        """Returns the record of one evaluation; empty if there is none.

        It is the best by `checkpoint.best_metric` if `checkpoint.final` is "best", otherwise the last.
        """
        evaluated = [record for record in self.records if record["step"] > 0 and _of_split(record, "valid/")]
        settings = self.config.get("checkpoint") or {}
        best: str = settings.get("best_metric") or ""
        scored = [record for record in evaluated if math.isfinite(record.get(best, math.nan))]
        if settings.get("final") == "best" and scored:
            choose = min if settings.get("best_mode") == "min" else max
            return choose(scored, key=lambda record: record[best])
        return evaluated[-1] if evaluated else {}

    def levels(self) -> dict[str, float]:
        """Returns the baselines: metrics of the validation split at step 0 that are none of the model."""
        scores = self.initial_scores()
        return {name.removeprefix("valid/"): value for name, value in self._first.items() if name not in scores}

    def initial_scores(self) -> dict[str, float]:
        """Returns the validation metrics of the weights before training: those at step 0 that are also logged later."""
        updated = [record for record in self.records if record["step"] > 0]
        later = {name.partition("/")[2] for record in updated for name in record if not name.startswith("test/")}
        return {name: value for name, value in self._first.items() if name.removeprefix("valid/") in later}

    @property
    def _first(self) -> dict[str, float]:
        """The validation metrics at step 0."""
        records = (record for record in self.records if record["step"] == 0)
        return {name: value for record in records for name, value in _of_split(record, "valid/").items()}

    def last_metrics(self) -> dict[str, tuple[int, float]]:
        """Returns the last value of each metric, with its step: NAME -> (step, value)."""
        return {
            name: (int(record["step"]), value)
            for record in self.records
            for name, value in record.items()
            if name != "step"
        }


def _totals(amounts: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns the totals up to each step, from amounts per update. An amount counts for all updates since the last."""
    totals = [(0, 0.0)]
    for step, amount in amounts:
        before, total = totals[-1]
        totals.append((step, total + (step - before) * amount))
    return totals


def _of_split(record: Mapping[str, Any], split: str) -> dict[str, float]:
    return {name: value for name, value in record.items() if name.startswith(split)}


def named(arguments: Sequence[str]) -> dict[str, Path]:
    """Returns folders by name, from arguments NAME=FOLDER or FOLDER. Raises UserError if two have the same name."""
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, _, folder = argument.partition("=")
        if not (name and folder) or Path(argument).exists():  # the folder's name may contain "="
            name = Path(argument).name
            folder = argument
        if name in folders:
            got = f"{folders[name]} and {folder}, both named {name}"
            expected = "a different name for each run"
            raise UserError("arguments", got=got, expected=expected, fix="write NAME=FOLDER")
        folders[name] = Path(folder)
    return folders


def read_run(folder: Path) -> Run:
    """Reads a run, which may still be training or may have been killed. An incomplete last line is ignored.

    Raises:
      UserError: if the folder is not a run, has no metrics yet, or has a malformed line.
    """
    log = folder / "metrics.jsonl"
    if not (folder / "config.json").exists() or not log.exists():
        raise UserError(
            f"run {folder}",
            got="no config.json with metrics.jsonl" if folder.exists() else "no such folder",
            expected="the folder of a run",
            fix="correct the path, or train first",
        )
    records = []
    for number, record in enumerate(read_lines(log, numbers=("step",)), start=1):
        for name, value in record.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                got, fix = f"{value!r} for {name}", "delete the line"
                raise UserError(f"{log}, line {number}", got=got, expected="a number", fix=fix)
        records.append(record)
    if not records:
        raise UserError(
            f"run {folder}", got="no metrics yet", expected="at least one", fix="wait until the run has logged metrics"
        )
    return Run(folder, read_object(folder / "config.json"), records)


def read_lines(path: Path, *, numbers: Sequence[str] = (), names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON lines file. An incomplete last line is ignored.

    Args:
      path: the file.
      numbers: keys that every object must have, with numbers as values.
      names: other keys that every object must have.
    Raises:
      UserError: if a line is malformed. The message has the number of the line.
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
    """Returns the object in a JSON file. Raises UserError if the file is unreadable, incomplete or not an object."""
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(f"a JSON {type(value).__name__}")
        return value
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            str(path),
            got=f"a file that cannot be read ({error})",
            expected="a JSON object",
            fix="copy the file again, or delete it if the run can write it again",
        ) from error


def continued(run: Run) -> list[Run]:
    """Returns the chain of runs that `run` starts from by `init_from`, the earliest first, followed by `run`.

    The chain begins after published weights, after runs whose folder is gone, and after runs of another experiment.
    """
    chain = [run]
    while chain[0].config.get("init_from"):
        folder = Path(chain[0].config["init_from"])
        if not (folder / "metrics.jsonl").exists() or any(folder.resolve() == r.folder.resolve() for r in chain):
            break
        previous = read_run(folder)
        if previous.config.get("experiment") != run.config.get("experiment"):
            break
        chain.insert(0, previous)
    return chain
