"""What `init_from` names: a run of ours, a Hugging Face folder or a checkpoint of Google's, told by what is there."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax import traverse_util

from bertjax import checkpoints
from bertjax.data.tokenizers import WordPiece
from bertjax.errors import UserError
from bertjax.interop import bert_tensors, google, huggingface
from bertjax.task import Params

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


class Pretrained(NamedTuple):
    """What a folder says of its model."""

    model: Mapping[str, Any]  # sizes and options: fields of `BertConfig`
    lowercase: bool | None  # the vocabulary's casing; None if nothing tells it
    labels: tuple[str, ...]  # of a classifier's classes; none if it has no names for them
    config: Mapping[str, Any]  # of a run of ours, else empty


def describe(folder: Path) -> Pretrained:
    """Reads what a folder says of its model, without its weights. Raises UserError if it holds none."""
    if checkpoints.has_checkpoint(folder):
        run = json.loads((folder / "config.json").read_text())
        tokenizer = WordPiece.load(folder)
        model = {**run["model"], "vocab_size": run["model"]["vocab_size"] or tokenizer.vocab_size}
        return Pretrained(_chosen(model), tokenizer.lowercase, tuple(run["data"].get("labels", ())), run)
    inside = huggingface.model_folder(folder)
    if (inside / huggingface.CONFIG_FILE).exists():
        labels = huggingface.read_labels(folder) or ()
        return Pretrained(_chosen(huggingface.read_config(folder)), WordPiece.load(inside).lowercase, labels, {})
    if google.find(folder):
        return Pretrained(_chosen(google.read_config(folder)), google.lowercase(folder), (), {})
    raise UserError(
        f"config key init_from={folder}",
        got="no checkpoint, config.json or bert_config.json" if folder.exists() else "no such folder",
        expected="a run of ours, a folder with config.json, weights and vocabulary, or a checkpoint of google-research",
        fix="correct the path",
    )


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in the sizes, the casing and the vocabulary that `init_from` determines.

    Raises:
      UserError: no size is given at all, or one that contradicts the folder.
    """
    model, data = dict(config["model"]), dict(config["data"])
    if config["init_from"]:
        found = describe(Path(config["init_from"]))
        values = {f"model.{key}": value for key, value in found.model.items()}
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
    missing = [key for key, value in model.items() if value is None and key != "vocab_size"]
    if missing:
        raise UserError(
            "--config",
            got=f"neither a size nor init_from (model.{missing[0]} is not set)",
            expected="a size, or a folder to take it from",
            fix=f"append a size, --config=configs/{config['experiment']}.py:tiny, or set --config.init_from=FOLDER",
        )
    if data.get("lowercase") is None:
        raise UserError(
            "config key data.lowercase",
            got="no value, and nothing in init_from that tells the casing",
            expected="True for an uncased vocabulary, False for a cased one",
            fix="set --config.data.lowercase=True or False",
        )
    return {**config, "model": model, "data": data}


def warm_start(params: Params, folder: Path, afresh: Sequence[str] = ()) -> Params:
    """Puts a folder's weights in place of parameters, and says which modules it has none for.

    Args:
      params: the fresh parameters of a model that has BERT as `bert`.
      folder: as `describe` takes it.
      afresh: modules that start afresh even if the folder has weights of that name.
    Raises:
      UserError: weights that are missing, damaged, or of other shapes.
    """
    wanted = {name: tree for name, tree in params.items() if name not in afresh}
    if checkpoints.has_checkpoint(folder):
        found, paths = checkpoints.restore_shared(folder, wanted)
        missing = tuple(dict.fromkeys(path.rsplit("/", 1)[0] for path in paths))
    else:
        if (huggingface.model_folder(folder) / huggingface.CONFIG_FILE).exists():
            loaded, report = huggingface.load(folder, wanted)
        else:
            loaded, report = bert_tensors.assemble(google.read_tensors(folder), wanted, str(folder))
        leaves = traverse_util.flatten_dict(wanted) | traverse_util.flatten_dict(loaded)
        found, missing = traverse_util.unflatten_dict(leaves), report.missing
    for name in (*missing, *afresh):
        _log.warning("%s has no weights of %s for this task, which starts afresh", folder, name)
    return {**params, **found}


def _chosen(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: model[key] for key in _MODEL_KEYS}
