"""Tests of norms and of their kernels for NVIDIA GPUs, interpreted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from bertjax import meshes
from bertjax.models import triton_norm
from bertjax.models.layers import Draws, Update
from bertjax.models.norms import Norm
from bertjax.models.transformer_config import TransformerConfig, make_norm

CONFIG = TransformerConfig(
    **dict.fromkeys(("hidden_size", "num_layers", "num_heads", "intermediate_size"), 1),
    **{"dropout": 0.0, "attention_dropout": 0.0, "activation": "relu", "norm_eps": 1e-6},
)
USES = {"post": (0, 2), "end of post": (0, 1), "pre": (1, 1)}  # how often the sum and its norm are returned


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_gradients_equal_those_of_the_formula(centered, use_bias):
    norm = Norm(1e-3, "float32", centered, use_bias)
    rng = np.random.RandomState(0)
    x, scale, bias = (jnp.asarray(rng.randn(*shape) + 2, jnp.float32) for shape in ((4, 5), (5,), (5,)))
    params = {"scale": scale, **({"bias": bias} if use_bias else {})}

    def formula(params, x):
        y = x - jnp.mean(x, -1, keepdims=True) if centered else x
        y = y / jnp.sqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-3) * params["scale"]
        return jnp.sum(jnp.sin(y + params.get("bias", 0)))

    found = jax.grad(lambda params, x: jnp.sum(jnp.sin(norm.apply({"params": params}, x))), (0, 1))(params, x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, jax.grad(formula, (0, 1))(params, x))


@pytest.mark.parametrize("is_kernel", [False, True])
def test_statistics_survive_a_large_mean(monkeypatch, is_kernel):
    """The one-pass variance E[x^2] - E[x]^2 would be off by several percent here."""
    monkeypatch.setattr(triton_norm, "can_compute", lambda x: is_kernel)
    x = (1000 + np.arange(64.0) / 64).astype(np.float32)
    params = {"scale": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
    output = jax.jit(Norm(1e-12, "float32").apply)({"params": params}, x[None])[0]
    exact = x.astype(np.float64)
    np.testing.assert_allclose(output, (exact - exact.mean()) / exact.std(), atol=1e-3)


OPTIONS = {"key": None, "remat": False, "is_rounded": False, "has_bias": True, "has_update": True}


def results(monkeypatch, is_kernel, width=128, rows=24, dtype="float32", rate=0.1, use="post", **values):
    """The results of `Norm.of_sum` and all gradients; `values` are `OPTIONS` or fields of the norm."""
    monkeypatch.setattr(triton_norm, "can_compute", lambda x: is_kernel)
    key, remat, is_rounded, has_bias, has_update = (values.pop(name, OPTIONS[name]) for name in OPTIONS)
    norm = Norm(1e-5, dtype, **values)
    keys = jax.random.split(jax.random.key(0), 7)
    rounded = "bfloat16" if is_rounded else dtype
    arrays = [jax.random.normal(each, (4, rows, width)).astype(rounded).astype(dtype) for each in keys[:4]]
    (x, products, *gradients), shape = arrays, (width,)
    scale, shift, bias = (jax.random.normal(each, shape) for each in keys[4:])
    params = {"scale": 1 + 0.1 * scale, **({"bias": shift} if norm.use_bias else {})}
    draws = Draws(jax.random.key(7) if key is None else key, rate, None) if rate else None

    def of_sum(x, products, bias, params):
        update = Update(products, bias.astype(rounded).astype(dtype) if has_bias else None) if has_update else None
        return norm.apply({"params": params}, x, update, draws, *USES[use], method="of_sum")

    @jax.jit
    def passes(*inputs):
        found, pull = jax.vjp(jax.checkpoint(of_sum) if remat else of_sum, *inputs)
        return found, pull(gradients[: len(found)])

    return passes(x, products, bias, params)


def check(found, expected, of_results, of_gradients):
    for each, other, tolerance in zip(found, expected, (of_results, of_gradients), strict=True):
        for one, two in zip(jax.tree.leaves(each), jax.tree.leaves(other), strict=True):
            one, two = np.asarray(one, np.float32), np.asarray(two, np.float32)
            assert np.linalg.norm(one - two) <= tolerance * np.linalg.norm(two)


@pytest.mark.parametrize(
    "case",
    [
        *({"width": width} for width in (128, 256, 384, 512, 768, 1024)),
        {"rows": 531, "width": 64},  # 531 tiles of 4 rows for 512 programs
        {"use": "pre", "rows": 3},
        {"use": "end of post", "rate": 0.0},
        {"use": "pre", "centered": False, "use_bias": False, "has_bias": False},
        {"use_bias": False, "has_update": False, "rate": 0.0},
        {"key": jax.random.key(3, impl="rbg")},
    ],
    ids=str,
)
def test_the_kernels_equal_plain_norms(monkeypatch, case):
    """With the same draws of dropout. In bfloat16 the kernels round less, so they are compared with float32."""
    expected = results(monkeypatch, False, **case)
    check(results(monkeypatch, True, **case), expected, 2e-5, 1e-5)


@pytest.mark.parametrize("width", [128, 768])
def test_the_kernels_round_little(monkeypatch, width):
    """The results in bfloat16 are near those of the same numbers in float32."""
    expected = results(monkeypatch, False, width=width, is_rounded=True)
    check(results(monkeypatch, True, width=width, dtype="bfloat16"), expected, 4e-3, 4e-3)


def test_draws_by_row(monkeypatch):
    monkeypatch.setattr(triton_norm, "can_compute", lambda x: True)
    x, norm = jnp.ones((3, 8, 64)), Norm(1e-5, "float32", use_bias=False)
    draws = Draws(jax.random.key(0), 0.5, jnp.array([5, 5, 6]))
    total, _ = norm.apply({"params": {"scale": jnp.ones(64)}}, x, Update(x, None), draws, 1, 1, method="of_sum")
    np.testing.assert_array_equal(total, x + draws.drop(x))


@pytest.mark.parametrize("use", USES)
def test_kernels_on_a_mesh(monkeypatch, use):
    """Each device draws for its own rows what one device would draw for them, also when it recomputes them."""
    expected = results(monkeypatch, True, use=use)
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)):
        check(results(monkeypatch, True, use=use, remat=True), expected, 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("shape", "platform", "expected"),
    [
        ((2, 5, 768), "cuda", True),
        ((2, 768), "cuda", True),
        ((2, 768), "cpu", False),
        ((2, 768), "tpu", False),
        ((2, 5, 12, 64), "cuda", False),  # heads, which the mesh may split
        ((2, 2048), "cuda", False),
        ((2, 312), "cuda", False),  # chunks of 2
        ((2, 960), "cuda", False),  # 60 chunks
    ],
)
def test_what_the_kernels_can_compute(monkeypatch, shape, platform, expected):
    monkeypatch.setattr(meshes, "platform", lambda: platform)
    assert triton_norm.can_compute(jnp.zeros(shape)) is expected
    with jax.set_mesh(jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor"))):
        assert not triton_norm.can_compute(jnp.zeros(shape))


@pytest.mark.parametrize(("changes", "expected"), [({}, True), ({"remat": "norms"}, False), ({"remat": "full"}, True)])
def test_which_models_use_the_kernels(changes, expected):
    assert make_norm(dataclasses.replace(CONFIG, **changes)).is_fused is expected
    assert not make_norm(dataclasses.replace(CONFIG, **changes, attention_backend="xla")).is_fused
