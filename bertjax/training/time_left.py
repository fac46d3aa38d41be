"""The expected time to the end of a run."""

from bertjax.runs.goodput import Ledger
from bertjax.training.config import TrainingConfig


class TimeLeft:
    """Expects the mean times so far for the updates, evaluations and saves that a run has left.

    Compilation is left out, and so is everything until the end of the first update of this start.
    """

    def __init__(self, ledger: Ledger, config: TrainingConfig) -> None:
        """Takes the ledger of this start of a run, and the run's settings."""
        self._ledger = ledger
        self._config = config
        self._intervals = {"evaluation": config.evaluate_every, "checkpoint": config.checkpoint.save_every}
        self._begun: int | None = None
        self._before: dict[str, float] = {}
        self._finished = 0

    def finish(self, done: int) -> None:
        """Records that `done` updates are made, with the evaluations and saves that were due after them."""
        self._finished = done
        if self._begun is None:
            self._begun = done
            self._before = self._spent()

    def __call__(self, done: int) -> float | None:
        """Returns the expected seconds after `done` updates; None until the second update of this start."""
        num_steps = self._config.num_steps
        begun = self._begun
        if num_steps is None or begun is None or done == begun:
            return None
        spent = {kind: seconds - self._before[kind] for kind, seconds in self._spent().items()}
        expected = spent["step"] / (done - begun) * (num_steps - done)
        for kind, interval in self._intervals.items():
            times = self._finished // interval - begun // interval
            remaining = -(-num_steps // interval) - self._finished // interval if self._finished < num_steps else 0
            expected += spent[kind] / times * remaining if times else 0.0
        return expected

    def _spent(self) -> dict[str, float]:
        return {"step": self._ledger.trained_seconds, **{kind: self._ledger.spent(kind) for kind in self._intervals}}
