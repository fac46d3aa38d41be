"""One module per task; `find` imports one by its name."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from bertjax.config import choice
from bertjax.errors import UserError, refuse_other_names

refuse_other_names(__name__)

# What an experiment defines, by the class in `contract` that its task inherits.
_DEFINES = {
    "PredictionTask": ("Config", "Task", "resolve", "open_vocabulary"),
    "ScoringTask": ("Data",),
    "TrainingTask": ("Data", "FREE_AFTER_TRAINING", "example_config"),
}
# Names of the contract of earlier versions, and their successors.
_FORMERLY = {
    "build_task": "Task(config, vocabulary)",
    "build_data": "Data(config, folder, published)",
    "read_facts": "open_vocabulary(config, published)",
    "stand_in_facts": "example_config(config)",
}


def names() -> tuple[str, ...]:
    """The names of all experiments."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def find(name: str) -> Any:
    """Imports an experiment; see `bertjax.contract.Experiment`.

    Raises:
      UserError: for an unknown name, or a module that lacks a part of the contract.
    """
    module = importlib.import_module(f"{__name__}.{choice(name, names(), 'experiment')}")
    check(module)
    return module


def check(module: ModuleType) -> None:
    """Raises UserError if a module lacks a part of the contract of its task."""
    where = f"experiments/{module.__name__.rpartition('.')[2]}.py"
    if old := next((name for name in _FORMERLY if hasattr(module, name)), None):
        fix = f"define {_FORMERLY[old]} instead; CHANGELOG.md has a table of all names"
        raise UserError(where, got=f"{old}, of an earlier version", expected=_FORMERLY[old], fix=fix)
    kinds = {cls.__name__ for cls in getattr(getattr(module, "Task", None), "__mro__", ())} | {"PredictionTask"}
    for kind, needed in _DEFINES.items():
        missing = [name for name in needed if kind in kinds and not hasattr(module, name)]
        if missing:
            expected, fix = f"the names that a {kind} needs: {', '.join(needed)}", f"define {missing[0]}"
            raise UserError(where, got=f"no {missing[0]}", expected=expected, fix=fix)
