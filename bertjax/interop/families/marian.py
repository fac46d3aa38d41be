"""Reads and writes folders of Hugging Face's `MarianMTModel`, such as OPUS-MT models, without torch.

>>> folder, raw = Path("opus-mt-en-de"), json.loads(Path("opus-mt-en-de/config.json").read_text())
>>> config = EncoderDecoderConfig(**marian.read_config(raw, folder))
>>> params = marian.load(folder, shapes, raw)  # of `EncoderDecoder(config).init`
>>> source, target = marian.open_tokenizers(folder, raw)
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.file_keys import check_fixed
from bertjax.interop import generation_files, huggingface, json_files, marian_tensors
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.generation_files import GENERATION_FILE, Generation, SpecialIds
from bertjax.interop.huggingface import CONFIG_FILE
from bertjax.interop.marian_tokenizers import Marian, read_tokenizers
from bertjax.interop.published import Published, determined
from bertjax.interop.vocabularies import SavedVocabularies, open_vocabularies
from bertjax.models.encoder_decoder import EncoderDecoderConfig
from bertjax.progress import log_once

_SEQ_LEN = "bertjax_seq_len"
# Fields of EncoderDecoderConfig, in the form of `json_files.SIZES`.
_FIELDS: dict[str, tuple[str, type]] = {
    "hidden_size": ("d_model", int),
    "num_layers": ("encoder_layers", int),
    "num_decoder_layers": ("decoder_layers", int),
    "num_heads": ("encoder_attention_heads", int),
    "intermediate_size": ("encoder_ffn_dim", int),
    "activation": ("activation_function", str),
    "dropout": ("dropout", float),
    "attention_dropout": ("attention_dropout", float),
    "activation_dropout": ("activation_dropout", float),
    "initializer_range": ("init_std", float),
    "source_vocab_size": ("vocab_size", int),
    "target_vocab_size": ("decoder_vocab_size", int),
    "max_positions": ("max_position_embeddings", int),
    "share_embeddings": ("share_encoder_decoder_embeddings", bool),
    "tie_output": ("tie_word_embeddings", bool),
    "scale_embeddings": ("scale_embedding", bool),
}
# Values that all Marian models of transformers share. config.json does not record them.
_ALL = {
    "norm": "post",
    "norm_eps": 1e-5,
    "norm_type": "layer",
    "norm_biases": True,
    "qk_norm": False,
    "gated": False,
    "biases": True,
    "unbiased": "none",
    "num_key_value_heads": 0,
    "positions": "sinusoidal",
    "sinusoid_layout": "deinterleaved",
    "logits_bias": True,
    "key_size": 0,
}
# Keys that files may omit, and their only supported values.
_FIXED = {
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "add_final_layer_norm": False,
    "normalize_before": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
    "is_encoder_decoder": True,
}
# Keys of the decoder that must have the same values as those of the encoder.
_ALIKE = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}


def read_config(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the fields of EncoderDecoderConfig that a config.json determines.

    The user chooses the others (dtype, initializer, scan_layers, remat, ...).

    Args:
      raw: the content of the file.
      folder: the folder of the file, for messages.
    Raises:
      UserError: if a key is missing, or the model is not a supported Marian model.
    """
    path = folder / CONFIG_FILE
    json_files.fields(raw, {"model_type": ("model_type", str)}, path)
    check_fixed(raw, {"model_type": "marian", **_FIXED}, path)
    # Older files omit these keys.
    absent = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "activation_dropout": 0.0}
    raw = {**absent, **raw}
    if raw.get("decoder_vocab_size") is None:
        raw["decoder_vocab_size"] = raw.get("vocab_size")
    values = json_files.fields(raw, _FIELDS, path)
    for key, other in _ALIKE.items():
        if raw.get(key) != raw[other]:
            refuse(f"{path}: {key}", raw.get(key, "no value"), f"{raw[other]}, as in {other}")
    activation = json_files.read_activation(raw, "activation_function", path)
    # Without tied output, transformers has three tables, even if its config shares two of them.
    values["share_embeddings"] = values["share_embeddings"] and values["tie_output"]
    if values["share_embeddings"] and values["source_vocab_size"] != values["target_vocab_size"]:
        expected = f"{values['source_vocab_size']}, the vocab_size, because embeddings are shared"
        refuse(f"{path}: decoder_vocab_size", values["target_vocab_size"], expected)
    return {**values, **_ALL, "activation": activation}


