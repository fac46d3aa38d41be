"""Opens what `init_from` names: a run, or the weights of transformers, Marian, google-research/bert or PreSumm.

>>> weights = published.open_weights(Path("bert-base-uncased"))
>>> weights.family, weights.experiment, weights.model["num_layers"]
('bert', 'bert_pretraining', 12)
"""

import abc
import dataclasses
import functools
import hashlib
import importlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import load_saved, load_tokenizer, saved_file, vocabulary_folder
from bertjax.errors import UserError
from bertjax.interop import families, json_files
from bertjax.interop.sentence_transformers import Sentences
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import DenseConfig
from bertjax.models.replaced_tokens import DISENTANGLED, with_changes
from bertjax.runs import checkpoints

_NOTHING: Mapping[str, Any] = MappingProxyType({})

# Fields of a model's config that may differ between the weights and a later use of them.
CHANGEABLE = (
    *("dropout", "attention_dropout", "activation_dropout", "attention_backend", "dtype", "scan_layers", "remat"),
    *("initializer", "initializer_range", "depth_scaled_init"),
)
_FIXED = [field for field in dataclasses.fields(HeadConfig) if field.name not in CHANGEABLE]
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
_PREFIXES = ("source_prefix", "target_prefix")  # keys of `data` of translation runs
_ENCODER_DECODERS = ("translation", "denoising")  # experiments whose runs start each other
_SETTINGS = ("architecture", "start_token")
# The modules that open what is not a run, in the order in which they are tried.
_KINDS = ("bertjax.interop.families.presumm", "bertjax.interop.folders", "bertjax.interop.families.google")
# A name of the Hugging Face Hub: OWNER/MODEL, or one of the first models, which have no owner.
_HUB_NAME = re.compile(r"(?!runs/)[A-Za-z0-9][\w.-]*/[\w.-]+|(distil)?bert-[\w.-]+")
_ADAPTER = "adapter_config.json"  # of PEFT, such as LoRA


