"""Updates and schedules against the published code's arithmetic, done by hand in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.errors import UserError
from bertjax.training.optimizers import OptimizerConfig, make_optimizer, make_schedule, path_names

BERT = OptimizerConfig(
    name="adamw",
    learning_rate=1e-2,
    schedule="constant",
    warmup_steps=0,
    weight_decay=0.01,
    no_decay="bias|norm",
    beta1=0.9,
    beta2=0.999,
    eps=1e-6,
    bias_correction=False,
    clip_norm=0.0,
    layer_decay=1.0,
    frozen_layers=0,
    groups=(),
)


def params():
    rng = np.random.default_rng(0)
    return {
        "layers": {"kernel": rng.normal(size=(3, 4, 5)).astype(np.float32), "bias": np.ones((3, 5), np.float32)},
        "norm": {"scale": np.ones(4, np.float32)},
        "head": {"kernel": rng.normal(size=(5, 2)).astype(np.float32)},
    }


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params())


def updated(config, steps=3):
    tree = jax.tree.map(jnp.asarray, params())
    optimizer = make_optimizer(config, tree, 10)
    state = optimizer.init(tree)
    for step in range(steps):
        updates, state = optimizer.update(gradients(step), state, tree)
        tree = optax.apply_updates(tree, updates)
    return jax.device_get(tree)


def adam_by_hand(start, grads, *, decay, corrected, trust=None, lr=1e-2):
    m, v, p = np.zeros_like(start), np.zeros_like(start), start.astype(np.float64)
    for t, g in enumerate(grads, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        m_hat, v_hat = (m / (1 - 0.9**t), v / (1 - 0.999**t)) if corrected else (m, v)
        update = m_hat / (np.sqrt(v_hat) + 1e-6) + decay * p
        p = p - lr * update * (trust(p, update) if trust else 1)
    return p


@pytest.mark.parametrize("corrected", [False, True])
def test_adamw_is_berts_update_and_leaves_bias_and_norm_undecayed(corrected):
    got = updated(dataclasses.replace(BERT, bias_correction=corrected))
    for path, decay in ((("layers", "kernel"), 0.01), (("layers", "bias"), 0.0), (("norm", "scale"), 0.0)):
        grads = [gradients(step)[path[0]][path[1]] for step in range(3)]
        expected = adam_by_hand(params()[path[0]][path[1]], grads, decay=decay, corrected=corrected)
        np.testing.assert_allclose(got[path[0]][path[1]], expected, rtol=2e-5, atol=1e-6)


def test_lamb_scales_each_stacked_layer_by_its_own_norms():
    got = updated(dataclasses.replace(BERT, name="lamb", bias_correction=True))
    grads = [gradients(step)["layers"]["kernel"] for step in range(3)]

    def ratio(p, update):
        return np.linalg.norm(p) / np.linalg.norm(update)

    for layer in range(3):
        start = params()["layers"]["kernel"][layer]
        expected = adam_by_hand(start, [g[layer] for g in grads], decay=0.01, corrected=True, trust=ratio)
        np.testing.assert_allclose(got["layers"]["kernel"][layer], expected, rtol=2e-5, atol=1e-6)


def test_lamb_leaves_alone_what_does_not_decay():
    # A bias that starts at zero has a trust ratio near zero, and would stay there.
    got = updated(dataclasses.replace(BERT, name="lamb", bias_correction=True))
    grads = [gradients(step)["layers"]["bias"] for step in range(3)]
    expected = adam_by_hand(params()["layers"]["bias"], grads, decay=0.0, corrected=True)
    np.testing.assert_allclose(got["layers"]["bias"], expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_is_of_the_norm_of_the_whole_gradient(limit):
    # One step of uncorrected Adam with a large eps shows the scale of the gradient: 0.1 g / (sqrt(0.001) |g| + eps).
    config = dataclasses.replace(BERT, clip_norm=limit, weight_decay=0.0, eps=1.0, learning_rate=1e2)
    grad = np.asarray(gradients(0)["head"]["kernel"], np.float64) * min(1, limit / optax.tree.norm(gradients(0)))
    expected = params()["head"]["kernel"] - 1e2 * 0.1 * grad / (np.sqrt(0.001) * abs(grad) + 1.0)
    np.testing.assert_allclose(updated(config, steps=1)["head"]["kernel"], expected, rtol=1e-5, atol=1e-5)


def test_groups_override_in_order_and_freeze():
    config = dataclasses.replace(
        BERT, groups=(("head", {"frozen": True}), ("kernel", {"learning_rate": 0.0}), ("bias", {"learning_rate": 1.0}))
    )
    got, start, plain = updated(config), params(), updated(BERT)
    np.testing.assert_array_equal(got["head"]["kernel"], start["head"]["kernel"])
    np.testing.assert_array_equal(got["layers"]["kernel"], start["layers"]["kernel"])
    assert np.abs(got["layers"]["bias"] - start["layers"]["bias"]).min() > 0.1
    np.testing.assert_array_equal(got["norm"]["scale"], plain["norm"]["scale"])


def test_a_group_without_parameters_is_an_error():
    with pytest.raises(UserError, match=r"groups\[1\].*'head/kernel'.*no parameter"):
        updated(dataclasses.replace(BERT, groups=(("head", {"frozen": True}), ("head/kernel", {"frozen": True}))))


@pytest.mark.parametrize("overrides", [{"clip_norm": 1.0}, {"rate": 1.0}, {"learning_rate": "fast"}])
def test_a_wrong_override_is_an_error(overrides):
    with pytest.raises(UserError, match="overrides of name"):
        updated(dataclasses.replace(BERT, groups=(("head", overrides),)))


def test_linear_schedule_drops_as_the_warm_up_ends_as_in_google_bert():
    schedule = make_schedule(dataclasses.replace(BERT, schedule="linear", learning_rate=1.0, warmup_steps=10), 100)
    assert float(schedule(0)) == 0
    np.testing.assert_allclose(float(schedule(9)), 0.9, rtol=1e-6)
    np.testing.assert_allclose(float(schedule(10)), 1 - 10 / 100, rtol=1e-6)
    np.testing.assert_allclose(float(schedule(99)), 0.01, rtol=1e-5)
    assert float(schedule(100)) == 0


def test_square_root_decay_is_nvidias():
    config = dataclasses.replace(BERT, schedule="sqrt_decay", learning_rate=6e-3, warmup_steps=2_001)
    schedule = make_schedule(config, 7_038)
    np.testing.assert_allclose(float(schedule(1_000)), 6e-3 * 1_000 / 2_001, rtol=1e-6)
    for step in (2_001, 5_000, 7_037):
        np.testing.assert_allclose(float(schedule(step)), 6e-3 * (1 - step / 7_038) ** 0.5, rtol=1e-3)
    assert float(schedule(7_038)) == 0


def test_inverse_square_root_is_noams_schedule():
    d_model, warmup = 512, 40
    peak = d_model**-0.5 * warmup**-0.5
    config = dataclasses.replace(BERT, schedule="inverse_sqrt", learning_rate=peak, warmup_steps=warmup)
    schedule = make_schedule(config, 1000)
    for step in (1, 2, 39, 40, 41, 500):  # the paper counts from 1
        expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        np.testing.assert_allclose(float(schedule(step - 1)), expected, rtol=1e-5)


def test_cosine_and_constant_schedules():
    cosine = make_schedule(dataclasses.replace(BERT, schedule="cosine", learning_rate=2.0, warmup_steps=10), 110)
    np.testing.assert_allclose([float(cosine(s)) for s in (5, 10, 60, 110)], [1.0, 2.0, 1.0, 0.0], atol=1e-6)
    constant = make_schedule(dataclasses.replace(BERT, learning_rate=2.0, warmup_steps=4), 10)
    np.testing.assert_allclose([float(constant(s)) for s in (2, 4, 9)], [1.0, 2.0, 2.0])


def test_path_names():
    assert jax.tree.leaves(path_names({"a": {"b": jnp.ones(1)}, "c": [jnp.ones(1)]})) == ["a/b", "c/0"]
