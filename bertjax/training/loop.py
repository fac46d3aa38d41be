"""The training loop of all tasks."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax import distributed
from bertjax.contract import Batch, Data, Evaluation, RowIndices, StagedTask, TaughtTask, TrainingTask
from bertjax.errors import UserError, did_you_mean
from bertjax.progress import track
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import Checkpoints
from bertjax.runs.goodput import Ledger
from bertjax.training import health, sharding
from bertjax.training import step as steps
from bertjax.training.compilation import Compilations, Recompilations, size_of
from bertjax.training.config import TrainingConfig
from bertjax.training.inference import Validation
from bertjax.training.metric_log import MetricLog, Window
from bertjax.training.optimizers import make_schedule
from bertjax.training.preemption import Preemption
from bertjax.training.prefetch import Prefetch
from bertjax.training.time_left import TimeLeft
from bertjax.training.tracing import traced

_log = logging.getLogger(__name__)

Batches = Callable[[str, int, RowIndices], Iterator[Batch]]
_STOPPED = "stopped after step %d; run the same command again to resume"
_LESS_IS_BETTER = ("loss", "nll", "perplexity", "nats_per_word", "nats_per_token")  # suffixes of metrics


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

    def end_update(self, update: "Update") -> bool:
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


class Update(NamedTuple):
    """An update that is on its way to the devices.

    Attributes:
      done: the number of updates made, including this one.
      state: the state after it.
      report: its metrics.
      data_wait: seconds that the devices were idle because they waited for the batch.
      compile_wait: seconds that they were idle because the program was compiled for a new shape of batch.
    """

    done: int
    state: steps.TrainState
    report: steps.StepReport
    data_wait: float
    compile_wait: float


class Trainer:
    """The compiled update of a task on a mesh, with checks of its results.

    Attributes:
      length: the number of updates over which the learning rate decays; see `expect_length`.
      scores_start: whether to score the state of `fresh`: all weights are those of `init_from`, and scoring is fast.
    """

    def __init__(
        self,
        task: TrainingTask,
        config: TrainingConfig,
        devices: Sequence[jax.Device],
        published: Any = None,
        evaluations: Sequence[Evaluation] = (),
    ) -> None:
        """Compiles nothing yet. Raises UserError if the task, its settings and the devices do not fit together.

        Args:
          task: the task.
          config: the settings.
          devices: the devices.
          published: the weights in `init_from`, a `Published`; None to start from random parameters.
          evaluations: the evaluations other than that of the validation split.
        """
        self._task = task
        self._config = config
        self._published = published
        self._mesh, optimizer, self._init, shapes, self._shardings = steps.assemble(task, config, devices)
        self._rows = sharding.local_rows(self._mesh, config.batch_size)
        _check_best_metric(task, config, shapes.params, evaluations)
        if config.parallel == "pmap":
            self._step = steps.pmap_step(task, optimizer, self._mesh, config)
            # pmap returns a state on its own mesh. A state on another mesh would be compiled for once more.
            own_mesh = Mesh(self._mesh.devices.ravel(), ("data",), axis_types=(AxisType.Auto,))
            self._shardings = jax.tree.map(lambda _: NamedSharding(own_mesh, PartitionSpec()), self._shardings)
        else:
            self._step = steps.jit_step(task, optimizer, self._mesh, self._shardings, config)
        self._numbers = steps.make_numbers(config)
        self._abstract_state = sharding.with_shardings(shapes, self._shardings)
        self._evaluate = Validation(task, self._mesh, config, evaluations)
        self._last: tuple[Any, steps.StepReport, int] | None = None
        self.length: float = math.inf if config.num_steps is None else config.num_steps
        self.scores_start = False
        self._recompilations = Recompilations(task.batch_specs())
        self._teacher: Callable[[Batch], Batch] | None = None
        self._loss_spikes = health.Spikes("loss", least=0.05)
        self._gradient_spikes = health.Spikes("gradient_norm", least=1.0, log_scale=True)

    def restore_or_init(self, checkpoints: Checkpoints) -> steps.TrainState:
        """Returns the first state: the run's last checkpoint, or else `fresh`."""
        step = _step_to_resume(checkpoints)
        if step is not None:
            _log.info("resuming after step %d", step)
            abstract = self._abstract_state
            params, opt_state = checkpoints.restore(step, abstract.params, abstract.opt_state)
            return steps.TrainState(jax.device_put(jnp.int32(step), self._shardings.step), params, opt_state)
        return self.fresh()

    def fresh(self) -> steps.TrainState:
        """Returns the state before the first update, from the weights in `init_from` or from random parameters."""
        seed = steps.seed_of(self._config)
        shardings = self._shardings
        if self._published is None:
            return jax.jit(self._init, out_shardings=shardings)(seed)
        weights, has_none = steps.warm_started(
            self._task, self._published, self._abstract_state.params, shardings.params
        )
        self.scores_start = not (self._task.decodes or any(jax.tree.leaves(has_none)))

        def drawn(state: Any) -> Any:
            """Omits the parameters that have weights, so that the program does not compute them."""
            return state._replace(
                params=jax.tree.map(lambda lacks, leaf: leaf if lacks else (), has_none, state.params)
            )

        state = jax.jit(lambda seed: drawn(self._init(seed)), out_shardings=drawn(shardings))(seed)
        filled = jax.tree.map(lambda lacks, *leaves: leaves[not lacks], has_none, state.params, weights)
        return state._replace(params=filled)

    def updates(self, batches: Batches, state: steps.TrainState, compiled: Compilations) -> Iterator[Update]:
        """Dispatches and yields the remaining updates, without waiting for their results.

        An update is checked after the next one is dispatched, so that the devices never wait for the host.

        Args:
          batches: `Data.batches`.
          state: the state before the updates.
          compiled: counts the programs that are compiled.
        """
        begun = int(state.step)
        num_steps = self._config.num_steps
        indices = itertools.count(begun) if num_steps is None else range(begun, num_steps)
        with Prefetch(batches("train", begun, self._rows), self.put) as prefetch:
            for index in indices:
                batch, waited = prefetch.take(self._last and self._last[1])
                if self._recompilations.expects(batch):
                    if self._last:
                        self.settle(state)  # the devices must be idle to time the compilation
                    _log.info("compiling for batches of %s%s", size_of(batch), self._recompilations.progress())
                before = len(compiled.programs)
                began = time.perf_counter()
                state, report = self._step(state, batch, self._numbers(index, self.length))
                if index == begun:
                    seconds = compiled.seconds
                    hits = compiled.cache_hits
                    _log.info("compiled in %.1f s (%d of %d programs cached)", seconds, hits, len(compiled.programs))
                new = compiled.programs[before:]
                self._recompilations.watch(index + 1, new, batch)
                self.settle(state)
                self._last = batch, report, index
                yield Update(index + 1, state, report, waited, time.perf_counter() - began if new else 0.0)

    def expect_length(self, num_steps: int) -> None:
        """Sets the number of updates over which the learning rate of a run with `budget.hours` decays."""
        self.length = num_steps

    def put(self, batch: Batch) -> dict[str, jax.Array]:
        """Puts this process's rows of a global batch on its devices, and adds the outputs of a teacher."""
        arrays = sharding.put_batch(batch, self._mesh)
        if not isinstance(self._task, TaughtTask) or self._task.stores:
            return arrays
        self._teacher = self._teacher or steps.make_teacher(self._task, self._mesh)
        return {**arrays, **self._teacher(arrays)}

    def settle(self, state: steps.TrainState) -> None:
        """Waits for the update that is not checked yet. Raises UserError if its loss or gradient is not finite."""
        if self._last:
            batch, report, index = self._last
            health.check(self._task, state, batch, report, index, self._config)
            loss, norm = jax.device_get((report.metrics["loss"][0], report.gradient_norm))
            num_steps = self._config.num_steps
            task = self._task
            stage = task.stage(index, num_steps) if num_steps and isinstance(task, StagedTask) else 0
            self._loss_spikes.add(index + 1, float(loss), stage)
            self._gradient_spikes.add(index + 1, float(norm), stage)
            self._last = None

    def review(self, metrics: Mapping[str, float]) -> None:
        """Warns of a student that does not learn from its teacher."""
        if isinstance(self._task, TaughtTask):
            self._task.review(metrics)

    def notices(self) -> dict[str, float]:
        """Returns the number of spikes and recompilations since the last call, and logs a warning for each kind."""
        return self._loss_spikes.take() | self._gradient_spikes.take() | self._recompilations.take()

    def evaluate(self, params: Any, data: Data, stop: Preemption, number: int | None) -> dict[str, float]:
        """Returns the validation metrics, see `Validation`; empty if `stop` interrupts the evaluation."""
        return self._evaluate(params, data, stop, number) or {}


