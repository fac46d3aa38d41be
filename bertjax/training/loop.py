"""The training loop of all tasks."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bertjax import distributed
from bertjax.contract import Data, Evaluation, TrainingTask
from bertjax.progress import track
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import Checkpoints
from bertjax.runs.goodput import Ledger
from bertjax.training import sharding
from bertjax.training import step as steps
from bertjax.training.compilation import Compilations
from bertjax.training.config import TrainingConfig
from bertjax.training.metric_log import MetricLog, Window
from bertjax.training.optimizers import make_schedule
from bertjax.training.preemption import Preemption
from bertjax.training.time_left import TimeLeft
from bertjax.training.tracing import traced
from bertjax.training.trainer import Trainer, Update

_log = logging.getLogger(__name__)

_STOPPED = "stopped after step %d; run the same command again to resume"


def train(
    task: TrainingTask,
    data: Data,
    config: TrainingConfig,
    workdir: Path,
    profile: range = range(0),
    meter: Callable[[int], dict[str, float]] | None = None,
    published: Any = None,
    evaluations: Sequence[Evaluation] = (),
) -> bool:
    """Trains from the last checkpoint in `workdir`, or from the beginning, until the last step, SIGTERM or Ctrl-C.

    The next update begins only after a checkpoint is durable, so a killed run loses at most the updates of one save
    interval. A checkpoint is written during the evaluation of the same step.

    Args:
      task: the task.
      data: the prepared data.
      config: the settings.
      workdir: the run's folder.
      profile: the numbers of the updates to trace.
      meter: returns what the first updates of a run with a budget cost, by name, to log it.
      published: the weights in `init_from`, a `Published`; None to start from random parameters.
      evaluations: the evaluations other than that of the validation split.
    Returns:
      whether it was stopped, possibly after the last update.
    """
    with (
        Compilations() as compiled,
        Preemption() as preempted,
        Checkpoints(workdir, config.checkpoint) as checkpoints,
        Ledger(workdir, distributed.is_first_process(), lambda: compiled.seconds) as ledger,
    ):
        trainer = Trainer(task, config, jax.devices(), published, evaluations)
        restored = trainer.restore_or_init(checkpoints)
        begun = int(restored.step)
        ledger.begin(begun, checkpoints.trained_seconds(begun))
        with MetricLog(workdir, config, resumed=begun) as log:
            run = _Run(trainer, data, config, checkpoints, ledger, log, preempted, meter)
            if not run.begin(restored):
                devices = ", ".join(f"{count} × {kind}" for kind, count in run_folder.devices().items())
                length = "" if config.num_steps is None else f" for {config.num_steps:,} updates"
                _log.info("training %s parameters%s on %s", f"{num_parameters(task):,}", length, devices)
                folder = workdir / "profile"
                updates = traced(trainer.updates(data.batches, restored, compiled), begun, profile, folder)
                total = None if config.num_steps is None else config.num_steps - begun
                for update in track(updates, "training", "step", total, lambda count: run.seconds_left(begun + count)):
                    if run.end_update(update):
                        break
        ledger.log_summary()
    return preempted()


class _Run:
    """Logs, evaluates and saves the updates of a run, and decides when it ends."""

    def __init__(
        self,
        trainer: "Trainer",
        data: Data,
        config: TrainingConfig,
        checkpoints: Checkpoints,
        ledger: Ledger,
        log: MetricLog,
        preempted: Preemption,
        meter: Callable[[int], dict[str, float]] | None,
    ) -> None:
        self._trainer = trainer
        self._data = data
        self._config = config
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._log = log
        self._preempted = preempted
        self._meter = meter
        self._intervals = (config.log_every, config.evaluate_every, config.checkpoint.save_every)
        self._evaluate = ledger.spending("evaluation")(trainer.evaluate)
        self._save = ledger.spending("checkpoint")(checkpoints.save)
        self._finish = ledger.spending("checkpoint")(checkpoints.finish)
        self._window = Window(lambda count: make_schedule(config.optimizer, trainer.length)(count), ledger)
        self._time_left = TimeLeft(ledger, config)

    def begin(self, state: steps.TrainState) -> bool:
        """Logs the baselines of a new run, and the validation metrics that a run lacks before its next update.

        Returns whether to make no update.
        """
        begun = int(state.step)
        if begun:
            self._expect_length(begun)
        else:
            self._log.write(0, self._data.baselines())
        is_last = self._is_last(begun)
        scores = {}
        is_due = begun % self._config.evaluate_every == 0 or is_last if begun else self._trainer.scores_start
        if is_due and not (begun and self._log.has_scores(begun, "valid/")):
            number = None if is_last else begun // self._config.evaluate_every
            scores = self._evaluate(state.params, self._data, self._preempted, number)
            self._log.write_scores(begun, scores)
            if not scores:  # a signal interrupted the evaluation, which must be complete before the next update
                _log.info(_STOPPED, begun)
                return True
        is_last = is_last or self._stops_early(begun)
        if is_last and not distributed.of_first_process(self._checkpoints.is_scheduled(begun)):
            seconds = self._ledger.trained_seconds
            self._save(begun, state.params, state.opt_state, scheduled=True, trained_seconds=seconds)
        if is_last or (begun and scores):
            self._finish(begun, self._log.scores(begun, "valid/"))
        return is_last

    def _is_last(self, done: int) -> bool:
        """Returns whether the run's length is `done` updates. With `budget.hours`, it is at least one."""
        if done == self._config.num_steps or not self._config.budget.hours:
            return done == self._config.num_steps
        return done > 0 and bool(distributed.of_first_process(self._hours_left() <= 0))

    def _stops_early(self, done: int) -> bool:
        """Returns whether early stopping ends the run after `done` updates, whose metrics are logged, and logs why."""
        if not self._config.evaluate_patience:
            return False
        stop = self._log.find_stop()
        if stop and stop.step == done:
            _log.info("stopped early after step %d: %s; a higher evaluate_patience continues", done, stop.reason)
        return bool(distributed.of_first_process(bool(stop and stop.step == done)))

    def end_update(self, update: Update) -> bool:
        """Does what is due after an update. Returns whether to make no further update."""
        done = update.done
        state = update.state
        scores = {}
        self._window.add(update.report, update.data_wait, update.compile_wait)
        stopping = self._preempted()
        is_last = self._is_last(done)
        logs, evaluates, saves = (is_last or done % interval == 0 for interval in self._intervals)
        logs |= evaluates and self._config.evaluate_patience > 0  # the last update is logged, and this may be it
        if stopping or logs or evaluates or saves:
            self._trainer.settle(state)
        if logs:
            self._log_window(done)
            self._expect_length(done)
        if stopping or logs or evaluates or saves:
            self._ledger.write(done)  # before the save, so that a kill during it leaves file and checkpoint consistent
        trained = self._ledger.trained_seconds
        with self._window.paused():
            if saves or stopping:
                self._save(done, state.params, state.opt_state, scheduled=saves, trained_seconds=trained)
            if evaluates and not stopping:
                number = None if is_last else done // self._config.evaluate_every
                scores = self._evaluate(state.params, self._data, self._preempted, number)
                self._log.write(done, self._trainer.evaluation_speed())
                self._log.write_scores(done, scores)
                stopping = self._preempted()
                is_last = is_last or self._stops_early(done)
                if (stopping or is_last) and not saves:
                    self._save(done, state.params, state.opt_state, scheduled=is_last, trained_seconds=trained)
            if saves or stopping or is_last:
                self._finish(done, scores)
        if evaluates or saves or stopping:
            self._ledger.write(done)
        self._time_left.finish(done)
        if stopping:
            _log.info(_STOPPED, done)
        return stopping or is_last

    def seconds_left(self, done: int) -> float | None:
        """Returns the expected time to the end of the run after `done` updates; None if it is not known."""
        return self._hours_left() if self._config.num_steps is None else self._time_left(done)

    def _log_window(self, done: int) -> None:
        waited = {"train/save_wait_seconds": self._checkpoints.seconds_waited}
        metrics = self._window.close(done) | waited | self._trainer.notices()
        if self._meter:
            amounts = {**self._meter(done), "hours": self._ledger.trained_seconds / 3600}
            metrics |= {f"train/used_{name}": value for name, value in amounts.items()}
        self._log.write_update(done, metrics, self.seconds_left(done))
        self._trainer.review(metrics)

    def _hours_left(self) -> float:
        """The seconds left of `budget.hours`; infinite without it."""
        hours = self._config.budget.hours
        return 3600 * hours - self._ledger.trained_seconds if hours else math.inf

    def _expect_length(self, done: int) -> None:
        """Tells the trainer the number of updates that `budget.hours` will have, at the mean speed so far."""
        if self._config.budget.hours:
            seconds = max(self._ledger.trained_seconds, 1e-9)
            self._trainer.expect_length(distributed.of_first_process(round(done * (1 + self._hours_left() / seconds))))


def check(
    task: TrainingTask, config: TrainingConfig, values: Mapping[str, Any], evaluations: Sequence[Evaluation]
) -> None:
    """Raises UserError if the task, its settings or the devices do not fit together. Reads no data.

    Args:
      task: the task.
      config: the settings.
      values: the whole config.
      evaluations: the evaluations other than that of the validation split.
    """
    sharding.check_split(values, jax.device_count())
    Trainer(task, config, jax.devices(), evaluations=evaluations)


def num_parameters(task: TrainingTask) -> int:
    """The number of parameters of a task's model."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(params))
