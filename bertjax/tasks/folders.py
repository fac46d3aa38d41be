"""Which experiment a folder of weights or a run belongs to."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.interop import google, huggingface, json_files, presumm
from bertjax.runs import checkpoints

# The experiments of transformers' architectures and of ours, by the end of the class name.
_EXPERIMENTS = {
    "ForPreTraining": "bert_pretraining",
    "ForMaskedLM": "bert_pretraining",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForMultipleChoice": "multiple_choice",
    "ForQuestionAnswering": "question_answering",
    "BertSum": "bertsum_ext",
    "BertSumAbs": "bertsum_abs",
    "MarianMTModel": "translation",
}
_NEXT_SENTENCE = "cls.seq_relationship.weight"
# A name of the Hugging Face Hub: OWNER/MODEL.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class Folder(NamedTuple):
    """What a folder was made for.

    Attributes:
      experiment: the name of the experiment; "features" for an encoder without a head.
      is_run: whether the folder is a run with checkpoints.
      settings: config keys and values that the weights require, apart from those that `init_from` determines.
    """

    experiment: str
    is_run: bool = False
    settings: Mapping[str, Any] = MappingProxyType({})


def describe(path: Path) -> Folder:
    """Reads which experiment a path belongs to. Raises UserError unless it is one that `init_from` accepts."""
    if checkpoints.has_checkpoint(path):
        return Folder(str(json_files.read_json(path / "config.json", dict).get("experiment")), is_run=True)
    if presumm.is_checkpoint(path):
        return Folder("bertsum_abs" if "decoder_layers" in presumm.describe(path) else "bertsum_ext")
    if (path / "modules.json").exists():  # sentence-transformers
        return Folder("features")
    inside = huggingface.model_folder(path)
    if (inside / huggingface.CONFIG_FILE).exists():
        experiment = _of_architecture(inside / huggingface.CONFIG_FILE)
        tensors = huggingface.read_tensors(inside) if experiment == "bert_pretraining" else {}
        return _with_settings(experiment, tensors)
    if google.find(path):
        if google.count_classes(path):
            return Folder("classification")
        tensors = google.read_tensors(path)
        return _with_settings(_of_tensors(tensors), tensors)
    raise not_found(path)


def _of_architecture(config: Path) -> str:
    found = json_files.read_json(config, dict).get("architectures")
    kind = str(found[0]) if isinstance(found, list) and found else ""
    return next((name for suffix, name in _EXPERIMENTS.items() if kind.endswith(suffix)), "features")


def _of_tensors(tensors: Collection[str]) -> str:
    if "qa_outputs.weight" in tensors:
        return "question_answering"
    return "bert_pretraining" if "cls.predictions.bias" in tensors else "features"


def _with_settings(experiment: str, tensors: Collection[str]) -> Folder:
    has_no_pairs = experiment == "bert_pretraining" and _NEXT_SENTENCE not in tensors
    return Folder(experiment, settings={"data.next_sentence": False} if has_no_pairs else {})


def not_found(path: Path) -> UserError:
    """The error for a path without a model. The fix for a name of the Hugging Face Hub is the download command."""
    fix = "correct the path"
    if not path.exists() and _HUB_NAME.fullmatch(str(path)):
        fix = f"download it: hf download {path} --local-dir {path.name}; then use the folder {path.name}"
    return UserError(
        f"config key init_from={path}",
        got="no checkpoint, config.json or bert_config.json" if path.exists() else "no such folder",
        expected="a run, a folder with config.json, weights and vocabulary, a checkpoint of google-research, or a .pt "
        "file of PreSumm",
        fix=fix,
    )
