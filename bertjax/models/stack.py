"""Stacks of Transformer layers: their parameters, and their application in loops or unrolled.

Shapes: B batch, S length, H hidden size, L layers.
"""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertjax.models.attention.backends import stores_attention
from bertjax.models.norms import NORMS
from bertjax.models.transformer import LayerAttention, TransformerLayer, keep_rows_split
from bertjax.models.transformer_config import LayerKind, TransformerConfig

_either = jax.checkpoint_policies.save_from_both_policies
_POLICIES = {
    "dots": _either(stores_attention, jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "norms": _either(stores_attention, jax.checkpoint_policies.save_only_these_names(NORMS)),
    "full": stores_attention,
}

# The last layer's output [B, S, H]; the attention weights [L, ...]; the outputs of all layers [L, B, S, H], or None.
Results = tuple[Array, LayerAttention, Array | None]


def stacked_init(layer: TransformerLayer, num_layers: int) -> Callable[[Array], Any]:
    """Returns an initializer for the parameters of all layers, stacked on axis 0. Each layer has its own key."""
    config = layer.config
    x = jnp.zeros((1, 1, config.hidden_size), config.dtype)
    mask = jnp.ones((1, 1, 1, 1), bool)

    def init(key: Array) -> Any:
        return layer.init(key, x, mask, x, mask, deterministic=True, return_attention=False)["params"]

    return lambda key: jax.vmap(init)(jax.random.split(key, num_layers))


def dropout_key(module: nn.Module, *, deterministic: bool) -> Array | None:
    """Returns the key of one call of a module's `Stack`. Without a key, dropout inside a layer raises an error."""
    return module.make_rng("dropout") if module.has_rng("dropout") and not deterministic else None


@dataclasses.dataclass
class Stack:
    """A stack of layers, which one call or several consecutive calls apply.

    Attributes:
      layer: the module, which all layers share apart from their kinds.
      kinds: the kind of each layer of the stack.
      params: the parameters of all layers, or of all groups of layers, as made by `stacked_init`. A call replaces them
        by equal ones that carry the gradients of later calls to the layers of this one.
      return_layers: whether calls return the outputs of their layers.
      options: the keyword arguments of the layer.
    """

    layer: TransformerLayer
    kinds: Sequence[LayerKind]
    params: Any
    return_layers: bool
    options: dict[str, Any]

    def __call__(
        self, x: Float[Array, "B S H"], arguments: tuple[Any, ...], key: Array | None, rows: slice = slice(None)
    ) -> Results:
        """Applies layers to `x`, in a loop or unrolled, depending on `config.scan_layers`.

        An iteration of the loop applies one layer, or as many as it takes until their kinds repeat.

        Args:
          x: the sequence.
          arguments: the layer's other positional arguments.
          key: the dropout key, which is split among the layers; None for no key.
          rows: which layers to apply; all by default.
        """
        kinds = self.kinds[rows]
        if not kinds:
            return x, LayerAttention(None, None), None
        config = self.layer.config
        table = _table(self.params, kinds, range(*rows.indices(len(self.kinds))), config)
        keys = None if key is None else jax.random.split(key, len(kinds))

        def apply(kind: LayerKind, carry: tuple[Array, Any], element: Any, key: Array | None) -> tuple[Any, Any]:
            x, carrier = carry
            params, carrier = table.take(kind, carrier, element)
            y, weights = self.layer.clone(kind=kind).apply(
                {"params": params},
                keep_rows_split(x),
                *arguments,
                **self.options,
                rngs={} if key is None else {"dropout": key},
            )
            return (y, carrier), (weights, y if self.return_layers else None)

        apply = _rematerialized(apply, config)
        carry, results = _in_loops(
            apply, kinds, (x, table.carrier), (table.elements, keys), unroll=not config.scan_layers
        )
        x, carrier = carry
        if carrier is not None:
            self.params = carrier
        return x, *results


def _rematerialized(apply: Callable[..., Any], config: TransformerConfig) -> Callable[..., Any]:
    """Returns the function of a layer, whose first argument is static, with the rematerialization of the config."""
    policy = _POLICIES.get(config.remat)
    if policy is None:
        return apply
    # In unrolled layers the compiler would merge the recomputation with the forward pass; in a loop it cannot.
    return jax.checkpoint(apply, prevent_cse=not config.scan_layers, policy=policy, static_argnums=(0,))


class _Table(NamedTuple):
    """How the layers of a loop find their parameters.

    Attributes:
      carrier: a value that the loop carries from layer to layer; None for none.
      elements: arrays with an element of axis 0 for each layer; None for none.
      take: returns the parameters of a layer and the next carrier, from the layer's kind, the carrier and its element.
    """

    carrier: Any
    elements: Any
    take: Callable[[LayerKind, Any, Any], tuple[Any, Any]]


def _table(params: Any, kinds: Sequence[LayerKind], numbers: range, config: TransformerConfig) -> _Table:
    """Returns the table of the layers with these numbers in the stack."""
    if kinds[0].group is not None:
        # Layers cast shared parameters themselves, so that the sum of their gradients is float32.
        return _Table(None, None, lambda kind, *_: (jax.tree.map(operator.itemgetter(kind.group), params), None))
    # Matrices are cast once, not by each layer.
    cast = jax.tree.map(lambda leaf: leaf.astype(config.dtype) if leaf.ndim > 2 else leaf, params)
    if not config.scan_layers:
        elements = jax.tree.map(lambda leaf: leaf[numbers.start : numbers.stop], cast)
        return _Table(None, elements, lambda kind, carrier, element: (element, None))
    values = jax.lax.stop_gradient(cast)
    return _Table(cast, jnp.array(numbers), lambda kind, carrier, number: _take(values, carrier, number))


def _in_loops(
    apply: Callable[..., tuple[Any, Any]], kinds: Sequence[LayerKind], carry: Any, of_layers: Any, unroll: bool
) -> tuple[Any, Any]:
    """Calls `apply` with the kind of each layer, `carry`, and the layer's elements of axis 0 of each array.

    Returns `carry`, and the other results of all calls, joined on axis 0.
    """
    collected = []
    for start, period, repeats in _loops(kinds):
        rows = slice(start, start + period * repeats)
        body = functools.partial(_in_turn, [functools.partial(apply, kind) for kind in kinds[rows][:period]])
        carry, results = jax.lax.scan(body, carry, _split(of_layers, rows, repeats), repeats, unroll=unroll)
        collected.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results))
    return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *collected)


