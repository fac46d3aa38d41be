"""BART (Lewis et al. 2020) in the form of transformers, and what its relatives share: Marian, mBART and PEGASUS."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.file_keys import check_fixed
from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families.seq2seq_family import Seq2SeqFamily, TensorNames
from bertjax.models.encoder_decoder import EncoderDecoderConfig

# Fields of EncoderDecoderConfig, in the form of `json_files.SIZES`.
_FIELDS: dict[str, tuple[str, type]] = {
    "hidden_size": ("d_model", int),
    "num_layers": ("encoder_layers", int),
    "num_decoder_layers": ("decoder_layers", int),
    "num_heads": ("encoder_attention_heads", int),
    "intermediate_size": ("encoder_ffn_dim", int),
    "dropout": ("dropout", float),
    "attention_dropout": ("attention_dropout", float),
    "activation_dropout": ("activation_dropout", float),
    "initializer_range": ("init_std", float),
    "source_vocab_size": ("vocab_size", int),
    "target_vocab_size": ("decoder_vocab_size", int),
    "max_positions": ("max_position_embeddings", int),
    "scale_embeddings": ("scale_embedding", bool),
}
# Keys of the decoder that must have the same values as those of the encoder.
_ALIKE = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
# Keys that files may omit, and their only supported values.
_FIXED = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "is_encoder_decoder": True}
_ABSENT = {"attention_dropout": 0.0, "activation_dropout": 0.0, "scale_embedding": False}
# Fields of EncoderDecoderConfig that config.json does not record.
ALL = {
    "norm_eps": 1e-5,
    "norm_type": "layer",
    "norm_biases": True,
    "qk_norm": False,
    "gated": False,
    "biases": True,
    "unbiased": "none",
    "num_key_value_heads": 0,
    "sinusoid_layout": "deinterleaved",
    "logits_bias": True,
    "relative_positions": "none",
    "key_size": 0,
    "value_size": 0,
    "scale_scores": True,
    "scale_output": False,
    "final_dropout": False,
}


def reader(*, is_pre: bool, has_embedding_norm: bool, is_static: bool) -> Callable[[Mapping[str, Any], Path], dict]:
    """Returns `Seq2SeqFamily.read_config` of a family with these values of keys that only older files have."""
    flags = {
        "normalize_before": is_pre,
        "add_final_layer_norm": is_pre,
        "normalize_embedding": has_embedding_norm,
        "static_position_embeddings": is_static,
    }

    def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
        check_fixed(raw, {**_FIXED, **flags}, path)
        raw = {**_ABSENT, **raw}
        if raw.get("decoder_vocab_size") is None:
            raw["decoder_vocab_size"] = raw.get("vocab_size")
        values = json_files.fields(raw, _FIELDS, path)
        for key, other in _ALIKE.items():
            if raw.get(key) != raw[other]:
                refuse(f"{path}: {key}", raw.get(key, "no value"), f"{raw[other]}, as in {other}")
        return {**values, "activation": json_files.read_activation(raw, "activation_function", path)}

    return read_config


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    values = {key: getattr(config, field) for field, (key, _) in _FIELDS.items() if key != "decoder_vocab_size"}
    return {
        **values,
        **{key: values[other] for key, other in _ALIKE.items()},
        "activation_function": json_files.activation_name(config.activation),
        "tie_word_embeddings": config.tie_output,
    }


# Files of earlier versions have a tensor of the version of each side.
NAMES = TensorNames(ignored=("model.encoder.version", "model.decoder.version"))
FAMILY = Seq2SeqFamily(
    name="bart",
    label="BART",
    architecture="BartForConditionalGeneration",
    fixed={**ALL, "norm": "post", "positions": "learned", "embedding_norm": True},
    read_config=reader(is_pre=False, has_embedding_norm=True, is_static=False),
    write_config=write_config,
    names=NAMES,
    num_unused_positions=2,
)
