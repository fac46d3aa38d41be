"""Trains one config with several seeds, and summarizes the metrics."""

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
from bertjax.tools.reporting.runs import read_run
from bertjax.tools.sweeps import running
from bertjax.tools.sweeps.evaluations import Evaluation, Statistics, evaluation, summarize
from bertjax.tools.sweeps.expansion import Key, Run, with_shared_rows


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parses a list such as "0,1,2". Raises UserError unless the seeds are different integers from 0 to 2**32 - 1."""
    parts = [part.strip() for part in text.split(",")]
    seeds = tuple(int(part) for part in parts if part.isascii() and part.isdecimal())
    if len(seeds) < len(parts) or len(set(seeds)) < len(seeds) or max(seeds) >= 2**32:
        raise UserError(
            "--seeds",
            got=repr(text),
            expected="different integers from 0 to 2**32 - 1, separated by commas",
            fix="write for example --seeds=0,1,2",
        )
    return seeds


def train_seeds(
    request: modes.Request,
    new_config: dict[str, Any] | None,
    find: Callable[[str], modes.Experiment],
    seeds: str,
    overridden: Sequence[str],
) -> modes.Outcome:
    """Trains a config once per seed, one after another, in the folders `seed0`, ...; then summarizes the metrics.

    Each run is an ordinary run. Finished runs are skipped, interrupted runs are resumed, and failed runs are listed at
    the end. The summary of the other runs is written to `seeds.json` in the folder, and as a table to the output.

    Args:
      request: the request; its folder contains the folders of all seeds.
      new_config: the config.
      find: returns the experiment of a name.
      seeds: the list of seeds.
      overridden: the config keys that the command line sets.
    Raises:
      UserError: before training starts, for an invalid list, a mode other than train, a seed that is also set in the
        config, or a folder with a run of a different config.
    """
    numbers = parse_seeds(seeds)
    _check_alone(request.mode, overridden)
    config = modes.config_of(request, new_config)
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
        ended = list(track(running.in_this_process(runs, request, find), "seeds", "run", len(runs)))
    except running.StoppedError:
        return modes.Outcome.STOPPED
    failed = {one.run.folder for one in ended if one.error}
    done = {seed: folder for seed, folder in folders.items() if folder not in failed}
    if done:
        distributed.on_first_process(lambda: _sum_up(request, done))
        if request.report:
            write_page(Path(request.workdir))
    return modes.Outcome.FAILED if running.log_failures(ended) else modes.Outcome.DONE


def _check_alone(mode: str, overridden: Sequence[str]) -> None:
    if mode != "train":
        fix = "omit it, and set --workdir to the folder of one seed"
        raise UserError("--seeds", got=f"--mode={mode} in addition", expected="--mode=train", fix=fix)
    if "seed" in overridden:
        fix = "omit one of them"
        raise UserError("--seeds", got="--config.seed in addition", expected="only one of them", fix=fix)


def _sum_up(request: modes.Request, folders: Mapping[int, Path]) -> None:
    evaluations = {seed: evaluation(read_run(folder)) for seed, folder in folders.items()}
    summary = summarize(evaluations)
    with completed(Path(request.workdir) / "seeds.json") as partial:
        partial.write_text(json.dumps(as_json(evaluations, summary), indent=2, allow_nan=False) + "\n")
    with streams.open_output(request.output, is_writer=True) as output:
        output.write(table(evaluations, summary))


def as_json(evaluations: Mapping[int, Evaluation], summary: Mapping[str, Statistics]) -> dict[str, Any]:
    """Returns the contents of `seeds.json`; null stands for NaN and infinity."""
    metrics = {
        name: {
            "seeds": {str(seed): _finite(value) for seed, value in metric.seeds.items()},
            "mean": _finite(metric.mean),
            "std": _finite(metric.std),
            "n": len(metric.seeds),
        }
        for name, metric in summary.items()
    }
    return {"steps": {str(seed): one.step for seed, one in evaluations.items()}, "metrics": metrics}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def table(evaluations: Mapping[int, Evaluation], summary: Mapping[str, Statistics]) -> str:
    """Returns a table with a line per seed, then mean, standard deviation and count, and a column per metric."""
    rows = [["seed", "step", *summary]]
    for seed, one in evaluations.items():
        rows.append([str(seed), str(one.step), *(_digits(metric.seeds.get(seed)) for metric in summary.values())])
    rows.append(["mean", "", *(_digits(metric.mean) for metric in summary.values())])
    rows.append(["std", "", *(_digits(metric.std) for metric in summary.values())])
    rows.append(["n", "", *(str(len(metric.seeds)) for metric in summary.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n"


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
