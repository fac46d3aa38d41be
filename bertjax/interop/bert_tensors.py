"""Converts parameters of BERT and its heads from and to tensors with the names of Hugging Face `transformers`.

BertSum's scorers and decoder, which transformers does not have, use PreSumm's names. All file formats convert through
these names, so this module does not depend on any format.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# Module of our tree: module of transformers; {} is the layer.
_MODULES = {
    "bert/embeddings": "bert.embeddings",
    "bert/embeddings/norm": "bert.embeddings.LayerNorm",
    "bert/embeddings/projection": "bert.embeddings.projection",  # not in transformers' BERT
    "bert/encoder/layers/attention/query": "bert.encoder.layer.{}.attention.self.query",
    "bert/encoder/layers/attention/key": "bert.encoder.layer.{}.attention.self.key",
    "bert/encoder/layers/attention/value": "bert.encoder.layer.{}.attention.self.value",
    "bert/encoder/layers/attention/output": "bert.encoder.layer.{}.attention.output.dense",
    "bert/encoder/layers/attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "bert/encoder/layers/intermediate": "bert.encoder.layer.{}.intermediate.dense",
    "bert/encoder/layers/output": "bert.encoder.layer.{}.output.dense",
    "bert/encoder/layers/output_norm": "bert.encoder.layer.{}.output.LayerNorm",
    # transformers' BERT does not have these. Other models' names are mapped to these names.
    "bert/encoder/layers/gate": "bert.encoder.layer.{}.gate.dense",
    "bert/encoder/final_norm": "bert.encoder.final_norm",
    "bert/relative_embeddings": "bert.encoder",
    "bert/relative_embeddings/norm": "bert.encoder.LayerNorm",
    "bert/convolution/dense": "bert.encoder.conv.conv",
    "bert/convolution/norm": "bert.encoder.conv.LayerNorm",
    "transform": "head.dense",
    "norm": "head.norm",
    "bert/pooler": "bert.pooler.dense",
    "masked_lm": "cls.predictions",
    "masked_lm/transform": "cls.predictions.transform.dense",
    "masked_lm/norm": "cls.predictions.transform.LayerNorm",
    "next_sentence": "cls.seq_relationship",
    "discriminator/transform": "discriminator_predictions.dense",  # the names of ELECTRA
    "discriminator/output": "discriminator_predictions.dense_prediction",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
    "scorer/linear": "ext_layer.linear1",
    "scorer/output": "ext_layer.wo",
    "scorer/final_norm": "ext_layer.layer_norm",
    "scorer/layers/attention/query": "ext_layer.transformer_inter.{}.self_attn.linear_query",
    "scorer/layers/attention/key": "ext_layer.transformer_inter.{}.self_attn.linear_keys",
    "scorer/layers/attention/value": "ext_layer.transformer_inter.{}.self_attn.linear_values",
    "scorer/layers/attention/output": "ext_layer.transformer_inter.{}.self_attn.final_linear",
    "scorer/layers/attention_norm": "ext_layer.transformer_inter.{}.layer_norm",
    "scorer/layers/intermediate": "ext_layer.transformer_inter.{}.feed_forward.w_1",
    "scorer/layers/output": "ext_layer.transformer_inter.{}.feed_forward.w_2",
    "scorer/layers/output_norm": "ext_layer.transformer_inter.{}.feed_forward.layer_norm",
    # Here {} is the direction, and * is replaced by "weight" or "bias".
    "scorer/lstm/cells/input": "ext_layer.rnn.hidden{}.0.*_ih",
    "scorer/lstm/cells/recurrent": "ext_layer.rnn.hidden{}.0.*_hh",
    "scorer/lstm/cells/input_norm": "ext_layer.rnn.hidden{}.0.ln_ih",
    "scorer/lstm/cells/recurrent_norm": "ext_layer.rnn.hidden{}.0.ln_hh",
    "scorer/lstm/cells/cell_norm": "ext_layer.rnn.hidden{}.0.ln_ho",
    "decoder/final_norm": "decoder.layer_norm",
    "decoder/layers/attention/query": "decoder.transformer_layers.{}.self_attn.linear_query",
    "decoder/layers/attention/key": "decoder.transformer_layers.{}.self_attn.linear_keys",
    "decoder/layers/attention/value": "decoder.transformer_layers.{}.self_attn.linear_values",
    "decoder/layers/attention/output": "decoder.transformer_layers.{}.self_attn.final_linear",
    "decoder/layers/attention_norm": "decoder.transformer_layers.{}.layer_norm_1",
    "decoder/layers/cross_attention/query": "decoder.transformer_layers.{}.context_attn.linear_query",
    "decoder/layers/cross_attention/key": "decoder.transformer_layers.{}.context_attn.linear_keys",
    "decoder/layers/cross_attention/value": "decoder.transformer_layers.{}.context_attn.linear_values",
    "decoder/layers/cross_attention/output": "decoder.transformer_layers.{}.context_attn.final_linear",
    "decoder/layers/cross_attention_norm": "decoder.transformer_layers.{}.layer_norm_2",
    "decoder/layers/intermediate": "decoder.transformer_layers.{}.feed_forward.w_1",
    "decoder/layers/output": "decoder.transformer_layers.{}.feed_forward.w_2",
    "decoder/layers/output_norm": "decoder.transformer_layers.{}.feed_forward.layer_norm",
}
# Parameters that belong to no module.
_TENSORS = {"target_embeddings": "decoder.embeddings.weight", "bias": "generator.0.bias"}
_OUTPUT = "cls.predictions.weight"
# An embedding table NAME becomes NAME.weight, apart from the output embeddings.
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "output_embeddings": "weight"}
# Modules that either the weights or the model may lack. transformers has no counterpart of `lstm`.
HEADS = (
    "bert/pooler",
    "masked_lm",
    "next_sentence",
    "discriminator",
    "transform",
    "norm",
    "classifier",
    "qa_outputs",
    "lstm",
    "scorer",
    "decoder",
    *_TENSORS,
)
_UNSUPPORTED = ("sop_classifier.classifier",)  # heads that our models never have: ALBERT's order of sentences
_TENSORS_OF_HEADS = {
    f"{module}.{leaf}"
    for module in (*(theirs for ours, theirs in _MODULES.items() if ours.startswith(HEADS)), *_UNSUPPORTED)
    for leaf in ("weight", "bias")
}
# Prefixes of the tensor names of BertSum's heads. Weights must have all tensors of such a head, or none.
_WHOLE_HEADS = {"ext_layer.": "scorer", "decoder.": "decoder", "generator.": "decoder"}
# Prefixes of tensor names that identify BertSum's scorers.
_SCORERS = {"ext_layer.linear1.": "classifier", "ext_layer.transformer_inter.": "transformer", "ext_layer.rnn.": "rnn"}
# The discriminator of published DeBERTa-v3, which has no model.
_UNUSED_HEAD = "mask_predictions."
# Additional names of a tensor, which some versions also wrote.
_ALIASES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    _OUTPUT: "bert.embeddings.word_embeddings.weight",  # of families with one module for both, if they are tied
    "generator.0.weight": "decoder.embeddings.weight",  # PreSumm's
}


class Report(NamedTuple):
    """The differences that `assemble` found between the modules of weights and model."""

    missing: tuple[str, ...]  # modules that the weights lack and the caller has to initialize, such as "classifier"
    unused: tuple[str, ...]  # tensors of heads that the model does not have


class Slot(NamedTuple):
    """The tensors of transformers that a parameter corresponds to."""

    names: tuple[str, ...]  # one for each layer if `stacked`; none if transformers has no such parameter
    shape: tuple[int, ...]  # of each tensor, in the axis order of transformers
    stacked: bool
    transposed: bool  # torch stores kernels as [O, I]


def canonical(tensors: Mapping[str, np.ndarray], source: str, *, is_tied: bool = True) -> dict[str, np.ndarray]:
    """Returns the tensors as float32 under current transformers names, each once.

    The names are those of `BertForPreTraining`, with the prefix `bert.`, which files of `BertModel` omit. Accepts
    LayerNorms named gamma and beta, output embeddings stored twice, and the constant `position_ids` of older versions.

    Args:
      tensors: the tensors of a file.
      source: the file or folder, for messages.
      is_tied: whether the wanted parameters have one table of input and output embeddings.
    Raises:
      UserError: if a type is not float32, float16 or bfloat16, or two tensors of one parameter differ.
    """
    result: dict[str, np.ndarray] = {}
    for original, array in tensors.items():
        if original.endswith("position_ids"):
            continue
        name = canonical_name(original, is_tied=is_tied)
        array = as_float32(array, f"{source}: {original}")
        if name in result and not np.array_equal(result[name], array):
            refuse(f"{source}: {original}", "other values", f"the values of {name}, the same parameter")
        result[name] = array
    return result


def canonical_name(name: str, *, is_tied: bool) -> str:
    """Returns the name that `canonical` gives a tensor."""
    name = re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", name)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return name if name == _OUTPUT and not is_tied else _ALIASES.get(name, name)


def assemble(
    tensors: Mapping[str, np.ndarray],
    like: Mapping[str, Any],
    source: str,
    stored_names: Callable[[], Mapping[str, str]] = dict,
) -> tuple[dict[str, Any], Report]:
    """Converts tensors to parameters: nested dicts of numpy arrays.

    Args:
      tensors: tensors with `canonical` names.
      like: the wanted parameters, or their shapes: of `Bert` itself, or of a model with a BERT named `bert`.
      source: the file or folder, for messages.
      stored_names: returns the names in the file of the tensors that have another name there, for messages.
    Returns:
      the parameters without the missing modules, and the report of missing modules and unused tensors.
    Raises:
      UserError: if a tensor of the encoder is missing, a head is incomplete, a shape differs from `like`, a tensor
        belongs to no known head, or the scorer is of another kind.
    """
    slots = _slots(like)
    unused = dict(tensors)
    _check_scorer(slots, unused, source)
    missing = [head for head in HEADS if _is_missing(head, slots, unused)]
    params = {
        path: take(unused, slot, source) for path, slot in slots.items() if not any(_is_in(path, m) for m in missing)
    }
    unknown = sorted(name for name in unused if not _is_of_unused_head(name, slots))
    stored = stored_names() if unused else {}
    if unknown:
        unknown = [stored.get(name, name) for name in unknown]
        got = f"{len(unknown)} unknown: " + ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        fix = "use a BERT with one of the known heads"
        raise UserError(f"{source}: tensors", got=got, expected="only tensors of BERT", fix=fix)
    if unused:
        modules = ", ".join(sorted({re.sub(r"[./][^./]+$", "", stored.get(name, name)) for name in unused}))
        _log.info("%s: %d tensors of other heads are not used: %s", source, len(unused), modules)
    if _is_bare(like):
        params = {path.removeprefix("bert/"): array for path, array in params.items()}
        missing = [path.removeprefix("bert/") for path in missing]
    return traverse_util.unflatten_dict(params, sep="/"), Report(tuple(missing), tuple(sorted(unused)))


def filled(
    loaded: tuple[Mapping[str, Any], Report], wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the parameters that `assemble` found in place of the wanted ones, and the modules without weights."""
    params, report = loaded
    leaves = traverse_util.flatten_dict(wanted) | traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(leaves), report.missing


