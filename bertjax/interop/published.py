"""What `init_from` names, opened once: a run, or the weights of transformers, Marian, google-research/bert or PreSumm.

>>> weights = published.open_weights(Path("bert-base-uncased"))
>>> weights.family, weights.experiment, weights.model["num_layers"]
('bert', 'bert_pretraining', 12)
"""

import abc
import dataclasses
import functools
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flax import traverse_util

from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import casing, load_saved, load_tokenizer
from bertjax.decoding import generation
from bertjax.errors import UserError
from bertjax.interop import bert_tensors, google, huggingface, json_files, marian, modernbert, presumm, vocabularies
from bertjax.models.bert import BertConfig
from bertjax.runs import checkpoints

_log = logging.getLogger(__name__)
_NOTHING: Mapping[str, Any] = MappingProxyType({})

# Fields of a model's config that may differ between the weights and a later use of them.
_CHANGEABLE = (
    *("dropout", "attention_dropout", "activation_dropout", "attention_backend", "dtype", "scan_layers", "remat"),
    *("initializer", "initializer_range", "depth_scaled_init"),
)
_FIXED = [field for field in dataclasses.fields(BertConfig) if field.name not in _CHANGEABLE]
MODEL_KEYS = tuple(field.name for field in _FIXED)
# The values of folders without these keys: runs that are older than the field, and formats that have only one value.
MODEL_DEFAULTS = {field.name: field.default for field in _FIXED if field.default is not dataclasses.MISSING}
# Fields of BertSum's scorers and decoder. Experiments without these ignore them.
_DECODER_KEYS = ("decoder_layers", "decoder_heads", "decoder_intermediate")
_SCORER_KEYS: dict[str, tuple[str, ...]] = {
    "classifier": (),
    "transformer": ("scorer_layers", "scorer_heads", "scorer_intermediate"),
    "rnn": ("rnn_compat",),
}
_ROWS = ("words", "interval_segments")  # keys of `data` of runs that were trained on articles
_PREFIXES = ("source_prefix", "target_prefix")
# Vocabulary size of bert-base-uncased, the base of the published PreSumm and BertSum models.
_UNCASED_SIZE = 30522
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


