"""Converts parameters of the encoder-decoder from and to tensors with the names of transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.interop.bert_tensors import Slot, as_float32, refuse, take
from bertjax.interop.families.seq2seq_family import Seq2SeqFamily, TensorNames
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import EncoderDecoderConfig

_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "relative_attention_bias": "weight"}
_SIDES = {"source": "encoder", "target": "decoder"}
_FEED_FORWARD = {"encoder": 1, "decoder": 2}  # the number of the feed-forward sub-layer, from 0
_BIAS = "final_logits_bias"
OUTPUT = "lm_head.weight"
# Stored sinusoids are rounded to float16.
_ROUNDING = 1e-3


def table_names(names: TensorNames) -> tuple[str, str, str]:
    """Returns the names of the tables of the source, of the target, and of both."""
    of_source, of_target = (f"{names.base}{side}.embed_tokens.weight" for side in _SIDES.values())
    return of_source, of_target, f"{names.base}shared.weight"


def based(tensors: Mapping[str, np.ndarray], names: TensorNames) -> dict[str, np.ndarray]:
    """Returns tensors with the base of names, which files of the class without output layer omit."""
    is_bare = names.base and not any(name.startswith(names.base) for name in tensors)
    prefix = names.base if is_bare else ""
    return {name if name in (OUTPUT, _BIAS) else f"{prefix}{name}": array for name, array in tensors.items()}


def ties(tensors: Mapping[str, np.ndarray], names: TensorNames, is_tied: bool, source: str) -> dict[str, bool]:
    """Returns which tables are the same, by their content: the fields `share_embeddings` and `tie_output`.

    Args:
      tensors: the tables among the tensors of a file, with the `based` names.
      names: the names of the family.
      is_tied: whether tables may be missing because they are the same as others.
      source: the file or folder, for messages.
    Raises:
      UserError: if a table is missing.
    """
    of_source, of_target, shared = table_names(names)
    of_sides = [name for name in (of_source, of_target) if name in tensors or shared in tensors]
    if not of_sides or (len(of_sides) == 1 and not is_tied):
        raise _missing(source, f"{shared}, or {of_source} and {of_target}")
    if OUTPUT not in tensors and not is_tied:
        raise _missing(source, OUTPUT)
    first, target = (_table(tensors, names, name) for name in (of_sides[0], of_sides[-1]))
    return {
        "share_embeddings": np.array_equal(first, target),
        "tie_output": OUTPUT not in tensors or np.array_equal(tensors[OUTPUT], target),
    }


def _table(tensors: Mapping[str, np.ndarray], names: TensorNames, name: str) -> np.ndarray:
    """The table of a side, which may be that of both."""
    return tensors[name if name in tensors else table_names(names)[2]]


def _missing(source: str, tensor: str) -> UserError:
    fix = "download or export the folder again"
    return UserError(f"{source}: tensors", got="no such tensor", expected=tensor, fix=fix)


def canonical(
    tensors: Mapping[str, np.ndarray], sizes: Mapping[str, Any], family: Seq2SeqFamily, source: str
) -> dict[str, np.ndarray]:
    """Returns the tensors as float32, each parameter once, and without sinusoids.

    Args:
      tensors: the tensors of a file; shared tables may be stored once or repeatedly.
      sizes: the fields of EncoderDecoderConfig that the folder determines.
      family: the family.
      source: the file or folder, for messages.
    Raises:
      UserError: if a type is not float32, float16 or bfloat16, or positions are not sinusoids.
    """
    names = family.names
    of_source, of_target, shared = table_names(names)
    arrays = {
        name: as_float32(array, f"{source}: {name}")
        for name, array in based(tensors, names).items()
        if name not in names.ignored
    }
    # Where both sides have a table, that of both is unused: transformers also writes the initial one.
    tables = {name: arrays.pop(name) for name in (shared, of_source, of_target) if name in arrays}
    if sizes["share_embeddings"]:
        arrays[shared] = tables.get(of_target, next(iter(tables.values())))
    else:
        arrays |= {name: _table(tables, names, name) for name in (of_source, of_target)}
    if sizes["tie_output"]:
        arrays.pop(OUTPUT, None)
    if _BIAS in arrays:
        arrays[_BIAS] = arrays[_BIAS].reshape(-1)
    for side in _SIDES.values():
        name = f"{names.base}{side}.embed_positions.weight"
        if sizes["positions"] == "sinusoidal" and name in arrays:
            _check_positions(arrays.pop(name), sizes, f"{source}: {name}")
        elif name in arrays:
            arrays[name] = arrays[name][family.num_unused_positions :]
    return arrays


def assemble(
    tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], family: Seq2SeqFamily, source: str
) -> dict[str, Any]:
    """Converts tensors to parameters: nested dicts of numpy arrays.

    Args:
      tensors: `canonical` tensors. Some files lack a bias of the logits, which is then zero.
      like: the parameters of `EncoderDecoder`, or their shapes.
      family: the family.
      source: the file or folder, for messages.
    Raises:
      UserError: if a tensor is missing, unknown, or has another shape than in `like`.
    """
    slots = _slots(like, family.names)
    unused = dict(tensors)
    if "bias" in slots:
        unused.setdefault(_BIAS, np.zeros(slots["bias"].shape, np.float32))
    params = {path: take(unused, slot, source) for path, slot in slots.items()}
    if unused:
        unknown = sorted(unused)
        got = f"{len(unknown)} unknown: " + ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        expected = f"only tensors of a {family.architecture}"
        fix = f"use a {family.architecture} whose config has the sizes of these tensors"
        raise UserError(f"{source}: tensors", got=got, expected=expected, fix=fix)
    return traverse_util.unflatten_dict(params, sep="/")


def disassemble(
    params: Mapping[str, Any], config: EncoderDecoderConfig, family: Seq2SeqFamily
) -> dict[str, np.ndarray]:
    """Converts parameters to float32 tensors of transformers, the inverse of `assemble`.

    The tensors include a bias of the logits if the family has one, and an output table only if it differs from both
    embedding tables.
    """
    names = family.names
    of_source, of_target, shared = table_names(names)
    leaves = traverse_util.flatten_dict(dict(params), sep="/")
    tensors = {}
    for path, slot in _slots(params, names).items():
        array = np.asarray(leaves[path], np.float32)
        for name, value in zip(slot.names, array if slot.stacked else [array], strict=True):
            # File formats write the buffer in memory order and ignore strides.
            tensors[name] = np.ascontiguousarray(value.T if slot.transposed else value)
    if not config.tie_output and shared in tensors:
        tensors |= {name: tensors[shared].copy() for name in (of_source, of_target)}
    for side in _SIDES.values():
        name = f"{names.base}{side}.embed_positions.weight"
        if config.positions == "sinusoidal":
            tensors[name] = sinusoids(config.max_positions, config.hidden_size, config.sinusoid_layout)
        elif name in tensors:
            tensors[name] = np.pad(tensors[name], ((family.num_unused_positions, 0), (0, 0)))
    # config.json cannot state this tie, so transformers needs the table.
    if family.ties_scaled and config.tie_output and not config.scale_output:
        tensors[OUTPUT] = tensors[shared if shared in tensors else of_target].copy()
    if not family.fixed["logits_bias"]:
        return tensors
    bias = tensors.get(_BIAS, np.zeros(config.target_vocab_size, np.float32))
    return {**tensors, _BIAS: bias.reshape(1, -1)}


def _check_positions(array: np.ndarray, sizes: Mapping[str, Any], what: str) -> None:
    expected = sinusoids(sizes["max_positions"], sizes["hidden_size"], sizes["sinusoid_layout"])
    if array.shape != expected.shape:
        refuse(what, f"shape {array.shape}", f"shape {expected.shape}, as in config.json")
    if not np.allclose(array, expected, rtol=0, atol=_ROUNDING):
        got = f"numbers that differ by up to {np.abs(array - expected).max():.2g}"
        refuse(what, got, "sinusoids, all sines before all cosines")


def _slots(params: Mapping[str, Any], names: TensorNames) -> dict[str, Slot]:
    """Returns the slot of each parameter, by its path."""
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    is_gated = "encoder/layers/gate/kernel" in flat
    return {path: _slot(path, leaf.shape, names, is_gated) for path, leaf in flat.items()}


def _slot(path: str, shape: tuple[int, ...], names: TensorNames, is_gated: bool) -> Slot:
    """Returns the transformers names of a parameter.

    >>> _slot("decoder/layers/cross_attention/query/kernel", (6, 512, 512), TensorNames(), False).names[0]
    'model.decoder.layers.0.encoder_attn.q_proj.weight'
    """
    top = _top(names)
    transposed = path.endswith(("kernel", "output")) and len(shape) > 1
    if path in top:
        return Slot((top[path],), shape[::-1] if transposed else shape, False, transposed)
    side, _, *parts, leaf = path.split("/")
    module = "/".join(parts)
    module = "gated_intermediate" if is_gated and module == "intermediate" else module
    within = names.modules[module].format(feed_forward=_FEED_FORWARD[side])
    layers = (names.layers.format(side=side, layer=layer) for layer in range(shape[0]))
    of_layers = tuple(f"{layer}{within}.{_LEAVES[leaf]}" for layer in layers)
    return Slot(of_layers, shape[:0:-1] if transposed else shape[1:], True, transposed)


def _top(names: TensorNames) -> dict[str, str]:
    """Returns the tensors that are not in layers, by the path of the parameter."""
    of_source, of_target, shared = table_names(names)
    result = {"source_embeddings": of_source, "target_embeddings": of_target, "embeddings": shared}
    result |= {"output": OUTPUT, "bias": _BIAS}
    for side, theirs in _SIDES.items():
        module = f"{names.base}{theirs}"
        result[f"{side}_positions"] = f"{module}.embed_positions.weight"
        result[f"{side}_bias/relative_attention_bias"] = f"{module}.{names.bias}.weight"
        for leaf in ("scale", "bias"):
            result[f"{side}_norm/{leaf}"] = f"{module}.{names.embedding_norm}.{_LEAVES[leaf]}"
            result[f"{theirs}/final_norm/{leaf}"] = f"{module}.{names.final_norm}.{_LEAVES[leaf]}"
    return result
