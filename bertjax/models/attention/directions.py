"""Rows of two directions, which kernels with one direction compute one after another.

Shapes: B batch, S queries, N heads, D head size.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.attention.inputs import AttentionInputs
from bertjax.models.attention.mask import CausalRows, Mask


def parts(inputs: AttentionInputs) -> list[AttentionInputs]:
    """Returns the attention of the causal rows and of the others, if their order allows it; otherwise of all rows."""
    mask = inputs.mask
    if not (isinstance(mask, Mask) and mask.causal_rows and inputs.bias is None and inputs.dropout is None):
        return [inputs]
    groups, count = mask.causal_rows
    return [
        _of_rows(inputs, mask, "left_to_right", groups, slice(count)),
        _of_rows(inputs, mask, mask.direction, groups, slice(count, None)),
    ]


def _of_rows(inputs: AttentionInputs, mask: Mask, direction: str, groups: int, rows: slice) -> AttentionInputs:
    """The attention of these rows of each group, in one direction."""

    def take(x: Any) -> Any:
        return x.reshape(groups, -1, *x.shape[1:])[:, rows].reshape(-1, *x.shape[1:])

    tokens, keys = (jax.tree.map(take, side._replace(last_keys=None)) for side in (mask.tokens, mask.keys))
    mask = dataclasses.replace(mask, tokens=tokens, keys=keys, direction=direction, causal_rows=None)
    return inputs._replace(query=take(inputs.query), key=take(inputs.key), value=take(inputs.value), mask=mask)


def joined(contexts: list[Float[Array, "rows S N D"]], places: CausalRows) -> Float[Array, "B S N D"]:
    """Returns the contexts of both parts in the order of the rows."""
    by_group = [context.reshape(places.groups, -1, *context.shape[1:]) for context in contexts]
    joint = jnp.concatenate(by_group, axis=1)
    return joint.reshape(-1, *joint.shape[2:])