class Published(abc.ABC):
    """Weights, and what their folder states about them. Files are read when a property first needs them.

    Attributes:
      path: the folder or file.
      config: the config of a run, or config.json of a published folder; empty if there is none.
      task: the entry of `task_specific_params` in config.json whose settings and source prefix apply; "" for none.
        Set it before `settings` and `translation` are read. Only folders of encoder-decoders have such entries.
    """

    is_run = False
    task = ""

    def __init__(self, path: Path, config: Mapping[str, Any] = _NOTHING) -> None:
        """Reads nothing yet."""
        self.path = path
        self.config = config

    @property
    @abc.abstractmethod
    def experiment(self) -> str:
        """The experiment that the weights were trained for; "features" for an encoder without a head."""

    @property
    def family(self) -> str:
        """The family of the encoder, a name in `families.ENCODERS`."""
        return "bert"

    @functools.cached_property
    @abc.abstractmethod
    def fields(self) -> Mapping[str, Any]:
        """All known fields of the model's config, such as those of `HeadConfig`.

        Raises:
          UserError: for an unsupported model.
        """

    @property
    def model(self) -> dict[str, Any]:
        """The fields that the weights determine, of BERT and of BertSum's heads."""
        scorer = self.fields.get("scorer")
        scorer_keys = () if scorer is None else ("scorer", "sentence_pooling", *_SCORER_KEYS[scorer])
        names = (*MODEL_KEYS, *scorer_keys, *_DECODER_KEYS)
        return MODEL_DEFAULTS | {key: self.fields[key] for key in names if key in self.fields}

    @property
    def digest(self) -> str:
        """A digest of the folder's or the checkpoint's files, which differs if weights differ."""
        files = sorted(self.path.glob("*")) if self.path.is_dir() else [self.path]
        total = hashlib.sha256()
        for file in filter(Path.is_file, files):
            with file.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        return total.hexdigest()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's classes; empty if the classes have no names, or there is no classifier."""
        return ()

    @property
    def num_classes(self) -> int:
        """The number of classes of a classifier, with or without names; 0 if there is no classifier."""
        return len(self.labels)

    @property
    def rows(self) -> Mapping[str, Any]:
        """Config values by key of `data` that describe the training rows, for articles and translation; else empty."""
        return {}

    @property
    def has_vocabulary(self) -> bool:
        """Whether the folder has a vocabulary. If not, `data.vocab_file` must name one."""
        return saved_file(vocabulary_folder(self.path)) is not None

    @property
    def lowercase(self) -> bool | None:
        """The casing of the vocabulary; None if no file states it."""
        return None

    @property
    def objective(self) -> str | None:
        """The objective of training, such as "masked_lm", "causal_lm" or "multi_label", if it is known."""
        return self.config.get("objective")

    @property
    def sentences(self) -> Sentences | None:
        """How texts become vectors; None if the folder does not state it."""
        return None

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a text whose vector is made; None for all positions of the model."""
        return None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Config values that the folder states, such as those of generation, by dotted key."""
        return {}

    @property
    def unstated(self) -> Collection[str]:
        """The keys of `settings` that the folder does not state: they have the defaults of its library."""
        return ()

    @property
    def required(self) -> Mapping[str, Any]:
        """Config values without which these weights cannot be used for their experiment, by dotted key."""
        return {}

    def check_tokenizer(self, tokenizer: EncoderTokenizer) -> None:
        """Raises UserError if config.json states other ids of special tokens than a tokenizer has.

        Two keys of config.json may state the token at the start of texts, and two the token at the end. One of the two
        suffices, because the other may be that of a decoder, which is not used.
        """
        template = tokenizer.template
        ids_by_role = {
            ("pad",): (tokenizer.pad_id,),
            ("cls", "bos"): (tokenizer.cls_id, *template.start),
            ("sep", "eos"): (tokenizer.sep_id, *template.end),
            ("mask",): (tokenizer.mask_id,),
        }
        for roles, ids in ids_by_role.items():
            keys = [f"{role}_token_id" for role in roles]
            config_ids = {key: self.config[key] for key in keys if isinstance(self.config.get(key), int)}
            if config_ids and not {*config_ids.values()} & {*ids}:
                key, token = next(iter(config_ids.items()))
                raise UserError(
                    "the tokenizer",
                    got=f"{tokenizer.vocab[ids[0]]} with id {ids[0]}",
                    expected=f"id {token}, {key} in config.json of {self.path}",
                    fix="use the tokenizer that the weights were trained with; if it is this one, correct config.json",
                )

    def tokenizer(self, lowercase: bool) -> EncoderTokenizer:
        """Opens the vocabulary. Raises UserError if there is none, or it has another casing."""
        return load_tokenizer(self.path, lowercase)

    @functools.cached_property
    def vocabularies(self) -> Any:
        """The `SavedVocabularies` of a published translation model; those of a run are opened by its experiment.

        Raises:
          UserError: for another model, or vocabularies that were changed.
        """
        raise self._no_translator()

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        """Returns what a translation model determines.

        Returns:
          Three dicts of config values by key: "architecture" and "start_token"; the fields of the model; and the
          prefixes of source and target, keys of `data`.
        Raises:
          UserError: for other weights.
        """
        raise self._no_translator()

    @abc.abstractmethod
    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """Reads weights.

        Args:
          wanted: the tree of parameters to load, as arrays or shapes.
        Returns:
          The tree with loaded values, in which parameters that the weights do not have are unchanged; and the paths of
          the modules of these parameters, such as "classifier".
        Raises:
          UserError: if weights are missing, damaged, or have other shapes.
        """

    def _no_translator(self) -> UserError:
        fix = "name a translation run, or the folder of an encoder-decoder of transformers"
        got = f"weights for the experiment {self.experiment}"
        return UserError(f"config key init_from={self.path}", got=got, expected="a translation model", fix=fix)


