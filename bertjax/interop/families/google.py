"""Reads google-research/bert folders (bert_config.json, bert_model.ckpt.*, vocab.txt) without TensorFlow.

Tensors get the names of Hugging Face's `BertForPreTraining`.

>>> tensors = read_tensors("uncased_L-12_H-768_A-12")
>>> tensors["bert.encoder.layer.0.attention.self.query.weight"].shape
(768, 768)
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.interop import json_files
from bertjax.interop.bert_tensors import assemble, filled, without_pairs
from bertjax.interop.formats.reading import shown
from bertjax.interop.formats.tensorflow_checkpoint import Checkpoint
from bertjax.interop.published import Published

CONFIG_FILE = "bert_config.json"
PUBLISHED_PREFIX = "bert_model.ckpt"

# Values that modeling.py fixes in code. The first weights were trained with the erf form of gelu; later code has the
# tanh form under the same name. transformers also reads this name as erf.
_FIXED = {"norm_eps": 1e-12, "activation": "gelu", "norm": "post", "direction": "both"}

_LAYER = r"bert/encoder/layer_\d+"
_DENSE = (
    rf"(?:{_LAYER}/(?:attention/self/(?:query|key|value)|(?:attention/output|intermediate|output)/dense)"
    r"|bert/pooler/dense|cls/predictions/transform/dense)/(?:kernel|bias)"
)
_NORM = rf"(?:{_LAYER}/(?:attention/)?output|bert/embeddings|cls/predictions/transform)/LayerNorm/(?:gamma|beta)"
_TABLE = r"bert/embeddings/(?:word|position|token_type)_embeddings"
_REGULAR = re.compile(f"{_DENSE}|{_NORM}|{_TABLE}", re.ASCII)
_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}  # tables: NAME.weight
# Irregular names. These weights are [O, I] in both formats. The last four are from run_classifier.py and run_squad.py.
_NAMES = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
}
# State of the optimizers that write such checkpoints: BERT's own, LAMB and TensorFlow's Adam.
_STATE = re.compile(r"(.*/(adam_[mv]|lamb_[mv]|Adam|Adam_1)|global_step|beta[12]_power)(:0)?")
# Parts of the published folders' names. The first Chinese and multilingual vocabularies are lowercase.
_LOWERCASE = {"uncased": True, "cased": False, "chinese": True, "multilingual": True}


def find(folder: str | Path) -> Path | None:
    """Returns the prefix of the checkpoint in a folder, or of the given prefix itself; None if there is no checkpoint.

    Raises:
      UserError: if there are several checkpoints, none with the published name.
    """
    folder = Path(folder)
    if Path(f"{folder}.index").is_file():
        return folder
    names = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    if len(names) > 1 and PUBLISHED_PREFIX not in names:
        fix = f"name one of them, such as {folder / names[-1]}"
        raise UserError(
            f"{folder}", got="checkpoints " + ", ".join(names), expected=f"one, or {PUBLISHED_PREFIX}", fix=fix
        )
    if not names:
        return None
    return folder / (PUBLISHED_PREFIX if PUBLISHED_PREFIX in names else names[0])


def lowercase(folder: str | Path) -> bool | None:
    """Returns whether the published name of a folder says that its vocabulary is lowercase; None if it says nothing."""
    name = _folder(folder).absolute().name
    return next((_LOWERCASE[part] for part in re.split("[_-]", name.lower()) if part in _LOWERCASE), None)


def read_config(folder: str | Path) -> dict[str, Any]:
    """Returns the fields of BertConfig that bert_config.json determines, like `huggingface.read_config`.

    Raises:
      UserError: if bert_config.json is unreadable, a key is missing or invalid, or the activation is not gelu.
    """
    path = _folder(folder) / CONFIG_FILE
    raw = json_files.read_json(path, dict)
    values = json_files.fields(raw, json_files.SIZES, path)
    if "hidden_act" not in raw or raw["hidden_act"] != "gelu":
        got = shown(repr(raw["hidden_act"])) if "hidden_act" in raw else "no value"
        raise UserError(f"{path}: hidden_act", got=got, expected="'gelu'", fix="use a model with that value")
    return {**values, **_FIXED}


def count_classes(folder: str | Path) -> int:
    """Returns the number of classes of a run_classifier.py model, which has no class names; 0 for other models.

    Raises:
      UserError: if the checkpoint is missing or damaged.
    """
    tensors = Checkpoint(_prefix(folder)).tensors
    return tensors["output_bias"].shape[0] if "output_bias" in tensors else 0


def read_tensors(folder: str | Path) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads weights as float32, without optimizer state, with the names of Hugging Face's `BertForPreTraining`.

    Kernels, [I, O] in the file, are returned as transposed views [O, I]. Heads of fine-tuned models are named
    `classifier` and `qa_outputs`.

    Args:
      folder: see `find`.
    Raises:
      UserError: if the checkpoint is missing or damaged, or a tensor is unknown or not of a floating type.
    """
    prefix = _prefix(folder)
    checkpoint = Checkpoint(prefix)
    names = {name: _name(name) for name in checkpoint.tensors if not _STATE.fullmatch(name)}
    unknown = [shown(name) for name, theirs in names.items() if theirs is None]
    if unknown:
        got = f"{len(unknown)} unknown: " + ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        fix = "use a google-research/bert checkpoint; convert others first"
        raise UserError(f"{prefix}: tensors", got=got, expected="only tensors of BERT", fix=fix)
    return {theirs: _read(checkpoint, name, prefix) for name, theirs in names.items() if theirs is not None}