def read_special_ids(raw: Mapping[str, Any], folder: Path) -> SpecialIds:
    """Returns the ids of padding, of the decoder's first input, and of the end; see `read_config`.

    Raises:
      UserError: if an id is missing.
    """
    keys = {"pad_id": "pad_token_id", "bos_id": "decoder_start_token_id", "eos_id": "eos_token_id"}
    ids = json_files.fields(raw, {field: (key, int) for field, key in keys.items()}, folder / CONFIG_FILE)
    return SpecialIds(**ids)


def read_generation(folder: Path, raw: Mapping[str, Any], task: str = "") -> Generation:
    """Returns the settings of generation; see `generation_files.read_generation`.

    The defaults of the limits by the source's length apply, and a missing maximum length is missing from the result:
    the 512 tokens of OPUS-MT are no limit of a sentence, and long caches take time.
    """
    special = read_special_ids(raw, folder)
    size = read_config(raw, folder)["target_vocab_size"]
    values, path = generation_files.read_values(folder, raw, task)
    decoding, prefix = generation_files.read_generation(folder, raw, special, size, task)
    if [special.pad_id] not in (values.get("bad_words_ids") or ()):
        log_once(f"{path}: bad_words_ids does not exclude padding, which bertjax never generates", logging.WARNING)
    is_limited = values.get("max_length") is not None or values.get("max_new_tokens") is not None
    left_out = {"max_ratio", "max_extra"} if is_limited else {"max_ratio", "max_extra", "max_length"}
    return Generation({key: value for key, value in decoding.items() if key not in left_out}, prefix)


def open_tokenizers(folder: Path, raw: Mapping[str, Any]) -> tuple[Marian, Marian]:
    """Returns the vocabularies of source and target, checked against the model in the same folder.

    Args:
      folder: the folder.
      raw: the content of its config.json.
    Raises:
      UserError: see `read_tokenizers`; also if they have more tokens than the model, or other special ids.
    """
    sides = read_tokenizers(folder)
    values = read_config(raw, folder)
    special = read_special_ids(raw, folder)
    sizes = (values["source_vocab_size"], values["target_vocab_size"])
    for name, side, size in zip(("source", "target"), sides, sizes, strict=True):
        if side.vocab_size > size:
            refuse(f"{folder}: vocabulary of the {name}", f"{side.vocab_size} tokens", f"at most the model's {size}")
    of_target = SpecialIds(sides[1].pad_id, sides[1].cls_id, sides[1].sep_id)
    if of_target != special:
        refuse(f"{folder}: vocabulary of the target", f"{of_target}", f"{special}, as in {CONFIG_FILE}")
    return sides


