"""Converts parameters of the encoder-decoder from and to tensors with the names of transformers' `MarianMTModel`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.interop.bert_tensors import Slot, as_float32, refuse, take
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import EncoderDecoderConfig

# Module of our layers: module of Marian's layers.
_MODULES = {
    "attention": "self_attn",
    "attention_norm": "self_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "intermediate": "fc1",
    "output": "fc2",
    "output_norm": "final_layer_norm",
}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}

_SHARED = "model.shared.weight"
_BIAS = "final_logits_bias"
_SOURCE = "model.encoder.embed_tokens.weight"
_TARGET = "model.decoder.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_TOP = {
    "embeddings": _SHARED,
    "source_embeddings": _SOURCE,
    "target_embeddings": _TARGET,
    "output": _OUTPUT,
    "bias": _BIAS,
}
# Stored positions are sinusoids, up to rounding to float16.
_ROUNDING = 1e-3


def canonical(tensors: Mapping[str, np.ndarray], sizes: Mapping[str, Any], source: str) -> dict[str, np.ndarray]:
    """Returns the tensors as float32, each once, under the name of the first module that has it, without positions.

    Args:
      tensors: the tensors of a file; shared tables may be stored once or repeatedly.
      sizes: the fields of EncoderDecoderConfig that config.json determines.
      source: the file or folder, for messages.
    Raises:
      UserError: if a type is not float32, float16 or bfloat16, two tensors of one parameter differ, or positions are
        not sinusoids.
    """
    result: dict[str, np.ndarray] = {}
    same = _same(sizes)
    for original, array in tensors.items():
        array = as_float32(array, f"{source}: {original}")
        if original in _POSITIONS:
            _check_positions(array, sizes, f"{source}: {original}")
            continue
        name = same.get(original, original)
        if name in result and not np.array_equal(result[name], array):
            refuse(f"{source}: {original}", "other values", f"the values of {name}, the same parameter")
        result[name] = array
    if not sizes["share_embeddings"] and _SHARED in result:
        # Some versions also wrote the common initial table of both sides, others wrote only that.
        shared = result.pop(_SHARED)
        result = {_SOURCE: shared, _TARGET: shared, **result}
    if _BIAS in result:
        result[_BIAS] = result[_BIAS].reshape(-1)
    return result


def assemble(tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Converts tensors to parameters: nested dicts of numpy arrays.

    Args:
      tensors: tensors with `canonical` names. Some files lack a bias of the logits, which is then zero.
      like: the parameters of `EncoderDecoder`, or their shapes.
      source: the file or folder, for messages.
    Raises:
      UserError: if a tensor is missing, unknown, or has another shape than in `like`.
    """
    slots = _slots(like)
    unused = dict(tensors)
    if "bias" in slots:
        unused.setdefault(_BIAS, np.zeros(slots["bias"].shape, np.float32))
    params = {path: take(unused, slot, source) for path, slot in slots.items()}
    if unused:
        unknown = sorted(unused)
        got = f"{len(unknown)} unknown: " + ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        fix = "use a MarianMTModel whose config has the sizes of these tensors"
        raise UserError(f"{source}: tensors", got=got, expected="only tensors of a MarianMTModel", fix=fix)
    return traverse_util.unflatten_dict(params, sep="/")


def disassemble(params: Mapping[str, Any], config: EncoderDecoderConfig) -> dict[str, np.ndarray]:
    """Converts parameters to the float32 tensors of `MarianMTModel`, the inverse of `assemble`.

    The tensors always include a bias of the logits, and an output table only if it differs from both embedding tables.
    """
    leaves = traverse_util.flatten_dict(dict(params), sep="/")
    tensors = {}
    for path, slot in _slots(params).items():
        array = np.asarray(leaves[path], np.float32)
        for name, value in zip(slot.names, array if slot.stacked else [array], strict=True):
            # File formats write the buffer in memory order and ignore strides.
            tensors[name] = np.ascontiguousarray(value.T if slot.transposed else value)
    if not config.tie_output and _SHARED in tensors:
        shared = tensors.pop(_SHARED)
        tensors |= {_SOURCE: shared, _TARGET: shared.copy()}
    bias = tensors.get(_BIAS, np.zeros(config.target_vocab_size, np.float32))
    return {**tensors, _BIAS: bias.reshape(1, -1)}


def _same(sizes: Mapping[str, Any]) -> dict[str, str]:
    """Returns the other names of shared tables, with the name of the stored one."""
    if sizes["share_embeddings"]:
        return dict.fromkeys((_SOURCE, _TARGET, _OUTPUT), _SHARED)
    return {_OUTPUT: _TARGET} if sizes["tie_output"] else {}


def _check_positions(array: np.ndarray, sizes: Mapping[str, Any], what: str) -> None:
    expected = sinusoids(sizes["max_positions"], sizes["hidden_size"], sizes["sinusoid_layout"])
    if array.shape != expected.shape:
        refuse(what, f"shape {array.shape}", f"shape {expected.shape}, as in config.json")
    if not np.allclose(array, expected, rtol=0, atol=_ROUNDING):
        got = f"numbers that differ by up to {np.abs(array - expected).max():.2g}"
        refuse(what, got, "sinusoids, all sines before all cosines")


def _slots(params: Mapping[str, Any]) -> dict[str, Slot]:
    """Returns the slot of each parameter, by its path."""
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    return {path: _slot(path, leaf.shape) for path, leaf in flat.items()}


def _slot(path: str, shape: tuple[int, ...]) -> Slot:
    """Returns the transformers names of a parameter.

    >>> _slot("decoder/layers/cross_attention/query/kernel", (6, 512, 512)).names[0]
    'model.decoder.layers.0.encoder_attn.q_proj.weight'
    """
    if path in _TOP:
        transposed = path == "output"
        return Slot((_TOP[path],), shape[::-1] if transposed else shape, False, transposed)
    side, _, module, *projection, leaf = path.split("/")
    within = ".".join([_MODULES[module], *(_PROJECTIONS[name] for name in projection), _LEAVES[leaf]])
    names = tuple(f"model.{side}.layers.{layer}.{within}" for layer in range(shape[0]))
    transposed = leaf == "kernel"
    return Slot(names, shape[:0:-1] if transposed else shape[1:], True, transposed)
