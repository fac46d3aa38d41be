"""Marian (Junczys-Dowmunt et al. 2018) in the form of transformers, such as OPUS-MT models."""

import dataclasses
from typing import Any

from bertjax.interop.families import bart
from bertjax.models.encoder_decoder import EncoderDecoderConfig


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    return {
        **bart.write_config(config),
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings and config.tie_output,
    }


FAMILY = dataclasses.replace(
    bart.FAMILY,
    name="marian",
    label="Marian",
    architecture="MarianMTModel",
    fixed={**bart.ALL, "norm": "post", "positions": "sinusoidal", "embedding_norm": False},
    read_config=bart.reader(is_pre=False, has_embedding_norm=False, is_static=True),
    write_config=write_config,
    num_unused_positions=0,
    is_translator=True,
)
