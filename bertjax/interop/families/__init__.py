"""Families of published models, by their model_type in config.json.

A family of encoders is a module with the record `FAMILY`, a family of translators a module with the class `Folder`, a
`Published`; and an entry here. A hyphen in a model_type is an underscore in the module's name.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from bertjax.config import choice
from bertjax.interop.families.family import Family
from bertjax.models.bert import HeadConfig

# A model from scratch is of the first family with its kind of positions.
ENCODERS = ("bert", "modernbert", "distilbert", "roberta", "xlm-roberta", "camembert", "albert")
TRANSLATORS = ("marian",)
# The modules of families that are not named like it; see `Family.also`.
_MODULES = {"xlm-roberta": "roberta", "camembert": "roberta"}


def find(name: str) -> Family:
    """Returns the record of a family of encoders. Raises UserError for an unknown name."""
    family: Family = module(choice(name, ENCODERS, "model.family")).FAMILY
    return family if name == family.name else dataclasses.replace(family, name=name, **family.also[name])


def module(name: str) -> Any:
    """Returns the module of a family."""
    return importlib.import_module(f"{__name__}.{_MODULES.get(name, name.replace('-', '_'))}")


def of_model(model: Mapping[str, Any]) -> str:
    """Returns the family of an encoder whose run does not record one, by the fields of its HeadConfig."""
    positions = {key: model.get(key, getattr(HeadConfig, key)) for key in ("positions", "relative_positions")}
    return next((name for name in ENCODERS if positions.items() <= find(name).fixed.items()), ENCODERS[0])
