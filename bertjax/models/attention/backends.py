"""The implementations of scaled dot-product attention, and the choice among them.

Shapes: B batch, S queries, T keys, N heads, D head size.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from bertjax import meshes
from bertjax.errors import UserError
from bertjax.models.attention import directions, disentangled, gpu, local, tpu
from bertjax.models.attention.chunked import chunked
from bertjax.models.attention.compact import compact
from bertjax.models.attention.inputs import RESIDUALS, AttentionInputs, Context, Weights
from bertjax.models.attention.mask import Mask
from bertjax.models.attention.xla import xla

# The backends that "auto" tries before "xla", in this order, by platform.
_PREFERRED = {"tpu": ("rows", "splash"), "cuda": ("cudnn", "triton")}

_Attend = Callable[[AttentionInputs], tuple[Context, Weights | None]]


class Backend(NamedTuple):
    """An implementation of attention, and what it cannot compute.

    Attributes:
      attend: a function with the arguments and results of `xla`.
      obstacles: yields the properties of the inputs that `attend` cannot compute, as texts for messages. Callers stop
        at the first one, so a later check may rely on the earlier ones.
      expected: the config that `attend` can compute, for messages.
    """

    attend: _Attend
    obstacles: Callable[[AttentionInputs], Iterator[str]] = lambda inputs: iter(())
    expected: str = ""


def _obstacles_of_cudnn(inputs: AttentionInputs) -> Iterator[str]:
    size = inputs.query.shape[-1]
    dtype = inputs.query.dtype.name
    yield from _obstacles_of_kernels(inputs, "cuda")
    if dtype not in ("bfloat16", "float16"):
        yield f"model.dtype={dtype}"
    if size % 8 or size > 128:
        yield f"heads of {size}"
    assert isinstance(inputs.mask, Mask), "any other mask is an obstacle, at which callers stop"
    if inputs.mask.is_packed:
        yield "several instances in a row"
    if inputs.mask.window:
        yield "local attention"
    if inputs.mask.direction == "right_to_left":
        yield "attention right_to_left"


def _obstacles_of_triton(inputs: AttentionInputs) -> Iterator[str]:
    yield from _obstacles_of_kernels(inputs, "cuda", needs_order=False)
    if inputs.query.shape[-1] not in gpu.SIZES:  # other heads would have to be padded, which copies them
        yield f"heads of {inputs.query.shape[-1]}"
    if max(inputs.lengths) > gpu.MAX_LENGTH:
        yield f"{inputs.lengths[0]} queries and {inputs.lengths[1]} keys"
    if not meshes.divides(len(inputs.query), inputs.query.shape[2]):
        yield "rows or heads that the mesh does not divide"


def _obstacles_of_splash(inputs: AttentionInputs) -> Iterator[str]:
    yield from _obstacles_on_tpus(inputs)
    if inputs.lengths[0] % tpu.LANES:
        yield f"{inputs.lengths[0]} queries"


def _obstacles_on_tpus(inputs: AttentionInputs) -> Iterator[str]:
    yield from _obstacles_of_kernels(inputs, "tpu")
    if inputs.lengths[1] % tpu.LANES:
        yield f"{inputs.lengths[1]} keys"
    if not meshes.divides(len(inputs.query), inputs.query.shape[2]):
        yield "rows or heads that the mesh does not divide"


def _obstacles_of_rows(inputs: AttentionInputs) -> Iterator[str]:
    yield from _obstacles_on_tpus(inputs)
    size = inputs.query.shape[-1]
    width = meshes.heads_of_device(inputs.query.shape[2]) * inputs.query.shape[-1]
    if max(inputs.lengths) > tpu.MAX_LENGTH:
        yield f"{inputs.lengths[0]} queries and {inputs.lengths[1]} keys"
    if tpu.LANES % size or width % tpu.LANES:
        yield f"heads of {size}, with {width} numbers per token on a device"


def _obstacles_of_kernels(inputs: AttentionInputs, platform: str, needs_order: bool = True) -> Iterator[str]:
    """The obstacles of every kernel for a platform.

    Args:
      inputs: the arguments of the backend.
      platform: the platform of the kernel, see `meshes.platform`.
      needs_order: whether the kernel masks by the order of the tokens in the row, without their positions.
    """
    if meshes.platform() != platform:
        yield f"a device of kind {meshes.platform()}"
    if platform == "cuda" and not meshes.is_ampere_or_newer():
        yield "a GPU that is not from NVIDIA, or older than Ampere"
    if not isinstance(inputs.mask, Mask):
        yield "a mask without a description, as beams have"
    elif inputs.mask.tokens.last_keys is not None:
        yield "a share of causal rows that is no whole number of each device's rows, or changes"
    elif needs_order and inputs.mask.needs_positions:
        yield "attention of some queries in one direction or nearby"
    if inputs.dropout is not None:
        yield "dropout on the attention weights"
    if inputs.return_weights:
        yield "attention weights to be returned"
    if inputs.bias is not None:
        yield "a bias of the scores"
    if inputs.relative is not None:
        yield "scores of relative positions"
    if inputs.query.shape[-1] != inputs.value.shape[-1]:
        yield f"queries of {inputs.query.shape[-1]} and values of {inputs.value.shape[-1]}"


BACKENDS = {
    "xla": Backend(xla),
    "cudnn": Backend(
        gpu.cudnn,
        _obstacles_of_cudnn,
        "an NVIDIA GPU, model.attention_dropout=0, return_attention=False, model.dtype=bfloat16, "
        "heads of 8, 16, ... 128, data.packing=False, model.local_attention=0, and model.direction both or "
        "left_to_right",
    ),
    "triton": Backend(
        gpu.triton,
        _obstacles_of_triton,
        "an NVIDIA GPU, model.attention_dropout=0, return_attention=False, heads of 16, 32, 64 or 128, and lengths of "
        f"at most {gpu.MAX_LENGTH}",
    ),
    "rows": Backend(
        tpu.rows,
        _obstacles_of_rows,
        "a TPU, model.attention_dropout=0, return_attention=False, heads of 8, 16, ... "
        f"{tpu.LANES} that fill {tpu.LANES} numbers, and lengths of at most {tpu.MAX_LENGTH}, with keys a multiple of "
        f"{tpu.LANES}",
    ),
    "splash": Backend(
        tpu.splash,
        _obstacles_of_splash,
        f"a TPU, model.attention_dropout=0, return_attention=False, and lengths that are multiples of {tpu.LANES}",
    ),
}


_STORED = jax.checkpoint_policies.save_only_these_names(RESIDUALS)


def stores_attention(primitive: Any, *types: Any, **parameters: Any) -> bool:
    """Rematerialization policy: stores the results of attention that the backward pass of its backend reads."""
    # JAX calls cuDNN by a primitive whose results have no name, so the name of the primitive identifies them.
    is_cudnn = str(primitive).startswith("dot_product_attention_fwd")
    return is_cudnn or bool(_STORED(primitive, *types, **parameters))


def dot_product_attention(backend: str, inputs: AttentionInputs) -> tuple[Context, Weights | None]:
    """Calls a backend.

    Args:
      backend: a name in `BACKENDS`; or "auto": "rows" or else "splash" on TPUs, and "cudnn" or else "triton" on NVIDIA
        GPUs, if they can compute this attention; otherwise "xla". "xla" stands for the fastest of its forms, see
        `_compiled`.
      inputs: the arguments of the backend.
    Returns:
      The weighted mean of the values for each query, and the weights before dropout, or None unless requested.
    Raises:
      UserError: if the backend cannot compute this attention.
    """
    context, weights = _chosen(backend, inputs)(inputs)
    return context, weights if inputs.return_weights else None


def _chosen(name: str, inputs: AttentionInputs) -> _Attend:
    # Tasks initialize parameters with rows of one token, perhaps on a device that the named backend does not support.
    if inputs.lengths == (1, 1):
        name = "xla"
    parts = directions.parts(inputs)
    if name == "auto":
        candidates = (*_PREFERRED.get(meshes.platform(), ()), "xla")
        name = next(candidate for candidate in candidates if not _first_obstacle(candidate, parts))
    if obstacle := _first_obstacle(name, parts):
        raise UserError(
            f"config key model.attention_backend={name}",
            got=obstacle,
            expected=BACKENDS[name].expected,
            fix="set --config.model.attention_backend=auto; this key may also change after training",
        )
    if name == "xla":
        return _compiled(inputs)
    return BACKENDS[name].attend if len(parts) == 1 else functools.partial(_in_parts, BACKENDS[name].attend)


def _first_obstacle(name: str, parts: Sequence[AttentionInputs]) -> str:
    return next((obstacle for part in parts for obstacle in BACKENDS[name].obstacles(part)), "")


def _in_parts(attend: _Attend, inputs: AttentionInputs) -> tuple[Context, None]:
    """The attention of causal rows and of others by a kernel with one direction."""
    assert isinstance(inputs.mask, Mask) and inputs.mask.causal_rows
    contexts = [attend(part)[0] for part in directions.parts(inputs)]
    return directions.joined(contexts, inputs.mask.causal_rows), None


def _compiled(inputs: AttentionInputs) -> _Attend:
    """The fastest form of `xla` for these inputs."""
    if inputs.return_weights:
        return xla
    if local.saves_time(inputs):
        return _by_blocks
    if meshes.platform() == "cpu":
        # On several CPUs, chunks would have to move between them.
        return chunked if meshes.num_devices() == 1 else xla
    # A step of decoding has few queries, for which rearranging the cached keys would take longest.
    if inputs.dropout is None and inputs.lengths[0] < tpu.LANES:
        return xla
    return compact if inputs.relative is None else _with_scores_of_positions


def _with_scores_of_positions(inputs: AttentionInputs) -> tuple[Context, None]:
    """`compact` with the scores of relative positions as a bias. The backward pass recomputes the bias."""

    @functools.partial(jax.checkpoint, policy=_STORED)
    def attend(query: Array, key: Array, value: Array, relative: disentangled.Positions) -> Array:
        bias = disentangled.scores(query.swapaxes(1, 2), key.swapaxes(1, 2), relative)
        return compact(inputs._replace(query=query, key=key, value=value, bias=bias, relative=None))[0]

    return attend(inputs.query, inputs.key, inputs.value, inputs.relative), None


def _by_blocks(inputs: AttentionInputs) -> tuple[Context, None]:
    """`xla` for local attention, without scores of far keys."""
    blocks = local.in_blocks(inputs)
    # On a GPU, storing the weights of blocks would cost memory and save no time. Elsewhere, `_compiled` does not return
    # this function again, because a block has fewer queries than keys.
    attend = compact if meshes.platform() == "cuda" else _compiled(blocks)
    return local.joined(attend(blocks)[0], *inputs.query.shape[:2]), None
