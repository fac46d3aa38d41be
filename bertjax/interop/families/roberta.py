"""RoBERTa (Liu et al. 2019), XLM-R (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) in transformers.

The map of the classifier of texts is our pooler. In fine-tuning, transformers also applies dropout in front of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert
from bertjax.interop.families.family import OWN_POOLER, Family, Renaming

LM_HEAD = {
    "lm_head": "cls.predictions",
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "lm_head.decoder": "cls.predictions.decoder",
}
_NAMES = Renaming("roberta", LM_HEAD, OWN_POOLER)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields. The masked-LM head always has the exact GELU."""
    values = bert.read_config(raw, path)
    if values["activation"] != FAMILY.fixed["activation"]:
        refuse(f"{path}: hidden_act", raw["hidden_act"], "gelu")
    return values


FAMILY = Family(
    name="roberta",
    label="RoBERTa",
    fixed={**bert.FAMILY.fixed, "activation": "gelu"},
    read_config=read_config,
    write_config=bert.write_config,
    prefix="Roberta",
    base="roberta",
    heads={"BertModel": {"bert/pooler"}, **bert.HEADS},
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokens={"pad": "pad", "bos": "cls", "eos": "sep"},
    needs_token_types=True,
    counts_from_padding=True,
    tokenizer="byte-level BPE",
    also={
        "xlm-roberta": {"label": "XLM-R", "prefix": "XLMRoberta", "tokenizer": "Unigram"},
        "camembert": {"label": "CamemBERT", "prefix": "Camembert", "tokenizer": "Unigram"},
    },
)
