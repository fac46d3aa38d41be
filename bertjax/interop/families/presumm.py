"""Reads PreSumm and BertSum checkpoints (`model_step_N.pt`) without torch; reads and writes folders of such models.

Nothing that a checkpoint names is executed.

>>> checkpoint = presumm.read(Path("model_step_18000.pt"))
>>> values = presumm.describe(checkpoint)  # fields of HeadConfig and of BertSumConfig
>>> shapes = jax.eval_shape(init, jax.random.key(0), inputs, mask)["params"]  # of `BertSum.init`
>>> params, report = presumm.load(checkpoint, shapes)
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from jaxtyping import Shaped

from bertjax.errors import UserError
from bertjax.interop import huggingface, json_files
from bertjax.interop.bert_tensors import Report, assemble, canonical, filled, refuse, scorer_of
from bertjax.interop.formats import torch_pickle
from bertjax.interop.formats.reading import shown
from bertjax.interop.formats.restricted_pickle import Inert
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.models.bertsum import BertSumConfig
from bertjax.models.bertsum_abs import BertSumAbsConfig
from bertjax.models.embeddings import sinusoids

# Classes in these checkpoints other than tensors: optimizers, and the options of the command line.
_INERT = (
    "argparse.Namespace",
    "collections.defaultdict",
    "__builtin__.dict",
    "builtins.dict",
    "models.optimizers.Optimizer",
    "models.optimizers.MultipleOptimizer",
    *(f"torch.optim.{name}" for name in ("adam.Adam", "sgd.SGD", "adagrad.Adagrad", "adadelta.Adadelta")),
)
# Values that no checkpoint records; pytorch-pretrained-bert and pytorch-transformers fix them.
_FIXED = {"norm_eps": 1e-12, "activation": "gelu", "norm": "post", "direction": "both"}
# Fields of BertConfig that are the number of rows of a matrix with hidden-size columns.
_TABLES = {
    "vocab_size": "bert.embeddings.word_embeddings.weight",
    "max_positions": "bert.embeddings.position_embeddings.weight",
    "type_vocab_size": "bert.embeddings.token_type_embeddings.weight",
    "intermediate_size": "bert.encoder.layer.0.intermediate.dense.weight",
}
# Constants: each layer's mask of later positions, and sinusoids, which are stored in float32.
_MASK = re.compile(r"decoder\.transformer_layers\.\d+\.mask")
_SINUSOIDS = re.compile(r"(ext_layer|decoder)\.pos_emb\.pe")
_ROUNDING = 1e-3
# Heads on top of BERT: the name of our class, and the key of config.json with its options.
_HEADS = {BertSumConfig: ("BertSum", "bertsum"), BertSumAbsConfig: ("BertSumAbs", "bertsum_abs")}
_ROWS = "rows"  # the key of the row settings in these options
_UNCASED_SIZE = 30522  # the vocabulary of bert-base-uncased, the base of the published models


class Checkpoint(NamedTuple):
    """A file that was read."""

    path: Path
    tensors: dict[str, np.ndarray]  # with `canonical` names
    is_bertsums: bool  # False for PreSumm
    options: Mapping[str, Any]  # of the command line of training


def is_checkpoint(path: str | Path) -> bool:
    """Returns whether a path is an existing .pt file."""
    return Path(path).suffix == ".pt" and Path(path).is_file()


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint in either file format of torch, without the optimizer's state.

    Raises:
      UserError: if the file is missing, damaged, names a class that no such checkpoint has, or has no BERT.
    """
    values = torch_pickle.read(path, _INERT)
    if not isinstance(values, dict) or "model" not in values:
        got = "keys " + ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
        raise _no_bert(path, shown(got))
    tensors = _renamed(torch_pickle.state_dict(values["model"], path, f"{path}: model"), path)
    options = values.get("opt")
    is_bertsums = any(name.startswith("encoder.") for name in values["model"])
    attributes = options.attributes if isinstance(options, Inert) else {}
    return Checkpoint(path, canonical(tensors, f"{path}"), is_bertsums, attributes)


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the fields of HeadConfig, and of BertSumConfig or BertSumAbsConfig, that a checkpoint determines.

    A checkpoint does not record the number of heads. It follows from the encoder that the options name, and is omitted
    if it cannot be derived. Published scorers of the kind "rnn" were trained with `rnn_compat`.

    Raises:
      UserError: see `load`.
    """
    path, tensors, _, options = checkpoint
    rows = {}
    for field, name in _TABLES.items():
        if name not in tensors or tensors[name].ndim != 2:
            raise _no_bert(path, f"no matrix {name}")
        rows[field], hidden_size = tensors[name].shape
    sizes = {**rows, "hidden_size": hidden_size, "num_layers": _count(r"bert\.encoder\.layer\.(\d+)\.", tensors)}
    sizes |= _num_heads(options, hidden_size, path)
    return {**sizes, **_FIXED, **_scorer(tensors, options, path), **_decoder(tensors, options, path)}


def describe_rows(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the known settings of the rows that a checkpoint was trained on.

    These are fields of `ArticleRowsConfig`: `words`, because PreSumm's code splits words at white space and BertSum's
    code like BERT; and `interval_segments`, if the options of the command line record it.
    """
    _, tensors, is_bertsums, options = checkpoint
    settings: dict[str, Any] = {}
    if scorer_of(tensors) or _layers("decoder.transformer_layers", tensors, "decoder"):
        settings["words"] = "bert" if is_bertsums else "spaces"
    if isinstance(options.get("use_interval"), bool):
        settings["interval_segments"] = options["use_interval"]
    return settings


