"""One module per task; `find` imports one by its name."""

import importlib
import pkgutil
from typing import Any

from bertjax.config import choice


def names() -> tuple[str, ...]:
    """The names of all experiments."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def find(name: str) -> Any:
    """Imports an experiment; see `bertjax.contract.Experiment`. Raises UserError for an unknown name."""
    return importlib.import_module(f"{__name__}.{choice(name, names(), 'experiment')}")
