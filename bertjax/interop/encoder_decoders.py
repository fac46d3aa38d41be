"""Reads and writes encoder-decoders of Hugging Face `transformers` without torch.

>>> folder = Path("opus-mt-en-de")
>>> raw = json.loads((folder / "config.json").read_text())
>>> config = EncoderDecoderConfig(**encoder_decoders.read_config(raw, folder))
>>> params = encoder_decoders.load(folder, shapes, raw)  # of `EncoderDecoder(config).init`
>>> source, target = encoder_decoders.open_tokenizers(folder, raw)
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.text.tokenizers import Tokenizer
from bertjax.interop import (
    families,
    generation_files,
    huggingface,
    json_files,
    marian_tokenizers,
    seq2seq_tensors,
    seq2seq_tokenizers,
)
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families.seq2seq_family import Seq2SeqFamily
from bertjax.interop.generation_files import GENERATION_FILE, Generation, SpecialIds
from bertjax.interop.huggingface import CONFIG_FILE
from bertjax.interop.published import Published
from bertjax.interop.vocabularies import SavedVocabularies, open_vocabularies
from bertjax.models.encoder_decoder import EncoderDecoderConfig
from bertjax.progress import log_once

_SEQ_LEN = "bertjax_seq_len"
# Ends of the names of classes that have no decoder of texts, or another output.
_OTHER_CLASSES = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForCausalLM"),
    "EncoderModel",
)
_LENGTH_OF_T5 = 512  # tokens of its rows in pretraining


def family_of(raw: Mapping[str, Any], folder: Path) -> Seq2SeqFamily:
    """Returns the family of a config.json. Raises UserError for an unknown one."""
    kind = json_files.fields(raw, {"kind": ("model_type", str)}, folder / CONFIG_FILE)["kind"]
    if kind not in families.SEQ2SEQ:
        refuse(f"{folder / CONFIG_FILE}: model_type", kind, ", ".join(families.SEQ2SEQ))
    return families.module(kind).FAMILY


def family_for(config: EncoderDecoderConfig) -> Seq2SeqFamily:
    """Returns the first family that has all values of a model. Raises UserError if there is none."""
    differences = {
        name: [key for key, value in families.module(name).FAMILY.fixed.items() if getattr(config, key) != value]
        for name in families.SEQ2SEQ
    }
    # A missing bias of the logits is written as zeros.
    obstacles = {name: [key for key in keys if key != "logits_bias"] for name, keys in differences.items()}
    closest = min(obstacles, key=lambda name: len(obstacles[name]))
    family: Seq2SeqFamily = families.module(closest).FAMILY
    for key in obstacles[closest]:
        expected = f"{family.fixed[key]}, the only value of {family.label}"
        refuse(f"config key model.{key}", getattr(config, key), expected)
    return family


def read_config(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the fields of EncoderDecoderConfig that a folder determines.

    The user chooses the others (dtype, initializer, scan_layers, remat, ...). Which tables are the same is determined
    by the tensors, because transformers 5 states that the output layers of all T5 models are tied.

    Args:
      raw: the content of config.json.
      folder: the folder.
    Raises:
      UserError: if a key is missing, the model is not supported or of another class, or a table is missing.
    """
    values = _sizes(raw, folder)
    family = family_of(raw, folder)
    classes = raw.get("architectures")
    if isinstance(classes, list) and classes and str(classes[0]).endswith(_OTHER_CLASSES):
        refuse(f"{folder / CONFIG_FILE}: architectures", classes[0], family.architecture)
    tables = huggingface.read_tensors(folder, _tables(family))
    based = seq2seq_tensors.based(tables, family.names)
    is_tied = raw.get("tie_word_embeddings") is not False
    return {**values, **seq2seq_tensors.ties(based, family.names, is_tied, str(folder))}


