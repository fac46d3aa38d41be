"""Operations of matrix products in traced functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training.flops import matrix_flops, training_flops, with_plain_attention
from tests.tools.planning.plans import HIDDEN, ROWS, build, config


def test_matrix_flops_of_traced_functions():
    weights, x = np.zeros((5, 16, 16)), np.zeros((2, 64, 16))

    def iterations(x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    assert matrix_flops(jax.make_jaxpr(iterations)(x).jaxpr) == 5 * 2 * 2 * 64 * 16 * 16
    assert matrix_flops(jax.make_jaxpr(jax.jit(jax.checkpoint(iterations)))(x).jaxpr) == 5 * 2 * 2 * 64 * 16 * 16
    either = jax.make_jaxpr(lambda x: jax.lax.cond(x[0, 0, 0] > 0, iterations, lambda x: x, x))(x)
    assert matrix_flops(either.jaxpr) == 5 * 2 * 2 * 64 * 16 * 16


@pytest.mark.parametrize("backend", ["xla", "auto", "cudnn", "splash"])
def test_all_backends_of_attention_have_the_same_operations(backend):
    able = {"model__attention_dropout": 0.0, "model__dtype": "bfloat16", "model__attention_backend": backend}
    task, _ = build(with_plain_attention(config(**able)))
    (spec,) = task.batch_specs()
    assert training_flops(task, spec) == training_flops(build(config())[0], spec)


def test_local_layers_count_the_products_that_they_compute():
    """A query of a local layer has the keys of its block of 64 tokens and of the two neighboring blocks.

    The few queries of the last layer, which is local, have the keys of the whole row.
    """
    size, layers, length = {"model__num_layers": 5, "model__max_positions": 512, "data__seq_len": 512}, 5, 512
    modern = {**size, "model__positions": "rotary", "model__local_attention": 128, "model__norm": "pre"}

    def flops(**changes):
        task, _ = build(config(**{**modern, **changes}))
        (spec,) = task.batch_specs()
        return training_flops(task, spec)

    def attention(keys):
        """A loss has two products per pair of query and key; an update has three times as many operations."""
        return 3 * 2 * 2 * ROWS * length * keys * HIDDEN

    whole = flops(model__local_attention=0)
    assert whole - flops() == 2 * (attention(length) - attention(3 * 64))
    assert whole - flops(model__global_every=0) == (layers - 1) * (attention(length) - attention(3 * 64))
    assert whole == flops(model__global_every=1)
