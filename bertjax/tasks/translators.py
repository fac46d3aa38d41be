"""Vocabularies of a translation model, and its initialization from a bertjax run or a MarianMTModel."""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.contract import Facts, Params
from bertjax.data.rows.buckets import default_seq_len
from bertjax.data.text import subwords
from bertjax.data.text.subword_vocabularies import Vocabularies
from bertjax.data.text.subwords import SentencePieceSubwords, Subwords
from bertjax.data.translation.text import DATES
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.interop import json_files, marian
from bertjax.interop.marian_subwords import MarianSubwords, read_subwords, save_sentencepiece
from bertjax.models.encoder_decoder import EncoderDecoderConfig
from bertjax.models.recurrent_seq2seq import RecurrentConfig
from bertjax.runs import checkpoints
from bertjax.tasks.seq2seq import TargetIds

_log = logging.getLogger(__name__)

_DIGEST = "vocabulary.sha256"  # the digest of the vocabulary files
# All file names that a vocabulary can have.
_FILES = (
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json", "spm.model"),
    *("vocab.txt", "tokenizer.json", "tokenizer_config.json"),
)
# Keys of `model` that the user may set for published weights.
_FREE = (
    "attention_backend",
    "dtype",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "initializer",
    "initializer_range",
    "scan_layers",
    "remat",
)
_SEQ_LEN = 128  # the default
_PREFIXES = ("source_prefix", "target_prefix")


def open_vocabularies(folder: Path) -> Vocabularies:
    """Opens the vocabularies in the folder of a run or of a MarianMTModel.

    Raises:
      UserError: if there are none, or they were changed after they were saved.
    """
    _check_unchanged(folder)
    is_own = (folder / "source").is_dir() or (folder / "spm.model").exists()  # maybe also files for transformers
    if is_own or not (folder / "source.spm").exists():
        return Vocabularies.load(folder)
    is_published = (folder / "config.json").exists() and not checkpoints.has_checkpoint(folder)
    # A run's config.json has no token ids to compare the vocabularies with.
    return Vocabularies(*(marian.open_subwords(folder) if is_published else read_subwords(folder)))


def save_vocabularies(vocabularies: Vocabularies, folder: Path, *, for_transformers: bool = False) -> None:
    """Writes vocabularies for `open_vocabularies`, and replaces existing ones.

    Args:
      vocabularies: the vocabularies of both sides.
      folder: the folder; created if needed.
      for_transformers: whether `AutoTokenizer.from_pretrained(folder)` must open them too. It decodes translations only
        if the sides share a vocabulary, or are SentencePiece models or Marian's. Otherwise the folder has the source's
        vocabulary, and its subfolder `target` the target's.
    """
    (folder / _DIGEST).unlink(missing_ok=True)
    for path in _files(folder):
        path.unlink()
    for place in (folder / "source", folder / "target"):
        with contextlib.suppress(OSError):  # the folder is missing or has other files
            place.rmdir()
    if isinstance(vocabularies.source, MarianSubwords):
        vocabularies.source.save(folder)
        vocabularies.target.save(folder)
    else:
        vocabularies.save(folder)
        if for_transformers:
            _save_for_transformers(vocabularies, folder)
    with completed(folder / _DIGEST) as path:
        path.write_text(_digest(folder) + "\n")


def _save_for_transformers(vocabularies: Vocabularies, folder: Path) -> None:
    """Writes the files for `AutoTokenizer` that `Vocabularies.save` does not write."""
    source, target = vocabularies
    are_alike = (source.eos_id, source.unk_id) == (target.eos_id, target.unk_id)
    if isinstance(source, SentencePieceSubwords) and isinstance(target, SentencePieceSubwords) and are_alike:
        save_sentencepiece(source, target, folder)
        return
    for side, place in ((source, folder), (target, folder / "target")) if source is not target else ():
        side.save(place)
        if isinstance(side, SentencePieceSubwords):
            save_sentencepiece(side, side, place)
    if source is not target:
        told = "open %s with AutoTokenizer to encode sources, and %s/target to decode translations"
        _log.warning("source and target have different vocabularies: " + told, folder, folder)


def _files(folder: Path) -> list[Path]:
    """Returns the vocabulary files in a folder, in a fixed order."""
    places = (folder / "source", folder / "target", folder)
    return [place / name for place in places for name in _FILES if (place / name).exists()]


def _digest(folder: Path) -> str:
    """Returns the sha256 of the names and contents of all vocabulary files."""
    files = _files(folder)
    digests = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _check_unchanged(folder: Path) -> None:
    """Raises UserError if the vocabulary files were changed after they were saved: ids would mean other words.

    Older runs and published folders have no digest, so they are not checked.
    """
    path = folder / _DIGEST
    if path.exists() and (saved := path.read_text().strip()) != (found := _digest(folder)):
        raise UserError(
            f"the vocabulary in {folder}",
            got=f"files of sha256 {found[:16]}...",
            expected=f"{saved[:16]}..., the files of training",
            fix="restore them; to use another vocabulary, train a new run with data.vocab_file",
        )


@dataclasses.dataclass(frozen=True)
class TranslationFacts(Facts):
    """The facts of parallel text.

    Attributes:
      vocabularies: the vocabularies of both sides.
    """

    vocabularies: Vocabularies

    def save(self, folder: Path) -> None:
        """See `Facts.save`."""
        save_vocabularies(self.vocabularies, folder)


def read_facts(config: object, folder: Path) -> TranslationFacts:
    """See `Experiment.read_facts`."""
    return TranslationFacts(open_vocabularies(folder))


