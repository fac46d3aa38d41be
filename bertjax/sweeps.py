"""Runs that belong together: one config with several seeds, and what their figures have in common."""

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax import checkpoints
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.reporting.runs import Run, read_run
from bertjax.training import distributed, modes, streams

_log = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """What a run is judged by."""

    step: int  # of its best checkpoint, or of its last evaluation where nothing tells the best
    figures: Mapping[str, float]  # "valid/NAME"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure over several seeds.

    Attributes:
      seeds: the value of each seed that has it.
      mean: of these.
      std: their sample standard deviation (n - 1); None for a single one.
    """

    seeds: Mapping[int, float]
    mean: float
    std: float | None


def parse_seeds(given: str) -> tuple[int, ...]:
    """The seeds in a list such as "0,1,2". Raises UserError unless each is a number of its own, 0 or more."""
    parts = [part.strip() for part in given.split(",")]
    seeds = tuple(int(part) for part in parts if part.isascii() and part.isdecimal())
    if len(seeds) < len(parts) or len(set(seeds)) < len(seeds):
        raise UserError(
            "--seeds",
            got=repr(given),
            expected="different whole numbers, 0 or more, separated by commas",
            fix="write for example --seeds=0,1,2",
        )
    return seeds


def train_seeds(
    request: modes.Request,
    given: dict[str, Any] | None,
    find: Callable[[str], modes.Experiment],
    seeds: str,
    overridden: Sequence[str],
) -> modes.Outcome:
    """Trains a config once for each seed, one after another, in `seed0`, ... inside the folder; then sums up.

    Each is a run as any other. One that is finished is left as it is, one that was interrupted goes on. The summary
    is written to `seeds.json` in the folder when all are done, and to the output as a table.

    Args:
      request: what for; its folder is that of all.
      given: the config.
      find: the experiment of a name.
      seeds: the list.
      overridden: the keys of the config that the command line sets.
    Raises:
      UserError: a bad list, another mode than train, a seed in the config too, or a folder that holds a run of
        another config, all before anything is trained; or whatever stops a run.
    """
    numbers = parse_seeds(seeds)
    _check_alone(request.mode, overridden)
    config = modes.config_of(request, given)
    folders = {seed: Path(request.workdir) / f"seed{seed}" for seed in numbers}
    runs = [
        (dataclasses.replace(request, workdir=str(folder)), {**config, "seed": seed})
        for seed, folder in folders.items()
    ]
    for run in runs:
        modes.check_folder(*run, find)
    for number, (one, own) in enumerate(runs, start=1):
        _log.info("seed %d, %d of %d, in %s", own["seed"], number, len(runs), one.workdir)
        if modes.run(one, own, find) is modes.Outcome.STOPPED:
            return modes.Outcome.STOPPED
    distributed.on_first_process(lambda: _sum_up(request, folders))
    return modes.Outcome.DONE


def _check_alone(mode: str, overridden: Sequence[str]) -> None:
    if mode != "train":
        fix = "leave it out, and name the folder of one seed as --workdir"
        raise UserError("--seeds", got=f"--mode={mode} beside it", expected="--mode=train", fix=fix)
    if "seed" in overridden:
        fix = "leave out one of the two"
        raise UserError("--seeds", got="--config.seed beside it", expected="one of the two", fix=fix)


def _sum_up(request: modes.Request, folders: Mapping[int, Path]) -> None:
    evaluations = {seed: evaluation(read_run(folder)) for seed, folder in folders.items()}
    summary = summarize(evaluations)
    with completed(Path(request.workdir) / "seeds.json") as partial:
        partial.write_text(json.dumps(as_json(evaluations, summary), indent=2, allow_nan=False) + "\n")
    with streams.open_output(request.output, is_writer=True) as output:
        output.write(table(evaluations, summary))


def evaluation(run: Run) -> Evaluation:
    """The held-out figures of a run's best checkpoint, or else its last ones.

    Raises:
      UserError: a run that has not been evaluated.
    """
    evaluated = [record for record in run.records if record["step"] > 0 and _held_out(record)]
    if not evaluated:
        expected, fix = "an evaluation", "go on with the run"
        raise UserError(f"run {run.folder}", got="no held-out figures", expected=expected, fix=fix)
    best = checkpoints.best_step(run.folder)
    step = int(evaluated[-1]["step"]) if best is None else best
    figures = {name: value for record in evaluated if record["step"] == step for name, value in _held_out(record)}
    return Evaluation(step, figures)


def _held_out(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in record.items() if name.startswith("valid/")]


def summarize(evaluations: Mapping[int, Evaluation]) -> dict[str, Figure]:
    """Each held-out figure over the seeds.

    >>> summarize({0: Evaluation(9, {"valid/f1": 0.5}), 1: Evaluation(6, {"valid/f1": 1.0})})["valid/f1"].mean
    0.75
    """
    summary = {}
    for name in dict.fromkeys(name for one in evaluations.values() for name in one.figures):
        seeds = {seed: one.figures[name] for seed, one in evaluations.items() if name in one.figures}
        values = np.array(list(seeds.values()))
        std = float(values.std(ddof=1)) if len(values) > 1 else None
        summary[name] = Figure(seeds, float(values.mean()), std)
    return summary


def as_json(evaluations: Mapping[int, Evaluation], summary: Mapping[str, Figure]) -> dict[str, Any]:
    """What `seeds.json` holds; null stands for a number that is not finite."""
    metrics = {
        name: {
            "seeds": {str(seed): _finite(value) for seed, value in figure.seeds.items()},
            "mean": _finite(figure.mean),
            "std": _finite(figure.std),
            "n": len(figure.seeds),
        }
        for name, figure in summary.items()
    }
    return {"steps": {str(seed): one.step for seed, one in evaluations.items()}, "metrics": metrics}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def table(evaluations: Mapping[int, Evaluation], summary: Mapping[str, Figure]) -> str:
    """A line for each seed, then mean, standard deviation and count; a column for each figure."""
    rows = [["seed", "step", *summary]]
    for seed, one in evaluations.items():
        rows.append([str(seed), str(one.step), *(_digits(figure.seeds.get(seed)) for figure in summary.values())])
    rows.append(["mean", "", *(_digits(figure.mean) for figure in summary.values())])
    rows.append(["std", "", *(_digits(figure.std) for figure in summary.values())])
    rows.append(["n", "", *(str(len(figure.seeds)) for figure in summary.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n"


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
