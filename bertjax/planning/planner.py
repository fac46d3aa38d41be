"""`--mode=plan`: the plan of a config on a slice, or of the config like it that fits best."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bertjax.contract import Task
from bertjax.planning import chips, search
from bertjax.planning.plan import describe, plan
from bertjax.training.config import TrainingConfig
from bertjax.training.sharding import check_split

_log = logging.getLogger(__name__)

# Keys of `model` that follow from vocabularies.
_VOCABULARIES = ("vocab_size", "source_vocab_size", "target_vocab_size")

Build = Callable[[Mapping[str, Any]], tuple[Task, TrainingConfig]]


def run(topology: str, is_search: bool, config: Mapping[str, Any], build: Build) -> dict[str, Any]:
    """What training would need and take; see `plan`.

    Args:
      topology: the slice.
      is_search: whether to change mesh, micro-batches and rematerialization, see `search`.
      config: of the run, resolved and completed; see `complete`.
      build: the task and the settings of a config.
    Raises:
      UserError: the slice is unknown, libtpu is missing, or the config does not go with the slice.
    """
    jax.config.update("jax_platforms", "cpu")  # no hardware is looked for
    where = chips.find_slice(topology)
    if is_search:
        return search.search(config, build, where)
    check_split(config, len(where.devices))
    record = plan(*build(config), where)
    for line in describe(record):
        _log.info("%s", line)
    return record


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with what would follow from data or from another run, as far as a plan needs it.

    Vocabularies have the `data.vocab_size` that they would be trained to, if `model.vocab_size` does not say another; a
    run to go on from that is not named yet changes nothing.
    """
    completed = {**config, "model": dict(config["model"])}
    if config.get("init_from", "") is None:
        completed["init_from"] = ""
    model, data = completed["model"], config["data"]
    for key in _VOCABULARIES:
        if key in model and model[key] is None and "vocab_size" in data:
            model[key] = data["vocab_size"]
    return completed