def stand_in_facts() -> TranslationFacts:
    """Facts with a tiny vocabulary of characters, for checks of settings."""
    joint = subwords.characters("abcd")
    return TranslationFacts(Vocabularies(joint, joint))


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in the architecture, the model and the text settings that `init_from` determines.

    Raises:
      UserError: if the model is missing, or a key contradicts the folder.
    """
    model, whole = dict(config["model"]), {key: config[key] for key in ("architecture", "start_token")}
    data, decoding = config["data"], dict(config["decoding"])
    if config["init_from"]:
        known, found, prefixes = _describe(Path(config["init_from"]))
        wanted = {**whole, **{f"model.{key}": value for key, value in model.items()}}
        of_model = {f"model.{key}": value for key, value in found.items()}
        for key, value in {"architecture": known["architecture"], **of_model, **known}.items():  # sizes help most
            if wanted.get(key) not in (None, value):
                raise UserError(
                    f"config key {key}",
                    got=wanted[key],
                    expected=f"{value}, as in init_from={config['init_from']}",
                    fix="omit this key; if the model after the colon in --config sets it, omit the model",
                )
        whole, model, data = known, {**model, **found}, _read_data(config, prefixes)
        most = found.get("max_positions", decoding["max_length"])
        decoding["max_length"] = min(decoding["max_length"], most)
    elif model.get("share_embeddings") and data.get("joint") is False:
        raise UserError(
            "config key model.share_embeddings",
            got="True with data.joint=False",
            expected="shared embeddings only with a joint vocabulary",
            fix="set --config.model.share_embeddings=False, or --config.data.joint=True",
        )
    architecture = whole["architecture"]
    if architecture == "recurrent" and config["init_from"]:  # the config may have the Transformer's keys
        own, others = ({f.name for f in dataclasses.fields(cls)} for cls in (RecurrentConfig, EncoderDecoderConfig))
        model = {key: value for key, value in model.items() if key not in others - own}
    if data.get("packing") is True and (architecture == "recurrent" or data.get("source") == DATES):
        raise UserError(
            "config key data.packing",
            got=True,
            expected="False for generated dates and for a recurrent model",
            fix="set --config.data.packing=False",
        )
    missing = [key for key, value in model.items() if value is None and not key.endswith("vocab_size")]
    if missing:
        raise UserError(
            "--config",
            got=f"neither a model nor init_from (model.{missing[0]} is not set)",
            expected="a model, or a folder that determines it",
            fix="append a model, --config=configs/translation.py:tiny, or set --config.init_from=FOLDER",
        )
    if data.get("seq_len", 0) is None:
        data = {**data, "seq_len": default_seq_len(_SEQ_LEN, model.get("max_positions"))}
    return {**config, **whole, "model": model, "data": data, "decoding": decoding}


def _read_data(config: Mapping[str, Any], prefixes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `config.data`; with `init_from`, texts get the prefixes of the folder unless the config sets prefixes.

    Generated dates have no prefixes.

    Raises:
      UserError: if a vocabulary is set in addition to the folder's.
    """
    data = dict(config["data"])
    for key in ("vocab_file", "target_vocab_file", "lowercase"):
        if data.get(key):
            raise UserError(
                f"config key data.{key}",
                got=data[key],
                expected=f"no value, because init_from={config['init_from']} has the vocabularies",
                fix="omit it",
            )
    if any(data.get(key) for key in _PREFIXES) or data.get("source") == DATES:
        return data
    return {**data, **prefixes}


def _describe(folder: Path) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Returns what a folder determines: architecture and start token, the model's fields, and the texts' prefixes."""
    if checkpoints.has_checkpoint(folder):
        run = json_files.read_json(folder / "config.json", dict)
        if run["experiment"] != "translation":
            got, fix = f"a run of {run['experiment']}", "name the folder of a translation run"
            raise UserError(f"config key init_from={folder}", got=got, expected="a translation run", fix=fix)
        model, whole = run["model"], {key: run[key] for key in ("architecture", "start_token")}
        prefixes = {key: run["data"][key] for key in _PREFIXES}
    else:
        model, special = marian.read_config(folder), marian.read_special_ids(folder)
        start = {special.eos_id: "end", special.pad_id: "pad"}.get(special.bos_id, "begin")
        whole, prefixes = {"architecture": "transformer", "start_token": start}, {}
    return whole, {key: value for key, value in model.items() if key not in _FREE}, prefixes


def warm_start(params: Params, folder: Path) -> Params:
    """Replaces parameters by a folder's weights, and logs the parameters that the folder has no weights for.

    Raises:
      UserError: if weights are missing, damaged, or have other shapes.
    """
    if not checkpoints.has_checkpoint(folder):
        return marian.load(folder, params)
    found, missing = checkpoints.restore_shared(folder, params)
    for name in missing:
        _log.warning("parameter %s keeps its random initialization: %s has no weights for it", name, folder)
    return found


def pieces(vocabulary: Subwords, ids: np.ndarray) -> list[str]:
    """Returns each token as text."""
    return ["</s>" if token == vocabulary.eos_id else vocabulary.decode(ids[i : i + 1]) for i, token in enumerate(ids)]


def target_ids(start_token: str, vocabulary: Subwords) -> TargetIds:
    """The special tokens of the target vocabulary. `start_token` is the decoder's first input."""
    start = {"begin": vocabulary.bos_id, "pad": vocabulary.pad_id, "end": vocabulary.eos_id}[start_token]
    return TargetIds(start, vocabulary.eos_id, vocabulary.pad_id, vocabulary.unk_id)
