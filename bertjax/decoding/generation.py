"""Decoding settings to and from the generation_config.json of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.decoding.config import DecodingConfig
from bertjax.errors import UserError
from bertjax.file_keys import FileKeys, check_supported

_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id", "bos_token_id")
_BEAMS = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "num_beams", "length_penalty"),
    *("no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "num_return_sequences"),
    "renormalize_logits",
)
_SAMPLING = {
    "min_p": (None, 0.0),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
}
GENERATION = FileKeys(
    applied=(*_IDS, *_BEAMS, *_SAMPLING, "do_sample", "temperature", "top_k", "top_p"),
    supported={
        **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), (None, 1.0)),
        **dict.fromkeys(("encoder_no_repeat_ngram_size", "diversity_penalty", "penalty_alpha"), (None, 0)),
        **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "force_words_ids", "constraints"), (None, [])),
        **dict.fromkeys(("exponential_decay_length_penalty", "stop_strings"), (None,)),
        **dict.fromkeys(("max_time", "dola_layers", "watermarking_config", "assistant_ensemble_weight"), (None,)),
        **dict.fromkeys(("token_healing", "force_bos_token_to_be_generated"), (None, False)),
        "num_beam_groups": (None, 1),
        "sequence_bias": (None, {}, []),
    },
    inert={
        "how torch computes": (
            *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "compile_config"),
            *("disable_compile", "continuous_batching_config", "prefill_chunk_size", "remove_invalid_values"),
        ),
        "a draft does not change what is generated": (
            *("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "speculation_type"),
            *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
            *("prompt_lookup_num_tokens", "max_matching_ngram_size"),
        ),
        "what is returned in addition": (
            *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        ),
        "where the file is from": ("transformers_version", "_from_model_config", "_commit_hash"),
    },
)
# The keys that state a field. A config for training may set a field that a folder does not state.
STATED_BY = {
    "num_beams": ("num_beams",),
    "n_best": ("num_return_sequences",),
    "length_penalty": ("length_penalty",),
    "alpha": ("length_penalty",),
    "min_extra": ("min_length", "min_new_tokens"),
    "block_ngrams": ("no_repeat_ngram_size",),
    "stopping": ("early_stopping",),
    **dict.fromkeys(("max_length", "max_ratio", "max_extra"), ("max_length", "max_new_tokens")),
}
_STOPPING = {False: "hf", True: "hf_early", "never": "exact"}


def to_generation(config: DecodingConfig, *, eos_id: int, pad_id: int, unk_id: int | None) -> dict[str, Any]:
    """Returns the settings that make `generate` of transformers decode in the same way.

    transformers supports neither limits by the source's length (`max_ratio`, `min_ratio`) nor "gnmt". For "gnmt" the
    result has the same exponent, but transformers applies it to the plain length.
    """
    longest = config.max_length if config.max_ratio else min(config.max_length, config.max_extra)
    forbidden = [pad_id] if unk_id is None or not config.forbid_unk else [pad_id, unk_id]
    values: dict[str, Any] = {
        "max_length": longest + 1,  # includes the decoder's start token
        "min_length": config.min_extra + 1 if config.min_extra else 0,
        "no_repeat_ngram_size": config.block_ngrams,
        "num_return_sequences": config.n_best,
        "bad_words_ids": [*([token] for token in forbidden), *map(list, config.bad_words)],
    }
    if config.first_id is not None:
        values["forced_bos_token_id"] = config.first_id
    if config.method == "sampling":
        if config.temperature == 0:
            return {**values, "do_sample": False, "num_beams": 1, "num_return_sequences": 1}
        drawn = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return {**values, "do_sample": True, "num_beams": 1, **drawn}
    values |= {"do_sample": False, "num_beams": config.num_beams}
    if config.num_beams > 1:
        stops = {"hf": False, "hf_early": True}.get(config.stopping, "never")
        values |= {"length_penalty": 0.0 if config.length_penalty == "none" else config.alpha, "early_stopping": stops}
    values |= {"renormalize_logits": True} if config.renormalize else {}
    return {**values, "forced_eos_token_id": eos_id} if config.force_eos else values


def from_generation(
    values: Mapping[str, Any], path: Path, *, eos_id: int, pad_id: int, start_id: int
) -> dict[str, Any]:
    """Returns the fields of `DecodingConfig` that a generation_config.json determines.

    Missing settings get the default of `generate`. A missing maximum length is missing from the result, too.

    Args:
      values: the content of the file.
      path: the path of the file, for messages.
      eos_id, pad_id, start_id: the special tokens of the model.
    Raises:
      UserError: if a value has the wrong type, or an effect that is not supported.
    """

    def get(key: str, kinds: tuple[type, ...], default: Any) -> Any:
        value = values.get(key)
        if value is not None and type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"{path}: {key}", got=repr(value), expected=expected, fix="correct the key")
        return default if value is None else value

    samples = get("do_sample", (bool,), False)
    GENERATION.check(values, path)
    _check_ids(values, path, {"eos_token_id": eos_id, "pad_token_id": pad_id, "decoder_start_token_id": start_id})
    lengths = {"max_length": 2, "max_new_tokens": 1, "min_length": 0, "min_new_tokens": 0}
    for key, least in lengths.items():
        if get(key, (int,), least) < least:
            raise UserError(f"{path}: {key}", got=values[key], expected=f"at least {least}", fix="correct the key")
    first_id = get("forced_bos_token_id", (int,), None)
    if first_id is not None and (first_id < 0 or first_id == pad_id):
        expected = f"an id other than {pad_id}, the padding"
        raise UserError(f"{path}: forced_bos_token_id", got=first_id, expected=expected, fix="correct the key")
    check_supported(values, {"early_stopping": (None, *_STOPPING)}, path)
    if samples:
        check_supported(values, {**_SAMPLING, "num_beams": (None, 1)}, path)
    settings = {
        "method": "sampling" if samples else "beam_search",
        "num_beams": get("num_beams", (int,), 1),
        "n_best": get("num_return_sequences", (int,), 1),
        "length_penalty": "length",
        "alpha": float(get("length_penalty", (int, float), 1.0)),
        "count_eos": True,
        "min_ratio": 0.0,
        "min_extra": max(get("min_new_tokens", (int,), get("min_length", (int,), 0) - 1), 0),
        "block_ngrams": get("no_repeat_ngram_size", (int,), 0),
        "first_id": first_id,
        "force_eos": values.get("forced_eos_token_id") is not None,
        "bad_words": _bad_words(values, path, {eos_id, pad_id}),
        "renormalize": get("renormalize_logits", (bool,), False),
        "stopping": _STOPPING[values.get("early_stopping") or False],
    }
    if samples:
        settings["temperature"] = float(get("temperature", (int, float), 1.0))
        settings["top_k"] = get("top_k", (int,), 50)
        settings["top_p"] = float(get("top_p", (int, float), 1.0))
    longest = get("max_new_tokens", (int,), get("max_length", (int,), 0) - 1)
    return settings if longest < 1 else {**settings, "max_length": longest}


def _check_ids(values: Mapping[str, Any], path: Path, ids: Mapping[str, int]) -> None:
    """Raises UserError if the file states other special tokens than the model has.

    `generate` starts with `bos_token_id` if there is no `decoder_start_token_id`, and never stops without an end token.
    """
    if "decoder_start_token_id" not in values and "bos_token_id" in values:
        values = {**values, "decoder_start_token_id": values["bos_token_id"]}
    choices: dict[str, tuple[Any, ...]] = {key: (token, [token]) for key, token in ids.items()}
    choices["forced_eos_token_id"] = (None, *choices["eos_token_id"])
    check_supported({"eos_token_id": None, **values}, choices, path)


def _bad_words(values: Mapping[str, Any], path: Path, special: set[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the words that are never generated, without padding, and the end token, which transformers allows."""
    words = values.get("bad_words_ids")
    are_lists = words is None or (isinstance(words, list) and all(isinstance(word, list) and word for word in words))
    if not are_lists or any(type(token) is not int or token < 0 for word in words or () for token in word):
        expected = "a list of words, each a list of ids"
        raise UserError(f"{path}: bad_words_ids", got=repr(words), expected=expected, fix="correct the key")
    return tuple(tuple(word) for word in words or () if not (len(word) == 1 and word[0] in special))