def _stored_names(folder: str | Path) -> dict[str, str]:
    """Returns the name in the checkpoint of each tensor of `read_tensors`."""
    return {theirs: name for name in Checkpoint(_prefix(folder)).tensors if (theirs := _name(name))}


def _prefix(folder: str | Path) -> Path:
    """Returns the result of `find`. Raises UserError if there is no checkpoint."""
    prefix = find(folder)
    if prefix is None:
        fix = "use a google-research/bert folder, or the path of its checkpoint without .index"
        raise UserError(f"{folder}", got="no checkpoint", expected=f"{PUBLISHED_PREFIX}.index", fix=fix)
    return prefix


def _read(checkpoint: Checkpoint, name: str, prefix: Path) -> Float[np.ndarray, "..."]:
    array = checkpoint.read(name)
    if array.dtype.name not in ("float32", "float16", "bfloat16"):
        expected = "float32, float16 or bfloat16"
        raise UserError(f"{prefix}: {name}", got=array.dtype.name, expected=expected, fix="use a model with that type")
    array = array.astype(np.float32, copy=False)
    return array.T if name.endswith("/kernel") else array


def _name(name: str) -> str | None:
    """Returns the transformers name of a tensor; None if BERT has no such tensor.

    >>> _name("bert/encoder/layer_11/attention/output/LayerNorm/gamma")
    'bert.encoder.layer.11.attention.output.LayerNorm.weight'
    """
    if name in _NAMES:
        return _NAMES[name]
    if not _REGULAR.fullmatch(name):
        return None
    module, leaf = re.sub(r"/layer_(\d+)/", r"/layer.\1/", name).replace("/", ".").rsplit(".", 1)
    return f"{module}.{_LEAVES.get(leaf, f'{leaf}.weight')}"


def _folder(folder: str | Path) -> Path:
    """Returns the folder, or the folder of a checkpoint prefix."""
    return Path(folder).parent if Path(f"{folder}.index").is_file() else Path(folder)


class Google(Published):
    """A folder or checkpoint of google-research/bert."""

    @functools.cached_property
    def num_classes(self) -> int:
        return count_classes(self.path)

    @functools.cached_property
    def _tensors(self) -> Mapping[str, Any]:
        return read_tensors(self.path)

    @property
    def experiment(self) -> str:
        """The experiment that has these tensors."""
        if self.num_classes:
            return "classification"
        if "qa_outputs.weight" in self._tensors:
            return "question_answering"
        return "bert_pretraining" if "cls.predictions.bias" in self._tensors else "features"

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of `BertConfig` in bert_config.json."""
        return read_config(self.path)

    @property
    def lowercase(self) -> bool | None:
        return lowercase(self.path)

    @property
    def required(self) -> Mapping[str, Any]:
        return {} if self.num_classes else without_pairs(self.experiment, self._tensors)

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        loaded = assemble(self._tensors, wanted, str(self.path), lambda: _stored_names(self.path))
        del self._tensors  # they would stay in memory as long as the task
        return filled(loaded, wanted)


def open_weights(path: Path) -> Google | None:
    """Opens a checkpoint; returns None for another path. Raises UserError like `find`."""
    return Google(path) if find(path) else None
