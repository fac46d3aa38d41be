"""The models of pairs of texts: their config keys, which `init_from` may determine, and the modules."""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config import Size, always, part
from bertjax.data.readers.sources import DATES
from bertjax.data.rows.buckets import default_seq_len
from bertjax.decoding.config import DecodingConfig
from bertjax.errors import UserError
from bertjax.interop.published import CHANGEABLE, Published, determined
from bertjax.interop.vocabularies import open_vocabularies
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from bertjax.models.recurrent_seq2seq import RecurrentConfig, RecurrentSeq2Seq
from bertjax.progress import log_once
from bertjax.tasks.completion import contradiction, no_model

_log = logging.getLogger(__name__)

_SEQ_LEN = 128  # the default
# Fields that runs of earlier versions and some families do not state.
_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(EncoderDecoderConfig)
    if field.default is not dataclasses.MISSING and field.name not in CHANGEABLE
}
_AVERAGED = 5  # checkpoints, as in Vaswani et al. (2017), section 6.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerKeys(EncoderDecoderConfig):
    """The keys of `model` with `architecture=transformer`; sizes that are not set are those of the vocabularies."""

    source_vocab_size: Size | None = always(None)  # type: ignore[assignment]
    target_vocab_size: Size | None = always(None)  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentKeys(RecurrentConfig):
    """The keys of `model` with `architecture=recurrent`; sizes that are not set are those of the vocabularies."""

    source_vocab_size: Size | None = always(None)  # type: ignore[assignment]
    target_vocab_size: Size | None = always(None)  # type: ignore[assignment]


