"""Times of an update of several pretraining runs, such as the rows of a sweep, interleaved in one process.

    python -m benchmarks.step_times --rounds=7 runs/modern/runs/*-pretrain-seed0

Each run is opened from its folder, starts from fresh weights, and makes updates on batches of its own text. If a run
has stages of length, an update of each is timed, and the mean is over all updates of the run.
"""

import argparse
import functools
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import common
from bertjax.experiments import bert_pretraining

_HEADER = ["run", "updates", "ms by stage, median (quartiles)", "mean ms", "of the first run's", "minutes"]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, compared with the first")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=10, help="updates of a round, at each stage")
    args = parser.parse_args()
    print(f"{common.describe_machine()}; {args.rounds} rounds of {args.updates} updates\n", flush=True)
    print(common.table(_HEADER, measure(list(map(Stages, args.runs)), args.updates, args.rounds)))
    print(f"\nLoad average at the end {common.load_average()}")


class Stages:
    """The update of a run at each of its stages.

    Attributes:
      name: the name of the run's folder.
      counts: the number of updates by stage.
      steps: the update by stage, on the stage's first batch.
    """

    def __init__(self, folder: Path) -> None:
        """Compiles the updates of the run in a folder."""
        task, data, settings, _ = common.open_run(bert_pretraining, folder)
        of_updates = [task.stage(update, settings.num_steps) for update in range(settings.num_steps)]
        rows = np.arange(settings.batch_size)
        self.name, self.counts, self.steps = folder.name, Counter(of_updates), {}
        for stage in self.counts:
            batch = next(iter(data.batches("train", of_updates.index(stage), rows)))
            self.steps[stage] = common.OurStep(task, settings, [batch])


def measure(runs: Sequence[Stages], updates: int, rounds: int) -> list[list[str]]:
    """Returns a table row for each run."""
    calls = {
        (i, stage): functools.partial(step, updates) for i, run in enumerate(runs) for stage, step in run.steps.items()
    }
    ms = {key: [1e3 * s / updates for s in seconds] for key, seconds in common.interleave(calls, rounds).items()}
    means = [
        [
            sum(run.counts[stage] * ms[i, stage][turn] for stage in run.steps) / run.counts.total()
            for turn in range(rounds)
        ]
        for i, run in enumerate(runs)
    ]
    return [
        [
            run.name,
            str(run.counts.total()),
            ", ".join(f"{_shape(step)}: {common.spread(ms[i, stage], 0)}" for stage, step in run.steps.items()),
            common.spread(means[i], 0),
            common.spread([own / first for own, first in zip(means[i], means[0], strict=True)], 2),
            f"{statistics.median(means[i]) * run.counts.total() / 6e4:.1f}",
        ]
        for i, run in enumerate(runs)
    ]


def _shape(step: common.OurStep) -> str:
    """The number and length of rows, such as 128 x 32."""
    rows, length = step.batches[0]["input_ids"].shape
    return f"{rows} x {length}"


if __name__ == "__main__":
    main()
