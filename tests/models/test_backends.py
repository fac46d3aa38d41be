"""Every backend equals the formula of attention, and "auto" chooses one that can compute the request."""

import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from bertjax import meshes
from bertjax.errors import UserError
from bertjax.models.attention import backends, tpu
from bertjax.models.attention.chunked import chunked
from bertjax.models.attention.compact import compact
from bertjax.models.attention.gpu import cudnn, triton
from bertjax.models.attention.inputs import AttentionInputs, Dropout
from bertjax.models.attention.mask import CausalRows, as_array, make_cross_mask, make_mask
from bertjax.models.attention.tpu import rows as rows_kernel
from bertjax.models.attention.tpu import splash
from bertjax.models.attention.xla import xla
from bertjax.models.layers import drop
from bertjax.training import platforms
from tests.trees import distance

ROOT = Path(__file__).parents[2]
ROWS, QUERIES, KEYS, HEADS, SIZE = 2, 128, 256, 2, 8
DIRECTIONS = ("both", "left_to_right", "right_to_left")


def rows(lengths, total):
    """Segments and positions of packed rows, given the lengths of the instances in each row."""
    segments, positions = np.zeros((2, len(lengths), total), np.int32)
    for row, of_row in enumerate(lengths):
        ends = np.cumsum([0, *of_row])
        for number, (start, end) in enumerate(itertools.pairwise(ends), 1):
            segments[row, start:end], positions[row, start:end] = number, np.arange(end - start)
    return jnp.asarray(segments), jnp.asarray(positions)


def masks():
    """Masks of each kind: padded and packed, in all directions, of local layers, and of another sequence."""
    padded, packed = rows([[100], [128]], QUERIES), rows([[60, 40, 28], [50, 30]], QUERIES)
    found = {}
    for direction in DIRECTIONS:
        found[f"padded, {direction}"] = make_mask(padded[0], direction)
        found[f"packed, {direction}"] = make_mask(packed[0], direction, packed[1])
    found["padded, right_to_left, local"] = found["padded, right_to_left"].within(30)
    found["packed, both, local"] = found["packed, both"].within(9)
    found["packed, some queries"] = found["packed, both"].of_queries(jnp.array([[90, 3, 3, 70], [0, 60, 79, 0]]))
    found["padded, cross"] = make_cross_mask(padded[0], rows([[256], [30]], KEYS)[0], is_packed=False)
    found["packed, cross"] = make_cross_mask(packed[0], rows([[100, 50, 30], [200, 20]], KEYS)[0], is_packed=True)
    return found


def arrays(mask, dtype="float32", size=SIZE, value_size=None, heads=HEADS):
    rng, (batch, queries), keys = np.random.default_rng(0), mask.queries.segments.shape, mask.keys.segments.shape[1]
    shapes = (queries, heads, size), (keys, heads, size), (keys, heads, value_size or size)
    return [jnp.asarray(rng.standard_normal((batch, *shape)), dtype) for shape in shapes]


def formula(inputs):
    """Attention as in the paper, with a bias of the scores."""
    scores = jnp.einsum("BSNQ,BTNQ->BNST", *inputs[:2]) / inputs.query.shape[-1] ** 0.5
    scores = scores if inputs.bias is None else scores + inputs.bias
    weights = jax.nn.softmax(jnp.where(as_array(inputs.mask), scores, -1e9))
    if inputs.dropout is not None:
        weights = jax.vmap(jax.vmap(functools.partial(drop, rate=inputs.dropout.rate)))(weights, inputs.dropout.keys)
    return jnp.einsum("BNST,BTND->BSND", weights, inputs.value), weights


def loss(attend, mask, dropout, query, key, value, bias=None):
    """A loss of the output at all tokens, and this output."""
    output = attend(AttentionInputs(query, key, value, mask, dropout, bias))[0].astype(jnp.float32)
    output = jnp.where((mask.queries.segments != 0)[..., None, None], output, 0)
    return jnp.sum(jnp.sin(output)), output


@functools.partial(jax.jit, static_argnums=(0, 1))
def results(attend, rate, mask, *inputs):
    """The output at all tokens, and the gradients of queries, keys, values and bias."""
    pairs = len(inputs[0]), inputs[0].shape[2]
    dropout = Dropout(jax.random.split(jax.random.key(3), pairs), rate) if rate else None
    of_inputs = jax.grad(functools.partial(loss, attend, mask, dropout), range(len(inputs)), has_aux=True)
    gradients, output = of_inputs(*inputs)
    return output, gradients


