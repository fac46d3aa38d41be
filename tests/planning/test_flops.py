"""Operations of matrix products in traced functions."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from bertjax.planning.flops import matrix_flops


def test_matrix_flops_of_traced_functions():
    weights, x = np.zeros((5, 16, 16)), np.zeros((2, 64, 16))

    def iterations(x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    assert matrix_flops(jax.make_jaxpr(iterations)(x).jaxpr) == 5 * 2 * 2 * 64 * 16 * 16
    assert matrix_flops(jax.make_jaxpr(jax.jit(jax.checkpoint(iterations)))(x).jaxpr) == 5 * 2 * 2 * 64 * 16 * 16
    either = jax.make_jaxpr(lambda x: jax.lax.cond(x[0, 0, 0] > 0, iterations, lambda x: x, x))(x)
    assert matrix_flops(either.jaxpr) == 5 * 2 * 2 * 64 * 16 * 16


def test_all_blocks_of_a_kernel_on_all_devices():
    def multiply(x_ref, w_ref, out_ref):
        out_ref[...] = x_ref[...] @ w_ref[...]

    def product(x, w):
        blocks = pl.BlockSpec((16, 32), lambda i, j: (i, 0)), pl.BlockSpec((32, 8), lambda i, j: (0, j))
        out = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
        own = pl.BlockSpec((16, 8), lambda i, j: (i, j))
        return pl.pallas_call(multiply, grid=(x.shape[0] // 16, 3), in_specs=blocks, out_specs=own, out_shape=out)(x, w)

    x, w = np.zeros((256, 32), np.float32), np.zeros((32, 24), np.float32)
    assert matrix_flops(jax.make_jaxpr(product)(x, w).jaxpr) == 2 * 256 * 32 * 24
    mesh = jax.make_mesh((4, 2), ("rows", "rest"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = jax.shard_map(
        product, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"), axis_names={"rows"}, check_vma=False
    )
    assert matrix_flops(jax.make_jaxpr(split)(x, w).jaxpr) == 2 * 256 * 32 * 24


def test_attention_by_cudnn_counts_as_its_two_products(monkeypatch):
    query, key, value = (np.zeros((2, length, 3, size), jnp.bfloat16) for length, size in ((16, 8), (32, 8), (32, 8)))

    def attend(implementation):
        return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, implementation=implementation)

    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_compute_capability", lambda *args: None)
    plain, fused = (matrix_flops(jax.make_jaxpr(attend(name))(query, key, value).jaxpr) for name in ("xla", "cudnn"))
    assert plain == fused == 2 * 2 * 3 * 16 * 32 * 16
