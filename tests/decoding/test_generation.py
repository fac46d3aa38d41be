"""Decoding settings to and from the generation_config.json of transformers."""

from pathlib import Path

import pytest

from bertjax.decoding.generation import from_generation, to_generation
from bertjax.errors import UserError
from tests.decoding.toys import EOS, PAD, START, UNK, config

HF = {"length_penalty": "length", "alpha": 1.0, "stopping": "hf", "max_ratio": 1.0, "max_length": 20}


def exported(**changes):
    return to_generation(config(**{**HF, **changes}), eos_id=EOS, pad_id=PAD, unk_id=UNK)


def imported(values):
    path = Path("generation_config.json")
    return from_generation({"eos_token_id": EOS, **values}, path, eos_id=EOS, pad_id=PAD, start_id=START)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_beams": 6, "n_best": 2, "alpha": 0.6, "block_ngrams": 3, "stopping": "hf_early", "force_eos": True},
        {"num_beams": 5, "first_id": 7},
        {"num_beams": 2, "alpha": -1.0, "stopping": "exact", "min_extra": 2, "max_length": 9, "renormalize": True},
        {"num_beams": 1, "bad_words": ((UNK,), (3, 4))},
        {"method": "sampling", "n_best": 3, "num_beams": 1, "temperature": 0.5, "top_k": 0, "top_p": 0.9},
    ],
)
def test_settings_survive_a_round_trip(changes):
    before = config(**{**HF, **changes})
    found = imported(exported(**changes))
    assert {key: getattr(before, key) for key in found} == found


def test_exported_lengths_include_the_start_token():
    values = exported(min_extra=3)
    assert (values["max_length"], values["min_length"]) == (21, 4)
    assert exported(max_ratio=0.0, max_extra=6)["max_length"] == 7


def test_forced_end_token_and_forbidden_unknown_token():
    assert "forced_eos_token_id" not in exported() and exported()["bad_words_ids"] == [[PAD]]
    assert exported(force_eos=True)["forced_eos_token_id"] == EOS
    assert exported(forbid_unk=True)["bad_words_ids"] == [[PAD], [UNK]]


def test_length_penalty_exponents():
    assert exported(length_penalty="gnmt", alpha=0.6)["length_penalty"] == 0.6
    assert exported(length_penalty="none", alpha=0.6)["length_penalty"] == 0.0


def test_temperature_0_is_greedy():
    values = exported(method="sampling", temperature=0.0, n_best=2)
    assert (values["do_sample"], values["num_beams"], values["num_return_sequences"]) == (False, 1, 1)


def test_missing_settings_get_the_defaults_of_generate():
    words = [[PAD], [EOS], [5, EOS]]  # transformers allows the end token
    found = imported({"num_beams": 6, "max_length": 512, "bad_words_ids": words, "forced_eos_token_id": [EOS]})
    assert (found["num_beams"], found["max_length"], found["force_eos"]) == (6, 511, True)
    assert found["bad_words"] == ((5, EOS),)
    assert (found["length_penalty"], found["alpha"], found["stopping"]) == ("length", 1.0, "hf")
    assert imported({})["num_beams"] == 1 and "max_length" not in imported({})
    assert imported({"do_sample": True})["top_k"] == 50


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_beams": "4"}, "num_beams: got '4'; expected int"),
        ({"repetition_penalty": 1.5}, "repetition_penalty: got 1.5; expected no value or 1.0"),
        ({"max_length": 1}, "max_length: got 1; expected at least 2"),
        ({"early_stopping": "soon"}, "early_stopping: got soon; expected no value or False or True or 'never'"),
        ({"forced_eos_token_id": False}, f"forced_eos_token_id: got False; expected no value or {EOS} or"),
        ({"eos_token_id": None}, f"eos_token_id: got None; expected {EOS} or"),
        ({"eos_token_id": [EOS, 3]}, "eos_token_id: got "),
        ({"forced_bos_token_id": PAD}, f"forced_bos_token_id: got {PAD}; expected an id other than {PAD}, the padding"),
        ({"bos_token_id": 97}, "decoder_start_token_id: got 97"),
        ({"bad_words_ids": [3]}, r"bad_words_ids: got \[3\]; expected a list of words"),
        ({"bad_words_ids": [[True]]}, "bad_words_ids: got"),
        ({"do_sample": True, "min_p": 0.5}, "min_p: got 0.5"),
        ({"do_sample": True, "num_beams": 2}, "num_beams: got 2; expected no value or 1"),
    ],
)
def test_unsupported_values_are_refused(values, message):
    with pytest.raises(UserError, match=f"generation_config.json: {message}"):
        imported(values)
    harmless = {"min_p": 0.5, "suppress_tokens": [], "forced_bos_token_id": None, "use_cache": False}
    assert imported(harmless) == imported({})