def check(attend, mask, *inputs, rate=0.0):
    inputs = inputs or arrays(mask)
    found, expected = (results(each, rate, mask, *inputs) for each in (attend, formula))
    assert np.abs(expected[0]).max() > 0.5
    np.testing.assert_allclose(found[0], expected[0], atol=2e-5)
    for of_found, of_expected in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(of_found, of_expected, atol=1e-5, rtol=1e-5)


FORMS = {
    "plain": xla,
    "chunks of two heads": chunked,
    "chunks of two rows": chunked,
    "blocks": backends._by_blocks,
    "compact, tpu": compact,
    "compact, cuda": compact,
}


@pytest.mark.parametrize("has_own_bias", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_xla_equal_the_formula(monkeypatch, form, has_own_bias):
    """With a bias that all rows share or not, values of another size, packed rows; and dropout if the draws agree."""
    length, heads, is_local = 201, 4, form == "blocks"  # an odd number of keys on GPUs, an even one on TPUs
    length -= form == "compact, tpu"
    segments, positions = (jnp.tile(x, (2, 1)) for x in rows([[60, 40, 28], [150, 40]], length))
    mask = make_mask(segments, "both", positions).within(5 * is_local)
    query, key, value = arrays(mask, value_size=5, heads=heads)
    bias = 3 * jax.random.normal(jax.random.key(0), (len(query) if has_own_bias else 1, heads, length, length))
    monkeypatch.setattr(meshes, "platform", lambda: form.partition(", ")[2] or "cpu")
    if "chunks" in form:
        monkeypatch.setattr("bertjax.models.attention.chunked._MIN_CHUNKS", 1)
        scores = length**2 * (2 if "heads" in form else 2 * heads)
        monkeypatch.setattr("bertjax.models.attention.chunked._SCORES_AT_A_TIME", scores)
    inputs, rate = (query, key, value, bias), 0.0 if is_local else 0.3
    scans = "scan" in str(jax.make_jaxpr(functools.partial(loss, FORMS[form], mask, None))(*inputs))
    assert scans == ("chunks" in form)
    check(lambda inputs: FORMS[form](inputs), mask, *inputs, rate=rate)


@pytest.mark.parametrize("name", sorted({*masks()} - {"packed, some queries"}))
def test_splash_equals_plain_attention(name):
    check(splash, masks()[name])


@pytest.mark.parametrize(("name", "size"), zip(masks(), itertools.cycle([64, 128])))
def test_rows_equals_plain_attention(name, size):
    """With two heads in a block, and with one."""
    check(rows_kernel, masks()[name], *arrays(masks()[name], size=size))


@pytest.mark.parametrize(("name", "size"), zip(masks(), itertools.cycle([16, 32, 64, 128])))
def test_triton_equals_plain_attention(name, size):
    check(triton, masks()[name], *arrays(masks()[name], size=size))


@pytest.mark.parametrize(("direction", "window"), [("both", 9), ("left_to_right", 0), ("right_to_left", 9)])
def test_triton_computes_some_queries(direction, window):
    """In any order, the first token several times, with numbers of queries and keys that no block divides."""
    segments, positions = rows([[41, 60], [70]], 101)
    places = np.random.default_rng(0).permuted(np.tile(np.arange(101), (2, 1)), axis=1)[:, :37]
    mask = make_mask(segments, direction, positions).within(window).of_queries(jnp.asarray(places).at[:, -5:].set(0))
    check(triton, mask, *arrays(mask, size=32))


@pytest.mark.parametrize(("attend", "size"), [(triton, 16), (rows_kernel, 64), (splash, SIZE)])
def test_kernels_compute_causal_rows_apart(attend, size):
    """Rows 0 and 2 are causal, the first of each of two devices."""
    segments, positions = rows([[60, 40, 28], [50, 30], [128], [100]], QUERIES)
    mask = make_mask(segments, "both", positions, jnp.array([1, 0, 1, 0]), CausalRows(2, 1))
    check(functools.partial(backends._in_parts, attend), mask, *arrays(mask, size=size))
    either = [as_array(make_mask(segments, direction, positions)) for direction in ("left_to_right", "both")]
    np.testing.assert_array_equal(as_array(mask), np.stack([either[0], either[1]])[[0, 1, 0, 1], range(4)])


@pytest.mark.parametrize("lengths", [[64, 64], [128]])
def test_triton_skips_blocks_that_are_out_of_reach(lengths):
    """Forward and backward: products with NaN would be NaN. In a row of one instance, the window is out of reach."""
    segments, positions = rows([lengths], 128)
    mask = make_mask(segments, "both", positions).within(9)
    inputs = [x.at[:, 96:].set(np.nan) for x in arrays(mask, size=16)]

    def loss(*inputs):
        output = triton(AttentionInputs(*inputs, mask))[0]
        return jnp.sum(output[:, :32]), output

    gradients, output = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*inputs)
    for each in (output, *gradients):
        assert np.isfinite(each[:, :32]).all() and np.abs(each[:, :32]).max() > 0 and np.isnan(each[:, 96:]).any()


