"""jina-embeddings-v3 (Sturua et al. 2024) in the form of transformers, without its adapters.

The map of the classifier of texts is our pooler. In fine-tuning, transformers also applies dropout in front of it.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.interop.families import bert, rotary
from bertjax.interop.families.family import OWN_POOLER, QUERY_KEY_VALUE, Family, Names, Renaming, of_layers

_FEED_FORWARD: dict[str, Names] = {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
# The names of the folders that were published with own code.
_OLDER_LAYER: dict[str, Names] = {
    "mixer.Wqkv": QUERY_KEY_VALUE,
    "mixer.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "norm2": "output.LayerNorm",
}
_NAMES = Renaming(
    "roberta",
    {
        "roberta.emb_ln": "bert.embeddings.LayerNorm",
        "roberta.embeddings.LayerNorm": "bert.embeddings.LayerNorm",
        **of_layers("roberta.encoder.layers", {**_OLDER_LAYER, **_FEED_FORWARD}),
        **of_layers("roberta.layers", {**rotary.ATTENTION, **_FEED_FORWARD, **rotary.NORMS}),
        **rotary.ROBERTA_HEAD,
        "lm_head": "cls.predictions",
    },
    OWN_POOLER,
)


def to_canonical(
    tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], architecture: str, source: str
) -> dict[str, np.ndarray]:
    """Renames tensors. Raises UserError for the tensors of adapters."""
    adapters = [name for name in tensors if "lora" in name.lower()]
    if adapters:
        fix = "use weights without adapters, or merge them into the model with the library that trained them"
        got = f"{len(adapters)} tensors of LoRA adapters, such as {adapters[0]}"
        raise UserError(source, got=got, expected="a model without adapters", fix=fix)
    return _NAMES.to_canonical(tensors, like, architecture, source)


FAMILY = Family(
    name="jina_embeddings_v3",
    label="jina-embeddings-v3",
    fixed={**bert.FAMILY.fixed, "positions": "rotary", "activation": "gelu"},
    read_config=functools.partial(rotary.read_config, base=20_000.0, is_gelu=True),
    write_config=rotary.write_config,
    prefix="JinaEmbeddingsV3",
    base="roberta",
    heads={**rotary.HEADS, "BertModel": {"bert/pooler"}, "BertForQuestionAnswering": {"qa_outputs"}},
    to_canonical=to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokenizer="Unigram",
    tokens={"pad": "pad", "bos": "cls", "eos": "sep"},
    needs_token_types=True,
)
