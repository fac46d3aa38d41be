"""Checkpoints of PreSumm and of BertSum (`model_step_N.pt`), in, without torch and without running what they name; and
folders of ours with the same tensors, in and out.

>>> values = presumm.describe("model_step_18000.pt")  # fields of BertConfig and of BertSumConfig
>>> shapes = jax.eval_shape(init, jax.random.key(0), inputs, mask)["params"]  # of `BertSum.init`
>>> params, report = presumm.load("model_step_18000.pt", shapes)
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from jaxtyping import Shaped

from bertjax.errors import UserError
from bertjax.interop import huggingface, json_files
from bertjax.interop.bert_tensors import Report, assemble, canonical, refuse, scorer_of
from bertjax.interop.formats import torch_pickle
from bertjax.interop.formats.reading import shown
from bertjax.interop.formats.restricted_pickle import Inert
from bertjax.models.bert import BertConfig
from bertjax.models.bertsum import BertSumConfig
from bertjax.models.bertsum_abs import BertSumAbsConfig
from bertjax.models.embeddings import sinusoids

# What their checkpoints hold beside tensors: the optimizers themselves, and the options of the command line.
_INERT = (
    "argparse.Namespace",
    "collections.defaultdict",
    "__builtin__.dict",
    "builtins.dict",
    "models.optimizers.Optimizer",
    "models.optimizers.MultipleOptimizer",
    *(f"torch.optim.{name}" for name in ("adam.Adam", "sgd.SGD", "adagrad.Adagrad", "adadelta.Adadelta")),
)
# What all BERTs in there have, and no checkpoint says: those of pytorch-pretrained-bert and pytorch-transformers.
_FIXED = {"norm_eps": 1e-12, "activation": "gelu", "norm": "post", "direction": "both"}
# Fields of BertConfig that are the rows of a matrix, which has as many columns as the hidden size.
_TABLES = {
    "vocab_size": "bert.embeddings.word_embeddings.weight",
    "max_positions": "bert.embeddings.position_embeddings.weight",
    "type_vocab_size": "bert.embeddings.token_type_embeddings.weight",
    "intermediate_size": "bert.encoder.layer.0.intermediate.dense.weight",
}
# Constants: each layer's mask over what comes later, and sinusoids, which are stored in float32.
_MASK = re.compile(r"decoder\.transformer_layers\.\d+\.mask")
_SINUSOIDS = re.compile(r"(ext_layer|decoder)\.pos_emb\.pe")
_ROUNDING = 1e-3
# What is on top of BERT: the class of ours, and the key of config.json with its options.
_HEADS = {BertSumConfig: ("BertSum", "bertsum"), BertSumAbsConfig: ("BertSumAbs", "bertsum_abs")}
_ROWS = "rows"  # among these options, what its rows are like


class _Checkpoint(NamedTuple):
    tensors: dict[str, np.ndarray]  # as `canonical` gives them
    is_bertsums: bool  # or PreSumm's
    options: Mapping[str, Any]  # of the command line


def is_checkpoint(path: str | Path) -> bool:
    """Whether a path is that of a file that may be a checkpoint of theirs, by its name."""
    return Path(path).suffix == ".pt" and Path(path).is_file()


def describe(path: str | Path) -> dict[str, Any]:
    """Returns the fields of BertConfig, and of BertSumConfig or BertSumAbsConfig, that a checkpoint determines.

    The number of heads stands in no checkpoint: it is what the code takes for the encoder that the options name, and is
    left out where that cannot be. Published scorers of the kind "rnn" were trained with `rnn_compat`.

    Raises:
      UserError: as `load`.
    """
    tensors, _, options = _read(Path(path))
    rows = {}
    for field, name in _TABLES.items():
        if name not in tensors or tensors[name].ndim != 2:
            raise _no_bert(Path(path), f"no matrix {name}")
        rows[field], hidden_size = tensors[name].shape
    sizes = {**rows, "hidden_size": hidden_size, "num_layers": _count(r"bert\.encoder\.layer\.(\d+)\.", tensors)}
    sizes |= _num_heads(options, hidden_size, Path(path))
    return {**sizes, **_FIXED, **_scorer(tensors, options, Path(path)), **_decoder(tensors, options, Path(path))}


def describe_rows(path: str | Path) -> dict[str, Any]:
    """Returns what is known of the rows that a checkpoint, or a folder of `save`, was trained on.

    Fields of `ArticleRowsConfig`: `words`, which PreSumm's code parts by white space and BertSum's as BERT does; and
    `interval_segments`, if the options of the command line say.

    Raises:
      UserError: as `load`; or no readable config.json.
    """
    if not is_checkpoint(path):
        values = json_files.read_json(huggingface.model_folder(path) / huggingface.CONFIG_FILE, dict)
        heads = [values[key] for _, key in _HEADS.values() if isinstance(values.get(key), dict)]
        return next((head[_ROWS] for head in heads if isinstance(head.get(_ROWS), dict)), {})
    tensors, is_bertsums, options = _read(Path(path))
    found: dict[str, Any] = {}
    if scorer_of(tensors) or _layers("decoder.transformer_layers", tensors, "decoder"):
        found["words"] = "bert" if is_bertsums else "spaces"
    if isinstance(options.get("use_interval"), bool):
        found["interval_segments"] = options["use_interval"]
    return found


def load(path: str | Path, like: Mapping[str, Any]) -> tuple[dict[str, Any], Report]:
    """Reads weights as parameters: nested dicts of float32 numpy arrays. The optimizer's state is left alone.

    Args:
      path: of a checkpoint, extractive or abstractive; of both formats that torch has had.
      like: the parameters wanted, or their shapes: of `BertSum`, `BertSumAbs`, or any model that has BERT as `bert`.
    Returns:
      the parameters, without the modules that the checkpoint lacks; and which these are.
    Raises:
      UserError: a file that is missing or damaged, or names what no such checkpoint has; a tensor that is missing,
        unknown, of another shape or type; a scorer of another kind.
    """
    return assemble(_read(Path(path)).tensors, like, f"{path}")


def save(
    folder: str | Path,
    params: Mapping[str, Any],
    config: BertConfig,
    head: BertSumConfig | BertSumAbsConfig,
    rows: Mapping[str, Any],
) -> None:
    """Writes config.json and model.safetensors: BERT as transformers has it, and what is on top as PreSumm names it.

    `huggingface.load` reads all of it; `BertModel.from_pretrained` of transformers reads the encoder, and says what it
    has no use for. Each file takes its name only once complete.

    Args:
      folder: made if needed; other files in it, such as vocab.txt, are left alone.
      params: of `BertSum` or `BertSumAbs`.
      config: the configuration of its BERT.
      head: that of what is on top.
      rows: what `describe_rows` is to tell of it.
    Raises:
      UserError: an option that transformers' BERT does not have.
    """
    architecture, key = _HEADS[type(head)]
    huggingface.save(folder, params, config, architecture, more={key: {**dataclasses.asdict(head), _ROWS: rows}})


def read_head(folder: str | Path) -> dict[str, Any]:
    """Returns the fields of BertSumConfig or BertSumAbsConfig that a folder of `save` has; none if it is another's.

    Raises:
      UserError: no readable config.json, or a field missing or of another type.
    """
    path = huggingface.model_folder(folder) / huggingface.CONFIG_FILE
    values = json_files.read_json(path, dict)
    for head, (_, key) in _HEADS.items():
        if key in values:
            if not isinstance(values[key], dict):
                refuse(f"{path}: {key}", values[key], "an object with options")
            hints = get_type_hints(head)
            later = {f.name: f.default for f in dataclasses.fields(head) if f.default is not dataclasses.MISSING}
            found = {**later, **values[key]}
            fields = json_files.fields(found, {name: (name, hints[name]) for name in hints}, path)
            return dataclasses.asdict(head(**fields))
    return {}


def _read(path: Path) -> _Checkpoint:
    values = torch_pickle.read(path, _INERT)
    if not isinstance(values, dict) or "model" not in values:
        got = "keys " + ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
        raise _no_bert(path, shown(got))
    tensors = _renamed(torch_pickle.state_dict(values["model"], path, f"{path}: model"), path)
    options = values.get("opt")
    is_bertsums = any(name.startswith("encoder.") for name in values["model"])
    attributes = options.attributes if isinstance(options, Inert) else {}
    return _Checkpoint(canonical(tensors, f"{path}"), is_bertsums, attributes)


def _renamed(tensors: Mapping[str, Shaped[np.ndarray, "..."]], path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The tensors under the names that ours have, without constants.

    BertSum calls `encoder` what PreSumm calls `ext_layer`.
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
        refuse(what, f"numbers up to {difference:.2g} away from them", "sinusoids, sine and cosine in turns")


def _count(pattern: str, tensors: Mapping[str, Any]) -> int:
    """How many layers there are."""
    return len({found[1] for name in tensors if (found := re.match(pattern, name))})


def _num_heads(options: Mapping[str, Any], hidden_size: int, path: Path) -> dict[str, int]:
    """BERT-Base and BERT-Large have heads of 64; "baseline" is an encoder of PreSumm's or BertSum's own."""
    if _is(options, "encoder", "baseline"):
        return _heads(options, ("ext_heads",), "num_heads", path) if _is(options, "task", "ext") else {"num_heads": 8}
    return {} if hidden_size % 64 else {"num_heads": hidden_size // 64}


def _is(options: Mapping[str, Any], key: str, value: str) -> bool:
    # Of what comes from a file an array, too, may be compared.
    return isinstance(options.get(key), str) and options[key] == value


def _scorer(tensors: Mapping[str, np.ndarray], options: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind = scorer_of(tensors)
    if kind is None:
        return {}
    found: dict[str, Any] = {"scorer": kind, "sentence_pooling": "cls"}
    if kind == "rnn":
        found["rnn_compat"] = True
    if kind == "transformer":
        sizes = _layers("ext_layer.transformer_inter", tensors, "scorer")
        return {**found, **sizes, **_heads(options, ("ext_heads", "heads"), "scorer_heads", path)}
    return found


def _decoder(tensors: Mapping[str, np.ndarray], options: Mapping[str, Any], path: Path) -> dict[str, Any]:
    sizes = _layers("decoder.transformer_layers", tensors, "decoder")
    return {**sizes, **_heads(options, ("dec_heads",), "decoder_heads", path)} if sizes else {}


def _layers(prefix: str, tensors: Mapping[str, np.ndarray], field: str) -> dict[str, int]:
    """How many layers there are, and the size of their feed-forward networks."""
    pattern = re.compile(rf"{prefix}\.\d+\.feed_forward\.w_1\.bias")
    inner = [array.size for name, array in tensors.items() if pattern.fullmatch(name)]
    count = _count(rf"{prefix}\.(\d+)\.", tensors)
    return {f"{field}_layers": count, f"{field}_intermediate": inner[0]} if inner else {}


def _heads(options: Mapping[str, Any], keys: Sequence[str], field: str, path: Path) -> dict[str, int]:
    """What the options say under the first of the keys that they have: PreSumm's and BertSum's differ."""
    key = next((key for key in keys if key in options), None)
    if key is None:
        return {}
    if type(options[key]) is not int:
        refuse(f"{path}: opt.{key}", type(options[key]).__name__, "an int")
    return {field: options[key]}


def _no_bert(path: Path, got: str) -> UserError:
    return UserError(
        f"{path}",
        got=got,
        expected="a checkpoint of PreSumm or BertSum: model, opt and optim, with BERT in the model",
        fix="give a model_step_N.pt of theirs; other weights come as folders of transformers",
    )
