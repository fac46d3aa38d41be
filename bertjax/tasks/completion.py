"""Fills in config keys that are None: from the weights in `init_from`, and lengths in updates from rows."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertjax.data.rows.buckets import default_seq_len
from bertjax.data.text.vocabulary_config import load_tokenizer, with_tokens
from bertjax.errors import UserError
from bertjax.interop import families
from bertjax.interop.published import MODEL_KEYS, Published
from bertjax.interop.sentence_transformers import Sentences

_log = logging.getLogger(__name__)

# Keys whose values in a folder are only defaults, because they do not concern the encoder.
_DEFAULTS_OF_HEADS = ("model.head", "model.pooling")


def bert(
    config: Mapping[str, Any],
    published: Published | None,
    *,
    seq_len: int | None = None,
    extends_positions: bool = False,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Fills in the sizes, the casing and the vocabulary that `init_from` determines.

    Args:
      config: the whole config.
      published: the weights in `init_from`, if any.
      seq_len: the default of `data.seq_len` for models with at least that many positions; None for all positions.
      extends_positions: whether `model.max_positions` may be larger than in the folder; see
        `pretrained.extend_positions`. Without learned positions, it always may.
      defaults: defaults of keys, such as "model.scorer", that neither the config nor the folder sets.
    Raises:
      UserError: if a size is missing or contradicts the folder, or there is no vocabulary.
    """
    model = dict(config["model"])
    data = dict(config["data"])
    parts = {"model": model, "data": data}
    if published:
        model_values = {key: value for key, value in published.model.items() if key in MODEL_KEYS or key in model}
        if extends_positions or model_values["positions"] != "learned":
            model_values["max_positions"] = max(model_values["max_positions"], model.get("max_positions") or 0)
        values = {f"model.{key}": value for key, value in {**model_values, "family": published.family}.items()}
        if published.has_vocabulary:
            values["data.vocab_file"] = config["init_from"]
        else:
            _check_vocabulary(config["init_from"], data.get("vocab_file"))
        values |= {} if published.lowercase is None else {"data.lowercase": published.lowercase}
        for name, value in values.items():
            part, key = name.split(".")
            config_value = parts[part].get(key)
            if name in _DEFAULTS_OF_HEADS and config_value is not None:
                continue
            if config_value not in (None, "", value):
                raise contradiction(name, config_value, value, config["init_from"], "size")
            parts[part][key] = value
        _set_row_keys(data, published)
    for name, value in defaults.items():
        part, key = name.split(".")
        if key in parts[part] and parts[part][key] in (None, ""):
            parts[part][key] = value
    _check_complete(config["experiment"], model, data)
    if published and data.get("vocab_file"):
        model["vocab_size"] = _vocab_size(published, data, model["vocab_size"])
    model["family"] = model.get("family") or families.of_model(model)
    if published and data.get("next_sentence"):
        family = families.find(model["family"])
        of_run = published.config["data"] if published.is_run else {}
        has_head = "next_sentence" in family.heads.get("BertForPreTraining", ()) or of_run.get("next_sentence")
        if not has_head:
            _log.warning("data.next_sentence=False: %s has no next-sentence prediction", family.label)
        data["next_sentence"] = bool(has_head)
    if data.get("seq_len", 0) is None:
        data["seq_len"] = default_seq_len(seq_len, model.get("max_positions"))
    return {**config, **parts}


def sentences(config: Mapping[str, Any], folder_sentences: Sentences, size: int) -> dict[str, Any]:
    """Fills in how texts become vectors, as `init_from` states it.

    Args:
      config: the whole config.
      folder_sentences: the settings of the folder in `init_from`.
      size: the size of the vector of a token.
    Raises:
      UserError: unless the maps are those of `init_from`, or none, and their input has the size of the vectors.
    """
    defaults: dict[str, Any] = {
        "sentence_pooling": folder_sentences.pooling,
        "dense": [dataclasses.asdict(layer) for layer in folder_sentences.dense],
        "normalize": folder_sentences.normalizes,
        "include_prompt": folder_sentences.includes_prompt,
        "truncate_dim": folder_sentences.truncate_dim,
    }
    values = {key: value if config[key] is None else config[key] for key, value in defaults.items() if key in config}
    if values["dense"]:
        folder = config["init_from"]
        pooling = values["sentence_pooling"]
        if [*values["dense"]] != defaults["dense"]:
            expected = "() or " + (
                f"{defaults['dense']}, as in {folder}" if folder_sentences.dense else "no value: init_from has none"
            )
            raise UserError("config key dense", got=values["dense"], expected=expected, fix="omit it")
        size *= 1 + str(pooling).count("+")
        if size != folder_sentences.input_size:
            got = f"{pooling!r}, for vectors of {size}"
            expected = f"vectors of {folder_sentences.input_size}, as Dense in {folder} reads"
            fix = "omit the keys of pooling and layers, or set --config.dense=()"
            raise UserError("config key sentence_pooling", got=got, expected=expected, fix=fix)
    return {**config, **values}


