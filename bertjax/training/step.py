"""The training step: a pure function of (state, batch, numbers), compiled over the mesh or mapped by pmap."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax import meshes
from bertjax.contract import Data, Metrics, Params, PredictionTask, StagedTask, TaughtTask, TrainingTask
from bertjax.errors import UserError
from bertjax.training import sharding
from bertjax.training.config import TrainingConfig
from bertjax.training.optimizers import Rates, make_optimizer, make_rates, timed

Tree = Any


class TrainState(NamedTuple):
    """The state that updates change."""

    step: jax.Array  # int32: number of updates so far
    params: Params
    opt_state: Any


class StepReport(NamedTuple):
    """The results of an update for the loop, which may fetch these arrays later."""

    metrics: Metrics
    gradient_norm: jax.Array  # before clipping
    finite: jax.Array  # bool: whether loss and gradient are finite; if not, the update was skipped


class Numbers(NamedTuple):
    """The numbers of an update. They are arguments of the compiled program, so runs that differ in them share it."""

    index: Any  # int32: the number of previous updates
    seed: Any  # uint32
    rates: dict[str, Rates]  # by parameter group


StepFunction = Callable[[TrainState, Tree, Numbers], tuple[TrainState, StepReport]]


def make_numbers(config: TrainingConfig) -> Callable[[int, int | float], Numbers]:
    """Returns a function of (index of the update, updates of the run) that computes the numbers of the update."""
    rates = make_rates(config.optimizer)
    seed = seed_of(config)
    return lambda index, num_steps: Numbers(np.int32(index), seed, rates(index, num_steps))


def init_state(task: TrainingTask, optimizer: optax.GradientTransformation, seed: jax.Array | int) -> TrainState:
    """Returns the initial state. A pure function, to be compiled with the state's shardings."""
    params = task.init(jax.random.key(seed))
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def warm_started(task: PredictionTask, published: Any, shapes: Params, shardings: Params) -> tuple[Params, Params]:
    """Returns parameters with the weights in `init_from`, and for each whether there is none, so that it is zero.

    Zeros are faster to make than random numbers, which most weights would replace.

    Args:
      task: the task.
      published: the weights, a `Published`.
      shapes: the shapes of the parameters.
      shardings: their shardings.
    """
    zeros = jax.jit(
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), out_shardings=shardings
    )()
    started = task.warm_start(zeros, published)
    return jax.device_put(started, shardings), jax.tree.map(operator.is_, zeros, started)


class Parts(NamedTuple):
    """Functions from a device's rows to the global batch. The defaults are for jit, whose arrays are global.

    Attributes:
      whole_batch: gathers the global batch from the local rows.
      all_sum: adds sums over local rows to sums over the global batch.
      own_key: derives the key of the local rows from the key of an update.
    """

    whole_batch: Callable[[Tree], Tree] = lambda tree: tree
    all_sum: Callable[[Tree], Tree] = lambda tree: tree
    own_key: Callable[[jax.Array], jax.Array] = lambda key: key


_GLOBAL = Parts()


def make_gradient(
    task: TrainingTask, config: TrainingConfig, parts: Parts = _GLOBAL
) -> Callable[[Params, Tree, Any, Any], tuple[tuple[jax.Array, Metrics], Params]]:
    """Returns a function of (params, batch, index, seed) that computes loss, metrics and gradient of a global batch.

    The loss is the sum over terms of (sum over rows) / denominator, with denominators of the whole batch. Sums are
    added over micro-batches and devices, so without dropout the gradient does not depend on how the batch is divided.
    With dropout, the masks depend on `accumulation_steps`, except those of tasks that couple rows.

    Args:
      task: the task.
      config: the settings. Dropout keys are a function of (seed, index, micro-batch) and of the kind `rng`. The seed is
        an argument of the result, so that runs with different seeds share one program.
      parts: how the batch is divided over devices.
    """

    def gradient(params: Params, batch: Tree, index: Any, seed: Any) -> tuple[tuple[jax.Array, Metrics], Params]:
        denominators = task.denominators(parts.whole_batch(batch))

        def loss(params: Params, rows: Tree, key: jax.Array) -> tuple[jax.Array, Metrics]:
            sums, metrics = task.loss(params, rows, key if task.uses_dropout else None)
            return sum((sums[term] / denominators[term] for term in sums), jnp.zeros(())), metrics

        def micro_step(rows: Tree, key: jax.Array) -> Tree:
            return jax.value_and_grad(loss, has_aux=True)(params, rows, key)

        # A task that couples rows divides the batch itself.
        count = 1 if task.couples_rows else config.accumulation_steps
        keys = jax.random.split(parts.own_key(dropout_key(config.rng, seed, index)), count)
        total: tuple[tuple[jax.Array, Metrics], Params] = parts.all_sum(accumulate(micro_step, batch, keys))
        return total

    return gradient


