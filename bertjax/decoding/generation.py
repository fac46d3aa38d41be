"""Decoding settings as the generation_config.json of transformers states them."""

from collections.abc import Mapping
from typing import Any

from bertjax.decoding.config import DecodingConfig
from bertjax.errors import UserError

# Settings of `generate` that change what it writes, have no counterpart here, and do nothing at these values.
_WITHOUT_COUNTERPART: Mapping[str, tuple[object, ...]] = {
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
    """Returns what makes `generate` of transformers do the same.

    It has no counterpart of limits by the source's length (`max_ratio`, `min_ratio`), nor of "gnmt": its penalty has
    the same exponent, but is of length alone.
    """
    longest = config.max_length if config.max_ratio else min(config.max_length, config.max_extra)
    forbidden = [pad_id] if unk_id is None or not config.forbid_unk else [pad_id, unk_id]
    values: dict[str, Any] = {
        "max_length": longest + 1,  # it counts the token that the decoder starts with
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

    A setting that the file leaves out has the value that `generate` gives it, but for the greatest length, which is
    then left out here too.

    Args:
      values: of the file.
      unk_id: the token of unknown characters, or None if there is none.
      where: the file, for messages.
    Raises:
      UserError: a value of another type.
    """

    def get(key: str, kinds: tuple[type, ...], otherwise: Any) -> Any:
        value = values.get(key)
        if value is not None and type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"{where}: {key}", got=repr(value), expected=expected, fix="correct the key")
        return otherwise if value is None else value

    samples = get("do_sample", (bool,), False)
    found = {
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
        found["temperature"] = float(get("temperature", (int, float), 1.0))
        found["top_k"] = get("top_k", (int,), 50)
        found["top_p"] = float(get("top_p", (int, float), 1.0))
    longest = get("max_new_tokens", (int,), get("max_length", (int,), 0) - 1)
    return found if longest < 1 else {**found, "max_length": longest}


def without_counterpart(values: Mapping[str, Any]) -> list[str]:
    """Returns the settings of a generation_config.json that this package does not follow, as "KEY=VALUE"."""
    return [
        f"{key}={values[key]}"
        for key, neutral in _WITHOUT_COUNTERPART.items()
        if values.get(key) is not None and values[key] not in neutral
    ]
