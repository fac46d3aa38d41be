import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.models import attention as attention_module
from bertjax.models.attention import Dense, MultiHeadAttention, make_cross_mask, make_mask


def attention(dropout=0.0, dtype="float32", num_heads=3, backend="xla", hidden_size=12, key_size=0):
    kernel_init = nn.initializers.truncated_normal(0.5)
    key_size = key_size or hidden_size // num_heads
    return MultiHeadAttention(hidden_size, num_heads, key_size, dropout, backend, kernel_init, dtype)


def inputs(batch=2, queries=5, keys=7, hidden=12):
    rng = np.random.RandomState(0)
    x = jnp.asarray(rng.randn(batch, queries, hidden), jnp.float32)
    source = jnp.asarray(rng.randn(batch, keys, hidden), jnp.float32)
    mask = jnp.asarray(rng.rand(batch, 1, queries, keys) < 0.6).at[..., 0].set(True)
    return x, source, mask


def init(module, x, source, mask):
    variables = module.init(jax.random.key(0), x, source, mask, deterministic=True, return_attention=True)
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    perturbed = [a + 0.1 * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
    return tree.unflatten(perturbed)


def numpy_attention(params, x, source, mask, num_heads):
    """One query, one head at a time, with the sum over allowed keys alone."""

    def project(name, y):
        return y @ np.asarray(params[name]["kernel"]) + np.asarray(params[name]["bias"])

    query, key, value = project("query", x), project("key", source), project("value", source)
    context = np.zeros_like(x)
    weights = np.zeros((x.shape[0], num_heads, x.shape[1], source.shape[1]))
    size, key_size = x.shape[-1] // num_heads, query.shape[-1] // num_heads
    for b, n, s in np.ndindex(*weights.shape[:3]):
        head, of_key = slice(n * size, (n + 1) * size), slice(n * key_size, (n + 1) * key_size)
        allowed = np.flatnonzero(np.broadcast_to(mask, weights.shape)[b, n, s])
        score = np.exp([query[b, s, of_key] @ key[b, t, of_key] / np.sqrt(key_size) for t in allowed])
        weights[b, n, s, allowed] = score / score.sum()
        context[b, s, head] = weights[b, n, s] @ value[b, :, head]
    return project("output", context), weights


@pytest.mark.parametrize(("num_heads", "key_size"), [(1, 0), (3, 0), (4, 0), (3, 2), (2, 7)])
def test_cross_attention_matches_a_loop_over_allowed_keys(num_heads, key_size):
    x, source, mask = inputs()
    module = attention(num_heads=num_heads, key_size=key_size)
    variables = init(module, x, source, mask)
    assert variables["params"]["query"]["kernel"].shape == (12, num_heads * key_size or 12)
    output, weights = module.apply(variables, x, source, mask, deterministic=True, return_attention=True)
    expected = numpy_attention(variables["params"], np.asarray(x), np.asarray(source), np.asarray(mask), num_heads)
    np.testing.assert_allclose(output, expected[0], atol=1e-5)
    np.testing.assert_allclose(weights, expected[1], atol=1e-6)


def test_keys_and_values_may_be_computed_before():
    x, source, mask = inputs()
    module, options = attention(), {"deterministic": True, "return_attention": True}
    variables = init(module, x, source, mask)
    key, value = module.apply(variables, source, method="project")
    assert key.shape == value.shape == (2, 7, 3, 4)
    parts = module.apply(variables, x, key, value, mask, method="attend", **options)
    jax.tree.map(np.testing.assert_array_equal, parts, module.apply(variables, x, source, mask, **options))


@pytest.mark.parametrize("scores_at_a_time", [35, 70, 210, 10**6])
@pytest.mark.parametrize(("dropout", "for_each_query"), [(0.0, False), (0.4, False), (0.0, True)])
def test_in_parts_all_is_the_same_and_so_are_gradients(monkeypatch, scores_at_a_time, dropout, for_each_query):
    # Four rows of six heads with 5 x 7 scores: a head, two heads, a row or everything at a time.
    x, source, mask = inputs(batch=4)
    mask = mask if for_each_query else mask[:, :, :1]
    module = attention(num_heads=6, dropout=dropout)
    variables = init(module, x, source, mask)
    monkeypatch.setattr(attention_module, "_SCORES_AT_A_TIME", scores_at_a_time)
    monkeypatch.setattr(attention_module, "_MANY_MORE", 1)

    def results():
        def loss(variables, x, source):
            rngs, options = {"dropout": jax.random.key(2)}, {"deterministic": not dropout, "return_attention": False}
            output, _ = module.apply(variables, x, source, mask, rngs=rngs, **options)
            return jnp.mean(output**2)

        scans = "scan" in str(jax.make_jaxpr(loss)(variables, x, source))
        return scans, jax.value_and_grad(loss, (0, 1, 2))(variables, x, source)

    scans, in_parts = results()
    assert scans == (scores_at_a_time < 10**6)
    monkeypatch.setattr(attention_module, "_on_one_cpu", lambda: False)
    scans, whole = results()
    assert not scans
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5), in_parts, whole)


