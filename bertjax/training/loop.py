"""The training loop, for any task."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax import distributed
from bertjax.contract import Batch, Data, Task
from bertjax.errors import UserError
from bertjax.progress import track
from bertjax.runs.checkpoints import Checkpoints
from bertjax.runs.goodput import Ledger
from bertjax.training import health, sharding
from bertjax.training import step as steps
from bertjax.training.compilation import Compilations, Recompilations, size_of
from bertjax.training.config import TrainingConfig
from bertjax.training.inference import Evaluation, Predictor
from bertjax.training.metric_log import MetricLog, Window
from bertjax.training.optimizers import make_schedule
from bertjax.training.preemption import Preemption
from bertjax.training.prefetch import Prefetch
from bertjax.training.tracing import traced

_log = logging.getLogger(__name__)

_LESS_IS_BETTER = ("loss", "nll", "perplexity")  # how names of such metrics end


def train(task: Task, data: Data, config: TrainingConfig, workdir: Path, profile: range = range(0)) -> bool:
    """Trains from the last checkpoint in `workdir`, or from the start, to the last step or to SIGTERM.

    No update begins before the checkpoint that was due is durable, so that a run that is killed loses at most the
    updates of one save interval. A save is written while an evaluation that is due goes on; what is left of it
    is waited for: seconds for BERT-Large, every 10,000 updates. Updates whose numbers are in `profile` are traced.

    Returns whether SIGTERM came; with the last update done it may have changed nothing.
    """
    intervals = (config.log_every, config.evaluate_every, config.checkpoint.save_every)
    with (
        Compilations() as compiled,
        Preemption() as preempted,
        Checkpoints(workdir, config.checkpoint) as checkpoints,
        Ledger(workdir, distributed.is_first_process(), lambda: compiled.seconds) as ledger,
    ):
        trainer = Trainer(task, config, jax.devices())
        restored = trainer.restore_or_init(checkpoints)
        begun = int(restored.step)
        ledger.begin(begun)
        evaluate = ledger.spending("evaluation")(trainer.evaluate)
        save = ledger.spending("checkpoint")(checkpoints.save)
        finish = ledger.spending("checkpoint")(checkpoints.finish)
        with MetricLog(workdir, resumed=begun) as log:
            if not begun:
                log.write(0, data.baselines())
            elif _is_due(config, begun, config.evaluate_every) and not log.has_scores(begun, "valid/"):
                scores = evaluate(restored.params, data, preempted)
                log.write(begun, scores)
                finish(begun, scores)
            window = Window(make_schedule(config.optimizer, config.num_steps), ledger)
            for update in traced(trainer.updates(data, restored, compiled), begun, profile, workdir / "profile"):
                done, state, scores = update.done, update.state, {}
                window.add(update.report, update.data_wait, update.compile_wait)
                stopping = preempted()
                logs, evaluates, saves = (_is_due(config, done, interval) for interval in intervals)
                if stopping or logs or evaluates or saves:
                    trainer.settle(state)
                    ledger.write(done)
                if logs:
                    waited = {"train/save_wait_seconds": checkpoints.seconds_waited}
                    log.write(done, window.close(done) | waited | trainer.notices())
                with window.paused():
                    if saves or stopping:
                        save(done, state.params, state.opt_state, scheduled=saves)
                    if evaluates and not stopping:
                        scores = evaluate(state.params, data, preempted)
                        log.write(done, scores)
                        stopping = preempted()
                        if stopping and not saves:
                            save(done, state.params, state.opt_state, scheduled=False)
                    if saves or stopping:
                        finish(done, scores)
                if evaluates or saves or stopping:
                    ledger.write(done)
                if stopping:
                    _log.info("stopped after step %d; the same command goes on from there", done)
                    break
        ledger.tell()
    return preempted()


def _is_due(config: TrainingConfig, step: int, interval: int) -> bool:
    return step % interval == 0 or step == config.num_steps


def check(task: Task, config: TrainingConfig, values: Mapping[str, Any]) -> None:
    """Raises UserError where a task, its settings, all `values` of the config and devices do not fit; reads no data."""
    sharding.check_split(values, jax.device_count())
    Trainer(task, config, jax.devices())


class Update(NamedTuple):
    """What the loop learns of an update."""

    done: int  # updates, with this one
    state: steps.TrainState
    report: steps.StepReport
    data_wait: float  # seconds that the devices were idle for want of the batch
    compile_wait: float  # seconds that they were idle because the batch was the first of its shape


class Trainer:
    """A task, compiled for a mesh."""

    def __init__(self, task: Task, config: TrainingConfig, devices: Sequence[jax.Device]) -> None:
        """Args: what to train, how and on what. Raises UserError where these do not fit together."""
        self._task, self._config = task, config
        self._mesh, optimizer, self._init, shapes, self._shardings = steps.assemble(task, config, devices)
        self._rows = sharding.local_rows(self._mesh, config.batch_size)
        _check_best_metric(task, config, shapes.params)
        if config.parallel == "pmap":
            self._step = steps.pmap_step(task, optimizer, self._mesh, config)
            # pmap returns a state over a mesh of its own, and compiles once more for one that began elsewhere.
            own_mesh = Mesh(self._mesh.devices.ravel(), ("data",), axis_types=(AxisType.Auto,))
            self._shardings = jax.tree.map(lambda _: NamedSharding(own_mesh, PartitionSpec()), self._shardings)
        else:
            self._step = steps.jit_step(task, optimizer, self._mesh, self._shardings, config)
        self._abstract_state = sharding.with_shardings(shapes, self._shardings)
        self._evaluate = Evaluation(task, Predictor(task, self._mesh), config.batch_size, config.accumulation_steps)
        self._last: tuple[Any, steps.StepReport, int] | None = None
        self._recompilations = Recompilations(task.batch_specs())
        self._loss_spikes = health.Spikes("loss", least=0.05)
        self._gradient_spikes = health.Spikes("gradient_norm", least=1.0, log_scale=True)

    def restore_or_init(self, checkpoints: Checkpoints) -> steps.TrainState:
        """The state to go on from: 1. the run's last checkpoint, 2. published weights, 3. fresh parameters."""
        step = _step_to_resume(checkpoints)
        if step is not None:
            _log.info("resuming after step %d", step)
            abstract = self._abstract_state
            params, opt_state = checkpoints.restore(step, abstract.params, abstract.opt_state)
            return steps.TrainState(jax.device_put(jnp.int32(step), self._shardings.step), params, opt_state)
        return self.fresh()

    def fresh(self) -> steps.TrainState:
        """The state before the first update: published weights if the task has any, or fresh parameters."""
        state = jax.jit(self._init, out_shardings=self._shardings)(steps.seed_of(self._config))
        params = self._task.warm_start(state.params)
        return state._replace(params=jax.device_put(params, self._shardings.params))

    def updates(self, data: Data, state: steps.TrainState, compiled: Compilations) -> Iterator[Update]:
        """Yields each remaining update as soon as it is on its way.

        An update is checked once the next one is on its way too, so that the devices never wait for the host.
        """
        indices = range(int(state.step), self._config.num_steps)
        batches = data.batches("train", indices.start, self._rows)
        with Prefetch(batches, self.put) as prefetch:
            for index in track(indices, "training", "steps", len(indices)):
                batch, waited = prefetch.take(self._last and self._last[1])
                if self._recompilations.expects(batch):
                    if self._last:
                        self.settle(state)  # so that the devices are idle while the program is compiled
                    _log.info("compiling step %d: the first batch of %s", index + 1, size_of(batch))
                before, began = len(compiled.programs), time.perf_counter()
                state, report = self._step(state, batch, np.int32(index))
                if index == indices.start:
                    seconds, hits = compiled.seconds, compiled.cache_hits
                    _log.info("compiled in %.1f s; %d of %d programs cached", seconds, hits, len(compiled.programs))
                new = compiled.programs[before:]
                self._recompilations.watch(index + 1, new, batch)
                self.settle(state)
                self._last = batch, report, index
                yield Update(index + 1, state, report, waited, time.perf_counter() - began if new else 0.0)

    def put(self, batch: Batch) -> dict[str, jax.Array]:
        """This process's rows of a global batch, to its devices."""
        return sharding.put_batch(batch, self._mesh)

    def settle(self, state: steps.TrainState) -> None:
        """Waits for the last update that has not been checked; raises UserError if it was not finite."""
        if self._last:
            batch, report, index = self._last
            health.check(self._task, state, batch, report, index, self._config)
            loss, norm = jax.device_get((report.metrics["loss"][0], report.gradient_norm))
            self._loss_spikes.add(index + 1, float(loss))
            self._gradient_spikes.add(index + 1, float(norm))
            self._last = None

    def notices(self) -> dict[str, float]:
        """Counts of what should not have been, since this was last asked; each kind is warned of once."""
        return self._loss_spikes.take() | self._gradient_spikes.take() | self._recompilations.take()

    def evaluate(self, params: Any, data: Data, stop: Preemption) -> dict[str, float]:
        """Scores on the held-out split; nothing if told to stop on the way."""
        return self._evaluate(params, data, stop) or {}


