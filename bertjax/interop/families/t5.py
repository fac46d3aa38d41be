"""T5 (Raffel et al. 2020), its version 1.1, Flan-T5 and mT5 in the form of transformers."""

from collections.abc import Mapping
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
    "key_size": ("d_kv", int),
    "value_size": ("d_kv", int),
    "num_layers": ("num_layers", int),
    "num_decoder_layers": ("num_decoder_layers", int),
    "num_heads": ("num_heads", int),
    "intermediate_size": ("d_ff", int),
    "attention_dropout": ("dropout_rate", float),
    "activation_dropout": ("dropout_rate", float),
    "dropout": ("dropout_rate", float),  # the last one is written
    "norm_eps": ("layer_norm_epsilon", float),
    "relative_buckets": ("relative_attention_num_buckets", int),
    "relative_distance": ("relative_attention_max_distance", int),
    "source_vocab_size": ("vocab_size", int),
    "target_vocab_size": ("vocab_size", int),
}
_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}
_MODULES = {
    **{f"attention/{name}": f"0.SelfAttention.{theirs}" for name, theirs in _ATTENTION.items()},
    **{f"cross_attention/{name}": f"1.EncDecAttention.{theirs}" for name, theirs in _ATTENTION.items()},
    "attention_norm": "0.layer_norm",
    "cross_attention_norm": "1.layer_norm",
    "intermediate": "{feed_forward}.DenseReluDense.wi",
    "gate": "{feed_forward}.DenseReluDense.wi_0",
    "gated_intermediate": "{feed_forward}.DenseReluDense.wi_1",
    "output": "{feed_forward}.DenseReluDense.wo",
    "output_norm": "{feed_forward}.layer_norm",
}


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    check_fixed(raw, {"is_encoder_decoder": True}, path)
    absent = {"num_decoder_layers": raw.get("num_layers"), "relative_attention_max_distance": 128}
    raw = {**raw, **{key: value for key, value in absent.items() if raw.get(key) is None}}
    feed_forward = raw.get("feed_forward_proj", "gated-gelu" if raw["model_type"] == "mt5" else "relu")
    activation = str(feed_forward).removeprefix("gated-")
    is_gated = activation != feed_forward
    name = "gelu_new" if feed_forward == "gated-gelu" else activation
    return {
        **json_files.fields(raw, _FIELDS, path),
        "activation": json_files.read_activation({"feed_forward_proj": name}, "feed_forward_proj", path),
        "gated": is_gated,
        "scale_output": raw["model_type"] == "t5" and _scales_output(raw),
    }


def _scales_output(raw: Mapping[str, Any]) -> bool:
    """Whether the output is scaled: in files before transformers 5 if the output is said to be tied."""
    return bool(raw.get("scale_decoder_outputs", raw.get("tie_word_embeddings") is not False))


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json. transformers scales the output if `tie_word_embeddings` is true."""
    if config.value_size != config.key_size:
        refuse("config key model.value_size", config.value_size, f"{config.key_size}, the key_size, in T5")
    activation = json_files.activation_name(config.activation)
    if config.gated and activation == "gelu":
        refuse("config key model.activation", "gelu", "gelu_tanh with model.gated")
    name = "gelu" if config.gated and activation == "gelu_new" else activation
    return {
        **{key: getattr(config, field) for field, (key, _) in _FIELDS.items()},
        "feed_forward_proj": f"gated-{name}" if config.gated else name,
        "tie_word_embeddings": config.scale_output,
    }


FAMILY = Seq2SeqFamily(
    name="t5",
    label="T5",
    architecture="T5ForConditionalGeneration",
    fixed={
        "norm": "pre",
        "norm_type": "rms",
        "norm_biases": False,
        "qk_norm": False,
        "biases": False,
        "unbiased": "none",
        "num_key_value_heads": 0,
        "positions": "none",
        "relative_positions": "bucketed",
        "sinusoid_layout": "interleaved",
        "max_positions": 0,
        "scale_embeddings": False,
        "embedding_norm": False,
        "scale_scores": False,
        "logits_bias": False,
        "final_dropout": True,
    },
    read_config=read_config,
    write_config=write_config,
    names=TensorNames(
        base="",
        layers="{side}.block.{layer}.layer.",
        modules=_MODULES,
        final_norm="final_layer_norm",
        bias="block.0.layer.0.SelfAttention.relative_attention_bias",
        ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # of the first files
    ),
    ties_scaled=True,
)