def load(folder: Path, like: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Reads weights as parameters: nested dicts of float32 numpy arrays.

    Reads files of any transformers version: safetensors or, if there are none, torch pickles; whole or sharded;
    float32, float16 or bfloat16; shared tables stored once or repeatedly; with or without positions.

    Args:
      folder: the folder of a MarianMTModel.
      like: the parameters of `EncoderDecoder`, or their shapes.
      raw: the content of config.json.
    Raises:
      UserError: if a file is missing or corrupt, a tensor is missing, unknown, or has another shape or type, two
        tensors of one parameter differ, or positions are not sinusoids.
    """
    tensors = marian_tensors.canonical(huggingface.read_tensors(folder), read_config(raw, folder), str(folder))
    return marian_tensors.assemble(tensors, like, str(folder))


def save(
    folder: str | Path,
    params: Mapping[str, Any],
    config: EncoderDecoderConfig,
    special: SpecialIds,
    generation: Mapping[str, Any],
    seq_len: int | None = None,
) -> None:
    """Writes config.json, generation_config.json and model.safetensors for `MarianMTModel.from_pretrained`.

    Each file appears under its name only when it is complete. `Marian.save` writes the vocabularies.

    Args:
      folder: the folder; created if needed. Other files in it are kept.
      params: the parameters of `EncoderDecoder`.
      config: its configuration.
      special: the ids that generation needs. Padding must have an id, and is never generated.
      generation: additional keys of generation_config.json. The end token is forced only if they say so.
      seq_len: the number of tokens above which texts are split; a key of config.json that transformers ignores; None to
        omit it.
    Raises:
      UserError: for an option that Marian does not have.
    """
    for key, expected in _ALL.items():
        # A missing bias is written as zeros.
        if key != "logits_bias" and getattr(config, key) != expected:
            refuse(f"config key model.{key}", getattr(config, key), f"{expected}, the only value of Marian")
    if (missing := special.pad_id + 1 - config.source_vocab_size) > 0:
        # transformers has a single padding id, that of the target. The source table must contain it.
        table = np.pad(np.asarray(params["source_embeddings"]), ((0, missing), (0, 0)))
        params = {**params, "source_embeddings": table}
        config = dataclasses.replace(config, source_vocab_size=len(table))
    tensors = marian_tensors.disassemble(params, config)
    huggingface.write_tensors(folder, tensors)
    # Without the key forced_eos_token_id, MarianConfig forces its default end token.
    limit = {} if seq_len is None else {_SEQ_LEN: seq_len}
    forced = {"forced_eos_token_id": generation.get("forced_eos_token_id")}
    huggingface.write_json(Path(folder) / CONFIG_FILE, {**_config_json(config, special), **forced, **limit})
    values = {**_ids_json(special), "bad_words_ids": [[special.pad_id]], **generation}
    huggingface.write_json(Path(folder) / GENERATION_FILE, values)


def _config_json(config: EncoderDecoderConfig, special: SpecialIds) -> dict[str, Any]:
    values = {key: getattr(config, field) for field, (key, _) in _FIELDS.items()}
    return {
        **values,
        **{key: values[other] for key, other in _ALIKE.items()},
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "activation_function": json_files.activation_name(config.activation),
        "share_encoder_decoder_embeddings": config.share_embeddings and config.tie_output,
        "is_encoder_decoder": True,
        "dtype": "float32",
        **_ids_json(special),
    }


def _ids_json(special: SpecialIds) -> dict[str, int]:
    return {"pad_token_id": special.pad_id, "decoder_start_token_id": special.bos_id, "eos_token_id": special.eos_id}


class Folder(Published):
    """A folder of a MarianMTModel."""

    experiment = "translation"

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """Raises UserError, because the model has no BERT."""
        return huggingface.read_config(self.config, self.path / CONFIG_FILE)

    @functools.cached_property
    def vocabularies(self) -> SavedVocabularies:
        return open_vocabularies(self.path, lambda: open_tokenizers(self.path, self.config))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of generation."""
        decoding = read_generation(self.path, self.config, self.task).decoding
        return {f"decoding.{key}": value for key, value in decoding.items()}

    @property
    def rows(self) -> Mapping[str, Any]:
        """The length of rows, which only exports of bertjax state."""
        path = self.path / CONFIG_FILE
        return json_files.fields(self.config, {"seq_len": (_SEQ_LEN, int)}, path) if _SEQ_LEN in self.config else {}

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        values = read_config(self.config, self.path)
        special = read_special_ids(self.config, self.path)
        start = {special.eos_id: "end", special.pad_id: "pad"}.get(special.bos_id, "begin")
        prefix = read_generation(self.path, self.config, self.task).source_prefix
        prefixes = {"source_prefix": (prefix,)} if prefix else {}
        return {"architecture": "transformer", "start_token": start}, determined(values), prefixes

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        return load(self.path, wanted, self.config), ()
