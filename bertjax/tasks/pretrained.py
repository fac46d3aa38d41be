"""Reads what `init_from` names: a bertjax run, a Hugging Face folder, or a checkpoint of google-research or PreSumm."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertjax.config import choice
from bertjax.contract import Params
from bertjax.data.rows.buckets import default_seq_len
from bertjax.data.text.vocabulary_config import casing, load_saved
from bertjax.errors import UserError
from bertjax.interop import bert_tensors, google, huggingface, json_files, presumm
from bertjax.models.bert import BertConfig
from bertjax.runs import checkpoints
from bertjax.tasks.folders import not_found

_log = logging.getLogger(__name__)

# Fields that may differ between pretraining and a later use of the weights.
_CHANGEABLE = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "attention_backend",
    "initializer",
    "initializer_range",
    "depth_scaled_init",
    "dtype",
    "scan_layers",
    "remat",
    "next_sentence",
)
# Fields that a folder determines. A different value in the config is an error.
_FIXED = [field for field in dataclasses.fields(BertConfig) if field.name not in _CHANGEABLE]
_MODEL_KEYS = tuple(field.name for field in _FIXED)
# Their values in folders without them: runs that are older than the field, and formats that have only one value.
_DEFAULTS = {field.name: field.default for field in _FIXED if field.default is not dataclasses.MISSING}
# Fields whose values in the folder are only defaults, because they do not concern the encoder.
_DEFAULTS_OF_HEADS = ("model.head", "model.pooling")
# The same for BertSum's scorers and decoder. Experiments without these ignore them.
_DECODER_KEYS = ("decoder_layers", "decoder_heads", "decoder_intermediate")
_SCORER_KEYS: dict[str, tuple[str, ...]] = {
    "classifier": (),
    "transformer": ("scorer_layers", "scorer_heads", "scorer_intermediate"),
    "rnn": ("rnn_compat",),
}
# Properties of article rows. A mismatch with the pretrained model raises no error elsewhere.
_ROWS = ("words", "interval_segments")
# Vocabulary size of bert-base-uncased, the base of the published PreSumm and BertSum models.
_UNCASED_SIZE = 30522


class Pretrained(NamedTuple):
    """The properties of a model that a folder records."""

    model: Mapping[str, Any]  # sizes and options: fields of `BertConfig`, and of `BertSumConfig` or `BertSumAbsConfig`
    lowercase: bool | None  # the casing of the vocabulary; None if unknown
    labels: tuple[str, ...]  # the names of a classifier's classes; empty if they have none
    config: Mapping[str, Any]  # the config of a bertjax run, else empty
    rows: Mapping[str, Any]  # keys of `data` that describe its training rows, if these were articles
    num_classes: int = 0  # the classes of a classifier, also without names; 0 if there is no classifier
    task: str = ""  # "classification" of texts or "tagging" of words, whose weights look alike; "" if unknown
    is_multi_label: bool = False  # whether a text can have several classes or numbers, which bertjax does not support


def describe(folder: Path) -> Pretrained:
    """Reads the properties of the model in a folder or a PreSumm file. Raises UserError if there is no model."""
    if presumm.is_checkpoint(folder):
        model = presumm.describe(folder)
        lowercase = True if model["vocab_size"] == _UNCASED_SIZE else None
        return Pretrained(_known_fields(model), lowercase, (), {}, presumm.describe_rows(folder))
    if checkpoints.has_checkpoint(folder):
        run = json_files.read_json(folder / "config.json", dict)
        if "vocab_size" not in run.get("model", {}):
            got, expected = f"a run of {run.get('experiment')}", "a run of a task with a BERT"
            raise UserError(f"config key init_from={folder}", got=got, expected=expected, fix="name another folder")
        tokenizer = load_saved(folder)
        model = {**run["model"], "vocab_size": run["model"]["vocab_size"] or tokenizer.vocab_size}
        labels = tuple(run["data"].get("labels", ()))
        rows = {key: run["data"][key] for key in _ROWS if key in run["data"]}
        return Pretrained(_known_fields(model), tokenizer.lowercase, labels, run, rows, len(labels), run["experiment"])
    inside = huggingface.model_folder(folder)
    if (inside / huggingface.CONFIG_FILE).exists():
        labels, is_multi_label = huggingface.read_labels(folder) or (), huggingface.is_multi_label(folder)
        model = {**huggingface.read_config(folder), **presumm.read_head(folder)}
        told = len(labels), huggingface.read_task(folder), is_multi_label
        lowercase = casing(inside)
        rows = presumm.describe_rows(folder)
        return Pretrained(_known_fields(model), lowercase, labels, {}, rows, *told)
    if google.find(folder):
        model, num_classes = google.read_config(folder), google.count_classes(folder)
        return Pretrained(_known_fields(model), google.lowercase(folder), (), {}, {}, num_classes)
    raise not_found(folder)


def resolve(
    config: Mapping[str, Any],
    *,
    seq_len: int | None = None,
    extends_positions: bool = False,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Fills in the sizes, the casing and the vocabulary that `init_from` determines.

    Args:
      config: the whole config.
      seq_len: the default of `data.seq_len` for models with at least that many positions; None for all positions.
      extends_positions: whether `model.max_positions` may be larger than in the folder; see `extend_positions`. Without
        learned positions, it always may.
      defaults: defaults of keys, such as "model.scorer", that neither the config nor the folder sets.
    Raises:
      UserError: if a size is missing or contradicts the folder, or a PreSumm file has no vocabulary.
    """
    model, data = dict(config["model"]), dict(config["data"])
    if config["init_from"]:
        found = describe(Path(config["init_from"]))
        known = {key: value for key, value in found.model.items() if key in _MODEL_KEYS or key in model}
        if extends_positions or known["positions"] != "learned":
            known["max_positions"] = max(known["max_positions"], model.get("max_positions") or 0)
        values = {f"model.{key}": value for key, value in known.items()}
        if presumm.is_checkpoint(config["init_from"]):
            _check_vocabulary(config["init_from"], data.get("vocab_file"))
        else:
            values["data.vocab_file"] = config["init_from"]
        if found.lowercase is not None:
            values["data.lowercase"] = found.lowercase
        for name, value in values.items():
            subtree, key = (model if name.startswith("model.") else data), name.split(".")[1]
            given = subtree.get(key)
            if name in _DEFAULTS_OF_HEADS and given is not None:
                continue
            if given not in (None, "", value):
                raise UserError(
                    f"config key {name}",
                    got=given,
                    expected=f"{value}, as in init_from={config['init_from']}",
                    fix="omit this key; if the size after the colon in --config sets it, omit the size",
                )
            subtree[key] = value
        _set_row_keys(data, found.rows, config["init_from"])
    for name, value in defaults.items():
        subtree, key = (model if name.startswith("model.") else data), name.split(".")[1]
        if key in subtree and subtree[key] in (None, ""):
            subtree[key] = value
    _check_complete(config["experiment"], model, data)
    if data.get("seq_len", 0) is None:
        data["seq_len"] = default_seq_len(seq_len, model.get("max_positions"))
    return {**config, "model": model, "data": data}