class Published(abc.ABC):
    """Weights with everything that is known of them. Each part is read when it is first used, and kept.

    Attributes:
      family: "run", "bert", "modernbert", "marian", "google" or "presumm".
      path: the folder or file.
      config: the config of a run, or config.json of a published folder; empty if there is none.
    """

    family = ""

    def __init__(self, path: Path, config: Mapping[str, Any] = _NOTHING) -> None:
        """Reads nothing yet."""
        self.path, self.config = path, config

    @property
    @abc.abstractmethod
    def experiment(self) -> str:
        """The experiment that the weights were trained for; "features" for an encoder without a head."""

    @functools.cached_property
    @abc.abstractmethod
    def fields(self) -> Mapping[str, Any]:
        """All known fields of the model's config, such as `BertConfig`. Raises UserError for an unsupported model."""

    @property
    def model(self) -> dict[str, Any]:
        """The fields that the weights determine, of BERT and of BertSum's heads."""
        scorer = self.fields.get("scorer")
        of_scorer = () if scorer is None else ("scorer", "sentence_pooling", *_SCORER_KEYS[scorer])
        names = (*MODEL_KEYS, *of_scorer, *_DECODER_KEYS)
        return MODEL_DEFAULTS | {key: self.fields[key] for key in names if key in self.fields}

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's classes; empty if they have none."""
        return ()

    @property
    def num_classes(self) -> int:
        """The classes of a classifier, also without names; 0 if there is no classifier."""
        return len(self.labels)

    @property
    def is_multi_label(self) -> bool:
        """Whether a text can have several classes or numbers, which bertjax does not support."""
        return False

    @property
    def rows(self) -> Mapping[str, Any]:
        """Keys of `data` that describe the rows of training, if these were articles."""
        return {}

    @property
    def lowercase(self) -> bool | None:
        """The casing of the vocabulary; None if no file states it."""
        return None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Config values that the folder states, such as those of generation, by dotted key."""
        return {}

    @property
    def required(self) -> Mapping[str, Any]:
        """Config values without which these weights cannot be used for their experiment, by dotted key."""
        return {}

    def tokenizer(self, lowercase: bool) -> Tokenizer:
        """Opens the vocabulary. Raises UserError if there is none, or it has another casing."""
        return load_tokenizer(self.path, lowercase)

    @functools.cached_property
    def vocabularies(self) -> vocabularies.SavedVocabularies:
        """The vocabularies of a translation model. Raises UserError if there are none, or they were changed."""
        return vocabularies.open_vocabularies(self.path, self.config if self.family == "marian" else None)

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        """Returns what a translation model determines.

        Returns:
          The architecture and the start token; the fields of the model; the prefixes of its texts.
        Raises:
          UserError: for other weights.
        """
        fix = "name the folder of a translation run or of a MarianMTModel"
        got = f"weights for the experiment {self.experiment}"
        raise UserError(f"config key init_from={self.path}", got=got, expected="a translation model", fix=fix)

    @abc.abstractmethod
    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """Reads weights.

        Args:
          wanted: the parameters to replace, as arrays or shapes.
        Returns:
          The parameters, those without weights unchanged; and the names of modules without weights.
        Raises:
          UserError: if weights are missing, damaged, or have other shapes.
        """

    def _assembled(
        self, loaded: Mapping[str, Any], report: bert_tensors.Report, wanted: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Sequence[str]]:
        leaves = traverse_util.flatten_dict(wanted) | traverse_util.flatten_dict(loaded)
        return traverse_util.unflatten_dict(leaves), report.missing


class Run(Published):
    """A run of bertjax with a checkpoint."""

    family = "run"

    @property
    def experiment(self) -> str:
        """The run's experiment."""
        return str(self.config.get("experiment"))

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The subtree `model`. Raises UserError for a run without a BERT."""
        if "vocab_size" not in self.config.get("model", {}):
            got, expected = f"a run of {self.config.get('experiment')}", "a run of a task with a BERT"
            raise UserError(f"config key init_from={self.path}", got=got, expected=expected, fix="name another folder")
        model = self.config["model"]
        return {**model, "vocab_size": model["vocab_size"] or self._tokenizer.vocab_size}

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_saved(self.path)

    @property
    def lowercase(self) -> bool:
        """The casing of the run's vocabulary."""
        return self._tokenizer.lowercase

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of the run."""
        return tuple(self.config["data"].get("labels", ()))

    @property
    def rows(self) -> Mapping[str, Any]:
        """The keys of articles in the run's config."""
        return {key: self.config["data"][key] for key in _ROWS if key in self.config["data"]}

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        """See `Published.translation`."""
        run = self.config
        if self.experiment != "translation":
            return super().translation()
        whole = {key: run[key] for key in ("architecture", "start_token")}
        return whole, _determined(run["model"]), {key: run["data"][key] for key in _PREFIXES}

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """See `Published.load`. A task's `transform` and `norm` may start from those of the masked-LM head."""
        head = {name: wanted[name] for name in ("transform", "norm") if name in wanted}
        found, unchanged = checkpoints.restore_shared(self.path, {**({"masked_lm": head} if head else {}), **wanted})
        paths = list(unchanged)
        is_missing = {name: any(path.startswith(f"{name}/") for path in paths) for name in ("masked_lm", *head)}
        if any(is_missing[name] for name in head) and not is_missing["masked_lm"]:
            found, paths = {**found, **found["masked_lm"]}, [path for path in paths if path.split("/")[0] not in head]
        missing = dict.fromkeys(path.rsplit("/", 1)[0] for path in paths if path.split("/")[0] in wanted)
        return {name: found[name] for name in wanted}, tuple(missing)


class Transformers(Published):
    """A folder of transformers or sentence-transformers, or an export of BertSum: config.json and weights."""

    def __init__(self, path: Path, config: Mapping[str, Any], family: str) -> None:
        """See `Published`."""
        super().__init__(path, config)
        self.family = family
        self._file = huggingface.model_folder(path) / huggingface.CONFIG_FILE

    @property
    def architecture(self) -> str:
        """The class of transformers in config.json; "" if there is none."""
        found = self.config.get("architectures")
        return str(found[0]) if isinstance(found, list) and found else ""

    @property
    def experiment(self) -> str:
        """See `Published.experiment`; by the architecture."""
        if (self.path / "modules.json").exists():  # sentence-transformers
            return "features"
        return next((name for suffix, name in _EXPERIMENTS.items() if self.architecture.endswith(suffix)), "features")

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of `BertConfig`, and of BertSum's heads."""
        return {**huggingface.read_config(self.config, self._file), **presumm.read_head(self.config, self._file)}

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The class names in config.json."""
        return huggingface.read_labels(self.config, self._file) or ()

    @property
    def is_multi_label(self) -> bool:
        """See `huggingface.is_multi_label`."""
        return huggingface.is_multi_label(self.config, self._file)

    @property
    def rows(self) -> Mapping[str, Any]:
        """The rows of an export of BertSum."""
        return presumm.read_rows(self.config)

    @functools.cached_property
    def lowercase(self) -> bool | None:
        """The casing that the tokenizer's files state."""
        return casing(self._file.parent)

    @property
    def required(self) -> Mapping[str, Any]:
        """See `Published.required`."""
        tensors = huggingface.read_tensors(self._file.parent) if self.experiment == "bert_pretraining" else ()
        return _without_pairs(self.experiment, tensors)

    @functools.cached_property
    def settings(self) -> Mapping[str, Any]:
        """See `Published.settings`; those of Marian's generation_config.json."""
        values = marian.read_generation(self.path) if self.family == "marian" else {}
        if not values:
            return {}
        if others := generation.unsupported(values):
            _log.warning("%s/%s has %s, which bertjax ignores", self.path, marian.GENERATION_FILE, ", ".join(others))
        forbids = len(values.get("bad_words_ids") or ()) > 1  # not only padding
        unk_id, where = self.vocabularies.target.unk_id if forbids else None, str(self.path / marian.GENERATION_FILE)
        found = generation.from_generation(values, unk_id=unk_id, where=where)
        return {f"decoding.{key}": value for key, value in found.items()}

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        """See `Published.translation`. Raises UserError for another family than Marian."""
        values, special = marian.read_config(self.config, self.path), marian.read_special_ids(self.config, self.path)
        start = {special.eos_id: "end", special.pad_id: "pad"}.get(special.bos_id, "begin")
        return {"architecture": "transformer", "start_token": start}, _determined(values), {}

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """See `Published.load`."""
        if self.family == "marian":
            return marian.load(self.path, wanted, self.config), ()
        loaded, report = huggingface.load(self.path, wanted, self.architecture)
        return self._assembled(loaded, report, wanted)


