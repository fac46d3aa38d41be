"""Decoding settings to and from the generation_config.json of transformers."""

import pytest

from bertjax.decoding.generation import from_generation, to_generation, unsupported
from bertjax.errors import UserError
from tests.decoding.toys import EOS, PAD, UNK, config

HF = {"length_penalty": "length", "alpha": 1.0, "stopping": "hf", "max_ratio": 1.0, "max_length": 20}


def exported(**changes):
    return to_generation(config(**{**HF, **changes}), eos_id=EOS, pad_id=PAD, unk_id=UNK)


def imported(values):
    return from_generation(values, unk_id=UNK, where="generation_config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_beams": 6, "n_best": 2, "alpha": 0.6, "block_ngrams": 3, "stopping": "hf_early", "force_eos": True},
        {"num_beams": 2, "alpha": -1.0, "stopping": "exact", "min_extra": 2, "max_length": 9, "forbid_unk": True},
        {"num_beams": 1},
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
    found = imported({"num_beams": 6, "max_length": 512, "bad_words_ids": [[PAD]], "forced_eos_token_id": 0})
    assert (found["num_beams"], found["max_length"], found["force_eos"], found["forbid_unk"]) == (6, 511, True, False)
    assert (found["length_penalty"], found["alpha"], found["stopping"]) == ("length", 1.0, "hf")
    assert imported({})["num_beams"] == 1 and "max_length" not in imported({})
    assert imported({"do_sample": True})["top_k"] == 50


def test_a_value_of_the_wrong_type():
    with pytest.raises(UserError, match=r"generation_config.json: num_beams: got '4'; expected int"):
        imported({"num_beams": "4"})


def test_unsupported_settings():
    values = {"repetition_penalty": 1.2, "diversity_penalty": 0.0, "suppress_tokens": [], "forced_bos_token_id": None}
    assert unsupported(values) == ["repetition_penalty=1.2"]
