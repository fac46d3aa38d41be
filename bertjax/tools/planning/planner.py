"""`--mode=plan`: the plan of a config on TPUs or GPUs, or of its fastest variant."""

import logging
from collections.abc import Mapping
from typing import Any

from bertjax.settings import jax_config
from bertjax.tools.planning import search, targets
from bertjax.tools.planning.plan_record import describe, plan
from bertjax.training.flops import Build
from bertjax.training.sharding import check_split

_log = logging.getLogger(__name__)


def run(topology: str, is_search: bool, config: Mapping[str, Any], build: Build) -> dict[str, Any]:
    """Returns the memory and time of training on TPUs or GPUs; see `plan`.

    Args:
      topology: the devices, see `targets.find_target`.
      is_search: whether to search for the fastest mesh, micro-batches and rematerialization, see `search`.
      config: the config of the run.
      build: makes the task and the settings from a config.
    Raises:
      UserError: if the devices are unknown, their compiler is missing, or the config does not fit them.
    """
    # With "cpu", JAX looks for no hardware. A cached program has the names of the code that compiled it first, which
    # would attribute costs to old parts, so names belong to the key.
    with jax_config(jax_platforms="cpu", jax_compilation_cache_include_metadata_in_key=True):
        target = targets.find_target(topology)
        if is_search:
            return search.search(config, build, target)
        check_split(config, len(target.devices))
        record = plan(config, build, target)
    for line in describe(record):
        _log.info("%s", line)
    return record