@jax.custom_vjp
def _take(values: Any, carrier: Any, number: Int[Array, ""]) -> tuple[Any, Any]:
    """Returns element `number` of each array of `values`, and `carrier`, whose gradient receives that of the element.

    A loop that carries `carrier` writes the gradients of the layers into one array for all layers. A loop over the
    parameters themselves would need copies: of the parameters of its layers, and of their gradients to join them with
    those of other layers. `values` are the same arrays as `carrier`, but a constant of the loop: each iteration stores
    what it carries, if the backward pass reads it. Each element can be taken once.
    """
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), values), carrier


def _put(number: Int[Array, ""], gradients: tuple[Any, Any]) -> tuple[None, Any, None]:
    """The gradient of `carrier` with that of an element in its place."""

    def put(element: Array, stacked: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(stacked, element, number, axis=0)

    return None, jax.tree.map(put, *gradients), None


_take.defvjp(lambda values, carrier, number: (_take(values, carrier, number), number), _put)


def _in_turn(functions: Sequence[Callable[..., tuple[Any, Any]]], carry: Any, params_and_keys: Any) -> tuple[Any, Any]:
    """Applies functions to `carry` one after another, each to its own element of axis 0 of the parameters and keys."""
    results = []
    for number, function in enumerate(functions):
        carry, result = function(carry, *jax.tree.map(operator.itemgetter(number), params_and_keys))
        results.append(result)
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def _split(tree: Any, rows: slice, parts: int) -> Any:
    """Splits these rows of axis 0 of each array into equal parts, along a new axis 0."""
    return jax.tree.map(lambda leaf: leaf[rows].reshape(parts, -1, *leaf.shape[1:]), tree)


def _loops(kinds: Sequence[LayerKind]) -> Iterator[tuple[int, int, int]]:
    """Splits layers into loops: the first layer, the number of layers whose kinds repeat, and how often they do.

    >>> a, b, c = LayerKind(1), LayerKind(2), LayerKind(3)
    >>> list(_loops([a, a, a])), list(_loops([c, a, a, b, a, a, b, a]))
    ([(0, 1, 3)], [(0, 1, 1), (1, 3, 2), (7, 1, 1)])
    """

    def repeats(start: int, period: int) -> int:
        first = kinds[start : start + period]
        stops = range(start + period, len(kinds) + 1, period)
        return sum(1 for _ in itertools.takewhile(lambda stop: kinds[stop - period : stop] == first, stops))

    start = 0
    while start < len(kinds):
        periods = [(period, repeats(start, period)) for period in range(1, len(kinds) - start + 1)]
        period, times = max(((p, r) for p, r in periods if r > 1), key=math.prod, default=(1, 1))
        yield start, period, times
        start += period * times