def _sizes(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the fields that config.json determines; see `read_config`."""
    family = family_of(raw, folder)
    return {**family.read_config(raw, folder / CONFIG_FILE), **family.fixed}


def _tables(family: Seq2SeqFamily) -> set[str]:
    names = seq2seq_tensors.table_names(family.names)
    return {seq2seq_tensors.OUTPUT, *names, *(name.removeprefix(family.names.base) for name in names)}


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

    For Marian, the defaults of the limits by the source's length apply, and a missing maximum length is missing from
    the result: the 512 tokens of OPUS-MT are no limit of a sentence, and long caches take time.
    """
    special = read_special_ids(raw, folder)
    size = _sizes(raw, folder)["target_vocab_size"]
    values, path = generation_files.read_values(folder, raw, task)
    settings = generation_files.read_generation(folder, raw, special, size, task)
    if not family_of(raw, folder).is_translator:
        return settings
    if [special.pad_id] not in (values.get("bad_words_ids") or ()):
        log_once(f"{path}: bad_words_ids does not exclude padding, which bertjax never generates", logging.WARNING)
    is_limited = values.get("max_length") is not None or values.get("max_new_tokens") is not None
    left_out = {"max_ratio", "max_extra"} if is_limited else {"max_ratio", "max_extra", "max_length"}
    decoding = {key: value for key, value in settings.decoding.items() if key not in left_out}
    return settings._replace(decoding=decoding)


def open_tokenizers(folder: Path, raw: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Returns the vocabularies of source and target, checked against the model in the same folder.

    Args:
      folder: the folder.
      raw: the content of its config.json.
    Raises:
      UserError: if they cannot be opened, have more tokens than the model, or other special ids.
    """
    kind = family_of(raw, folder).name
    values = _sizes(raw, folder)
    sides: tuple[Tokenizer, Tokenizer]
    if kind == "marian":
        sides = marian_tokenizers.read_tokenizers(folder)
    else:
        joint = seq2seq_tokenizers.read_tokenizer(folder, kind, values["target_vocab_size"])
        sides = (joint, joint)
    special = read_special_ids(raw, folder)
    sizes = (values["source_vocab_size"], values["target_vocab_size"])
    for name, side, size in zip(("source", "target"), sides, sizes, strict=True):
        if side.vocab_size > size:
            refuse(f"{folder}: vocabulary of the {name}", f"{side.vocab_size} tokens", f"at most the model's {size}")
    target = sides[1]
    starts = (target.cls_id, target.pad_id, target.sep_id)
    if (target.pad_id, target.sep_id) != (special.pad_id, special.eos_id) or special.bos_id not in starts:
        of_target = SpecialIds(target.pad_id, target.cls_id, target.sep_id)
        refuse(f"{folder}: vocabulary of the target", f"{of_target}", f"{special}, as in {CONFIG_FILE}")
    return sides


def load(folder: Path, like: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Reads weights as parameters: nested dicts of float32 numpy arrays.

    Reads files of any transformers version: safetensors or, if there are none, torch pickles; whole or sharded;
    float32, float16 or bfloat16; shared tables stored once or repeatedly; with or without sinusoids.

    Args:
      folder: the folder of a model.
      like: the parameters of `EncoderDecoder`, or their shapes.
      raw: the content of config.json.
    Raises:
      UserError: if a file is missing or corrupt, a tensor is missing, unknown, or has another shape or type, or
        positions are not sinusoids.
    """
    family = family_of(raw, folder)
    sizes = read_config(raw, folder)
    tensors = seq2seq_tensors.canonical(huggingface.read_tensors(folder), sizes, family, str(folder))
    return seq2seq_tensors.assemble(tensors, like, family, str(folder))


def save(
    folder: str | Path,
    params: Mapping[str, Any],
    config: EncoderDecoderConfig,
    special: SpecialIds,
    generation: Mapping[str, Any],
    seq_len: int | None = None,
    prefix: str = "",
) -> None:
    """Writes config.json, generation_config.json and model.safetensors for `from_pretrained` of transformers.

    The class is that of the first family that has all values of the model. Each file appears under its name only when
    it is complete. The vocabularies are written by others.

    Args:
      folder: the folder; created if needed. Other files in it are kept.
      params: the parameters of `EncoderDecoder`.
      config: its configuration.
      special: the ids that generation needs. Padding must have an id, and is never generated.
      generation: additional keys of generation_config.json. The end token is forced only if they say so.
      seq_len: the number of tokens above which texts are split; a key of config.json that transformers ignores; None to
        omit it.
      prefix: the text before every source, with its trailing space; "" for none. Pipelines of transformers 4 add it.
    Raises:
      UserError: for an option that no family has.
    """
    family = family_for(config)
    if not (family.is_translator or config.share_embeddings):
        refuse("config key model.share_embeddings", False, f"True, the only value of {family.label}")
    if (missing := special.pad_id + 1 - config.source_vocab_size) > 0:
        # transformers has a single padding id, that of the target. The source table must contain it.
        table = np.pad(np.asarray(params["source_embeddings"]), ((0, missing), (0, 0)))
        params = {**params, "source_embeddings": table}
        config = dataclasses.replace(config, source_vocab_size=len(table))
    tensors = seq2seq_tensors.disassemble(params, config, family)
    of_family = family.write_config(config)
    huggingface.write_tensors(folder, tensors)
    ids = {"pad_token_id": special.pad_id, "decoder_start_token_id": special.bos_id, "eos_token_id": special.eos_id}
    values = {
        **of_family,
        "architectures": [family.architecture],
        "model_type": family.name,
        "is_encoder_decoder": True,
        "dtype": "float32",
        **ids,
        # Without the key, the configs of Marian and BART force their default end token.
        "forced_eos_token_id": generation.get("forced_eos_token_id"),
        **({} if seq_len is None else {_SEQ_LEN: seq_len}),
        **({generation_files.PREFIX: prefix} if prefix else {}),
    }
    huggingface.write_json(Path(folder) / CONFIG_FILE, values)
    of_generation = {**ids, "bad_words_ids": [[special.pad_id]], **generation}
    huggingface.write_json(Path(folder) / GENERATION_FILE, of_generation)


class Folder(Published):
    """A folder of an encoder-decoder of transformers."""

    experiment = "translation"

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """Raises UserError, because the model has no BERT."""
        return huggingface.read_config(self.config, self.path / CONFIG_FILE)

    @functools.cached_property
    def vocabularies(self) -> SavedVocabularies:
        """The vocabularies of the folder."""
        # Exports of earlier versions, all of them Marian, have other vocabularies without a digest.
        is_export = self.config["model_type"] == "marian" and not (self.path / "source.spm").exists()
        return open_vocabularies(self.path, None if is_export else lambda: open_tokenizers(self.path, self.config))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of generation."""
        decoding = read_generation(self.path, self.config, self.task).decoding
        return {f"decoding.{key}": value for key, value in decoding.items()}

    @property
    def unstated(self) -> frozenset[str]:
        """The settings that have the default of `generate`."""
        return frozenset(f"decoding.{key}" for key in read_generation(self.path, self.config, self.task).unstated)

    @property
    def rows(self) -> Mapping[str, Any]:
        """The length of rows, which exports of bertjax state; for other models without a maximum, that of T5."""
        if _SEQ_LEN in self.config:
            return json_files.fields(self.config, {"seq_len": (_SEQ_LEN, int)}, self.path / CONFIG_FILE)
        has_limit = bool(_sizes(self.config, self.path)["max_positions"])
        return {} if has_limit else {"seq_len": _LENGTH_OF_T5}

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        """Returns the architecture and the start token, the fields of the model, and the prefix of the task."""
        values = read_config(self.config, self.path)
        special = read_special_ids(self.config, self.path)
        start = {special.eos_id: "end", special.pad_id: "pad"}.get(special.bos_id, "begin")
        prefix = read_generation(self.path, self.config, self.task).source_prefix
        prefixes = {"source_prefix": (prefix,)} if prefix else {}
        return {"architecture": "transformer", "start_token": start}, values, prefixes

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """Returns all parameters, none of which is missing."""
        return load(self.path, wanted, self.config), ()