def test_splash_with_several_blocks_of_keys(monkeypatch):
    monkeypatch.setattr(tpu, "_MAX_BLOCK", 128)
    check(lambda inputs: splash(inputs), masks()["packed, cross"])


@pytest.mark.parametrize("direction", ["both", "left_to_right"])
def test_splash_skips_blocks_of_far_keys(direction):
    segments, positions = rows([[100, 250], [384]], 384)
    check(splash, make_mask(segments, direction, positions).within(9))


@pytest.mark.parametrize("name", ["packed, some queries", "packed, cross"])
def test_compact_equals_plain_attention(monkeypatch, name):
    """Where queries are not keys; see `test_forms_of_xla_equal_the_formula` for the others."""
    monkeypatch.setattr(meshes, "platform", lambda: "tpu")
    check(lambda inputs: compact(inputs), masks()[name])


@pytest.mark.parametrize(("attend", "platform"), [(compact, "tpu"), (compact, "cuda"), (triton, "cpu")])
def test_kernels_round_no_more_than_plain_attention(monkeypatch, attend, platform):
    """In bfloat16, compared with float32, for the output and each gradient."""
    monkeypatch.setattr(meshes, "platform", lambda: platform)
    mask, size, rate = masks()["packed, both"], 16, 0.3 if attend is compact else 0.0
    exact = results(xla, rate, mask, *arrays(mask, size=size))

    def errors(attend):
        found = results(attend, rate, mask, *arrays(mask, "bfloat16", size))
        return np.array([distance(a, b) for a, b in zip(*map(jax.tree.leaves, (found, exact)), strict=True)])

    assert (errors(xla) > 1e-4).all()
    assert (errors(lambda inputs: attend(inputs)) < 1.2 * errors(xla)).all()


@pytest.mark.parametrize("name", ["padded, both", "padded, left_to_right", "padded, odd", "padded, cross"])
def test_cudnn_gets_the_direction_and_even_lengths(monkeypatch, name):
    """Without cuDNN, its arguments are passed to XLA's implementation of the same JAX function."""
    original, found = jax.nn.dot_product_attention, []
    odd = make_mask(rows([[50], [33]], 51)[0], "both").of_queries(jnp.array([[0, 49, 4], [7, 0, 0]]))

    def on_cpu(*arguments, implementation, mask=None, **named):
        assert mask is None
        assert not any(x.shape[1] % 2 for x in arguments)
        found.append(implementation)
        return original(*arguments, **named)

    monkeypatch.setattr(jax.nn, "dot_product_attention", on_cpu)
    check(cudnn, masks().get(name, odd))
    assert found == ["cudnn"]


@pytest.mark.parametrize("attend", [rows_kernel, splash, cudnn, triton, compact])
def test_rows_of_padding_have_finite_outputs_and_gradients(monkeypatch, attend):
    original = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *a, implementation, **named: original(*a, **named))
    segments = jnp.zeros((ROWS, QUERIES), jnp.int32).at[0, :5].set(1)
    for mask in (make_mask(segments, "both"), make_cross_mask(segments, segments[::-1], is_packed=False)):
        total = jax.value_and_grad(lambda *x, mask=mask: jnp.sum(attend(AttentionInputs(*x, mask))[0]), (0, 1, 2))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(total)(*arrays(mask, size=64))))