def make_step(
    task: TrainingTask, optimizer: optax.GradientTransformation, config: TrainingConfig, parts: Parts = _GLOBAL
) -> StepFunction:
    """Returns a function that makes one update; see `make_gradient`."""
    gradient = make_gradient(task, config, parts)
    optimizer = optax.with_extra_args_support(optimizer)

    def step(state: TrainState, batch: Tree, numbers: Numbers) -> tuple[TrainState, StepReport]:
        (value, metrics), grads = gradient(state.params, batch, numbers.index, numbers.seed)
        metrics["loss"] = (value, jnp.ones(()))

        gradient_norm = jax.named_scope("optimizer")(optax.global_norm)(grads)
        # After a skipped update, later updates are skipped too, so the state stays as it was before the bad step.
        finite = jnp.isfinite(value) & jnp.isfinite(gradient_norm) & (state.step == numbers.index)

        def updated() -> TrainState:
            updates, opt_state = optimizer.update(
                grads, state.opt_state, state.params, gradient_norm=gradient_norm, rates=numbers.rates
            )
            params = optax.apply_updates(state.params, updates)
            if isinstance(task, StagedTask):
                params, opt_state = task.after_update((params, opt_state), batch)
            return TrainState(state.step + 1, params, opt_state)

        with jax.named_scope("optimizer"):  # plans attribute costs by this name
            if meshes.platform() == "cpu":
                new_state = jax.lax.cond(finite, updated, lambda: state)
            else:  # for which a conditional would copy the state
                new_state = jax.tree.map(partial(jnp.where, finite), updated(), state)
        return new_state, StepReport(metrics, gradient_norm, finite)

    return step


def seed_of(config: TrainingConfig) -> np.uint32:
    """Returns the seed in the dtype that compiled programs expect."""
    return np.uint32(config.seed)


def dropout_key(rng: str, seed: jax.Array | int, index: jax.Array | int) -> jax.Array:
    """Returns the dropout key of an update, to be split over its micro-batches."""
    return jax.random.fold_in(jax.random.key(seed, impl=rng), index)


def accumulate(micro_step: Callable[[Tree, jax.Array], Tree], batch: Tree, keys: jax.Array) -> Tree:
    """Returns the sum of `micro_step` over micro-batches, one per key. Each micro-batch has rows of every device."""
    if len(keys) == 1:
        return micro_step(batch, keys[0])
    parts = jax.tree.map(lambda x: x.reshape(-1, len(keys), *x.shape[1:]).swapaxes(0, 1), batch)
    shapes = jax.eval_shape(micro_step, *jax.tree.map(lambda x: x[0], (parts, keys)))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, micro_step(*part)), None), zeros, (parts, keys)
    )[0]


class Assembly(NamedTuple):
    """The inputs for compiling a run's update. No array is computed yet."""

    mesh: Mesh
    optimizer: optax.GradientTransformation
    init: Callable[[Any], TrainState]  # from the seed to the initial state
    shapes: TrainState  # shapes of the state's arrays
    shardings: TrainState  # shardings of the state's arrays


