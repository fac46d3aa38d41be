"""Compiles an encoder of two layers for devices that are not there, and prints the calls of kernels in the program.

python -m tests.models.compiled_layers TOPOLOGY CASES
"""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax.models.attention.mask import make_mask
from bertjax.models.encoder import Encoder
from bertjax.models.transformer_config import TransformerConfig
from bertjax.tools.planning.targets import find_target

ROWS, LENGTH, HIDDEN = 8, 256, 128


def calls(topology, dropout=0.0, direction="both", is_packed=False, hidden=HIDDEN, **values):
    """Returns the names of the kernels that a rematerialized layer and its gradient call, with heads on two devices.

    There are two layers, because the compiler removes a loop over one. It would then merge what is recomputed with the
    forward pass.
    """
    target = find_target(topology)
    config = TransformerConfig(
        **{"dtype": "bfloat16", "attention_dropout": dropout, **values},
        **dict.fromkeys(("hidden_size", "intermediate_size"), hidden),
        **{"num_layers": 2, "num_heads": 2, "dropout": 0.0, "activation": "relu", "norm_eps": 1e-6},
        **{"scan_layers": True, "remat": "full"},
    )
    module = Encoder(config)
    mesh = Mesh(np.array(target.devices).reshape(-1, 1, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)

    def loss(params, x, segments, positions, key):
        mask = make_mask(segments, direction, positions if is_packed else None)
        options = {"deterministic": not dropout, "return_attention": False, "rngs": {"dropout": key}}
        return jnp.sum(module.apply(params, x, mask, **options).hidden.astype(jnp.float32))

    def shape(x, *axes):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    x, ids = jnp.zeros((ROWS, LENGTH, hidden), config.dtype), jnp.ones((ROWS, LENGTH), jnp.int32)
    key = jax.random.key(0)
    params = jax.eval_shape(
        lambda: module.init(key, x, make_mask(ids, direction), deterministic=True, return_attention=False)
    )
    arguments = jax.tree.map(shape, params), *(shape(each, "data") for each in (x, ids, ids)), shape(key)
    with jax.set_mesh(mesh):
        lowered = jax.jit(jax.grad(loss)).lower(*arguments)
        text = lowered.compile(compiler_options=dict(target.compiler_options)).as_text()
    return sorted(re.findall(r'custom_call_target="(tpu_custom_call|__cudnn\$\w+|__gpu\$xla.gpu.triton)"', text))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    print(json.dumps([calls(sys.argv[1], **values) for values in json.loads(sys.argv[2])]))
