"""BERT (Devlin et al. 2019) in the form of transformers, whose tensor names `bert_tensors` has too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.file_keys import check_fixed
from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families.family import Family
from bertjax.models.bert import BertConfig

# Fields of BertConfig, in the form of `json_files.SIZES`.
_FIELDS = {**json_files.SIZES, "norm_eps": ("layer_norm_eps", float)}
# Keys that older files omit, and their only supported values. transformers documents 1e-12 as the default of
# layer_norm_eps.
_FIXED = {"position_embedding_type": "absolute", "is_decoder": False}
_LAYER_NORM_EPS = 1e-12
# The classes with a masked-LM head. That of ELECTRA for pretraining is the discriminator, which has none.
_WITH_OUTPUTS = ("ForMaskedLM", "BertForPreTraining", "LMHeadModel")


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    raw = {"layer_norm_eps": _LAYER_NORM_EPS, **raw}
    check_ties(raw, path)
    values = json_files.fields(raw, _FIELDS, path)
    check_fixed(raw, _FIXED, path)
    return {**values, "activation": json_files.read_activation(raw, "hidden_act", path)}


def check_ties(raw: Mapping[str, Any], path: Path, *, are_tied: bool = True) -> None:
    """Raises UserError for a masked language model whose output embeddings are not tied as those of its family.

    Other classes, such as classifiers, have no output embeddings, so the key has no effect on them.
    """
    names = raw.get("architectures")
    has_outputs = not isinstance(names, list) or any(str(name).endswith(_WITH_OUTPUTS) for name in names)
    if has_outputs and raw.get("tie_word_embeddings", are_tied) != are_tied:
        refuse(f"{path}: tie_word_embeddings", raw["tie_word_embeddings"], f"{are_tied} in a masked language model")


def write_config(config: BertConfig) -> dict[str, Any]:
    fields = {key: getattr(config, field) for field, (key, _) in _FIELDS.items()}
    return {
        "hidden_act": json_files.activation_name(config.activation),
        **_FIXED,
        "tie_word_embeddings": True,
        **fields,
    }


FAMILY = Family(
    name="bert",
    label="BERT",
    fixed={
        "positions": "learned",
        "relative_positions": "none",
        "direction": "both",
        "norm": "post",
        "norm_type": "layer",
        "norm_biases": True,
        "convolution_size": 0,
        "layer_groups": 0,
        "embedding_size": 0,
        "embedding_norm": True,
        "qk_norm": False,
        "gated": False,
        "biases": True,
        "unbiased": "none",
        "num_key_value_heads": 0,
        "local_attention": 0,
        "tie_output": True,
        "masked_lm_head": "transform",
        "head": "pooler",
        "pooling": "cls",
        "pooler_activation": "tanh",
    },
    read_config=read_config,
    write_config=write_config,
    heads={
        "BertModel": {"bert/pooler"},
        "BertForPreTraining": {"bert/pooler", "masked_lm", "next_sentence"},
        "BertForMaskedLM": {"masked_lm"},
        "BertForSequenceClassification": {"bert/pooler", "classifier"},
        "BertForTokenClassification": {"classifier"},
        "BertForMultipleChoice": {"bert/pooler", "classifier"},
        "BertForQuestionAnswering": {"qa_outputs"},
    },
    tokens={"pad": "pad"},
    needs_token_types=True,
)
# The heads that other families have too.
HEADS = {name: modules for name, modules in FAMILY.heads.items() if name not in ("BertModel", "BertForPreTraining")}