@pytest.mark.parametrize("attend", [rows_kernel, compact])
def test_queries_without_keys_give_no_gradient_of_queries_and_keys(attend):
    mask = make_mask(jnp.zeros((ROWS, QUERIES), jnp.int32).at[0, :5].set(1), "right_to_left")
    inputs = arrays(mask, size=64)
    found, expected = (
        jax.jit(jax.grad(lambda *x, of=of: jnp.sum(jnp.sin(of(AttentionInputs(*x, mask))[0])), (0, 1)))(*inputs)
        for of in (attend, xla)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


# Tests of the choice.


def request(mask=None, dtype="bfloat16", size=SIZE, value_size=None, length=QUERIES, **values):
    mask = make_mask(jnp.ones((ROWS, length), jnp.int32), "both") if mask is None else mask
    query = jnp.zeros((ROWS, length, HEADS, size), dtype)
    value = jnp.zeros((*query.shape[:3], value_size or size), dtype)
    return AttentionInputs(query, query, value, mask, **values)


DROPOUT, BIAS = Dropout(jnp.zeros((ROWS, HEADS)), 0.1), jnp.zeros((1, HEADS, QUERIES, QUERIES))
PACKED = masks()["packed, both"]
CAUSAL, BACKWARDS = (make_mask(jnp.ones((ROWS, QUERIES), jnp.int32), each) for each in DIRECTIONS[1:])
SOME = CAUSAL.of_queries(jnp.zeros((ROWS, QUERIES), jnp.int32))


@pytest.mark.parametrize(
    ("values", "on_tpu", "on_gpu"),
    [
        ({}, splash, cudnn),
        ({"dropout": DROPOUT}, compact, compact),
        ({"bias": BIAS}, compact, compact),
        ({"value_size": 16}, compact, compact),
        ({"return_weights": True}, xla, xla),
        ({"dtype": "float32"}, splash, compact),
        ({"size": 64}, rows_kernel, cudnn),
        ({"size": 128, "length": 512, "dtype": "float32"}, rows_kernel, triton),
        ({"size": 12}, splash, compact),
        ({"length": 96}, xla, cudnn),
        ({"length": 96, "dropout": DROPOUT}, compact, compact),
        ({"mask": PACKED}, splash, compact),
        ({"mask": PACKED, "size": 64}, rows_kernel, triton),
        ({"mask": PACKED.within(9), "size": 16}, splash, triton),
        ({"mask": CAUSAL, "size": 64}, rows_kernel, cudnn),
        ({"mask": BACKWARDS, "size": 64}, rows_kernel, triton),
        ({"mask": SOME, "size": 64}, compact, triton),
        ({"mask": as_array(CAUSAL), "size": 64}, compact, compact),
        ({"mask": PACKED, "size": 64, "dropout": DROPOUT}, compact, compact),
    ],
)
def test_auto_chooses_what_can_compute_the_request(monkeypatch, values, on_tpu, on_gpu):
    for platform, expected in (("tpu", on_tpu), ("cuda", on_gpu)):
        monkeypatch.setattr(meshes, "platform", lambda platform=platform: platform)
        assert backends._chosen("auto", request(**values)) is expected
        if expected in (rows_kernel, splash, cudnn, triton):
            assert backends._chosen(expected.__name__, request(**values)) is expected


@pytest.mark.parametrize("name", ["auto", "cudnn", "splash"])
def test_one_token_needs_no_kernel(name):
    """Parameters are initialized by one token, without the devices of a plan."""
    assert backends._chosen(name, request(length=1)) is chunked


def test_each_device_of_pmap_has_its_own_program():
    found = []

    def of_device(x):
        found.append((meshes.num_devices(), meshes.divides(3, 3), meshes.heads_of_device(4), meshes.platform()))
        return x

    jax.pmap(of_device, axis_name="data")(jnp.zeros(2))
    assert found and set(found) == {(1, True, 4, "cpu")}


@pytest.mark.parametrize(("capability", "expected"), [("7.5", False), ("8.0", True), ("9.0", True), ("gfx90a", False)])
def test_gpus_with_flash_attention(monkeypatch, capability, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [mock.Mock(compute_capability=capability)])
    monkeypatch.setattr(meshes, "platform", lambda: "cuda")
    assert meshes.is_ampere_or_newer() is expected
    assert (backends._chosen("auto", request()) is cudnn) is expected
    assert (backends._chosen("auto", request(PACKED, size=64)) is triton) is expected


@pytest.mark.parametrize("name", ["auto", "xla"])
def test_the_forms_of_xla_on_cpus(name):
    assert backends._chosen(name, request()) is chunked
    for devices, expected in ((1, chunked), (2, xla)):
        with jax.set_mesh(jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])):
            assert backends._chosen(name, request()) is expected


@pytest.mark.parametrize(
    ("name", "platform", "values", "got"),
    [
        ("cudnn", "cpu", {}, "a device of kind cpu"),
        ("cudnn", "cuda", {"dropout": DROPOUT}, "dropout on the attention weights"),
        ("cudnn", "cuda", {"mask": PACKED}, "several instances in a row"),
        ("cudnn", "cuda", {"mask": BACKWARDS}, "attention right_to_left"),
        ("cudnn", "cuda", {"mask": SOME}, "attention of some queries in one direction"),
        ("cudnn", "cuda", {"size": 136}, "heads of 136"),
        ("triton", "cuda", {"size": 96}, "heads of 96"),
        ("triton", "cuda", {"mask": as_array(CAUSAL)}, "a mask without a description"),
        ("triton", "tpu", {}, "a device of kind tpu"),
        ("rows", "tpu", {}, "heads of 8, with 16 numbers per token on a device"),
        ("rows", "tpu", {"size": 64, "length": 640}, "640 queries and 640 keys"),
        ("splash", "cuda", {}, "a device of kind cuda"),
        ("splash", "tpu", {"length": 96}, "96 keys"),
    ],
)
def test_a_backend_that_cannot_compute_the_request(monkeypatch, name, platform, values, got):
    monkeypatch.setattr(meshes, "platform", lambda: platform)
    with pytest.raises(UserError) as caught:
        backends._chosen(name, request(**values))
    assert f"attention_backend={name}: got {got}" in str(caught.value)
    assert "--config.model.attention_backend=auto" in str(caught.value)


