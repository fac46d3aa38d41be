"""NomicBERT (Nussbaum et al. 2024) in the form of transformers, and in that of the published folders with own code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.file_keys import check_fixed
from bertjax.interop import json_files
from bertjax.interop.families import bert, rotary
from bertjax.interop.families.family import QUERY_KEY_VALUE, Family, Names, Renaming, of_layers

# Keys of the published folders, and those of transformers.
_OLDER = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
# Keys of the published folders that transformers does not have, with their only supported values.
_FIXED = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "num_experts": None,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "use_rms_norm": False,
}
_OLDER_LAYER: dict[str, Names] = {
    "attn.Wqkv": QUERY_KEY_VALUE,
    "attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "mlp.fc11": "intermediate.dense",
    "mlp.fc12": "gate.dense",
    "mlp.fc2": "output.dense",
    "norm2": "output.LayerNorm",
}
_DENSE = "cls.predictions.transform.dense"
_NAMES = Renaming(
    "nomic_bert",
    {
        "nomic_bert.emb_ln": "bert.embeddings.LayerNorm",
        "nomic_bert.embeddings.LayerNorm": "bert.embeddings.LayerNorm",
        **of_layers("nomic_bert.encoder.layers", _OLDER_LAYER),
        **of_layers("nomic_bert.layers", {**rotary.ATTENTION, **rotary.GATED, **rotary.NORMS}),
        "cls.predictions.transform.layer_norm": "cls.predictions.transform.LayerNorm",
    },
)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields.

    In the published folders with `rotary_scaling_factor`, the base of rotary positions depends on the length of texts
    that are longer than in pretraining. These lengths are not supported: `max_positions` is that of pretraining.
    """
    if "n_embd" in raw:
        check_fixed(raw, _FIXED, path)
        trained = json_files.fields({"max_trained_positions": 2048, **raw}, {"n": ("max_trained_positions", int)}, path)
        raw = {"hidden_act": "silu", **raw, **{new: raw[old] for old, new in _OLDER.items() if old in raw}}
        if raw.get("rotary_scaling_factor"):
            raw["max_position_embeddings"] = trained["n"]
    return rotary.read_config({"type_vocab_size": 2, **raw}, path, base=1000.0, is_gelu=False)


def to_canonical(
    tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], architecture: str, source: str
) -> dict[str, np.ndarray]:
    """Renames tensors. The masked-LM head of the published folders has no biases: they are 0."""
    tensors = {re.sub(r"^bert\.", "nomic_bert.", name): array for name, array in tensors.items()}
    result = _NAMES.to_canonical(tensors, like, architecture, source)
    if f"{_DENSE}.weight" in result and f"{_DENSE}.bias" not in result:
        words = result["bert.embeddings.word_embeddings.weight"]
        result[f"{_DENSE}.bias"] = np.zeros(len(result[f"{_DENSE}.weight"]), np.float32)
        result["cls.predictions.bias"] = np.zeros(len(words), np.float32)
    return result


FAMILY = Family(
    name="nomic_bert",
    label="NomicBERT",
    fixed={**bert.FAMILY.fixed, "positions": "rotary", "gated": True, "unbiased": "layers"},
    read_config=read_config,
    write_config=rotary.write_config,
    prefix="NomicBert",
    base="nomic_bert",
    heads=rotary.HEADS,
    to_canonical=to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokens={"pad": "pad"},
)
