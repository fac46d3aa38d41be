"""What `init_from` names, told by what is there: a run of ours, a Hugging Face folder, a checkpoint of Google's or of
PreSumm's.
"""

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
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.text.vocabularies import states_casing
from bertjax.errors import UserError
from bertjax.interop import bert_tensors, google, huggingface, json_files, presumm
from bertjax.runs import checkpoints
from bertjax.tasks.folders import not_found

_log = logging.getLogger(__name__)

# What a folder determines: a different value in the config is a contradiction.
_MODEL_KEYS = (
    "vocab_size",
    "num_layers",
    "hidden_size",
    "num_heads",
    "intermediate_size",
    "max_positions",
    "type_vocab_size",
    "activation",
    "norm_eps",
    "norm",
    "direction",
)
# The same of BertSum's scorers and of its decoder; an experiment without has no use for them.
_DECODER_KEYS = ("decoder_layers", "decoder_heads", "decoder_intermediate")
_SCORER_KEYS: dict[str, tuple[str, ...]] = {
    "classifier": (),
    "transformer": ("scorer_layers", "scorer_heads", "scorer_intermediate"),
    "rnn": ("rnn_compat",),
}
# What rows of articles are like, which no error keeps from being otherwise than a model has seen them.
_ROWS = ("words", "interval_segments")
# The vocabulary that PreSumm's and BertSum's models are made for, bert-base-uncased's, has so many tokens.
_UNCASED_SIZE = 30522


class Pretrained(NamedTuple):
    """What a folder says of its model."""

    model: Mapping[str, Any]  # sizes and options: fields of `BertConfig`, and of `BertSumConfig` or `BertSumAbsConfig`
    lowercase: bool | None  # the vocabulary's casing; None if nothing tells it
    labels: tuple[str, ...]  # of a classifier's classes; none if it has no names for them
    config: Mapping[str, Any]  # of a run of ours, else empty
    rows: Mapping[str, Any]  # what rows of articles it has learned from, as far as that is known: keys of `data`
    num_classes: int = 0  # of a classifier, also without names; 0 if it is none
    task: str = ""  # "classification" of texts or "tagging" of words, whose classifiers look alike; "" if nothing says
    tells_several: bool = False  # whether a classifier tells several classes or numbers of a text, as none of ours does


def describe(folder: Path) -> Pretrained:
    """Reads what a folder, or a file of PreSumm's, says of its model. Raises UserError if it holds none."""
    if presumm.is_checkpoint(folder):
        model = presumm.describe(folder)
        lowercase = True if model["vocab_size"] == _UNCASED_SIZE else None
        return Pretrained(_chosen(model), lowercase, (), {}, presumm.describe_rows(folder))
    if checkpoints.has_checkpoint(folder):
        run = json_files.read_json(folder / "config.json", dict)
        if "vocab_size" not in run.get("model", {}):
            got, expected = f"a run of {run.get('experiment')}", "one of a task with a BERT"
            raise UserError(f"config key init_from={folder}", got=got, expected=expected, fix="name another folder")
        tokenizer = WordPiece.load(folder)
        model = {**run["model"], "vocab_size": run["model"]["vocab_size"] or tokenizer.vocab_size}
        labels = tuple(run["data"].get("labels", ()))
        rows = {key: run["data"][key] for key in _ROWS if key in run["data"]}
        return Pretrained(_chosen(model), tokenizer.lowercase, labels, run, rows, len(labels), run["experiment"])
    inside = huggingface.model_folder(folder)
    if (inside / huggingface.CONFIG_FILE).exists():
        labels, tells_several = huggingface.read_labels(folder) or (), huggingface.tells_several(folder)
        model = {**huggingface.read_config(folder), **presumm.read_head(folder)}
        told = len(labels), huggingface.read_task(folder), tells_several
        lowercase = WordPiece.load(inside).lowercase if states_casing(inside) else None
        rows = presumm.describe_rows(folder)
        return Pretrained(_chosen(model), lowercase, labels, {}, rows, *told)
    if google.find(folder):
        model, num_classes = google.read_config(folder), google.count_classes(folder)
        return Pretrained(_chosen(model), google.lowercase(folder), (), {}, {}, num_classes)
    raise not_found(folder)


