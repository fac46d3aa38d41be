"""Settings of generation in published folders, compared with what `generate` of transformers does."""

import json

import pytest

from bertjax.errors import UserError
from bertjax.interop.generation_files import SpecialIds, read_generation

IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
SPECIAL = SpecialIds(pad_id=1, bos_id=2, eos_id=2)
# BART for CNN/DailyMail and T5.
SUMMARIES = {"num_beams": 4, "length_penalty": 2.0, "max_length": 142, "min_length": 56, "early_stopping": True}
RAW = {**IDS, "d_model": 8, "task_specific_params": {"summarization": {**SUMMARIES, "prefix": "summarize: "}}}


def read(folder, raw=RAW, task="", vocab_size=50, **values):
    if values:
        (folder / "generation_config.json").write_text(json.dumps({**IDS, **values}))
    return read_generation(folder, raw, SPECIAL, vocab_size, task)


def test_a_task_has_precedence_over_the_files(tmp_path):
    values = {"num_beams": 3, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "eos_token_id": [2]}
    settings, prefix, _ = read(tmp_path, task="summarization", **values)
    assert prefix == "summarize: "
    named = {"num_beams": 4, "alpha": 2.0, "stopping": "hf_early", "max_length": 141, "min_extra": 55}
    assert settings.items() >= {**named, "block_ngrams": 3, "first_id": 0}.items()
    settings, prefix, unstated = read(tmp_path)
    assert (settings["num_beams"], prefix) == (3, "")
    lengths = {"min_extra", "max_length", "max_ratio", "max_extra"}
    assert unstated == {"n_best", "length_penalty", "alpha", "stopping", *lengths}
    assert read(tmp_path, {**RAW, "prefix": "translate: "}).source_prefix == "translate: "


@pytest.mark.parametrize(("raw", "names"), [(RAW, "one of summarization"), (IDS, "no value, because")])
def test_an_unknown_task_is_an_error_that_lists_tasks(tmp_path, raw, names):
    with pytest.raises(UserError, match=f"config key task: got sumarization; expected {names}"):
        read(tmp_path, raw, "sumarization")


def test_missing_and_null_keys_have_the_defaults_of_generate(tmp_path):
    """Its maximum is 20 tokens of any source. The file need not repeat the first input of the decoder."""
    expected = {"num_beams": 1, "max_length": 20, "min_extra": 0, "first_id": None, "force_eos": False}
    old = {**RAW, "num_beams": None, "max_length": None, "forced_eos_token_id": None, "top_k": 50, "do_sample": False}
    assert read(tmp_path, old)[0].items() >= expected.items()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "num_beams": None}))
    assert read(tmp_path, {**RAW, "num_beams": 5})[0].items() >= expected.items()
    assert read(tmp_path)[0]["max_ratio"] == 0


def test_old_keys_of_config(tmp_path):
    old = {**RAW, "num_beams": 5, "max_length": 9, "force_bos_token_to_be_generated": True, "forced_eos_token_id": 2}
    expected = {"num_beams": 5, "max_length": 8, "first_id": 0, "force_eos": True}
    assert read(tmp_path, old)[0].items() >= expected.items()


def test_ids_must_be_in_the_vocabulary(tmp_path):
    for key, value in {"bad_words_ids": [[50]], "forced_bos_token_id": 50}.items():
        with pytest.raises(UserError, match=rf"generation_config.json: {key}: got 50; expected ids below 50"):
            read(tmp_path, **{key: value})