def read_rows(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same settings from the config.json that `save` wrote; none from any other."""
    heads = [raw[key] for _, key in _HEADS.values() if isinstance(raw.get(key), dict)]
    return next((head[_ROWS] for head in heads if isinstance(head.get(_ROWS), dict)), {})


def load(checkpoint: Checkpoint, like: Mapping[str, Any]) -> tuple[dict[str, Any], Report]:
    """Returns the weights as parameters: nested dicts of float32 numpy arrays.

    Args:
      checkpoint: an extractive or abstractive checkpoint.
      like: the wanted parameters, or their shapes: of `BertSum`, `BertSumAbs`, or any model with a BERT named `bert`.
    Returns:
      the parameters without the modules that the checkpoint lacks, and the report of these modules.
    Raises:
      UserError: if a tensor is missing, unknown, or has another shape or type; or if the scorer is of another kind.
    """
    return assemble(checkpoint.tensors, like, f"{checkpoint.path}")


def save(
    folder: str | Path,
    params: Mapping[str, Any],
    config: HeadConfig,
    head: BertSumConfig | BertSumAbsConfig,
    rows: Mapping[str, Any],
    **of_encoder: Any,
) -> None:
    """Writes config.json and model.safetensors, with transformers' names for BERT and PreSumm's names for its head.

    `huggingface.load` reads everything. `AutoModel.from_pretrained` of transformers reads the encoder, and reports the
    tensors that it ignores. Each file appears under its name only when it is complete.

    Args:
      folder: the folder; created if needed. Other files in it, such as vocab.txt, are kept.
      params: the parameters of `BertSum` or `BertSumAbs`.
      config: the configuration of its BERT.
      head: the configuration of its head.
      rows: the result of `read_rows` for the folder.
      **of_encoder: `family` and `special` of `huggingface.save`.
    Raises:
      UserError: for an option that the encoder's family does not have.
    """
    architecture, key = _HEADS[type(head)]
    more = {key: {**dataclasses.asdict(head), _ROWS: rows}}
    huggingface.save(folder, params, config, architecture, more=more, **of_encoder)


def read_head(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields of BertSumConfig or BertSumAbsConfig in a config.json of `save`; none from any other.

    Args:
      values: the content of the file.
      path: the path of the file, for messages.
    Raises:
      UserError: if a field is missing or of another type.
    """
    for head, (_, key) in _HEADS.items():
        if key in values:
            if not isinstance(values[key], dict):
                refuse(f"{path}: {key}", values[key], "an object with options")
            hints = get_type_hints(head)
            later = {f.name: f.default for f in dataclasses.fields(head) if f.default is not dataclasses.MISSING}
            complete = {**later, **values[key]}
            fields = json_files.fields(complete, {name: (name, hints[name]) for name in hints}, path)
            return dataclasses.asdict(head(**fields))
    return {}


def _renamed(tensors: Mapping[str, Shaped[np.ndarray, "..."]], path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Renames tensors to our names, and drops constants.

    BertSum names `encoder` what PreSumm names `ext_layer`.
    """
    result = {}
    for original, array in tensors.items():
        name = re.sub(r"^bert\.model\.", "bert.", re.sub(r"^encoder\.", "ext_layer.", original))
        if _SINUSOIDS.fullmatch(name):
            _check_sinusoids(array, f"{path}: {original}")
        elif not _MASK.fullmatch(name):
            result[name] = array
    return result


def _check_sinusoids(array: Shaped[np.ndarray, "..."], what: str) -> None:
    if array.ndim != 3 or len(array) != 1 or array.shape[2] % 2 or not array.size:
        refuse(what, f"shape {array.shape}", "shape (1, positions, hidden size)")
    _, length, size = array.shape
    difference = np.abs(array[0] - sinusoids(length, size, "interleaved")).max(initial=0)
    if not difference <= _ROUNDING:
        refuse(what, f"numbers that differ by up to {difference:.2g}", "sinusoids with sines and cosines interleaved")


def _count(pattern: str, tensors: Mapping[str, Any]) -> int:
    """Returns the number of layers."""
    return len({match[1] for name in tensors if (match := re.match(pattern, name))})


def _num_heads(options: Mapping[str, Any], hidden_size: int, path: Path) -> dict[str, int]:
    """Returns the heads: BERT-Base and BERT-Large have width 64; "baseline" is PreSumm's or BertSum's own encoder."""
    if _is(options, "encoder", "baseline"):
        return _heads(options, ("ext_heads",), "num_heads", path) if _is(options, "task", "ext") else {"num_heads": 8}
    return {} if hidden_size % 64 else {"num_heads": hidden_size // 64}


def _is(options: Mapping[str, Any], key: str, value: str) -> bool:
    # The value may be an array, whose comparison with a string is not a bool.
    return isinstance(options.get(key), str) and options[key] == value


def _scorer(tensors: Mapping[str, np.ndarray], options: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind = scorer_of(tensors)
    if kind is None:
        return {}
    fields: dict[str, Any] = {"scorer": kind, "sentence_pooling": "cls"}
    if kind == "rnn":
        fields["rnn_compat"] = True
    if kind == "transformer":
        sizes = _layers("ext_layer.transformer_inter", tensors, "scorer")
        return {**fields, **sizes, **_heads(options, ("ext_heads", "heads"), "scorer_heads", path)}
    return fields


def _decoder(tensors: Mapping[str, np.ndarray], options: Mapping[str, Any], path: Path) -> dict[str, Any]:
    sizes = _layers("decoder.transformer_layers", tensors, "decoder")
    return {**sizes, **_heads(options, ("dec_heads",), "decoder_heads", path)} if sizes else {}


def _layers(prefix: str, tensors: Mapping[str, np.ndarray], field: str) -> dict[str, int]:
    """Returns the number of layers, and the size of their feed-forward networks."""
    pattern = re.compile(rf"{prefix}\.\d+\.feed_forward\.w_1\.bias")
    inner = [array.size for name, array in tensors.items() if pattern.fullmatch(name)]
    count = _count(rf"{prefix}\.(\d+)\.", tensors)
    return {f"{field}_layers": count, f"{field}_intermediate": inner[0]} if inner else {}


def _heads(options: Mapping[str, Any], keys: Sequence[str], field: str, path: Path) -> dict[str, int]:
    """Returns the option with the first key that exists: PreSumm and BertSum have different keys."""
    key = next((key for key in keys if key in options), None)
    if key is None:
        return {}
    if type(options[key]) is not int:
        refuse(f"{path}: opt.{key}", type(options[key]).__name__, "an int")
    return {field: options[key]}


def _no_bert(path: Path, got: str) -> UserError:
    expected = "a checkpoint of PreSumm or BertSum: model, opt and optim, with BERT in the model"
    fix = "use a model_step_N.pt file, or a transformers folder for other weights"
    return UserError(f"{path}", got=got, expected=expected, fix=fix)


class PreSumm(Published):
    """A checkpoint of PreSumm or BertSum, a .pt file without a vocabulary."""

    has_vocabulary = False

    @functools.cached_property
    def _checkpoint(self) -> Checkpoint:
        return read(self.path)

    @property
    def experiment(self) -> str:
        """The experiment that has these tensors."""
        return "bertsum_abs" if "decoder_layers" in self.fields else "bertsum_ext"

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        return describe(self._checkpoint)

    @property
    def lowercase(self) -> bool | None:
        """True for the vocabulary size of bert-base-uncased."""
        return True if self.fields["vocab_size"] == _UNCASED_SIZE else None

    @property
    def rows(self) -> Mapping[str, Any]:
        return describe_rows(self._checkpoint)

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        loaded = load(self._checkpoint, wanted)
        del self._checkpoint  # it would stay in memory as long as the task
        return filled(loaded, wanted)


def open_weights(path: Path) -> PreSumm | None:
    """Opens a checkpoint; returns None for another path."""
    return PreSumm(path) if is_checkpoint(path) else None
