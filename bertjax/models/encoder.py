"""The Transformer encoder, and functions for stacks of layers that the decoder uses too.

Shapes: B batch, S length, P output positions, H hidden size, N heads, L layers.
"""

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

from bertjax.models.backends import stores_attention
from bertjax.models.convolution import Convolution
from bertjax.models.dot_product import Mask
from bertjax.models.norms import NORMS
from bertjax.models.transformer import LayerAttention, TransformerLayer, keep_rows_split
from bertjax.models.transformer_config import LayerKind, TransformerConfig, make_norm

_either = jax.checkpoint_policies.save_from_both_policies
_POLICIES = {
    "dots": _either(stores_attention, jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "norms": _either(stores_attention, jax.checkpoint_policies.save_only_these_names(NORMS)),
    "full": stores_attention,
}


_Results = tuple[Array, LayerAttention, Array | None]  # of `run_layers`


class EncoderOutput(NamedTuple):
    """The output of `Encoder`."""

    hidden: Array  # [B, S, H]; [B, P, H] with `output_positions`
    attention: Array | None  # [L, B, N, S, S] float32; None if not requested
    layers: Array | None  # [L + 1, B, S, H]: the input and each layer's output; None if not requested


class Encoder(nn.Module):
    """A stack of Transformer layers.

    Parameters: `layers`, those of a TransformerLayer with a leading axis L, or one place for each group of layers that
    share them; `final_norm` if pre-norm. `convolution` is applied to the first layer's output.
    `scan_layers` and `remat` change neither the layout nor the result, even with dropout, so a checkpoint can be used
    with any of these options.
    """

    config: TransformerConfig
    convolution: Convolution | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S H"],
        mask: Mask,
        relative: Array | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
        return_layers: bool = False,
        output_positions: Int[Array, "B P"] | None = None,
    ) -> EncoderOutput:
        """Returns the last layer's output; all attention weights and all layers' outputs if requested.

        The last of the layers' outputs equals `hidden`, after the final norm if there is one.

        Args:
          x: the embeddings.
          mask: which token may attend to which.
          relative: the bias of the scores [1, N, S, S], or the table of positions [R, H], of all layers; None for none.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights.
          return_layers: whether to return all layers' outputs.
          output_positions: the positions of each row whose output is needed; None for all. If they are at most half of
            a row, the last layer computes queries, attention and feed-forward only at these, which saves most of its
            work, except with disentangled attention, a convolution, or the attention backends "cudnn", "rows" and
            "splash". Cannot be combined with `return_attention` or `return_layers`.
        """
        config = self.config
        layer = TransformerLayer(config, cross=False, parent=None)
        stacked = self.param("layers", stacked_init(layer, config.stored_layers))
        kinds = [config.kind(number) for number in range(config.num_layers)]

        def run(rows: slice, x: Array, mask: Mask, relative: Array | None, source: Array | None = None) -> _Results:
            nonlocal stacked
            # Without a key, dropout inside the layer raises an error.
            key = self.make_rng("dropout") if self.has_rng("dropout") and not deterministic else None
            arguments = (mask, None, None, source, relative)
            options: dict[str, Any] = {"deterministic": deterministic, "return_attention": return_attention}
            part = (layer, kinds, rows, stacked, x, arguments, key, return_layers)
            results, stacked = run_some(*part, **options)
            return results

        is_kernel = config.attention_backend not in ("auto", "xla", "triton")  # others may not compute a few queries
        needs_all = self.convolution is not None or kinds[-1].distances is not None or is_kernel
        needs_all |= output_positions is not None and 2 * output_positions.shape[1] > x.shape[1]
        if output_positions is not None and not needs_all:
            assert not return_attention and not return_layers
            y, weights, outputs = run(slice(-1), x, mask, relative)
            if relative is not None:
                relative = jnp.take(relative[0], output_positions, axis=1).swapaxes(0, 1)
            last_mask = mask.of_queries(output_positions)
            y, _, _ = run(slice(-1, None), take_positions(y, output_positions), last_mask, relative, y)
        else:
            run_rows = functools.partial(run, mask=mask, relative=relative)
            y, weights, outputs = _all_layers(run_rows, x, self.convolution, mask, deterministic)
        if output_positions is not None and needs_all:
            y = take_positions(y, output_positions)
        y = make_norm(config, "final_norm")(y) if config.norm == "pre" else y
        layers = None if outputs is None else jnp.concatenate([x[None], outputs[:-1], y[None]])
        return EncoderOutput(y, weights.own, layers)