def _check_complete(experiment: str, model: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Raises UserError if neither the config nor `init_from` determines a size of the model, or the casing."""
    missing = [key for key, value in model.items() if value is None and key != "vocab_size"]
    if missing:
        raise UserError(
            "--config",
            got=f"neither a size nor init_from (model.{missing[0]} is not set)",
            expected="a size, or a folder that determines it",
            fix=f"append a size, --config=configs/{experiment}.py:tiny, or set --config.init_from=FOLDER "
            "(a variable such as $BERT must be set in this shell)",
        )
    if data.get("lowercase") is None:
        raise UserError(
            "config key data.lowercase",
            got="no value, and init_from does not determine the casing",
            expected="True for an uncased vocabulary, False for a cased one",
            fix="set --config.data.lowercase=True or False",
        )


def _set_row_keys(data: dict[str, Any], rows: Mapping[str, Any], init_from: str) -> None:
    """Sets keys of `data` that are None to those of the model's training rows; warns about keys that differ."""
    for key in data.keys() & rows.keys():
        if data[key] is None:
            data[key] = rows[key]
        elif data[key] != rows[key]:
            _log.warning("data.%s=%s, but %s was trained on rows with %s", key, data[key], init_from, rows[key])


def class_names(init_from: str) -> tuple[str, ...]:
    """Returns the class names of the classifier in `init_from`; empty if there is none, or it is multi-label."""
    found = describe(Path(init_from)) if init_from else None
    return found.labels if found and not found.is_multi_label else ()


def has_classes(folder: Path, labels: Sequence[str]) -> bool:
    """Returns whether the classifier of texts in a folder can predict these classes, or a number if there are none.

    It must have the same names in the same order, or the same number of classes without names.
    """
    found = describe(folder)
    if found.is_multi_label or found.task not in ("", "classification"):
        return False
    if not labels:  # a regression model has no class name, or a meaningless one
        return found.num_classes < 2
    if found.labels or found.num_classes != len(labels):
        return found.labels == tuple(labels)
    _log.warning("%s has no class names; assuming %s", folder, ", ".join(labels))
    return True


def warm_start(params: Params, folder: Path, reinitialized: Sequence[str] = (), positions: str = "") -> Params:
    """Replaces parameters by a folder's weights, and logs the modules that the folder has no weights for.

    Args:
      params: the random parameters of a model with a BERT named `bert`.
      folder: see `describe`.
      reinitialized: modules that keep their random initialization even if the folder has weights of that name.
      positions: how to fill a position table that is longer than the folder's, see `extend_positions`; "" if that is an
        error.
    Raises:
      UserError: if weights are missing, damaged, or have other shapes.
    """
    wanted = {name: tree for name, tree in params.items() if name not in reinitialized}
    if positions and "position_embeddings" in params["bert"]["embeddings"]:
        learned = min(describe(folder).model["max_positions"], len(_positions(params)))
        wanted = _with_positions(wanted, _rows(_positions(wanted), jnp.arange(learned)))
        started = {**params, **_load(wanted, folder, reinitialized)}
        return extend_positions(started, learned, len(_positions(params)), positions)
    return {**params, **_load(wanted, folder, reinitialized)}


def _load(wanted: Params, folder: Path, reinitialized: Sequence[str]) -> Params:
    """Returns the wanted parameters, with the folder's weights where it has them."""
    if checkpoints.has_checkpoint(folder):
        found, paths = _restore(folder, wanted)
        missing = tuple(dict.fromkeys(path.rsplit("/", 1)[0] for path in paths))
    else:
        if presumm.is_checkpoint(folder):
            loaded, report = presumm.load(folder, wanted)
        elif (huggingface.model_folder(folder) / huggingface.CONFIG_FILE).exists():
            loaded, report = huggingface.load(folder, wanted)
        else:
            loaded, report = bert_tensors.assemble(google.read_tensors(folder), wanted, str(folder))
        leaves = traverse_util.flatten_dict(wanted) | traverse_util.flatten_dict(loaded)
        found, missing = traverse_util.unflatten_dict(leaves), report.missing
    for name in (*missing, *reinitialized):
        _log.warning("module %s keeps its random initialization: %s has no weights for it in this task", name, folder)
    return dict(found)


def _restore(folder: Path, wanted: Params) -> tuple[Params, Sequence[str]]:
    """`checkpoints.restore_shared`, except that a task's `transform` may start from that of the masked-LM head."""
    head = {name: wanted[name] for name in ("transform", "norm") if name in wanted}
    found, unchanged = checkpoints.restore_shared(folder, {**({"masked_lm": head} if head else {}), **wanted})
    paths = list(unchanged)
    is_missing = {name: any(path.startswith(f"{name}/") for path in paths) for name in ("masked_lm", *head)}
    if any(is_missing[name] for name in head) and not is_missing["masked_lm"]:
        found, paths = {**found, **found["masked_lm"]}, [path for path in paths if path.split("/")[0] not in head]
    return {name: found[name] for name in wanted}, [path for path in paths if path.split("/")[0] in wanted]


def extend_positions(params: Params, learned: int, max_positions: int, how: str) -> Params:
    """Extends the position table of a model with a BERT named `bert` by copies of its first rows.

    Args:
      params: the parameters of the model.
      learned: the number of rows, from the first on, to keep.
      max_positions: the number of rows after the extension.
      how: "repeat_last": all new rows are copies of the last one, as in PreSumm. "tile": the new rows repeat all kept
        rows, so that attention to nearby tokens works at any position from the start (as Longformer begins: Beltagy et
        al. 2020, section 5).
    Raises:
      UserError: for an unknown `how`, or fewer positions than are kept.
    """
    choice(how, ("repeat_last", "tile"), "positions")
    if learned > max_positions:
        raise UserError(
            "config key model.max_positions",
            got=max_positions,
            expected=f"at least {learned}, the positions of the pretrained model",
            fix="raise it; a model with more positions can also process shorter rows",
        )
    rows = jnp.arange(max_positions)
    rows = jnp.minimum(rows, learned - 1) if how == "repeat_last" else rows % learned
    return _with_positions(params, _rows(_positions(params), rows))


def copy_positions(tree: Params, learned: int, count: int) -> Params:
    """Replaces rows of the position table, and of the optimizer's moments of it, by copies of the first rows, in order.

    Args:
      tree: parameters, the state of an optimizer, or both. Without a position table, nothing changes.
      learned: the number of rows, from the first on, to keep and copy.
      count: the number of rows that they fill. Later rows do not change.
    """

    def copied(path: tuple[Any, ...], leaf: Any) -> Any:
        if getattr(path[-1], "key", None) != "position_embeddings":
            return leaf
        rows = jnp.tile(leaf[:learned], (-(-count // learned), 1))
        return jnp.concatenate([rows[:count], leaf[count:]])

    return jax.tree_util.tree_map_with_path(copied, tree)


def _positions(params: Params) -> Any:
    return params["bert"]["embeddings"]["position_embeddings"]


def _with_positions(params: Params, table: Any) -> Params:
    embeddings = {**params["bert"]["embeddings"], "position_embeddings": table}
    return {**params, "bert": {**params["bert"], "embeddings": embeddings}}


def _rows(table: Any, rows: jax.Array) -> jax.Array:
    # Compiled, so that indexing also works for a table that is sharded over processes.
    return jax.jit(lambda table: table[rows])(table)


def _check_vocabulary(init_from: str, vocab_file: str | None) -> None:
    if not vocab_file:
        raise UserError(
            "config key data.vocab_file",
            got=f"no value, and no vocabulary in {init_from}",
            expected="the vocabulary of bert-base-uncased, which PreSumm's models use",
            fix="set --config.data.vocab_file=vocab.txt",
        )


def _known_fields(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a model that must match the config. Unknown fields are omitted."""
    scorer = model.get("scorer")
    of_scorer = () if scorer is None else ("scorer", "sentence_pooling", *_SCORER_KEYS[scorer])
    return _DEFAULTS | {key: model[key] for key in (*_MODEL_KEYS, *of_scorer, *_DECODER_KEYS) if key in model}
