"""Times of an update of several pretraining runs, such as the rows of a sweep, interleaved in one process.

    python -m benchmarks.step_times --rounds=7 runs/modern/runs/*-pretrain-seed0
    python -m benchmarks.step_times --rounds=7 --curves=curves.svg BERT=runs/bert modern=runs/modern

Each run is opened from its folder, starts from fresh weights, and makes updates on batches of its own text. If a run
has stages of length, an update of each is timed, and the mean is over all updates of the run. A curve shows the
validation losses in the run's metrics against the time that its updates take at the measured speed.
"""

import argparse
import functools
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import common
from bertjax.experiments import bert_pretraining
from bertjax.tools.reporting.drawing import load_matplotlib

_HEADER = ["run", "updates", "ms by stage, median (quartiles)", "mean ms", "of the first run's", "minutes"]
_LOSS = "valid/masked_lm_loss"


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="[NAME=]FOLDER", help="runs, compared with the first")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=10, help="updates of a round, at each stage")
    parser.add_argument("--curves", default="", metavar="FILE", help="a picture of the runs' losses: .svg or .png")
    args = parser.parse_args()
    print(f"{common.describe_machine()}; {args.rounds} rounds of {args.updates} updates\n", flush=True)
    runs = [Timed(*name.rpartition("=")[::2]) for name in args.runs]
    print(common.table(_HEADER, measure(runs, args.updates, args.rounds)))
    print(f"\nLoad average at the end {common.load_average()}")
    if args.curves:
        draw(runs, args.curves)


class Timed:
    """The update of a run at each of its stages.

    Attributes:
      name: the name of the run.
      stages: the stage of each update.
      steps: the update by stage, on the stage's first batch.
      ms: the milliseconds of an update by stage, of each round.
    """

    def __init__(self, name: str, folder: str) -> None:
        """Compiles the updates of the run in a folder, whose name is the default for the run's."""
        task, data, settings, *_ = common.open_run(bert_pretraining, Path(folder))
        self.name, self._folder = name or Path(folder).name, Path(folder)
        self.stages = [task.stage(update, settings.num_steps) for update in range(settings.num_steps)]
        rows = np.arange(settings.batch_size)
        self.steps, self.ms = {}, dict[int, list[float]]()
        for stage in dict.fromkeys(self.stages):
            batch = next(iter(data.batches("train", self.stages.index(stage), rows)))
            self.steps[stage] = common.OurStep(task, settings, [batch])

    def means(self) -> list[float]:
        """The mean milliseconds of an update of the run, of each round."""
        counts = Counter(self.stages)
        rounds = zip(*(self.ms[stage] for stage in counts), strict=True)
        return [np.average(each, weights=list(counts.values())).item() for each in rounds]

    def curve(self) -> tuple[list[float], list[float]]:
        """The minutes and the validation loss of each evaluation."""
        minutes = list(itertools.accumulate(statistics.median(self.ms[stage]) / 6e4 for stage in self.stages))
        records = map(json.loads, (self._folder / "metrics.jsonl").read_text().splitlines())
        found = [(minutes[r["step"] - 1], r[_LOSS]) for r in records if _LOSS in r and r["step"]]
        return [x for x, _ in found], [y for _, y in found]


def measure(runs: Sequence[Timed], updates: int, rounds: int) -> list[list[str]]:
    """Returns a table row for each run, and sets its `ms`."""
    calls = {(i, at): functools.partial(step, updates) for i, run in enumerate(runs) for at, step in run.steps.items()}
    for (i, stage), seconds in common.interleave(calls, rounds).items():
        runs[i].ms[stage] = [1e3 * each / updates for each in seconds]
    first = runs[0].means()
    return [
        [
            run.name,
            str(len(run.stages)),
            ", ".join(f"{_shape(step)}: {common.spread(run.ms[stage], 0)}" for stage, step in run.steps.items()),
            common.spread(run.means(), 0),
            common.spread([own / other for own, other in zip(run.means(), first, strict=True)], 2),
            f"{statistics.median(run.means()) * len(run.stages) / 6e4:.1f}",
        ]
        for run in runs
    ]


def draw(runs: Sequence[Timed], path: str) -> None:
    """Draws the curves of the runs into a file."""
    matplotlib = load_matplotlib()
    figure = matplotlib.figure.Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        axes.plot(*run.curve(), label=run.name)
    axes.set(xlabel="minutes of updates", ylabel="validation masked-LM loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def _shape(step: common.OurStep) -> str:
    """The number and length of rows, such as 128 x 32."""
    rows, length = step.batches[0]["input_ids"].shape
    return f"{rows} x {length}"


if __name__ == "__main__":
    main()
