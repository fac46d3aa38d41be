"""One update: a pure function of (state, batch, index, seed), compiled once over the mesh, or mapped by pmap."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.contract import Metrics, Params, Task
from bertjax.errors import UserError
from bertjax.training import sharding
from bertjax.training.config import TrainingConfig
from bertjax.training.optimizers import make_optimizer

Tree = Any


class TrainState(NamedTuple):
    """All that an update changes."""

    step: jax.Array  # int32: updates done
    params: Params
    opt_state: Any


class StepReport(NamedTuple):
    """What an update tells the loop; arrays that it may fetch later."""

    metrics: Metrics
    gradient_norm: jax.Array  # before clipping
    finite: jax.Array  # bool: loss and gradient are finite, and so the update was made


# state, batch, index of the update -> state, report
StepFunction = Callable[[TrainState, Tree, Any], tuple[TrainState, StepReport]]


def init_state(task: Task, optimizer: optax.GradientTransformation, seed: jax.Array | int) -> TrainState:
    """A fresh state; pure, to be compiled with the shardings it shall have."""
    params = task.init(jax.random.key(seed))
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


class Parts(NamedTuple):
    """What the rows at hand are of the global batch: all of it under jit, whose arrays are global.

    Attributes:
      whole_batch: from the rows at hand to the global batch.
      all_sum: from sums over the rows at hand to sums over the global batch.
      own_key: from the key of an update to that of the rows at hand.
    """

    whole_batch: Callable[[Tree], Tree] = lambda tree: tree
    all_sum: Callable[[Tree], Tree] = lambda tree: tree
    own_key: Callable[[jax.Array], jax.Array] = lambda key: key


_ALL_AT_HAND = Parts()


def make_gradient(
    task: Task, config: TrainingConfig, parts: Parts = _ALL_AT_HAND
) -> Callable[[Params, Tree, Any, Any], tuple[tuple[jax.Array, Metrics], Params]]:
    """The loss of one global batch with its metrics, and the gradient, of (params, batch, index, seed).

    The loss is the sum over terms of (sum over rows) / denominator, with denominators of the whole batch.
    Micro-batches and devices add up sums, so with dropout off the gradient does not depend on how the batch was
    divided; with it on, the masks drawn depend on `accumulation_steps`.

    Args:
      task: whose loss.
      config: into how many micro-batches the rows are divided; dropout keys are a function of (seed, index,
        micro-batch), of the kind `rng`. The seed is an argument, so that runs of several seeds are one program.
      parts: how the batch is divided over devices.
    """

    def gradient(params: Params, batch: Tree, index: Any, seed: Any) -> tuple[tuple[jax.Array, Metrics], Params]:
        denominators = task.denominators(parts.whole_batch(batch))

        def loss(params: Params, rows: Tree, key: jax.Array) -> tuple[jax.Array, Metrics]:
            sums, metrics = task.loss(params, rows, key)
            return sum((sums[term] / denominators[term] for term in sums), jnp.zeros(())), metrics

        def micro_step(rows: Tree, key: jax.Array) -> Tree:
            return jax.value_and_grad(loss, has_aux=True)(params, rows, key)

        keys = jax.random.split(parts.own_key(dropout_key(config.rng, seed, index)), config.accumulation_steps)
        total: tuple[tuple[jax.Array, Metrics], Params] = parts.all_sum(accumulate(micro_step, batch, keys))
        return total

    return gradient


def make_step(
    task: Task, optimizer: optax.GradientTransformation, config: TrainingConfig, parts: Parts = _ALL_AT_HAND
) -> Callable[[TrainState, Tree, Any, Any], tuple[TrainState, StepReport]]:
    """The update of one global batch, of (state, batch, index, seed); see `make_gradient`."""
    gradient = make_gradient(task, config, parts)

    def step(state: TrainState, batch: Tree, index: jax.Array, seed: jax.Array) -> tuple[TrainState, StepReport]:
        (value, metrics), grads = gradient(state.params, batch, index, seed)
        metrics["loss"] = (value, jnp.ones(()))

        gradient_norm = optax.global_norm(grads)
        # A state that has missed an update takes no later one, so it stays as it was before the bad step.
        finite = jnp.isfinite(value) & jnp.isfinite(gradient_norm) & (state.step == index)

        def updated() -> TrainState:
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)

        return jax.lax.cond(finite, updated, lambda: state), StepReport(metrics, gradient_norm, finite)

    return step


def seed_of(config: TrainingConfig) -> np.uint32:
    """The seed as compiled programs take it."""
    return np.uint32(config.seed)


def dropout_key(rng: str, seed: jax.Array | int, index: jax.Array | int) -> jax.Array:
    """The key of an update, to be split over its micro-batches."""
    return jax.random.fold_in(jax.random.key(seed, impl=rng), index)


def accumulate(micro_step: Callable[[Tree, jax.Array], Tree], batch: Tree, keys: jax.Array) -> Tree:
    """The sum of `micro_step` over as many micro-batches as there are keys, each with rows of every device."""
    if len(keys) == 1:
        return micro_step(batch, keys[0])
    parts = jax.tree.map(lambda x: x.reshape(-1, len(keys), *x.shape[1:]).swapaxes(0, 1), batch)
    shapes = jax.eval_shape(micro_step, *jax.tree.map(lambda x: x[0], (parts, keys)))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, micro_step(*part)), None), zeros, (parts, keys)
    )[0]


class Assembly(NamedTuple):
    """What a run's updates are compiled from; nothing of it is computed yet."""

    mesh: Mesh
    optimizer: optax.GradientTransformation
    init: Callable[[Any], TrainState]  # from the seed to a fresh state
    shapes: TrainState  # of its arrays
    shardings: TrainState  # where they live