def _vocab_size(published: Published, data: Mapping[str, Any], room: int) -> int | None:
    """Returns the number of embeddings with those of `data.add_tokens`, after checking the tokenizer of a folder.

    It is None with `data.add_words`, which are learned later.
    """
    added = data.get("add_tokens", ())
    is_folder = bool(published.config and not published.is_run)
    if added or is_folder:
        tokenizer = load_tokenizer(Path(data["vocab_file"]), data["lowercase"])
        check_vocab_size(tokenizer.vocab_size, room)
        if is_folder:
            published.check_tokenizer(tokenizer)
        room = max(room, with_tokens(tokenizer, added).vocab_size)
    return None if data.get("add_words") else room


def check_vocab_size(size: int, room: int) -> None:
    """Raises UserError if a vocabulary has more tokens than the model has embeddings."""
    if size > room:
        raise UserError(
            "config key data.vocab_file",
            got=f"{size} tokens",
            expected=f"at most {room}, model.vocab_size",
            fix="restore the vocabulary that the weights in init_from were trained with, or omit "
            "--config.model.vocab_size, which follows from the vocabulary",
        )


def lengths(config: Mapping[str, Any], count_rows: Callable[[], int]) -> dict[str, Any]:
    """Fills in `num_steps`, the warm-up, and the intervals of evaluation and saving, where they are None.

    `num_steps` comes from `num_epochs`, unless `budget.hours` determines it; `optimizer.warmup_steps` from
    `warmup_fraction`. Evaluation is once an epoch, and saving as often as evaluation.

    Args:
      config: a config with these keys.
      count_rows: returns the number of rows in an epoch; called only if it is needed.
    """
    result = {**config, "optimizer": dict(config["optimizer"]), "checkpoint": dict(config["checkpoint"])}
    is_timed = bool(config.get("budget", {}).get("hours"))
    if None in (config["num_steps"], config["evaluate_every"], config["checkpoint"]["save_every"]):
        steps_per_epoch = -(-count_rows() // max(config["batch_size"], 1))
        if not is_timed:
            _fill(result, "num_steps", max(1, round(config["num_epochs"] * steps_per_epoch)))
        _fill(result, "evaluate_every", max(1, min(steps_per_epoch, result["num_steps"] or steps_per_epoch)))
        _fill(result["checkpoint"], "save_every", max(1, result["evaluate_every"]))
    if (scheduled := config["optimizer"].get("schedule_steps") or result["num_steps"]) is not None:
        _fill(result["optimizer"], "warmup_steps", round(config["warmup_fraction"] * scheduled))
    return result


def _fill(tree: dict[str, Any], key: str, value: int) -> None:
    """Sets a key that is None. A 0 is kept: the config check reports it if it is invalid."""
    if tree[key] is None:
        tree[key] = value


def contradiction(key: str, got: Any, expected: Any, init_from: str, variant: str) -> UserError:
    """Returns the error for a key that contradicts the weights in `init_from`."""
    fix = f"omit this key; if the {variant} after the colon in --config sets it, omit the {variant}"
    return UserError(f"config key {key}", got=got, expected=f"{expected}, as in init_from={init_from}", fix=fix)


def no_model(variant: str, key: str, experiment: str) -> UserError:
    """Returns the error for a key of `model` that neither the config nor `init_from` determines."""
    shell = " (a variable such as $BERT must be set in this shell)" if variant == "size" else ""
    got = f"neither a {variant} nor init_from (model.{key} is not set)"
    fix = f"append a {variant}, --config=configs/{experiment}.py:tiny, or set --config.init_from=FOLDER{shell}"
    return UserError("--config", got=got, expected=f"a {variant}, or a folder that determines it", fix=fix)


def _check_complete(experiment: str, model: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Raises UserError if neither the config nor `init_from` determines a size of the model, or the casing."""
    missing = [key for key, value in model.items() if value is None and key not in ("vocab_size", "family")]
    if missing:
        raise no_model("size", missing[0], experiment)
    if data.get("lowercase") is None:
        raise UserError(
            "config key data.lowercase",
            got="no value, and init_from does not determine the casing",
            expected="True for an uncased vocabulary, False for a cased one",
            fix="set --config.data.lowercase=True or False",
        )


def _set_row_keys(data: dict[str, Any], published: Published) -> None:
    """Sets keys of `data` that are None to those of the model's training rows; warns about keys that differ."""
    rows = published.rows
    path = published.path
    for key in data.keys() & rows.keys():
        if data[key] is None:
            data[key] = rows[key]
        elif data[key] != rows[key]:
            _log.warning("data.%s=%s, but %s was trained on rows with %s", key, data[key], path, rows[key])


def _check_vocabulary(init_from: str, vocab_file: str | None) -> None:
    if not vocab_file:
        raise UserError(
            "config key data.vocab_file",
            got=f"no value, and no vocabulary in {init_from}",
            expected="the vocabulary that the model was trained with; PreSumm's models use that of bert-base-uncased",
            fix="set --config.data.vocab_file=FILE, or copy vocab.txt or tokenizer.json into the folder of the model",
        )