def complete(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in the architecture, the model and the text settings that `init_from` determines.

    Raises:
      UserError: if the model is missing, or a key contradicts the folder.
    """
    model = dict(config["model"])
    settings = {key: config[key] for key in ("architecture", "start_token")}
    data = config["data"]
    decoding = dict(config["decoding"])
    if config["task"] and (not published or published.is_run):
        of_folder = "no value, unless init_from is the folder of a published model"
        raise UserError("config key task", got=config["task"], expected=of_folder, fix="omit it")
    if published:
        _log_decoding(published, decoding)
        folder_settings, folder_model, prefixes = published.translation()
        is_transformer = folder_settings["architecture"] == "transformer"
        sizes = {**(_DEFAULTS if is_transformer else {}), **determined(folder_model)}
        wanted = {**settings, **{f"model.{key}": value for key, value in model.items()}}
        of_model = {f"model.{key}": value for key, value in sizes.items()}
        expected = {"architecture": folder_settings["architecture"], **of_model, **folder_settings}
        for key, value in expected.items():  # the sizes come before the other settings, because they help most
            if wanted.get(key) not in (None, value):
                raise contradiction(key, wanted[key], value, config["init_from"], "model")
        settings = folder_settings
        unset = {key: folder_model[key] for key, value in model.items() if value is None and key in folder_model}
        model = {**model, **unset, **sizes}
        data = _with_prefixes(config, prefixes)
        decoding["first_id"] = _first_id(decoding["first_id"], published, data.get("target_prefix") or ())
        decoding["max_length"] = _within(decoding["max_length"], sizes.get("max_positions") or 0)
    elif model.get("share_embeddings") and data.get("joint") is False:
        raise UserError(
            "config key model.share_embeddings",
            got="True with data.joint=False",
            expected="shared embeddings only with a joint vocabulary",
            fix="set --config.model.share_embeddings=False, or --config.data.joint=True",
        )
    if settings["architecture"] == "recurrent" and published:  # the config may have the Transformer's keys
        recurrent = {field.name for field in dataclasses.fields(RecurrentConfig)}
        transformer = {field.name for field in dataclasses.fields(EncoderDecoderConfig)}
        model = {key: value for key, value in model.items() if key not in transformer - recurrent}
    if data.get("packing") is True and (settings["architecture"] == "recurrent" or data.get("source") == DATES):
        raise UserError(
            "config key data.packing",
            got=True,
            expected="False for generated dates and for a recurrent model",
            fix="set --config.data.packing=False",
        )
    missing = [key for key, value in model.items() if value is None and not key.endswith("vocab_size")]
    if missing:
        raise no_model("model", missing[0], config["experiment"])
    if data.get("seq_len", 0) is None:
        default = _SEQ_LEN
        if published and not data.get("source"):
            default = published.rows.get("seq_len", model.get("max_positions") or default)
        data = {**data, "seq_len": default_seq_len(default, model.get("max_positions") or None)}
    checkpoint = dict(config["checkpoint"])
    if checkpoint["final"] is None:
        checkpoint["final"] = _mean_of_last(config, checkpoint["save_every"], checkpoint["keep"])
    return {**config, **settings, "model": model, "data": data, "decoding": decoding, "checkpoint": checkpoint}


def _first_id(first_id: int | None, published: Published, prefixes: Sequence[str]) -> int | None:
    """The token that all targets begin with if their prefix is one token, such as the languages of mBART-50.

    A `first_id` other than that of the folder is the user's choice, and stays.
    """
    if len({*prefixes}) != 1 or first_id not in (None, published.settings.get("decoding.first_id")):
        return first_id
    prefix = prefixes[0]
    vocabulary = (open_vocabularies(published.path) if published.is_run else published.vocabularies).target
    ids, in_text = vocabulary.encode_batch([prefix.strip(), f"{prefix}a"])
    if len(ids) != 1 or ids != in_text[:1] or ids == [vocabulary.unk_id] or vocabulary.template.start:
        return first_id
    _log.info("decoding.first_id=%d, the token of data.target_prefix=%r", *ids, prefixes)
    return ids[0]


def _within(length: int, positions: int) -> int:
    """The maximum length of targets, limited by the positions of a model; 0 for no limit."""
    if not 0 < positions < length:
        return length
    _log.info("decoding.max_length=%d, the positions of the model, not %d", positions, length)
    return positions


def _mean_of_last(config: Mapping[str, Any], save_every: int, keep: int) -> str:
    """Returns the `checkpoint.final` of the last checkpoints, at most `_AVERAGED`, that a run will surely have."""
    is_known = config["num_steps"] and not any(config.get("budget", {}).values())
    lengths = [config["num_steps"]] if is_known else []
    if patience := config.get("evaluate_patience"):
        lengths.append(patience * config["evaluate_every"])
    saved = -(-min(lengths) // max(save_every, 1)) if lengths else _AVERAGED
    return f"last:{max(1, min(saved, keep, _AVERAGED))}"


def _log_decoding(published: Published, decoding: Mapping[str, Any]) -> None:
    """Logs the settings in force that the folder states, except the defaults of DecodingConfig."""
    defaults = {f"decoding.{field.name}": field.default for field in dataclasses.fields(DecodingConfig)}
    values = {key: published.settings[key] for key in defaults if key in published.settings}
    in_force = [
        f"{key.removeprefix('decoding.')}={value!r}"
        for key, value in values.items()
        if value != defaults[key] and json.dumps(value) == json.dumps(decoding[key.removeprefix("decoding.")])
    ]
    if in_force:
        of_task = f", task {published.task}" if published.task else ""
        log_once(f"decoding as in {published.path}{of_task}: {', '.join(in_force)}")


def _with_prefixes(config: Mapping[str, Any], prefixes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `config.data`; texts get the prefixes of the folder unless the config sets prefixes.

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
    if any(data.get(key) for key in prefixes) or data.get("source") == DATES:
        return data
    return {**data, **prefixes}


def check_positions(config: Any) -> None:
    """Raises UserError if rows or hypotheses have more tokens than the model has positions."""
    limit = config.model.max_positions if isinstance(config.model, TransformerKeys) else 0
    lengths = {"decoding.max_length": config.decoding.max_length, "data.seq_len": config.data.seq_len}
    for key, tokens in lengths.items():
        if limit and tokens > limit:
            expected = f"at most model.max_positions={limit}"
            fix = "lower it" if config.init_from else "lower it, or raise --config.model.max_positions"
            raise UserError(f"config key {key}", got=tokens, expected=expected, fix=fix)


def make_model(model: TransformerKeys | RecurrentKeys, sizes: Sequence[int]) -> EncoderDecoder | RecurrentSeq2Seq:
    """Makes the model for vocabularies of these sizes. Raises UserError if one is larger than the model's."""
    source = model.source_vocab_size or sizes[0]
    target = model.target_vocab_size or sizes[1]
    for name, room, size in zip(("source_vocab_size", "target_vocab_size"), (source, target), sizes, strict=True):
        expected = f"at least {size}, the size of the vocabulary"
        model.check(room >= size, name, expected, fix="omit it, or use another vocabulary")
    sized = dataclasses.replace(model, source_vocab_size=source, target_vocab_size=target)
    if isinstance(sized, RecurrentKeys):
        return RecurrentSeq2Seq(part(RecurrentConfig, sized))
    return EncoderDecoder(part(EncoderDecoderConfig, sized))
