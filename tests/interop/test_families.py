"""Tests of the records of families."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.interop import families, huggingface
from bertjax.interop.bert_tensors import assemble
from bertjax.interop.published import Run
from tests import published

BERT = Path(__file__).parents[1] / "parity/golden/bert_erf"


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
    ],
)
def test_the_family_of_a_run(model, family):
    assert Run(Path("run"), {"model": model}).family == family


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("roberta", {"hidden_act": "relu"}, "hidden_act: got relu; expected gelu"),
        ("camembert", {"pad_token_id": None}, "pad_token_id: got None; expected a value of type int"),
        ("albert", {"inner_group_num": 2}, "inner_group_num: got 2; expected 1"),
        ("albert", {"embedding_size": 36}, "embedding_size: got 36; expected another size than hidden_size"),
    ],
)
def test_values_that_roberta_and_albert_do_not_have(family, changes, message):
    raw = {**json.loads((BERT / "config.json").read_text()), "embedding_size": 9, "model_type": family, **changes}
    with pytest.raises(UserError, match=message):
        huggingface.read_config(raw, Path("config.json"))


def test_an_export_to_albert_needs_embeddings_of_another_size():
    config = dataclasses.replace(published.CONFIG, layer_groups=1)
    with pytest.raises(UserError, match=r"model\.embedding_size: got 0; expected another size than model\.hidden_size"):
        families.find("albert").write_config(config)


def test_heads_that_a_class_does_not_read_are_ignored():
    """Old classifiers of RoBERTa have a pooler besides their own map; ALBERT has a head for the order of sentences."""
    pooler = {f"{name}.bias": np.array([i]) for i, name in enumerate(("classifier.dense", "roberta.pooler.dense"))}
    assert families.find("roberta").to_canonical(pooler, {}, "", "") == {"bert.pooler.dense.bias": [0]}
    tensors = {"sop_classifier.classifier.bias": np.zeros(2, np.float32)}
    assert assemble(tensors, {}, "folder")[1].unused == tuple(tensors)