class Run(Published):
    """A run of bertjax with a checkpoint."""

    is_run = True

    @property
    def experiment(self) -> str:
        """The run's experiment."""
        return str(self.config.get("experiment"))

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The subtree `model`. Raises UserError for a run without a BERT."""
        if "vocab_size" not in self.config.get("model", {}):
            got = f"a run of {self.config.get('experiment')}"
            expected = "a run of a task with a BERT"
            raise UserError(f"config key init_from={self.path}", got=got, expected=expected, fix="name another folder")
        model = self.config["model"]
        # A config without a vocabulary size has that of the run's vocabulary.
        return {**model, "vocab_size": model["vocab_size"] or self._tokenizer.vocab_size}

    @property
    def family(self) -> str:
        """The family of the encoder. Runs of earlier versions do not record it."""
        return self.config["model"].get("family") or families.of_model(self.config["model"])

    @property
    def digest(self) -> str:
        """That of the parameters that `checkpoint.final` names."""
        return checkpoints.digest(self.path, "final")

    @functools.cached_property
    def _tokenizer(self) -> EncoderTokenizer:
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
        keys = ("seq_len",) if self.experiment in _ENCODER_DECODERS else _ROWS
        return {key: self.config["data"][key] for key in keys if key in self.config["data"]}

    @property
    def sentences(self) -> Sentences | None:
        """How a run of the experiment "embeddings" makes vectors; None for other runs."""
        run = self.config
        if self.experiment != "embeddings":
            return None
        dense = tuple(DenseConfig(**dense_config) for dense_config in run["dense"])
        num_poolings = len(run["sentence_pooling"].split("+"))  # their vectors are concatenated
        prompts = {name: run["data"][f"{name}_prompt"] for name in ("query", "document")}
        return Sentences(
            pooling=run["sentence_pooling"],
            dense=dense,
            normalizes=run["normalize"],
            includes_prompt=True,
            input_size=run["model"]["hidden_size"] * num_poolings if dense else None,
            prompts=prompts,
            truncate_dim=run.get("truncate_dim"),
        )

    @property
    def max_length(self) -> int | None:
        """The row length of a run of the experiment "embeddings"; None for other runs."""
        return self.config["data"]["seq_len"] if self.experiment == "embeddings" else None

    def translation(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        run = self.config
        if self.experiment not in _ENCODER_DECODERS:
            return super().translation()
        settings = {"architecture": "transformer", **{key: run[key] for key in _SETTINGS if key in run}}
        return settings, run["model"], {key: run["data"][key] for key in _PREFIXES if key in run["data"]}

    def load(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """Loads a run.

        If the run lacks a task's own `transform` or `norm`, both start from those of the run's masked-LM head.
        """
        transform = {name: wanted[name] for name in ("transform", "norm") if name in wanted}
        extra = {"masked_lm": transform} if transform else {}
        if "bert" in wanted and self.config.get("generator", {}).get("embeddings") == "disentangled":
            # The run stores the embeddings of its discriminator as those of the generator plus changes.
            tables = wanted["bert"]["embeddings"]
            extra["changes"] = {"embeddings": {name: tables[name] for name in DISENTANGLED if name in tables}}
        params, unchanged = checkpoints.restore_shared(self.path, {**extra, **wanted})
        params = params if "changes" in wanted else with_changes(params)
        missing = list(unchanged)  # paths of parameters
        lacks = {name: any(path.startswith(f"{name}/") for path in missing) for name in ("masked_lm", *transform)}
        if any(lacks[name] for name in transform) and not lacks["masked_lm"]:
            params = {**params, **params["masked_lm"]}
            missing = [path for path in missing if path.split("/")[0] not in transform]
        # A dict instead of a set, to keep the order.
        modules = dict.fromkeys(path.rsplit("/", 1)[0] for path in missing if path.split("/")[0] in wanted)
        return {name: params[name] for name in wanted}, tuple(modules)


def open_weights(path: Path) -> Published:
    """Opens what `init_from` names. Raises UserError for a path that is neither a run nor supported weights."""
    if checkpoints.has_checkpoint(path):
        return Run(path, json_files.read_json(path / "config.json", dict))
    if (path / _ADAPTER).exists():
        got = f"an adapter of PEFT ({_ADAPTER}), which changes the weights of a model"
        expected = "a whole model"
        fix = "load the adapter with peft, then call merge_and_unload() and save_pretrained(FOLDER)"
        raise UserError(f"config key init_from={path}", got=got, expected=expected, fix=fix)
    # Imported here, because these modules import this one.
    for module in _KINDS:
        published: Published | None = importlib.import_module(module).open_weights(path)
        if published:
            return published
    folder = path.parent if path.is_file() else path
    fix = "correct the path"
    if path.is_file() and (folder / "config.json").exists():
        fix = f"name its folder, {folder}"
    elif any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        fix = f"copy config.json and the vocabulary of the model into {folder}, and name this folder"
    if _HUB_NAME.fullmatch(str(path)) and not Path(path.parts[0]).exists():
        fix = f"download it: hf download {path} --local-dir {path.name}; then use the folder {path.name}"
    raise UserError(
        f"config key init_from={path}",
        got="no checkpoint, config.json or bert_config.json" if path.exists() else "no such folder",
        expected="a run, a folder with config.json, weights and vocabulary, a checkpoint of google-research, or a .pt "
        "file of PreSumm",
        fix=fix,
    )


def determined(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a model that the weights determine: those that a later use may not change."""
    return {key: value for key, value in model.items() if key not in CHANGEABLE}