def _step_to_resume(checkpoints: Checkpoints) -> int | None:
    """The last step that the first process finds saved. Raises UserError if another one does not see it."""
    latest = checkpoints.latest_step()
    step = distributed.of_first_process(-1 if latest is None else latest)
    if step < 0:
        return None
    distributed.agree("there" if checkpoints.sees(step) else "missing", f"checkpoint {step} of the run")
    return step


def _check_best_metric(task: Task, config: TrainingConfig, params: Any) -> None:
    """Raises UserError if the best checkpoint is told by what the task does not have, or has the highest loss."""
    best, mode = config.checkpoint.best_metric, config.checkpoint.best_mode
    metrics = jax.eval_shape(lambda p, b: task.loss(p, b, None)[1], params, task.batch_specs()[0])
    names = ["valid/" + name for name in task.score_names() or metrics if name != "tokens"]
    if best and best not in names:
        raise UserError(
            "config key checkpoint.best_metric",
            got=repr(best),
            expected="one of " + ", ".join(sorted(names)) + ", or empty",
            fix="choose one of these",
        )
    if best.endswith(_LESS_IS_BETTER) and mode == "max":
        raise UserError(
            "config key checkpoint.best_mode",
            got=f"max with best_metric={best}",
            expected="min, as the best checkpoint has the least of it",
            fix="set --config.checkpoint.best_mode=min",
        )
