"""Which dimensions of a Transformer's parameters a tensor-parallel mesh axis splits (Megatron-LM's scheme).

Heads and feed-forward columns are split, and the products after them summed: one reduction for each sub-layer.
"""

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

# (path pattern, mesh axis of each of the last dimensions); what matches nothing is not split.
TENSOR_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"attention/(query|key|value)/kernel$", (None, "tensor")),
    (r"attention/(query|key|value)/bias$", ("tensor",)),
    (r"attention/output/kernel$", ("tensor", None)),
    (r"intermediate/kernel$", (None, "tensor")),
    (r"intermediate/bias$", ("tensor",)),
    (r"layers/output/kernel$", ("tensor", None)),
)


def keep_rows_split(x: Float[Array, "B *shape"]) -> Float[Array, "B *shape"]:
    """Keeps the rows of activations split over the data and fsdp axes of the mesh in force, if there is one.

    Left to itself the compiler follows the parameters: it copies all rows to each device of the fsdp axis and
    splits the hidden dimension, which takes several times the memory.
    """
    if "fsdp" not in jax.sharding.get_abstract_mesh().axis_names:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(("data", "fsdp")))
