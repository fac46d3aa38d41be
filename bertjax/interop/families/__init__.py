"""Families of published models, by their model_type in config.json.

A family of encoders or encoder-decoders is a module with the record `FAMILY`, a `Family` or a `Seq2SeqFamily`, and an
entry here. A hyphen in a model_type is an underscore in the module's name.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from bertjax.config import choice
from bertjax.interop.families.family import Family
from bertjax.models.bert import HeadConfig

# A model from scratch is of the first family with its kinds of positions and its direction.
ENCODERS = (
    *("bert", "modernbert", "distilbert", "roberta", "xlm-roberta", "camembert", "mpnet", "albert"),
    *("nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "modernbert-decoder", "electra"),
    "deberta-v2",
)
SEQ2SEQ = ("marian", "bart", "mbart", "pegasus", "t5", "mt5")
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
    keys = ("positions", "relative_positions", "direction")
    values = {key: model.get(key, getattr(HeadConfig, key)) for key in keys}
    fits = {name: values.items() <= {**values, **find(name).fixed}.items() for name in ENCODERS}
    return next((name for name in ENCODERS if fits[name]), ENCODERS[0])
