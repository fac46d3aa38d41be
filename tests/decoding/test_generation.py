"""Decoding settings as the generation_config.json of transformers states them."""

import pytest

from bertjax.decoding.generation import from_generation, to_generation, without_counterpart
from bertjax.errors import UserError
from tests.decoding.toys import EOS, PAD, UNK, config

HF = {"length_penalty": "length", "alpha": 1.0, "stopping": "hf", "max_ratio": 1.0, "max_length": 20}


def there(**changes):
    return to_generation(config(**{**HF, **changes}), eos_id=EOS, pad_id=PAD, unk_id=UNK)


def back(values):
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
def test_settings_come_back(changes):
    before = config(**{**HF, **changes})
    found = back(there(**changes))
    assert {key: getattr(before, key) for key in found} == found


def test_lengths_count_the_token_that_the_decoder_starts_with():
    values = there(min_extra=3)
    assert (values["max_length"], values["min_length"]) == (21, 4)
    assert there(max_ratio=0.0, max_extra=6)["max_length"] == 7


def test_the_end_is_forced_and_the_unknown_forbidden_only_on_request():
    assert "forced_eos_token_id" not in there() and there()["bad_words_ids"] == [[PAD]]
    assert there(force_eos=True)["forced_eos_token_id"] == EOS
    assert there(forbid_unk=True)["bad_words_ids"] == [[PAD], [UNK]]


def test_gnmt_keeps_its_exponent_and_none_is_0():
    assert there(length_penalty="gnmt", alpha=0.6)["length_penalty"] == 0.6
    assert there(length_penalty="none", alpha=0.6)["length_penalty"] == 0.0


def test_temperature_0_is_greedy():
    values = there(method="sampling", temperature=0.0, n_best=2)
    assert (values["do_sample"], values["num_beams"], values["num_return_sequences"]) == (False, 1, 1)


def test_what_a_file_leaves_out_is_as_generate_has_it():
    found = back({"num_beams": 6, "max_length": 512, "bad_words_ids": [[PAD]], "forced_eos_token_id": 0})
    assert (found["num_beams"], found["max_length"], found["force_eos"], found["forbid_unk"]) == (6, 511, True, False)
    assert (found["length_penalty"], found["alpha"], found["stopping"]) == ("length", 1.0, "hf")
    assert back({})["num_beams"] == 1 and "max_length" not in back({})
    assert back({"do_sample": True})["top_k"] == 50


def test_a_value_of_another_type():
    with pytest.raises(UserError, match=r"generation_config.json: num_beams: got '4'; expected int"):
        back({"num_beams": "4"})


def test_settings_without_counterpart():
    values = {"repetition_penalty": 1.2, "diversity_penalty": 0.0, "suppress_tokens": [], "forced_bos_token_id": None}
    assert without_counterpart(values) == ["repetition_penalty=1.2"]