def _step_to_resume(checkpoints: Checkpoints) -> int | None:
    """Returns the last checkpoint that the first process sees. Raises UserError if another process does not see it."""
    latest = checkpoints.latest_step()
    step = distributed.of_first_process(-1 if latest is None else latest)
    if step < 0:
        return None
    distributed.agree("found" if checkpoints.sees(step) else "missing", f"checkpoint {step} of the run")
    return step


def _check_best_metric(
    task: TrainingTask, config: TrainingConfig, params: Any, evaluations: Sequence[Evaluation]
) -> None:
    """Raises UserError unless each evaluation of the run has the best metric, in the right direction."""
    best = config.checkpoint.best_metric
    mode = config.checkpoint.best_mode
    metrics = jax.eval_shape(lambda p, b: task.loss(p, b, None)[1], params, task.batch_specs()[0])
    names = [f"valid/{name}" for name in task.score_names() or metrics if name != "tokens"]
    for evaluation in evaluations:
        metric_names = [f"valid/{name}" for name in evaluation.metrics]
        if best in metric_names and evaluation.every > 1:
            raise UserError(
                "config key checkpoint.best_metric",
                got=f"{best}, which only one of {evaluation.every} evaluations has",
                expected="a metric of every evaluation",
                fix=f"set --config.{evaluation.name}.every=1",
            )
        names += metric_names
    if best and best not in names:
        raise UserError(
            "config key checkpoint.best_metric",
            got=repr(best),
            expected="one of " + ", ".join(sorted(names)) + ", or empty",
            fix=did_you_mean(best, names, "choose one of these"),
        )
    if best.endswith(_LESS_IS_BETTER) and mode == "max":
        raise UserError(
            "config key checkpoint.best_mode",
            got=f"max with best_metric={best}",
            expected="min, because lower is better",
            fix="set --config.checkpoint.best_mode=min",
        )
