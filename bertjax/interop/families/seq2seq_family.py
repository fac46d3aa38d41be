"""What sets a family of published encoder-decoders apart: the record that each module of a family has as `FAMILY`."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.models.encoder_decoder import EncoderDecoderConfig

# Modules of a layer: their names in BART and its relatives.
_OF_BART = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "intermediate": "fc1",
    "output": "fc2",
    "output_norm": "final_layer_norm",
    **{f"attention/{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value")},
    **{f"cross_attention/{name}": f"encoder_attn.{name[0]}_proj" for name in ("query", "key", "value")},
    "attention/output": "self_attn.out_proj",
    "cross_attention/output": "encoder_attn.out_proj",
}


@dataclasses.dataclass(frozen=True)
class TensorNames:
    """The names of tensors in the form of transformers; the defaults are those of BART.

    Attributes:
      base: what the names of all tensors but the output layer begin with.
      layers: the name of a layer, with {side} and {layer}.
      modules: the name of each module of a layer, after that of the layer; {feed_forward} is the number of the
        feed-forward sub-layer.
      final_norm: the norm after the last layer of a side.
      embedding_norm: the norm of the embeddings of a side.
      bias: the bias of the scores of a side.
      ignored: tensors of older files that have no effect.
    """

    base: str = "model."
    layers: str = "model.{side}.layers.{layer}."
    modules: Mapping[str, str] = dataclasses.field(default_factory=lambda: _OF_BART)
    final_norm: str = "layer_norm"
    embedding_norm: str = "layernorm_embedding"
    bias: str = ""
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Seq2SeqFamily:
    """A family of encoder-decoders of Hugging Face `transformers`.

    Attributes:
      name: the model_type in config.json.
      label: the name in messages.
      architecture: the class of transformers.
      fixed: the fields of EncoderDecoderConfig that are the same in all models of the family.
      read_config: returns the other fields that a config.json determines, without those of shared tables, and raises
        UserError for a model that is not supported. Its arguments are the content of the file and its path.
      write_config: returns the keys of config.json, without architectures and special tokens.
      names: the names of tensors.
      num_unused_positions: rows before the first position in the learned tables of files.
      ties_scaled: whether config.json states that the output is tied only if it is scaled, as transformers reads T5's.
      is_translator: whether settings of generation exclude the padding, sources limit the length of targets, and the
        two sides may have separate tables. Other families of transformers have one vocabulary size.
    """

    name: str
    label: str
    architecture: str
    fixed: Mapping[str, Any]
    read_config: Callable[[Mapping[str, Any], Path], dict[str, Any]]
    write_config: Callable[[EncoderDecoderConfig], dict[str, Any]]
    names: TensorNames = TensorNames()
    num_unused_positions: int = 0
    ties_scaled: bool = False
    is_translator: bool = False
