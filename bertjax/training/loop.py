"""The training loop, for any task."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.checkpoints import Checkpoints
from bertjax.errors import UserError
from bertjax.progress import track
from bertjax.task import Task
from bertjax.training import health, sharding
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig
from bertjax.training.inference import Evaluation
from bertjax.training.metric_log import MetricLog, Window
from bertjax.training.optimizers import make_optimizer, make_schedule
from bertjax.training.preemption import Preemption

_log = logging.getLogger(__name__)


def train(task: Task, config: TrainingConfig, workdir: Path) -> None:
    """Trains from the last checkpoint in `workdir`, or from the start, to the last step or to SIGTERM."""
    trainer = Trainer(task, config, jax.devices())
    intervals = (config.log_every, config.evaluate_every, config.checkpoint.save_every)
    with Preemption() as preempted, Checkpoints(workdir, config.checkpoint) as checkpoints:
        restored = trainer.restore_or_init(checkpoints)
        with MetricLog(workdir, resumed=int(restored.step)) as log:
            if not int(restored.step):
                log.write(0, task.baselines())
            elif trainer.owes_evaluation(restored, checkpoints):
                log.write(int(restored.step), trainer.evaluate(restored.params, preempted))
            window = Window(make_schedule(config.optimizer, config.num_steps))
            for done, state, report in trainer.updates(restored):
                window.add(report)
                stopping, scores = preempted(), {}
                logs, evaluates, saves = (done % n == 0 or done == config.num_steps for n in intervals)
                if stopping or logs or evaluates or saves:
                    trainer.settle(state)
                if logs:
                    checkpoints.check()
                    log.write(done, window.close(done))
                with window.paused():
                    if evaluates and not stopping:
                        scores = trainer.evaluate(state.params, preempted)
                        log.write(done, scores)
                        stopping = preempted()
                    if saves or stopping:
                        checkpoints.save(done, state.params, state.opt_state, scores)
                if stopping:
                    _log.info("stopped after step %d; the same command goes on from there", done)
                    return


def check(task: Task, config: TrainingConfig) -> None:
    """Raises UserError where a task, its settings and the devices do not fit together; reads no data."""
    Trainer(task, config, jax.devices())


class Trainer:
    """A task, compiled for a mesh."""

    def __init__(self, task: Task, config: TrainingConfig, devices: Sequence[jax.Device]) -> None:
        """Args: what to train, how and on what. Raises UserError where these do not fit together."""
        self._task, self._config = task, config
        self._mesh = sharding.make_mesh(config.mesh, devices)
        self._rows = sharding.local_rows(self._mesh, config.batch_size)
        sharding.local_rows(self._mesh, config.batch_size // config.accumulation_steps)
        params = jax.eval_shape(task.init, jax.random.key(0))
        _check_best_metric(task, config, params)
        optimizer = make_optimizer(config.optimizer, params, config.num_steps)
        self._init = lambda: steps.init_state(task, optimizer, config.seed)
        shapes = jax.eval_shape(self._init)
        self._shardings = sharding.tree_shardings(shapes, self._mesh, task.partition_rules())
        self._abstract_state = sharding.with_shardings(shapes, self._shardings)
        if config.parallel == "pmap":
            self._step = steps.pmap_step(task, optimizer, self._mesh, config.accumulation_steps, config.seed)
        else:
            self._step = steps.jit_step(
                task, optimizer, self._mesh, self._shardings, config.accumulation_steps, config.seed
            )
        self._evaluate = Evaluation(task, self._mesh, config.batch_size, config.accumulation_steps)
        self._last: tuple[Any, steps.StepReport, int] | None = None

    def restore_or_init(self, checkpoints: Checkpoints) -> steps.TrainState:
        """The state to go on from: 1. the run's last checkpoint, 2. published weights, 3. fresh parameters."""
        step = checkpoints.latest_step()
        if step is not None:
            _log.info("resuming after step %d", step)
            abstract = self._abstract_state
            params, opt_state = checkpoints.restore(step, abstract.params, abstract.opt_state)
            return steps.TrainState(jax.device_put(jnp.int32(step), self._shardings.step), params, opt_state)
        state = jax.jit(self._init, out_shardings=self._shardings)()
        params = self._task.warm_start(state.params)
        return state._replace(params=jax.device_put(params, self._shardings.params))

    def updates(self, state: steps.TrainState) -> Iterator[tuple[int, steps.TrainState, steps.StepReport]]:
        """Yields the updates done, the state and the report after each remaining update.

        An update is checked once the next one is on its way, so that the devices never wait for the host.
        """
        indices = range(int(state.step), self._config.num_steps)
        batches = self._task.batches("train", indices.start, self._rows)
        for index in track(indices, "training", "steps", len(indices)):
            batch = sharding.put_batch(next(batches), self._mesh, self._config.batch_size)
            state, report = self._step(state, batch, np.int32(index))
            self.settle(state)
            self._last = batch, report, index
            yield index + 1, state, report

    def settle(self, state: steps.TrainState) -> None:
        """Waits for the last update that has not been checked; raises UserError if it was not finite."""
        if self._last:
            health.check(self._task, state, *self._last, self._config)
            self._last = None

    def owes_evaluation(self, state: steps.TrainState, checkpoints: Checkpoints) -> bool:
        """Whether a restored step was due to be evaluated, but SIGTERM came in between."""
        step = int(state.step)
        is_due = step % self._config.evaluate_every == 0 or step == self._config.num_steps
        return is_due and not checkpoints.metrics(step)

    def evaluate(self, params: Any, stop: Preemption) -> dict[str, float]:
        """Scores on the held-out split; nothing if told to stop on the way."""
        return self._evaluate(params, stop) or {}


def _check_best_metric(task: Task, config: TrainingConfig, params: Any) -> None:
    """Raises UserError if the best checkpoint is to be told by a metric that the task does not have."""
    best = config.checkpoint.best_metric
    metrics = jax.eval_shape(lambda p, b: task.loss(p, b, None)[1], params, task.batch_specs())
    names = ["valid/" + name for name in metrics if name != "tokens"]
    if best and best not in names:
        raise UserError(
            "config key checkpoint.best_metric",
            got=repr(best),
            expected="one of " + ", ".join(sorted(names)) + ", or empty",
            fix="choose one of these",
        )