def assemble(task: Task, config: TrainingConfig, devices: Sequence[jax.Device]) -> Assembly:
    """Puts a task, its settings and devices together. Raises UserError where they do not fit."""
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.check_rows(mesh, config.batch_size)
    sharding.check_rows(mesh, config.batch_size // config.accumulation_steps)
    params = jax.eval_shape(task.init, jax.random.key(0))
    optimizer = make_optimizer(config.optimizer, params, config.num_steps)

    init = partial(init_state, task, optimizer)
    shapes = jax.eval_shape(init, seed_of(config))
    shardings = sharding.tree_shardings(shapes, mesh, task.partition_rules())
    return Assembly(mesh, optimizer, init, shapes, shardings)


def jit_update(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    state_shardings: Tree,
    config: TrainingConfig,
) -> Any:
    """The update as `jax.jit` has it, to be called or lowered with the mesh in force.

    The state is donated and keeps its shardings.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        make_step(task, optimizer, config),
        in_shardings=(state_shardings, sharding.batch_sharding(mesh), replicated, replicated),
        out_shardings=(state_shardings, replicated),
        donate_argnums=0,
    )


def jit_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    state_shardings: Tree,
    config: TrainingConfig,
) -> StepFunction:
    """The update, compiled over the mesh; see `jit_update`."""
    compiled = jit_update(task, optimizer, mesh, state_shardings, config)

    def call(state: TrainState, batch: Tree, index: jax.Array | np.int32) -> tuple[TrainState, StepReport]:
        with jax.set_mesh(mesh):
            return compiled(state, batch, index, seed_of(config))

    return call


def pmap_step(task: Task, optimizer: optax.GradientTransformation, mesh: Mesh, config: TrainingConfig) -> StepFunction:
    """The same update through `jax.pmap`, one device for each block of rows, for those who compare with it.

    Raises:
      UserError: parameters are to be split, or there are several processes; `parallel=jit` does both.
    """
    if mesh.shape["data"] != mesh.size or jax.process_count() > 1:
        raise UserError(
            "config key parallel",
            got=f"'pmap' with mesh {dict(mesh.shape)} in {jax.process_count()} process(es)",
            expected="one process whose devices are all on the data axis",
            fix="use --config.parallel=jit",
        )
    parts = Parts(
        whole_batch=partial(jax.lax.all_gather, axis_name="data", tiled=True),
        all_sum=partial(jax.lax.psum, axis_name="data"),
        own_key=lambda key: jax.random.fold_in(key, jax.lax.axis_index("data")),
    )
    step = make_step(task, optimizer, config, parts)
    mapped = jax.pmap(
        step, axis_name="data", in_axes=(None, 0, None, None), out_axes=None, devices=list(mesh.devices.ravel())
    )

    def call(state: TrainState, batch: Tree, index: jax.Array | np.int32) -> tuple[TrainState, StepReport]:
        rows = jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), batch)
        return mapped(state, rows, index, seed_of(config))

    return call
