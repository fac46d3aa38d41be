"""Tests of the records of families."""

import dataclasses
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.interop import families, huggingface, json_files
from bertjax.interop.published import Run
from tests import published


@pytest.mark.parametrize("name", families.ENCODERS)
def test_a_record_has_the_name_of_its_module(name):
    assert families.find(name).name == name


def test_an_unknown_family():
    with pytest.raises(UserError, match=r"model\.family: got 'modernbart'; expected one of bert, "):
        families.find("modernbart")


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ({"family": "modernbert"}, "modernbert"),
        ({}, "bert"),  # like the others, of earlier versions
        ({"positions": "rotary"}, "modernbert"),
        ({"positions": "none"}, "bert"),
        ({"relative_positions": "bucketed"}, "mpnet"),
    ],
)
def test_the_family_of_a_run(model, family):
    assert Run(Path("run"), {"model": model}).family == family


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_attention_num_buckets": 64}, "num_buckets: got 64; expected 32, as in transformers"),
        ({"pad_token_id": 0}, "pad_token_id: got 0; expected 1, as in transformers"),
        ({"hidden_act": "relu"}, "hidden_act: got relu; expected gelu"),
    ],
)
def test_values_that_mpnet_does_not_have(changes, message):
    sizes = {key: 4 for key, kind in json_files.SIZES.values() if kind is int and key != "type_vocab_size"}
    rates = {key: 0.1 for key, kind in json_files.SIZES.values() if kind is float}
    raw = {"model_type": "mpnet", "hidden_act": "gelu", **sizes, **rates}
    assert huggingface.read_config(raw, Path("f"))["max_positions"] == 2
    with pytest.raises(UserError, match=message):
        huggingface.read_config({**raw, **changes}, Path("f"))


def test_an_export_to_mpnet_needs_its_id_of_padding(tmp_path):
    config = dataclasses.replace(published.CONFIG, type_vocab_size=0, relative_positions="bucketed")
    params = {"bert": published.params(config)}
    with pytest.raises(UserError, match="id of padding in the vocabulary: got 0; expected 1, as in MPNet"):
        huggingface.save(tmp_path, params, config, "BertModel", family="mpnet")
