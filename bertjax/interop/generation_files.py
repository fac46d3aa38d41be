"""The settings of generation that the folder of an encoder-decoder states, as `generate` of transformers reads them."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.decoding.generation import GENERATION, STATED_BY, from_generation
from bertjax.errors import UserError, did_you_mean
from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.huggingface import CONFIG_FILE

GENERATION_FILE = "generation_config.json"
_TASKS = "task_specific_params"
PREFIX = "prefix"  # a key of config.json and of a task
# The default of `generate`, in new tokens; a `max_length` of 21, because it includes the start token.
_MAX_LENGTH = 20
_NO_LIMIT = 10**6  # tokens


class SpecialIds(NamedTuple):
    """The ids of special tokens that generation needs."""

    pad_id: int
    bos_id: int  # the decoder's first input
    eos_id: int


class Generation(NamedTuple):
    """What a folder states.

    Attributes:
      decoding: fields of `DecodingConfig`.
      source_prefix: the text before every source of the task, including the following space; "" for none.
      unstated: the fields that have the default of `generate`, because no key states them.
    """

    decoding: dict[str, Any]
    source_prefix: str
    unstated: frozenset[str]


def read_values(folder: Path, raw: Mapping[str, Any], task: str = "") -> tuple[dict[str, Any], Path]:
    """Returns the keys of generation with their values, and for messages their file or, with a task, the folder.

    As in transformers, a folder without generation_config.json states them in config.json, whose null values count as
    missing. A task's entry of `task_specific_params` in config.json has precedence, as in pipelines of transformers 4.

    Args:
      folder: the folder.
      raw: the content of config.json.
      task: the name of an entry; "" for none.
    Raises:
      UserError: if generation_config.json is unreadable, or there is no such task.
    """
    path = folder / GENERATION_FILE
    if path.exists():
        values = json_files.read_json(path, dict)
    else:
        path = folder / CONFIG_FILE
        values = {key: value for key, value in raw.items() if key in GENERATION.names and value is not None}
        # The key of BART's first release.
        if values.pop("force_bos_token_to_be_generated", False):
            values["forced_bos_token_id"] = raw.get("bos_token_id")
    return ({**values, **_read_task(folder, raw, task)}, folder) if task else (values, path)


def read_generation(
    folder: Path, raw: Mapping[str, Any], special: SpecialIds, vocab_size: int, task: str = ""
) -> Generation:
    """Returns the settings of generation.

    As in `generate`, the length of the source does not limit hypotheses, and the default maximum is 20 tokens.

    Args:
      folder, raw, task: as in `read_values`.
      special: the ids of the model's special tokens.
      vocab_size: the number of tokens of the target.
    Raises:
      UserError: as `read_values`; also if a value has an effect that is not supported, or an id is not in the
        vocabulary.
    """
    values, path = read_values(folder, raw, task)
    prefix = values.pop(PREFIX, raw.get(PREFIX)) or ""  # as in pipelines of transformers
    if not isinstance(prefix, str):
        refuse(f"{folder / CONFIG_FILE}: {PREFIX}", repr(prefix), "a text")
    ids = {"eos_id": special.eos_id, "pad_id": special.pad_id, "start_id": special.bos_id}
    settings = from_generation(values, path, **ids)
    largest_ids = {
        "bad_words_ids": max(itertools.chain(*settings["bad_words"]), default=0),
        "forced_bos_token_id": settings["first_id"] or 0,
    }
    for key, largest in largest_ids.items():
        if largest >= vocab_size:
            refuse(f"{path}: {key}", largest, f"ids below {vocab_size}, the size of the target's vocabulary")
    is_stated = {field: any(values.get(key) is not None for key in keys) for field, keys in STATED_BY.items()}
    unstated = frozenset(field for field, is_known in is_stated.items() if not is_known)
    decoding = {"max_length": _MAX_LENGTH, "max_ratio": 0.0, "max_extra": _NO_LIMIT, **settings}
    return Generation(decoding, prefix, unstated)


def _read_task(folder: Path, raw: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Returns the keys of a task in config.json. Raises UserError if there is no such task."""
    tasks = raw.get(_TASKS) or {}
    names = list(tasks) if isinstance(tasks, dict) else []
    if task not in names or not isinstance(tasks[task], dict):
        key = f"{_TASKS} of {folder / CONFIG_FILE}"
        expected = f"one of {', '.join(names)}, {key}" if names else f"no value, because there is no {key}"
        raise UserError("config key task", got=task, expected=expected, fix=did_you_mean(task, names, "omit it"))
    return dict(tasks[task])