def test_splash_needs_a_mesh_that_divides_the_rows(monkeypatch):
    monkeypatch.setattr(meshes, "platform", lambda: "tpu")
    for shape, expected in (((2, 1, 2), splash), ((1, 4, 1), compact), ((1, 1, 4), compact)):
        mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), devices=jax.devices()[: shape[0] * shape[1] * shape[2]])
        with jax.set_mesh(mesh):
            assert backends._chosen("auto", request()) is expected


@pytest.mark.parametrize(("attend", "size"), [(rows_kernel, 128), (splash, SIZE), (triton, 16), (compact, SIZE)])
@pytest.mark.parametrize("is_rematerialized", [False, True])
def test_on_a_mesh(attend, size, is_rematerialized):
    """Rows over two axes and heads over the third give the same output and gradients, rematerialized or not."""
    mask = masks()["packed, left_to_right"]
    wide = [jnp.concatenate([x, x[::-1]]) for x in arrays(mask, size=size)]
    segments, positions = (jnp.concatenate([x, x[::-1]]) for x in (mask.keys.segments, mask.keys.positions))

    def loss(*inputs):
        def of_inputs(*inputs):
            return attend(AttentionInputs(*inputs, make_mask(segments, "left_to_right", positions)))[0]

        of_inputs = jax.checkpoint(of_inputs, policy=backends.stores_attention) if is_rematerialized else of_inputs
        return jnp.sum(jnp.where(segments[..., None, None] != 0, jnp.sin(of_inputs(*inputs)), 0))

    expected = jax.jit(jax.grad(loss, (0, 1, 2)))(*wide)
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)):
        found = jax.jit(jax.grad(loss, (0, 1, 2)))(*wide)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_rematerialization_stores_the_results():
    """Of the forward pass, the backward pass repeats no product."""
    mask = masks()["padded, both"]

    def count(policy):
        of_inputs = jax.checkpoint(lambda *inputs: jnp.sum(compact(AttentionInputs(*inputs, mask))[0]), policy=policy)
        return str(jax.make_jaxpr(jax.grad(of_inputs, (0, 1, 2)))(*arrays(mask))).count("dot_general[")

    assert count(None) - count(backends.stores_attention) == 3


# Tests with the compilers of accelerators, defined where these are installed.


def calls(topology, *cases):
    """The calls of kernels by a layer, compiled in another process because compilers read the environment."""
    unused = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # they make tests on CPUs faster
    environment = {key: value for key, value in os.environ.items() if key not in unused}
    command = [sys.executable, "-m", "tests.models.compiled_layers", topology, json.dumps(cases)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


if importlib.util.find_spec("libtpu"):

    def test_a_layer_for_tpus():
        """Splash attention is called forward and backward; it is not called twice for rematerialization.

        With 128 numbers per token on a device, the kernel for rows is called; it stores nothing for the backward pass.
        """
        cases = [{}, {"dtype": "float32", "direction": "right_to_left", "is_packed": True}, {"dropout": 0.1}]
        wide = [{**case, "hidden": 256} for case in cases[:2]]
        splash, rows = ["tpu_custom_call"] * 2, ["tpu_custom_call"] * 3
        assert calls("v5e:2x2", *cases, *wide) == [splash, splash, [], rows, rows]


if any(plugin.startswith("xla_cuda") for plugin in platforms.installed_plugins()):

    def test_a_layer_for_gpus():
        """cuDNN gets no bias, so it computes no gradient of one. No attention is called twice for rematerialization.

        The two norms of a layer are: forward, recomputed, and backward.
        """
        cases = [{}, {"direction": "left_to_right"}, {"is_packed": True}, {"dropout": 0.1}]
        cudnn = ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]
        triton = ["__gpu$xla.gpu.triton"] * 2  # another name after JAX 0.10.2
        assert calls("h100:2", *cases) == [[*kernels, *triton * 3] for kernels in (cudnn, cudnn, triton, [])]