def resolve(
    config: Mapping[str, Any],
    *,
    seq_len: int | None = None,
    extends_positions: bool = False,
    otherwise: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Fills in the sizes, the casing and the vocabulary that `init_from` determines.

    Args:
      config: the whole of it.
      seq_len: the default of `data.seq_len` for models with that many positions or more; None for all positions.
      otherwise: what keys become, such as "model.scorer", that neither the config nor the folder gives a value.
      extends_positions: whether `model.max_positions` may be above what the folder has; see `extend_positions`.
    Raises:
      UserError: no size is given at all, or one that contradicts the folder; no vocabulary for a file of PreSumm's.
    """
    model, data = dict(config["model"]), dict(config["data"])
    if config["init_from"]:
        found = describe(Path(config["init_from"]))
        known = {key: value for key, value in found.model.items() if key in _MODEL_KEYS or key in model}
        if extends_positions:
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
            if given not in (None, "", value):
                raise UserError(
                    f"config key {name}",
                    got=given,
                    expected=f"{value}, as in init_from={config['init_from']}",
                    fix="leave it out, and name no size after the config file",
                )
            subtree[key] = value
        _take_rows(data, found.rows, config["init_from"])
    for name, value in otherwise.items():
        subtree, key = (model if name.startswith("model.") else data), name.split(".")[1]
        if key in subtree and subtree[key] in (None, ""):
            subtree[key] = value
    _check_complete(config["experiment"], model, data)
    if data.get("seq_len", 0) is None:
        data["seq_len"] = default_seq_len(seq_len, model.get("max_positions"))
    return {**config, "model": model, "data": data}


def _check_complete(experiment: str, model: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Raises UserError if neither the config nor `init_from` gives a size of the model, or the casing."""
    missing = [key for key, value in model.items() if value is None and key != "vocab_size"]
    if missing:
        raise UserError(
            "--config",
            got=f"neither a size nor init_from (model.{missing[0]} is not set)",
            expected="a size, or a folder to take it from",
            fix=f"append a size, --config=configs/{experiment}.py:tiny, or set --config.init_from=FOLDER",
        )
    if data.get("lowercase") is None:
        raise UserError(
            "config key data.lowercase",
            got="no value, and nothing in init_from that tells the casing",
            expected="True for an uncased vocabulary, False for a cased one",
            fix="set --config.data.lowercase=True or False",
        )


def _take_rows(data: dict[str, Any], rows: Mapping[str, Any], init_from: str) -> None:
    """Puts into `data` what rows a model has seen, where it says nothing; warns where it says something else."""
    for key in data.keys() & rows.keys():
        if data[key] is None:
            data[key] = rows[key]
        elif data[key] != rows[key]:
            _log.warning("data.%s=%s: %s has learned from rows with %s", key, data[key], init_from, rows[key])


def class_names(init_from: str) -> tuple[str, ...]:
    """The names of the classes of the classifier that `init_from` names; none if it has none, or tells several."""
    found = describe(Path(init_from)) if init_from else None
    return found.labels if found and not found.tells_several else ()


def has_classes(folder: Path, labels: Sequence[str]) -> bool:
    """Whether a folder's classifier of texts can be one of these classes, or of a number if there are none of these.

    It has their names in their order, or as many classes without names.
    """
    found = describe(folder)
    if found.tells_several or found.task not in ("", "classification"):
        return False
    if not labels:  # what predicts a number has no name for it, or one that means nothing
        return found.num_classes < 2
    if found.labels or found.num_classes != len(labels):
        return found.labels == tuple(labels)
    _log.warning("%s has no names for its classes, which are taken to be %s", folder, ", ".join(labels))
    return True


def warm_start(params: Params, folder: Path, afresh: Sequence[str] = (), positions: str = "") -> Params:
    """Puts a folder's weights in place of parameters, and says which modules it has none for.

    Args:
      params: the fresh parameters of a model that has BERT as `bert`.
      folder: as `describe` takes it.
      afresh: modules that start afresh even if the folder has weights of that name.
      positions: how to fill a position table that is longer than the folder's, see `extend_positions`; "" for an error
        if it is.
    Raises:
      UserError: weights that are missing, damaged, or of other shapes.
    """
    wanted = {name: tree for name, tree in params.items() if name not in afresh}
    if positions:
        learned = min(describe(folder).model["max_positions"], len(_positions(params)))
        wanted = _with_positions(wanted, _rows(_positions(wanted), jnp.arange(learned)))
        started = {**params, **_load(wanted, folder, afresh)}
        return extend_positions(started, learned, len(_positions(params)), positions)
    return {**params, **_load(wanted, folder, afresh)}


def _load(wanted: Params, folder: Path, afresh: Sequence[str]) -> Params:
    """The parameters that a folder has in place of those that are wanted."""
    if checkpoints.has_checkpoint(folder):
        found, paths = checkpoints.restore_shared(folder, wanted)
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
    for name in (*missing, *afresh):
        _log.warning("%s has no weights of %s for this task, which starts afresh", folder, name)
    return dict(found)


def extend_positions(params: Params, learned: int, max_positions: int, how: str) -> Params:
    """Returns parameters of a model that has BERT as `bert`, whose later positions are copies of those learned.

    Args:
      params: those with a table of positions.
      learned: how many rows of it, from the first on, are kept.
      max_positions: how many there are to be.
      how: "repeat_last", as PreSumm does: all new rows are copies of the last. "tile": they are copies of the old ones,
        again and again, so that attention to near-by tokens works at any position from the start (as Longformer
        begins: Beltagy et al. 2020, section 5).
    Raises:
      UserError: another way, or fewer positions than are kept.
    """
    choice(how, ("repeat_last", "tile"), "positions")
    if learned > max_positions:
        raise UserError(
            "config key model.max_positions",
            got=max_positions,
            expected=f"at least the {learned} that there are",
            fix="raise it; a model may be used for shorter rows as it is",
        )
    rows = jnp.arange(max_positions)
    rows = jnp.minimum(rows, learned - 1) if how == "repeat_last" else rows % learned
    return _with_positions(params, _rows(_positions(params), rows))


def _positions(params: Params) -> Any:
    return params["bert"]["embeddings"]["position_embeddings"]


def _with_positions(params: Params, table: Any) -> Params:
    embeddings = {**params["bert"]["embeddings"], "position_embeddings": table}
    return {**params, "bert": {**params["bert"], "embeddings": embeddings}}


def _rows(table: Any, rows: jax.Array) -> jax.Array:
    # Compiled, so that a table which is spread over processes can be indexed.
    return jax.jit(lambda table: table[rows])(table)


def _check_vocabulary(init_from: str, vocab_file: str | None) -> None:
    if not vocab_file:
        raise UserError(
            "config key data.vocab_file",
            got=f"no value, and no vocabulary in {init_from}",
            expected="the vocabulary of bert-base-uncased, which PreSumm's models are made for",
            fix="set --config.data.vocab_file=vocab.txt",
        )


def _chosen(model: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's fields has to be the same; where some are not known, those that are."""
    scorer = model.get("scorer")
    of_scorer = () if scorer is None else ("scorer", "sentence_pooling", *_SCORER_KEYS[scorer])
    return {key: model[key] for key in (*_MODEL_KEYS, *of_scorer, *_DECODER_KEYS) if key in model}