class Google(Published):
    """A folder or checkpoint of google-research/bert."""

    family = "google"

    @functools.cached_property
    def num_classes(self) -> int:
        """See `google.count_classes`."""
        return google.count_classes(self.path)

    @functools.cached_property
    def _tensors(self) -> Mapping[str, Any]:
        return google.read_tensors(self.path)

    @property
    def experiment(self) -> str:
        """See `Published.experiment`; by the tensors."""
        if self.num_classes:
            return "classification"
        if "qa_outputs.weight" in self._tensors:
            return "question_answering"
        return "bert_pretraining" if "cls.predictions.bias" in self._tensors else "features"

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of `BertConfig` in bert_config.json."""
        return google.read_config(self.path)

    @property
    def lowercase(self) -> bool | None:
        """See `google.lowercase`."""
        return google.lowercase(self.path)

    @property
    def required(self) -> Mapping[str, Any]:
        """See `Published.required`."""
        return {} if self.num_classes else _without_pairs(self.experiment, self._tensors)

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """See `Published.load`."""
        loaded = bert_tensors.assemble(self._tensors, wanted, str(self.path))
        del self._tensors  # they would stay in memory as long as the task
        return self._assembled(*loaded, wanted)


class PreSumm(Published):
    """A checkpoint of PreSumm or BertSum, a .pt file without a vocabulary."""

    family = "presumm"

    @functools.cached_property
    def _checkpoint(self) -> presumm.Checkpoint:
        return presumm.read(self.path)

    @property
    def experiment(self) -> str:
        """See `Published.experiment`; by the tensors."""
        return "bertsum_abs" if "decoder_layers" in self.fields else "bertsum_ext"

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """See `presumm.describe`."""
        return presumm.describe(self._checkpoint)

    @property
    def lowercase(self) -> bool | None:
        """True for the vocabulary size of bert-base-uncased."""
        return True if self.fields["vocab_size"] == _UNCASED_SIZE else None

    @property
    def rows(self) -> Mapping[str, Any]:
        """See `presumm.describe_rows`."""
        return presumm.describe_rows(self._checkpoint)

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """See `Published.load`."""
        loaded = presumm.load(self._checkpoint, wanted)
        del self._checkpoint  # it would stay in memory as long as the task
        return self._assembled(*loaded, wanted)


def open_weights(path: Path) -> Published:
    """Opens what `init_from` names. Raises UserError for a path that is none of the families."""
    if checkpoints.has_checkpoint(path):
        return Run(path, json_files.read_json(path / "config.json", dict))
    if presumm.is_checkpoint(path):
        return PreSumm(path)
    file = huggingface.model_folder(path) / huggingface.CONFIG_FILE
    if file.exists() or (path / "modules.json").exists():
        config = json_files.read_json(file, dict)
        kind = config.get("model_type")
        return Transformers(path, config, kind if kind in (modernbert.MODEL_TYPE, "marian") else "bert")
    if google.find(path):
        return Google(path)
    fix = "correct the path"
    if not path.exists() and _HUB_NAME.fullmatch(str(path)):
        fix = f"download it: hf download {path} --local-dir {path.name}; then use the folder {path.name}"
    raise UserError(
        f"config key init_from={path}",
        got="no checkpoint, config.json or bert_config.json" if path.exists() else "no such folder",
        expected="a run, a folder with config.json, weights and vocabulary, a checkpoint of google-research, or a .pt "
        "file of PreSumm",
        fix=fix,
    )


def _determined(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model that the weights determine."""
    return {key: value for key, value in model.items() if key not in _CHANGEABLE}


def _without_pairs(experiment: str, tensors: Collection[str]) -> dict[str, Any]:
    """The settings of pretraining without a next-sentence head; none for other weights."""
    has_no_pairs = experiment == "bert_pretraining" and _NEXT_SENTENCE not in tensors
    return {"data.next_sentence": False} if has_no_pairs else {}
