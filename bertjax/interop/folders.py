"""Folders of transformers and sentence-transformers, and our exports, as `Published` weights."""

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.data.text.vocabulary_config import casing
from bertjax.interop import encoder_decoders, families, folder_keys, huggingface, json_files, sentence_transformers
from bertjax.interop.bert_tensors import filled, without_pairs
from bertjax.interop.families import presumm
from bertjax.interop.published import Published
from bertjax.progress import log_once

# The experiments of transformers' architectures and of ours, by the end of the class name.
_EXPERIMENTS = {
    "ElectraForPreTraining": "replaced_tokens",
    "ForPreTraining": "bert_pretraining",
    "ForMaskedLM": "bert_pretraining",
    "ForCausalLM": "bert_pretraining",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForMultipleChoice": "multiple_choice",
    "ForQuestionAnswering": "question_answering",
    "BertSum": "bertsum_ext",
    "BertSumAbs": "bertsum_abs",
}


class Transformers(Published):
    """A folder of transformers or sentence-transformers, or an export of BertSum: config.json and weights."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        super().__init__(path, config)
        self._file = huggingface.model_folder(path) / huggingface.CONFIG_FILE

    @property
    def family(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def architecture(self) -> str:
        """The class of transformers in config.json; "" if there is none."""
        architectures = self.config.get("architectures")
        return str(architectures[0]) if isinstance(architectures, list) and architectures else ""

    @property
    def experiment(self) -> str:
        """The experiment of the architecture, or of what sentence-transformers states."""
        if self.num_classes == 1 and sentence_transformers.read_activation(self.path, self.config):
            return "reranker"
        if (self.path / "modules.json").exists():  # sentence-transformers
            return "features"
        return next((name for suffix, name in _EXPERIMENTS.items() if self.architecture.endswith(suffix)), "features")

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of `HeadConfig`, and of BertSum's heads."""
        return {**huggingface.read_config(self.config, self._file), **presumm.read_head(self.config, self._file)}

    @functools.cached_property
    def sentences(self) -> sentence_transformers.Sentences | None:
        """That of a folder of sentence-transformers."""
        return sentence_transformers.read(self.path)

    @functools.cached_property
    def max_length(self) -> int | None:
        return sentence_transformers.read_length(self.path)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The class names in config.json."""
        return huggingface.read_labels(self.config, self._file) or ()

    @property
    def rows(self) -> Mapping[str, Any]:
        """The rows of an export of BertSum."""
        return presumm.read_rows(self.config)

    @functools.cached_property
    def lowercase(self) -> bool | None:
        """The casing that the tokenizer's files state."""
        return casing(self._file.parent) if self.has_vocabulary else None

    @property
    def required(self) -> Mapping[str, Any]:
        if self.experiment == "replaced_tokens":
            return {"generator.width": 0.0}  # a discriminator has no generator
        tensors = huggingface.read_tensors(self._file.parent) if self.experiment == "bert_pretraining" else ()
        is_stated = self.objective in ("causal_lm", "multi_label")
        objective = {"objective": self.objective} if is_stated else {}
        return without_pairs(self.experiment, tensors) | objective

    @property
    def objective(self) -> str | None:
        """The stated objective; that of masked language models is not assumed."""
        if self.architecture.endswith("ForCausalLM"):
            return "causal_lm"
        problem = self.config.get("problem_type")
        return next((name for name, theirs in huggingface.PROBLEM_TYPES.items() if theirs == problem), None)

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        first = huggingface.first_position(self.config, self._file)
        rest = {name: tree for name, tree in wanted.items() if name != "dense"}
        params, missing = filled(huggingface.load(self.path, rest, self.architecture, self.family, first), rest)
        if "dense" in wanted:
            params["dense"] = sentence_transformers.load_dense(self.path, wanted["dense"])
        return params, missing


def open_weights(path: Path) -> Published | None:
    """Opens a folder of transformers; returns None for another path.

    Raises:
      UserError: for an encoder-decoder of another family.
    """
    file = huggingface.model_folder(path) / huggingface.CONFIG_FILE
    if not file.exists() and not (path / "modules.json").exists():
        return None
    config = json_files.read_json(file, dict)
    if keys := folder_keys.unknown(path):
        log_once(f"{path} has keys that bertjax does not know and ignores: {keys}", logging.WARNING)
    if config.get("model_type") in families.SEQ2SEQ:
        return encoder_decoders.Folder(path, config)
    weights = Transformers(path, config)
    if config.get("is_encoder_decoder") is True:
        _ = weights.fields  # names the supported families before anything else of another one is read
    return weights
