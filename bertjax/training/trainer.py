"""The compiled updates of a task."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax import distributed
from bertjax.contract import Batch, Data, Evaluation, RowIndices, StagedTask, TaughtTask, TrainingTask
from bertjax.errors import UserError, did_you_mean
from bertjax.runs.checkpoints import Checkpoints
from bertjax.training import health, sharding
from bertjax.training import step as steps
from bertjax.training.compilation import Compilations, Recompilations, size_of
from bertjax.training.config import TrainingConfig
from bertjax.training.inference import Validation
from bertjax.training.preemption import Preemption
from bertjax.training.prefetch import Prefetch

_log = logging.getLogger(__name__)

Batches = Callable[[str, int, RowIndices], Iterator[Batch]]
_LESS_IS_BETTER = ("loss", "nll", "perplexity", "nats_per_word", "nats_per_token")  # suffixes of metrics


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
                batch = self.with_teacher_outputs(batch)
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
        """Puts this process's rows of a global batch on its devices."""
        return sharding.put_batch(batch, self._mesh)

    def with_teacher_outputs(self, batch: Batch) -> Batch:
        """Adds the outputs of a teacher to a batch on the devices.

        All processes run it between updates: in the thread that makes batches, its collectives could come before those
        of an update on one process and after them on another.
        """
        if not isinstance(self._task, TaughtTask) or self._task.stores:
            return batch
        self._teacher = self._teacher or steps.make_teacher(self._task, self._mesh)
        return {**batch, **self._teacher(batch)}

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

    def evaluation_speed(self) -> dict[str, float]:
        """Returns the seconds per row of the last evaluation; empty if they are not known."""
        seconds = self._evaluate.row_seconds
        return {} if math.isnan(seconds) else {"train/evaluation_row_seconds": seconds}


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
    specs = task.batch_specs_of_task() if isinstance(task, TaughtTask) else task.batch_specs()
    metrics = jax.eval_shape(lambda p, b: task.loss(p, b, None)[1], params, specs[0])
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