@pytest.mark.parametrize(("devices", "in_parts"), [(1, True), (2, False)])
def test_parts_are_for_one_cpu(monkeypatch, devices, in_parts):
    x, source, mask = inputs()
    module = attention()
    variables = init(module, x, source, mask)
    monkeypatch.setattr(attention_module, "_SCORES_AT_A_TIME", 1)

    def output(variables, x, source):
        return module.apply(variables, x, source, mask, deterministic=True, return_attention=False)[0]

    with jax.set_mesh(jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])):
        assert ("scan" in str(jax.make_jaxpr(output)(variables, x, source))) == in_parts


def test_masked_keys_take_no_weight_and_the_rest_sum_to_one():
    x, source, mask = inputs()
    module = attention()
    _, weights = module.apply(init(module, x, source, mask), x, source, mask, deterministic=True, return_attention=True)
    assert (np.asarray(weights)[~np.broadcast_to(mask, weights.shape)] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_row_without_keys_has_finite_output_and_gradient():
    x, source, mask = inputs()
    mask = mask.at[1].set(False)
    module = attention()
    variables = init(module, x, source, mask)

    def loss(variables, x, source):
        output, _ = module.apply(variables, x, source, mask, deterministic=True, return_attention=False)
        return jnp.sum(output**2)

    value, grads = jax.value_and_grad(loss, argnums=(0, 1, 2))(variables, x, source)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, grads)))


def test_dropout_falls_on_the_weights_but_not_on_those_returned():
    x, source, mask = inputs()
    module = attention(dropout=0.5)
    variables = init(module, x, source, mask)

    def run(deterministic, seed):
        return module.apply(
            variables,
            x,
            source,
            mask,
            deterministic=deterministic,
            return_attention=True,
            rngs={"dropout": jax.random.key(seed)},
        )

    still, weights = run(True, 0)
    dropped, same_weights = run(False, 0)
    np.testing.assert_array_equal(weights, same_weights)
    assert not np.allclose(still, dropped, atol=1e-3)
    np.testing.assert_array_equal(dropped, run(False, 0)[0])
    assert not np.allclose(dropped, run(False, 1)[0], atol=1e-3)
    # The expectation is the value without dropout: within 4.5 standard errors, for each of 120 numbers.
    keys = jax.random.split(jax.random.key(2), 2000)
    draw = jax.jit(
        jax.vmap(
            lambda key: module.apply(
                variables,
                x,
                source,
                mask,
                deterministic=False,
                return_attention=False,
                rngs={"dropout": key},
            )[0]
        )
    )
    draws = np.asarray(draw(keys))
    standard_error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - still) < 4.5 * standard_error).all()
    assert (standard_error < 0.15).all()