def disassemble(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts parameters to float32 tensors with `canonical` names, the inverse of `assemble`.

    Raises:
      UserError: for a BiLSTM, which transformers does not have.
    """
    leaves = _flat(params)
    tensors = {}
    for path, slot in _slots(params).items():
        if not slot.names:
            refuse("config key model.lstm_size", f"{leaves[path].shape[-1]} ({path})", "0, as in transformers")
        array = np.asarray(leaves[path], np.float32)
        for name, value in zip(slot.names, array if slot.stacked else [array], strict=True):
            # File formats write the buffer in memory order and ignore strides.
            tensors[name] = np.ascontiguousarray(value.T if slot.transposed else value)
    return tensors


def heads_of(params: Mapping[str, Any]) -> set[str]:
    """Returns the modules of `HEADS` that parameters have."""
    return {head for head in HEADS if any(_is_in(path, head) for path in _flat(params))}


def scorer_of(names: Iterable[str]) -> str | None:
    """Returns the kind of BertSum's scorer that has these tensor names; None if there is no scorer."""
    names = tuple(names)
    return next((kind for prefix, kind in _SCORERS.items() if any(name.startswith(prefix) for name in names)), None)


def without_pairs(experiment: str, tensors: Collection[str]) -> dict[str, Any]:
    """Returns the settings of pretraining without a next-sentence head; none for other weights."""
    has_no_pairs = experiment == "bert_pretraining" and "cls.seq_relationship.weight" not in tensors
    return {"data.next_sentence": False} if has_no_pairs else {}


def as_float32(array: np.ndarray, what: str) -> np.ndarray:
    """Returns the numbers as float32. Raises UserError about `what` for other types than floating point."""
    if array.dtype.name not in ("float32", "float16", "bfloat16"):
        refuse(what, array.dtype.name, "float32, float16 or bfloat16")
    return array.astype(np.float32, copy=False)


def take(tensors: dict[str, np.ndarray], slot: Slot, source: str) -> np.ndarray:
    """Moves a parameter out of `tensors`, converted to our layout.

    Raises:
      UserError: if a tensor is missing or has another shape; `source` names the file or folder.
    """
    arrays = []
    for name in slot.names:
        shape = tensors[name].shape if name in tensors else "no such tensor"
        if shape != slot.shape:
            fix = "use a complete folder whose config has the sizes of its weights"
            raise UserError(f"{source}: {name}", got=shape, expected=f"shape {slot.shape}", fix=fix)
        array = tensors.pop(name)
        arrays.append(array.T if slot.transposed else array)
    return np.stack(arrays) if slot.stacked else np.ascontiguousarray(arrays[0])


def refuse(what: str, got: object, expected: str) -> None:
    """Raises UserError about a property of a model that bertjax or transformers does not support."""
    raise UserError(what, got=got, expected=expected, fix="use a model with that value")


def _is_bare(params: Mapping[str, Any]) -> bool:
    """Returns whether parameters are those of `Bert` itself."""
    return "embeddings" in params


def _flat(params: Mapping[str, Any]) -> dict[str, Any]:
    return traverse_util.flatten_dict({"bert": params} if _is_bare(params) else params, sep="/")


def _slots(params: Mapping[str, Any]) -> dict[str, Slot]:
    """Returns the slot of each parameter, by its path."""
    return {path: _slot(path, leaf.shape) for path, leaf in _flat(params).items()}


def _slot(path: str, shape: tuple[int, ...]) -> Slot:
    """Returns the transformers names of a parameter.

    >>> _slot("bert/encoder/layers/output/kernel", (2, 3072, 768)).names[0]
    'bert.encoder.layer.0.output.dense.weight'
    """
    if path in _TENSORS:
        return Slot((_TENSORS[path],), shape, False, False)
    module, leaf = path.rsplit("/", 1)
    if _is_in(path, "lstm"):
        return Slot((), shape, False, False)
    theirs = _MODULES[module]
    of_leaf = _LEAVES.get(leaf, f"{leaf}.weight")
    name = theirs.replace("*", of_leaf) if "*" in theirs else f"{theirs}.{of_leaf}"
    stacked = "{}" in name
    transposed = leaf == "kernel"
    names = tuple(name.format(layer) for layer in range(shape[0])) if stacked else (name,)
    shape = shape[1:] if stacked else shape
    return Slot(names, shape[::-1] if transposed else shape, stacked, transposed)


def _is_in(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}/")


def _check_scorer(slots: Mapping[str, Slot], tensors: Mapping[str, Any], source: str) -> None:
    """Raises UserError if both the model and the weights have a scorer, and the kinds differ."""
    wanted = scorer_of(name for slot in slots.values() for name in slot.names)
    stored = scorer_of(tensors)
    if wanted and stored and wanted != stored:
        fix = f"set --config.model.scorer={stored}"
        raise UserError(f"{source}: scorer", got=stored, expected=f"{wanted}, as in model.scorer", fix=fix)


def _is_of_unused_head(name: str, slots: Mapping[str, Slot]) -> bool:
    """Returns whether an unused tensor belongs to a head that the model does not have."""
    for prefix, head in _WHOLE_HEADS.items():
        if name.startswith(prefix):
            return not any(_is_in(path, head) for path in slots)
    return name in _TENSORS_OF_HEADS or name.startswith(_UNUSED_HEAD)


def _is_missing(head: str, slots: Mapping[str, Slot], tensors: Mapping[str, Any]) -> bool:
    """Returns whether the model has the head, and the weights have no tensor of it."""
    of_head = [slot for path, slot in slots.items() if _is_in(path, head)]
    return bool(of_head) and not any(name in tensors for slot in of_head for name in slot.names)
