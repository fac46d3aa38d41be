"""Decoding settings to and from the generation_config.json of transformers."""

from collections.abc import Mapping
from typing import Any

from bertjax.decoding.config import DecodingConfig
from bertjax.errors import UserError

# Settings of `generate` that change its output and are not supported here, with the values that have no effect.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0.0,),
    "num_beam_groups": (1,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({},),
    "force_words_ids": ([],),
    "constraints": ([],),
    "stop_strings": ([],),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
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
        "bad_words_ids": [[token] for token in forbidden],
    }
    if config.method == "sampling":
        if config.temperature == 0:
            return {**values, "do_sample": False, "num_beams": 1, "num_return_sequences": 1}
        drawn = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return {**values, "do_sample": True, "num_beams": 1, **drawn}
    values |= {"do_sample": False, "num_beams": config.num_beams}
    if config.num_beams > 1:
        stops = {"hf": False, "hf_early": True}.get(config.stopping, "never")
        values |= {"length_penalty": 0.0 if config.length_penalty == "none" else config.alpha, "early_stopping": stops}
    return {**values, "forced_eos_token_id": eos_id} if config.force_eos else values


def from_generation(values: Mapping[str, Any], *, unk_id: int | None, where: str) -> dict[str, Any]:
    """Returns the fields of `DecodingConfig` that a generation_config.json determines.

    Missing settings get the default of `generate`. A missing maximum length is missing from the result, too.

    Args:
      values: the content of the file.
      unk_id: the unknown token, or None if the vocabulary has none.
      where: the file's name, for messages.
    Raises:
      UserError: if a value has the wrong type.
    """

    def get(key: str, kinds: tuple[type, ...], default: Any) -> Any:
        value = values.get(key)
        if value is not None and type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"{where}: {key}", got=repr(value), expected=expected, fix="correct the key")
        return default if value is None else value

    samples = get("do_sample", (bool,), False)
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
        "force_eos": get("forced_eos_token_id", (int, list), None) is not None,
        "forbid_unk": unk_id is not None and [unk_id] in get("bad_words_ids", (list,), []),
        "stopping": _STOPPING.get(get("early_stopping", (bool, str), False), "hf"),
    }
    if samples:
        settings["temperature"] = float(get("temperature", (int, float), 1.0))
        settings["top_k"] = get("top_k", (int,), 50)
        settings["top_p"] = float(get("top_p", (int, float), 1.0))
    longest = get("max_new_tokens", (int,), get("max_length", (int,), 0) - 1)
    return settings if longest < 1 else {**settings, "max_length": longest}


def unsupported(values: Mapping[str, Any]) -> list[str]:
    """Returns the settings of a generation_config.json that are not supported and have an effect, as "KEY=VALUE"."""
    return [
        f"{key}={values[key]}"
        for key, neutral in _UNSUPPORTED.items()
        if values.get(key) is not None and values[key] not in neutral
    ]
