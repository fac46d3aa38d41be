"""The implementations of scaled dot-product attention, and the choice among them.

Shapes: B batch, S queries, T keys, N heads, D head size, Q size of a head's queries and keys.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from bertjax import meshes
from bertjax.errors import UserError
from bertjax.models import local
from bertjax.models.compact import compact
from bertjax.models.dot_product import RESIDUALS, Context, Dropout, Mask, Weights, chunked, xla
from bertjax.models.flash import LANES, cudnn, splash
from bertjax.models.row_attention import MAX_LENGTH, rows

_PREFERRED = {"tpu": ("rows", "splash"), "cuda": ("cudnn",)}


class Request(NamedTuple):
    """The arguments of `dot_product_attention`, which decide who can compute it."""

    query: Float[Array, "B S N Q"]
    key: Float[Array, "B T N Q"]
    value: Float[Array, "B T N D"]
    mask: Mask
    dropout: Dropout | None
    return_weights: bool

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.query.shape[1], self.key.shape[1]


class Backend(NamedTuple):
    """A function like `xla`, and what it cannot compute."""

    attend: Callable[..., tuple[Context, Weights | None]]
    obstacles: Callable[[Request], Iterator[str]] = lambda request: iter(())
    expected: str = ""


def _obstacles_of_cudnn(request: Request) -> Iterator[str]:
    size, dtype = request.query.shape[-1], request.query.dtype.name
    mask = request.mask
    yield from _obstacles_of_kernels(request, "cuda")
    if not meshes.has_cudnn_attention():
        yield "a GPU that is not from NVIDIA, or older than Ampere"
    if dtype not in ("bfloat16", "float16"):
        yield f"model.dtype={dtype}"
    if size % 8 or size > 128:
        yield f"heads of {size}"
    if mask.is_packed:
        yield "several instances in a row"
    if mask.window:
        yield "local attention"
    if mask.direction == "right_to_left":
        yield "attention right_to_left"


def _obstacles_of_splash(request: Request) -> Iterator[str]:
    yield from _obstacles_of_kernels(request, "tpu")
    if any(length % LANES for length in request.lengths):
        yield f"{request.lengths[0]} queries and {request.lengths[1]} keys"
    if not meshes.divides(len(request.query), request.query.shape[2]):
        yield "rows or heads that the mesh does not divide"


def _obstacles_of_rows(request: Request) -> Iterator[str]:
    yield from _obstacles_of_splash(request)
    size, width = request.query.shape[-1], meshes.heads_of_device(request.query.shape[2]) * request.query.shape[-1]
    if max(request.lengths) > MAX_LENGTH:
        yield f"{request.lengths[0]} queries and {request.lengths[1]} keys"
    if LANES % size or width % LANES:
        yield f"heads of {size}, with {width} numbers per token on a device"


def _obstacles_of_kernels(request: Request, platform: str) -> Iterator[str]:
    if meshes.platform() != platform:
        yield f"a device of kind {meshes.platform()}"
    if not request.mask.is_described:
        yield "attention of some queries in one direction or nearby"
    if request.dropout is not None:
        yield "dropout on the attention weights"
    if request.return_weights:
        yield "attention weights to be returned"
    if request.query.shape[-1] != request.value.shape[-1]:
        yield f"queries of {request.query.shape[-1]} and values of {request.value.shape[-1]}"


BACKENDS = {
    "xla": Backend(xla),
    "cudnn": Backend(
        cudnn,
        _obstacles_of_cudnn,
        "an NVIDIA GPU, model.attention_dropout=0, return_attention=False, model.dtype=bfloat16, "
        "heads of 8, 16, ... 128, data.packing=False, model.local_attention=0, and model.direction both or "
        "left_to_right",
    ),
    "rows": Backend(
        rows,
        _obstacles_of_rows,
        "a TPU, model.attention_dropout=0, return_attention=False, heads of 8, 16, ... "
        f"{LANES} that fill {LANES} numbers, and lengths that are multiples of {LANES} and at most {MAX_LENGTH}",
    ),
    "splash": Backend(
        splash,
        _obstacles_of_splash,
        f"a TPU, model.attention_dropout=0, return_attention=False, and lengths that are multiples of {LANES}",
    ),
}


_STORED = jax.checkpoint_policies.save_only_these_names(RESIDUALS)


def stores_attention(primitive: Any, *types: Any, **parameters: Any) -> bool:
    """Rematerialization policy: stores the results of attention that the backward pass of its backend reads."""
    # cuDNN's results have no name.
    is_cudnn = str(primitive).startswith("dot_product_attention_fwd")
    return is_cudnn or bool(_STORED(primitive, *types, **parameters))


def dot_product_attention(
    backend: str,
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
    return_weights: bool,
) -> tuple[Context, Weights | None]:
    """Calls a backend.

    Args:
      backend: a name in `BACKENDS`; or "auto": "rows" or else "splash" on TPUs and "cudnn" on NVIDIA GPUs if they can
        compute this attention, otherwise "xla". For "xla", `chunked` is called on one CPU and `compact` on TPUs and
        GPUs, unless the weights are requested or there are few queries and no dropout.
      query, key, value, mask, dropout: see `xla`.
      return_weights: whether to return the weights.
    Raises:
      UserError: if the backend cannot compute this attention.
    """
    request = Request(query, key, value, mask, dropout, return_weights)
    context, weights = _chosen(backend, request)(query, key, value, mask, dropout)
    return context, weights if return_weights else None


def _chosen(name: str, request: Request) -> Callable[..., tuple[Context, Weights | None]]:
    if request.lengths == (1, 1):  # when parameters are initialized, which may be on another device
        name = "xla"
    if name == "auto":
        names = (*_PREFERRED.get(meshes.platform(), ()), "xla")
        name = next(each for each in names if not next(BACKENDS[each].obstacles(request), ""))
    obstacle = next(BACKENDS[name].obstacles(request), "")
    if obstacle:
        raise UserError(
            f"config key model.attention_backend={name}",
            got=obstacle,
            expected=BACKENDS[name].expected,
            fix="set --config.model.attention_backend=auto; this key may also change after training",
        )
    return _compiled(request) if name == "xla" else BACKENDS[name].attend


def _compiled(request: Request) -> Callable[..., tuple[Context, Weights | None]]:
    """The fastest form of `xla`. On several CPUs, chunks would have to move between them."""
    if request.return_weights:
        return xla
    if local.saves_time(request.mask, *request.lengths):
        return _by_blocks
    if meshes.platform() == "cpu":
        return chunked if meshes.num_devices() == 1 else xla
    # A step of decoding has few queries, for which rearranging the cached keys would take longest.
    return xla if request.dropout is None and request.lengths[0] < LANES else compact


def _by_blocks(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Context, None]:
    """`xla` for local attention, without scores of far keys."""
    arguments = local.in_blocks(query, key, value, mask, dropout)
    # On a GPU, storing the weights of blocks would cost memory and save no time.
    attend = compact if meshes.platform() == "cuda" else _compiled(Request(*arguments, return_weights=False))
    return local.joined(attend(*arguments)[0], *query.shape[:2]), None
