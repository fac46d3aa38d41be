"""Our parameters of the encoder-decoder from, and to, tensors under the names of `MarianMTModel` of transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.interop.bert_tensors import Slot, as_float32, refuse, take
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import EncoderDecoderConfig

# Within a layer of ours: the same of theirs.
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

_SHARED, _BIAS = "model.shared.weight", "final_logits_bias"
_SOURCE, _TARGET, _OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_TOP = {
    "embeddings": _SHARED,
    "source_embeddings": _SOURCE,
    "target_embeddings": _TARGET,
    "output": _OUTPUT,
    "bias": _BIAS,
}
# Stored positions are sinusoids up to the rounding of float16.
_ROUNDING = 1e-3


def canonical(tensors: Mapping[str, np.ndarray], sizes: Mapping[str, Any], source: str) -> dict[str, np.ndarray]:
    """Returns the tensors as float32, each once, under the name of the first module that has it; no positions.

    Args:
      tensors: as a file has them: tables that are one may be there once or several times over.
      sizes: the fields of EncoderDecoderConfig that config.json gives.
      source: the file or folder, for messages.
    Raises:
      UserError: numbers of another type than float32, float16 or bfloat16; two different tensors of one parameter;
        positions that are not sinusoids.
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
            refuse(f"{source}: {original}", "other values", f"the values of {name}, which is the same parameter here")
        result[name] = array
    if not sizes["share_embeddings"] and _SHARED in result:
        # Two tables that began as one: some versions wrote that beside them, others in their place.
        shared = result.pop(_SHARED)
        result = {_SOURCE: shared, _TARGET: shared, **result}
    if _BIAS in result:
        result[_BIAS] = result[_BIAS].reshape(-1)
    return result


def assemble(tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Puts tensors together as parameters: nested dicts of numpy arrays.

    Args:
      tensors: under `canonical` names; without a bias of the logits, which some lack, it is zero.
      like: the parameters of `EncoderDecoder`, or their shapes.
      source: the file or folder, for messages.
    Raises:
      UserError: a tensor is missing, of another shape than `like` says, or left over.
    """
    slots, left = _slots(like), dict(tensors)
    if "bias" in slots:
        left.setdefault(_BIAS, np.zeros(slots["bias"].shape, np.float32))
    params = {path: take(left, slot, source) for path, slot in slots.items()}
    if left:
        unknown = sorted(left)
        got = f"{len(unknown)} unknown: " + ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        fix = "give a MarianMTModel, and the sizes that its config says"
        raise UserError(f"{source}: tensors", got=got, expected="those of a MarianMTModel alone", fix=fix)
    return traverse_util.unflatten_dict(params, sep="/")


def disassemble(params: Mapping[str, Any], config: EncoderDecoderConfig) -> dict[str, np.ndarray]:
    """Returns the float32 tensors of parameters, those that `MarianMTModel` has: the way back from `assemble`.

    It always has a bias of the logits, and a table of its own for the output only if there are two more.
    """
    leaves, tensors = traverse_util.flatten_dict(dict(params), sep="/"), {}
    for path, slot in _slots(params).items():
        array = np.asarray(leaves[path], np.float32)
        for name, value in zip(slot.names, array if slot.stacked else [array], strict=True):
            # File formats write the buffer as it lies, whatever the strides.
            tensors[name] = np.ascontiguousarray(value.T if slot.transposed else value)
    if not config.tie_output and _SHARED in tensors:
        shared = tensors.pop(_SHARED)
        tensors |= {_SOURCE: shared, _TARGET: shared.copy()}
    bias = tensors.get(_BIAS, np.zeros(config.target_vocab_size, np.float32))
    return {**tensors, _BIAS: bias.reshape(1, -1)}


def _same(sizes: Mapping[str, Any]) -> dict[str, str]:
    """Other names of tables: the one that each is."""
    if sizes["share_embeddings"]:
        return dict.fromkeys((_SOURCE, _TARGET, _OUTPUT), _SHARED)
    return {_OUTPUT: _TARGET} if sizes["tie_output"] else {}


def _check_positions(array: np.ndarray, sizes: Mapping[str, Any], what: str) -> None:
    expected = sinusoids(sizes["max_positions"], sizes["hidden_size"], sizes["sinusoid_layout"])
    if array.shape != expected.shape:
        refuse(what, f"shape {array.shape}", f"shape {expected.shape}, as config.json says")
    if not np.allclose(array, expected, rtol=0, atol=_ROUNDING):
        got = f"numbers up to {np.abs(array - expected).max():.2g} away from them"
        refuse(what, got, "sinusoids, all sines before all cosines")


def _slots(params: Mapping[str, Any]) -> dict[str, Slot]:
    """Returns the place of each parameter, by its path."""
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    return {path: _slot(path, leaf.shape) for path, leaf in flat.items()}


def _slot(path: str, shape: tuple[int, ...]) -> Slot:
    """Names a parameter as transformers does.

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
