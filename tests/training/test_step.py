"""Updates do not depend on how the batch is divided, and updates that are not finite are skipped."""

import jax
import numpy as np
import optax
import pytest

from bertjax.training import sharding
from bertjax.training import step as steps
from bertjax.training.optimizers import make_optimizer
from tests import tiny
from tests.random_params import random_params
from tests.trees import distance

UPDATES = 5


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("step") / "text.txt", documents=60)


def no_dropout(text, **overrides):
    return tiny.config(text, model__dropout=0.0, model__attention_dropout=0.0, batch_size=32, **overrides)


def compiled(tree, devices):
    """The data of a config, its mesh, the update step, and a function that returns the initial state."""
    task, data, settings, _ = tiny.pretraining(tree)
    mesh = sharding.make_mesh(settings.mesh, devices)
    params = random_params(task.init)
    # The state of the trace is the last gradient.
    optimizer = optax.chain(optax.trace(0.0), make_optimizer(settings.optimizer, params))
    state = jax.eval_shape(lambda: steps.init_state(task, optimizer, seed=1))
    shardings = sharding.tree_shardings(state, mesh, task.partition_rules())
    opt_state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state.opt_state)
    if settings.parallel == "pmap":
        step = steps.pmap_step(task, optimizer, mesh, settings)
    else:
        step = steps.jit_step(task, optimizer, mesh, shardings, settings)
    numbers, whole = steps.make_numbers(settings), steps.TrainState(np.int32(0), params, opt_state)
    return data, mesh, lambda *args, index: step(*args, numbers(index, 100)), lambda: jax.device_put(whole, shardings)


def run(program, updates=UPDATES):
    """The gradient of the first update, and the state after some updates."""
    data, mesh, step, first = program
    state, gradient = first(), None
    batches = data.batches("train", 0, sharding.local_rows(mesh, 32))
    for index, batch in zip(range(updates), batches, strict=False):
        state, report = step(state, sharding.put_batch(batch, mesh), index=index)
        assert report.finite
        gradient = jax.device_get(state.opt_state[0].trace) if gradient is None else gradient
    return gradient, jax.device_get(state)


WAYS = {
    "4x8": ({"accumulation_steps": 4}, 1),
    "all axes": ({"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}, 8),
    "pmap, 2x16": ({"parallel": "pmap", "accumulation_steps": 2}, 8),
}


@pytest.fixture(scope="module")
def on_one_device(text):
    return compiled(no_dropout(text), jax.devices()[:1])


@pytest.fixture(scope="module")
def whole(on_one_device):
    # Rows with unequal numbers of predicted tokens: a mean of per-micro-batch means would differ.
    batch = next(on_one_device[0].batches("train", 0, np.arange(32)))
    assert len(set(batch["masked_weights"].sum(axis=1).tolist())) > 1
    return run(on_one_device)


@pytest.mark.parametrize("way", ["4x8", "all axes", pytest.param("pmap, 2x16", marks=pytest.mark.slow)])
def test_gradient_and_updates_do_not_depend_on_how_the_batch_is_divided(text, whole, way):
    overrides, devices = WAYS[way]
    gradient, state = run(compiled(no_dropout(text, **overrides), jax.devices()[:devices]))
    one, all_ = distance(gradient, whole[0]), distance(state.params, whole[1].params)
    print(f"{way}: gradient {one:.1e}, parameters after {UPDATES} updates {all_:.1e}")
    assert one <= 1e-5
    assert all_ <= 1e-5


def test_an_update_that_is_not_finite_and_all_later_ones_are_skipped(on_one_device):
    data, mesh, step, first = on_one_device
    batches = [dict(batch) for batch, _ in zip(data.batches("train", 0, np.arange(32)), range(3), strict=False)]
    batches[1]["masked_weights"] = batches[1]["masked_weights"] * np.nan
    state, states, finite = first(), [], []
    for index, batch in enumerate(batches):
        state, report = step(state, sharding.put_batch(batch, mesh), index=index)
        states.append(jax.device_get(state))
        finite.append(bool(report.finite))
    assert finite == [True, False, False]
    assert states[0].step == 1
    for after in states[1:]:
        jax.tree.map(np.testing.assert_array_equal, after, states[0])


def test_all_seeds_share_one_program(text):
    """Dropout and parameters still depend on the seed."""

    def word_embeddings(init, seed):
        return init(seed).params["bert"]["embeddings"]["word_embeddings"]

    programs, words = [], []
    for seed in (0, 2**32 - 1):
        task, _, settings, _ = tiny.pretraining({**tiny.config(text, model__num_layers=1), "seed": seed})
        assembled = steps.assemble(task, settings, jax.devices()[:1])
        update = steps.jit_update(task, assembled.optimizer, assembled.mesh, assembled.shardings, settings)
        with jax.set_mesh(assembled.mesh):
            lowered = update.lower(assembled.shapes, task.batch_specs()[0], steps.make_numbers(settings)(0, 1))
        programs.append(lowered.as_text())
        words.append(np.asarray(jax.jit(word_embeddings, static_argnums=0)(assembled.init, steps.seed_of(settings))))
        key = jax.jit(steps.dropout_key, static_argnums=0)(settings.rng, steps.seed_of(settings), 3)
        assert key == steps.dropout_key(settings.rng, seed, 3)
    assert programs[0] == programs[1]
    assert (words[0] != words[1]).any()


def test_rng_sets_the_kind_of_random_bits(text):
    drawn = {}
    for rng in ("threefry2x32", "rbg"):
        settings = tiny.pretraining({**tiny.config(text), "rng": rng}).settings
        keys = [steps.dropout_key(settings.rng, settings.seed, index) for index in (3, 3, 4)]
        assert all(jax.random.key_impl(key) == rng for key in keys)
        drawn[rng] = [np.asarray(jax.random.bits(key, (8,))) for key in keys]
        np.testing.assert_array_equal(drawn[rng][0], drawn[rng][1])
        assert (drawn[rng][0] != drawn[rng][2]).any()
    assert (drawn["rbg"][0] != drawn["threefry2x32"][0]).any()
