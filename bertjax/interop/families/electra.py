"""ELECTRA (Clark et al. 2020) in transformers: generators, discriminators, and models fine-tuned from them.

The map of the classifier of texts or of choices is our pooler. In fine-tuning, transformers also applies dropout in
front of it for texts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.file_keys import check_fixed
from bertjax.interop import json_files
from bertjax.interop.families import bert
from bertjax.interop.families.family import OWN_POOLER, Family, Renaming
from bertjax.models.bert import BertConfig

# Keys that files may omit, and their only supported values. The heads always have the exact GELU; the summary is the
# pooled [CLS] of multiple choice.
_FIXED: dict[str, Any] = {
    "hidden_act": "gelu",
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
}
_EMBEDDING_SIZE = 128  # transformers' default
_NAMES = Renaming(
    "electra",
    {
        "electra.embeddings_project": "bert.embeddings.projection",
        "generator_predictions.dense": "cls.predictions.transform.dense",
        "generator_predictions.LayerNorm": "cls.predictions.transform.LayerNorm",
        "generator_lm_head": "cls.predictions",
        "sequence_summary.summary": "bert.pooler.dense",
    },
    OWN_POOLER,
)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    raw = {"embedding_size": _EMBEDDING_SIZE, "hidden_act": _FIXED["hidden_act"], **raw}
    check_fixed(raw, _FIXED, path)
    values = bert.read_config(raw, path)
    size = json_files.fields(raw, {"size": ("embedding_size", int)}, path)["size"]
    return {**values, "embedding_size": 0 if size == values["hidden_size"] else size}


def write_config(config: BertConfig) -> dict[str, Any]:
    return {**bert.write_config(config), **_FIXED, "embedding_size": config.word_size}


FAMILY = Family(
    name="electra",
    label="ELECTRA",
    fixed={
        **{key: value for key, value in bert.FAMILY.fixed.items() if key != "embedding_size"},
        "activation": "gelu",
        "pooler_activation": "gelu",
    },
    read_config=read_config,
    write_config=write_config,
    prefix="Electra",
    base="electra",
    heads={"BertModel": set(), **bert.HEADS, "BertForPreTraining": {"discriminator"}},
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokens={"pad": "pad"},
    needs_token_types=True,
)