def _all_layers(
    run: Callable[[slice, Array], _Results],
    x: Float[Array, "B S H"],
    convolution: Convolution | None,
    mask: Mask,
    deterministic: bool,
) -> _Results:
    """The results of all layers by `run`, with the convolution after the first layer if there is one."""
    if convolution is None:
        return run(slice(None), x)
    assert mask.queries is not None
    y, *of_first = run(slice(1), x)
    y = convolution(x, y, mask.queries.segments, deterministic=deterministic)
    of_first[1] = None if of_first[1] is None else y[None]
    y, *of_others = run(slice(1, None), y)
    weights, outputs = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), of_first, of_others)
    return y, weights, outputs


def run_layers(
    layer: TransformerLayer,
    kinds: Sequence[LayerKind],
    stacked: Any,
    x: Float[Array, "B S H"],
    arguments: tuple[Any, ...],
    key: Array | None,
    *,
    return_layers: bool,
    **options: Any,
) -> _Results:
    """Applies all layers of a stack; see `run_some`."""
    return run_some(layer, kinds, slice(None), stacked, x, arguments, key, return_layers, **options)[0]


def run_some(
    layer: TransformerLayer,
    kinds: Sequence[LayerKind],
    rows: slice,
    stacked: Any,
    x: Float[Array, "B S H"],
    arguments: tuple[Any, ...],
    key: Array | None,
    return_layers: bool,
    **options: Any,
) -> tuple[tuple[Float[Array, "B S H"], LayerAttention, Float[Array, "L B S H"] | None], Any]:
    """Applies some layers of a stack to `x`, in a loop or unrolled, depending on `config.scan_layers`.

    An iteration of the loop applies one layer, or as many as it takes until their kinds repeat.

    Args:
      layer: the module, which all layers share apart from their kinds.
      kinds: the kind of each layer of the stack.
      rows: which layers to apply.
      stacked: the parameters of all layers, or of all groups of layers, as made by `stacked_init`.
      x: the sequence.
      arguments: the layer's other positional arguments.
      key: the dropout key, which is split among the layers; None for no key.
      return_layers: whether to return the outputs of these layers instead of None.
      **options: the layer's keyword arguments.
    Returns:
      The results: the last layer's output, the attention weights [L, ...] of these layers, and their outputs. And
      `stacked` for the call that applies the next layers; it carries their gradients to these layers.
    """
    numbers, kinds = jnp.arange(*rows.indices(len(kinds))), kinds[rows]
    if not kinds:
        return (x, LayerAttention(None, None), None), stacked
    config, is_shared = layer.config, kinds[0].group is not None
    by_number = config.scan_layers and not is_shared
    # Matrices are cast once, not by each layer. Layers cast shared ones, whose gradients are then added up in float32.
    own = jax.tree.map(lambda leaf: leaf.astype(config.dtype) if leaf.ndim > 2 else leaf, stacked)
    values, carrier = jax.lax.stop_gradient(own), own if by_number else None
    elements = None if is_shared else numbers if by_number else jax.tree.map(operator.itemgetter(rows), own)
    keys = None if key is None else jax.random.split(key, len(kinds))

    def apply(kind: LayerKind, carry: tuple[Array, Any], params: Any, key: Array | None) -> tuple[Any, Any]:
        x, carrier = carry
        if by_number:
            params, carrier = _take(values, carrier, params)
        y, weights = layer.clone(kind=kind).apply(
            {"params": params or jax.tree.map(operator.itemgetter(kind.group), stacked)},
            keep_rows_split(x),
            *arguments,
            **options,
            rngs={} if key is None else {"dropout": key},
        )
        return (y, carrier), (weights, y if return_layers else None)

    if policy := _POLICIES.get(config.remat):
        # In unrolled layers the compiler would merge the recomputation with the forward pass; in a loop it cannot.
        apply = jax.checkpoint(apply, prevent_cse=not config.scan_layers, policy=policy, static_argnums=(0,))

    (x, carrier), results = _in_loops(apply, kinds, (x, carrier), (elements, keys), unroll=not config.scan_layers)
    return (x, *results), carrier if by_number else stacked


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
        found = [(period, repeats(start, period)) for period in range(1, len(kinds) - start + 1)]
        period, times = max(((p, r) for p, r in found if r > 1), key=math.prod, default=(1, 1))
        yield start, period, times
        start += period * times


def stacked_init(layer: TransformerLayer, num_layers: int) -> Callable[[Array], Any]:
    """Returns an initializer for the parameters of all layers, stacked on axis 0. Each layer has its own key."""
    config = layer.config
    x, mask = jnp.zeros((1, 1, config.hidden_size), config.dtype), Mask(jnp.ones((1, 1, 1, 1), bool))

    def init(key: Array) -> Any:
        return layer.init(key, x, mask, x, mask, deterministic=True, return_attention=False)["params"]

    return lambda key: jax.vmap(init)(jax.random.split(key, num_layers))


def take_positions(hidden: Float[Array, "B S H"], positions: Int[Array, "B P"]) -> Float[Array, "B P H"]:
    """Returns the vectors at the given positions of each row."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)