def assemble(task: TrainingTask, config: TrainingConfig, devices: Sequence[jax.Device]) -> Assembly:
    """Returns mesh, optimizer and shardings of a task. Raises UserError if task, config and devices do not fit."""
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.check_rows(mesh, config.batch_size)
    sharding.check_rows(mesh, config.batch_size // config.accumulation_steps)
    if task.couples_rows:
        for spec in task.batch_specs():
            rows = spec["input_ids"].shape[0] // config.accumulation_steps
            sharding.check_rows(mesh, rows, "data.row_multiple")
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # models may depend on the kind of device
        params = jax.eval_shape(lambda: task.init(jax.random.key(0)))
        optimizer = make_optimizer(config.optimizer, params)
        if config.budget.hours:
            optimizer = timed(optimizer)
        init = partial(init_state, task, optimizer)
        shapes = jax.eval_shape(init, seed_of(config))
    shardings = sharding.tree_shardings(shapes, mesh, task.partition_rules())
    return Assembly(mesh, optimizer, init, shapes, shardings)


def jit_update(
    task: TrainingTask,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    state_shardings: Tree,
    config: TrainingConfig,
) -> Any:
    """Returns the jitted update, to be called or lowered inside `jax.set_mesh(mesh)`.

    The state is donated and keeps its shardings.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        make_step(task, optimizer, config),
        in_shardings=(state_shardings, sharding.batch_sharding(mesh), replicated),
        out_shardings=(state_shardings, replicated),
        donate_argnums=0,
    )


def jit_step(
    task: TrainingTask,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    state_shardings: Tree,
    config: TrainingConfig,
) -> StepFunction:
    """Returns the update, compiled over the mesh; see `jit_update`."""
    compiled = jit_update(task, optimizer, mesh, state_shardings, config)

    def call(state: TrainState, batch: Tree, numbers: Numbers) -> tuple[TrainState, StepReport]:
        with jax.set_mesh(mesh):
            return compiled(state, batch, numbers)

    return call


def make_teacher(task: TaughtTask, mesh: Mesh) -> Callable[[Tree], Tree]:
    """Loads the weights of a teacher, and returns its compiled program from a batch to further fields."""
    teacher = task.teacher
    shapes = jax.eval_shape(teacher.init, jax.random.key(0))
    shardings = sharding.tree_shardings(shapes, mesh, teacher.partition_rules())
    params, has_none = warm_started(teacher, task.weights, shapes, shardings)
    task.check_weights(has_none)
    program = jax.jit(task.teacher_fields, out_shardings=sharding.batch_sharding(mesh))

    def call(batch: Tree) -> Tree:
        with jax.set_mesh(mesh):
            return program(params, batch)

    return call


def store_targets(task: TaughtTask, data: Data, config: TrainingConfig, folder: Path) -> None:
    """Computes the outputs of a teacher for all training rows, and adds them to the data.

    Raises:
      UserError: with several processes, each of which has only some rows of a batch.
    """
    if jax.process_count() > 1:
        got = f"stored, in {jax.process_count()} processes"
        expected = "live, or one process"
        raise UserError("config key distillation.targets", got=got, expected=expected, fix="compute live targets")
    mesh = sharding.make_mesh(config.mesh, jax.devices())
    teach = make_teacher(task, mesh)
    task.store(data, lambda batch: teach(sharding.put_batch(batch, mesh)), folder)


def pmap_step(
    task: TrainingTask, optimizer: optax.GradientTransformation, mesh: Mesh, config: TrainingConfig
) -> StepFunction:
    """Returns the same update through `jax.pmap`, with one device per block of rows, for comparison.

    Raises:
      UserError: if the mesh splits parameters, there are several processes, or the loss couples rows. `parallel=jit`
        supports all three.
    """
    if mesh.shape["data"] != mesh.size or jax.process_count() > 1 or task.couples_rows:
        coupled = ", and a loss that couples all rows" if task.couples_rows else ""
        raise UserError(
            "config key parallel",
            got=f"'pmap' with mesh {dict(mesh.shape)} in {jax.process_count()} process(es){coupled}",
            expected="one process whose devices are all on the data axis, and a loss that is a sum over rows",
            fix="use --config.parallel=jit",
        )
    parts = Parts(
        whole_batch=partial(jax.lax.all_gather, axis_name="data", tiled=True),
        all_sum=partial(jax.lax.psum, axis_name="data"),
        own_key=lambda key: jax.random.fold_in(key, jax.lax.axis_index("data")),
    )
    step = make_step(task, optimizer, config, parts)
    mapped = jax.pmap(
        step, axis_name="data", in_axes=(None, 0, None), out_axes=None, devices=list(mesh.devices.ravel())
    )

    def call(state: TrainState, batch: Tree, numbers: Numbers) -> tuple[TrainState, StepReport]:
        rows = jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), batch)
        return mapped(state, rows, numbers)

    return call
