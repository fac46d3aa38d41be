"""Evaluations that a run makes in addition to that of its validation split: one module each.

A module defines `Config`, the keys, and `evaluation(config, task, on_bad_row)`, which returns a `contract.Evaluation`.
`--config.evaluations=NAME,...` adds the keys of an evaluation to a config, as the subtree NAME. An installed package
adds evaluations by entry points in the group `bertjax.evaluations`.
"""

import dataclasses
import importlib
import logging
import pkgutil
from collections.abc import Mapping
from typing import Any

from bertjax.config import Constrained, build_part, choice
from bertjax.contract import ConfigTree, Evaluation, PredictionTask
from bertjax.experiments import load, registered

_log = logging.getLogger(__name__)

_BUILT_IN = tuple(module.name for module in pkgutil.iter_modules(__path__))


def names(config: ConfigTree) -> tuple[str, ...]:
    """Returns the evaluations whose keys a config has: those in `evaluations`, and built-in ones with a subtree."""
    value = config.get("evaluations", "")
    written = value.split(",") if isinstance(value, str) else ()  # another value is an error of `check_keys`
    built_in = (name for name in _BUILT_IN if name in config)
    return tuple(dict.fromkeys([*filter(None, map(str.strip, written)), *built_in]))


def find(name: str) -> Any:
    """Imports the module of an evaluation. Raises UserError for an unknown name."""
    if name in _BUILT_IN:
        return importlib.import_module(f"{__name__}.{name}")
    others = registered(__name__)
    return load(others[choice(name, sorted({*_BUILT_IN, *others}), "evaluations")])


def without_missing(config: ConfigTree) -> dict[str, Any]:
    """Returns a run's config without the evaluations of packages that are not installed, which predictions do not need.

    A warning names them.
    """
    listed = names({"evaluations": config.get("evaluations", "")})
    missing = [name for name in listed if name not in {*_BUILT_IN, *registered(__name__)}]
    if not missing:
        return dict(config)
    _log.warning("evaluations %s: no installed package has them; ignored", ", ".join(missing))
    rest = {key: value for key, value in config.items() if key not in missing}
    return {**rest, "evaluations": ",".join(name for name in listed if name not in missing)}


def reader(config: ConfigTree) -> type:
    """Returns a dataclass with the subtree of each evaluation of a config as a field."""
    configs = [(name, find(name).Config) for name in names(config)]
    fields: Any = [(name, cls, dataclasses.field(default=cls())) for name, cls in configs]
    return dataclasses.make_dataclass("EvaluationConfigs", fields, bases=(Constrained,), frozen=True)


def with_keys(config: ConfigTree) -> dict[str, Any]:
    """Returns a config with all keys of its evaluations; those that it lacks have their defaults."""
    result = dict(config)
    for name in names(config):
        keys = config.get(name, {})
        if isinstance(keys, Mapping):  # another value is an error of `check_keys`
            result[name] = {**dataclasses.asdict(find(name).Config()), **keys}
    return result


def of_config(config: ConfigTree, task: PredictionTask) -> list[Evaluation]:
    """Returns the evaluations that a config requests: those in `evaluations`, and those with a `source`.

    Raises:
      UserError: for a missing source, or a task whose model an evaluation cannot use.
    """
    configs: Any = build_part(reader(config), config)
    requested = {name: getattr(configs, name) for name in names(config)}
    listed_names = names({"evaluations": config.get("evaluations", "")})
    on_bad_row = config["data"].get("on_bad_row", "stop")
    return [
        find(name).evaluation(subtree, task, on_bad_row)
        for name, subtree in requested.items()
        if name in listed_names or bool(getattr(subtree, "source", ""))
    ]
