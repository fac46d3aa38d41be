"""One module per task; `find` imports one by its name.

An installed package adds tasks by entry points in the group `bertjax.experiments`. Names in this folder take
precedence. A name may come from the config of a downloaded run; it selects among these modules and no others.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from bertjax.errors import UserError, did_you_mean, refuse_other_names

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
    """The names of all experiments, in this folder and in installed packages."""
    return tuple(sorted({*built_in(), *registered(__name__)}))


def built_in() -> tuple[str, ...]:
    """The names of the experiments in this folder."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def registered(group: str) -> dict[str, Any]:
    """Returns the entry points of a group in installed packages, by name.

    Raises:
      UserError: if a name is registered twice.
    """
    from importlib.metadata import entry_points  # takes time, and built-in experiments do without it

    entries: dict[str, Any] = {}
    for entry in entry_points(group=group):
        if (other := entries.setdefault(entry.name, entry)) is not entry:
            got = f"{other.value} and {entry.value}"
            fix = "uninstall one of the packages"
            raise UserError(f"entry point {entry.name} of {group}", got=got, expected="one package", fix=fix)
    return entries


def load(entry: Any) -> Any:
    """Imports the module of an entry point. Raises UserError if the package lacks the module."""
    try:
        return importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if not f"{entry.module}.".startswith(f"{error.name}."):
            raise  # of a package that the module imports
        fix = "write the module, or correct the entry point and install the package again"
        got = f"no module {error.name}"
        raise UserError(f"entry point {entry.name} of {entry.group}", got=got, expected=entry.value, fix=fix) from None


def find(name: str) -> Any:
    """Imports an experiment; see `bertjax.modes.experiment.Experiment`.

    Raises:
      UserError: for an unknown name, or a module that lacks a part of the contract.
    """
    if name in built_in():
        module = importlib.import_module(f"{__name__}.{name}")
    else:
        entries = registered(__name__)
        fix = did_you_mean(str(name), names(), "install the package that registers it in bertjax.experiments")
        if name not in entries:
            raise UserError("config key experiment", got=repr(name), expected=f"one of {', '.join(names())}", fix=fix)
        module = load(entries[name])
    check(module)
    return module


def check(module: ModuleType) -> None:
    """Raises UserError if a module lacks a part of the contract of its task."""
    short_name = module.__name__.removeprefix(f"{__name__}.")
    where = module.__name__ if short_name == module.__name__ else f"experiments/{short_name}.py"
    if old := next((name for name in _FORMERLY if hasattr(module, name)), None):
        fix = f"define {_FORMERLY[old]} instead; CHANGELOG.md has a table of all names"
        raise UserError(where, got=f"{old}, of an earlier version", expected=_FORMERLY[old], fix=fix)
    kinds = {cls.__name__ for cls in getattr(getattr(module, "Task", None), "__mro__", ())} | {"PredictionTask"}
    for kind, needed in _DEFINES.items():
        if missing := [name for name in needed if kind in kinds and not hasattr(module, name)]:
            expected = f"the names that a {kind} needs: {', '.join(needed)}"
            raise UserError(where, got=f"no {missing[0]}", expected=expected, fix=f"define {missing[0]}")