def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_weights():
    x, source, mask = inputs()
    variables = init(attention(), x, source, mask)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(variables)} == {"float32"}
    expected, _ = attention().apply(variables, x, source, mask, deterministic=True, return_attention=True)
    half = (x.astype(jnp.bfloat16), source.astype(jnp.bfloat16))
    output, weights = attention(dtype="bfloat16").apply(
        variables, *half, mask, deterministic=True, return_attention=True
    )
    assert (output.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)
    error = np.linalg.norm(output.astype(jnp.float32) - expected) / np.linalg.norm(expected)
    assert 1e-6 < error < 0.02


def test_flash_attention_gets_the_same_masks_and_scale(monkeypatch):
    """cuDNN is not here: what is handed to it goes to the same function's other implementation."""
    segment_ids = jnp.asarray([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 2, 2, 2, 0, 0]])
    x, mask = inputs(batch=3, queries=6)[0], make_mask(segment_ids, "both")
    variables = init(attention(), x, x, mask)
    asked = []

    def on_cpu(*arguments, implementation, **named):
        asked.append(implementation)
        return original(*arguments, **named)

    original = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", on_cpu)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    options = {"deterministic": True, "return_attention": False}
    output, weights = attention(backend="cudnn").apply(variables, x, x, mask, **options)
    expected, _ = attention().apply(variables, x, x, mask, **options)
    assert asked == ["cudnn"] and weights is None
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "dropout", "return_attention", "got"),
    [
        ("gpu", 0.1, False, "dropout 0.1 on the attention weights"),
        ("gpu", 0.0, True, "attention weights to be returned"),
        ("cpu", 0.0, False, "no NVIDIA GPU but cpu"),
    ],
)
def test_what_flash_attention_cannot_do_is_refused(monkeypatch, backend, dropout, return_attention, got):
    x, _, mask = inputs(queries=5, keys=5)
    module = attention(dropout=dropout, backend="cudnn")
    variables = init(module, x, x, mask)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with pytest.raises(UserError, match=rf"attention_backend=cudnn: got {got}"):
        module.apply(variables, x, x, mask, deterministic=True, return_attention=return_attention)


def test_make_mask():
    segment_ids = jnp.asarray([[1, 1, 1], [1, 1, 0], [1, 2, 2]])
    expected = {
        "both": [
            [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
            [[1, 1, 0], [1, 1, 0], [1, 1, 0]],
            [[1, 0, 0], [0, 1, 1], [0, 1, 1]],
        ],
        "left_to_right": [
            [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
            [[1, 0, 0], [1, 1, 0], [1, 1, 0]],
            [[1, 0, 0], [0, 1, 0], [0, 1, 1]],
        ],
        "right_to_left": [
            [[1, 1, 1], [0, 1, 1], [0, 0, 1]],
            [[1, 1, 0], [0, 1, 0], [0, 0, 0]],
            [[1, 0, 0], [0, 1, 1], [0, 0, 1]],
        ],
    }
    for direction, rows in expected.items():
        mask = make_mask(segment_ids, direction)
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, np.array(rows, bool)[:, None])


def test_make_cross_mask():
    """Tokens see those of their number; padding sees all but padding."""
    mask = make_cross_mask(jnp.asarray([[1, 2, 0], [1, 1, 1]]), jnp.asarray([[1, 1, 2, 0], [1, 0, 0, 0]]))
    assert mask.dtype == bool
    expected = [[[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]], [[1, 0, 0, 0]] * 3]
    np.testing.assert_array_equal(mask, np.array(expected, bool)[:, None])


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 4)])
def test_dense_maps_the_last_axis(shape):
    x = jax.random.normal(jax.random.key(0), shape)
    params = {"kernel": jax.random.normal(jax.random.key(1), (4, 6)), "bias": jnp.arange(6.0)}
    y = Dense(6, nn.initializers.zeros, "float32").apply({"params": params}, x)
    np.testing.assert_allclose(y, np.asarray(x) @ params["kernel"] + params["bias"], atol=1e-5)
