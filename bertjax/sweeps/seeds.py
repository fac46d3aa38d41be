"""One config with several seeds, and what their figures have in common."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax import distributed, modes
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.modes import streams
from bertjax.modes.report import write_page
from bertjax.progress import track
from bertjax.reporting.runs import read_run
from bertjax.sweeps import running
from bertjax.sweeps.expansion import Key, Run, with_shared_rows
from bertjax.sweeps.figures import Evaluation, Figure, evaluation, summarize


def parse_seeds(given: str) -> tuple[int, ...]:
    """The seeds in a list such as "0,1,2". Raises UserError unless each is a number of its own, 0 to 2**32 - 1."""
    parts = [part.strip() for part in given.split(",")]
    seeds = tuple(int(part) for part in parts if part.isascii() and part.isdecimal())
    if len(seeds) < len(parts) or len(set(seeds)) < len(seeds) or max(seeds) >= 2**32:
        raise UserError(
            "--seeds",
            got=repr(given),
            expected="different whole numbers, 0 to 2**32 - 1, separated by commas",
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

    Each is a run as any other. One that is finished is left as it is, one that was interrupted goes on, one that fails
    is named at the end. The summary of those that are done is written to `seeds.json` in the folder, and to the output
    as a table.

    Args:
      request: what for; its folder is that of all.
      given: the config.
      find: the experiment of a name.
      seeds: the list.
      overridden: the keys of the config that the command line sets.
    Raises:
      UserError: a bad list, another mode than train, a seed in the config too, or a folder that holds a run of
        another config, all before anything is trained.
    """
    numbers = parse_seeds(seeds)
    _check_alone(request.mode, overridden)
    config = modes.config_of(request, given)
    folders = {seed: Path(request.workdir) / f"seed{seed}" for seed in numbers}
    runs = [
        Run(
            folder,
            (),
            {**with_shared_rows(config, Path(request.workdir), folder), "seed": seed},
            None,
            (Key("", "train", seed),),
            None,
        )
        for seed, folder in folders.items()
    ]
    for run in runs:
        modes.check_folder(dataclasses.replace(request, workdir=str(run.folder)), dict(run.config), find)
    try:
        ended = list(track(running.in_this_process(runs, request, find), "seeds", "runs", len(runs)))
    except running.StoppedError:
        return modes.Outcome.STOPPED
    failed = {one.run.folder for one in ended if one.error}
    done = {seed: folder for seed, folder in folders.items() if folder not in failed}
    if done:
        distributed.on_first_process(lambda: _sum_up(request, done))
        if request.report:
            write_page(Path(request.workdir), request.report)
    return modes.Outcome.FAILED if running.tell_failures(ended) else modes.Outcome.DONE


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
