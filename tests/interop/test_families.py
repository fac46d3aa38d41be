"""Tests of the records of families."""

from pathlib import Path

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.interop import families
from bertjax.interop.published import Run


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


SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "vocab_size": 31,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}
NOMIC = {
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 20,
    "activation_function": "swiglu",
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "initializer_range": 0.02,
    "vocab_size": 31,
    "n_positions": 8192,
    "max_trained_positions": 40,
    "rotary_scaling_factor": 2,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
}
YARN = {"rope_type": "yarn", "rope_theta": 9.0}


def test_a_published_folder_of_nomic_bert():
    """Its masked-LM head has no biases, and it does not support texts that are longer than in pretraining."""
    nomic = families.find("nomic_bert")
    assert nomic.read_config(NOMIC, Path()) == nomic.read_config(SIZES, Path())
    words, dense = np.ones((5, 3), np.float32), np.ones((3, 3), np.float32)
    tensors = {"bert.embeddings.word_embeddings.weight": words, "cls.predictions.transform.dense.weight": dense}
    found = nomic.to_canonical(tensors, {}, "", "folder")
    assert found.keys() - tensors == {"cls.predictions.bias", "cls.predictions.transform.dense.bias"}
    assert not found["cls.predictions.bias"].any() and found["cls.predictions.bias"].shape == (5,)


def test_adapters_in_the_weights_are_refused():
    tensors = {"roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A": np.ones((5, 4, 3))}
    with pytest.raises(UserError, match=r"folder: got 1 tensors of LoRA adapters, such as roberta\.enc.*lora_A;"):
        families.find("jina_embeddings_v3").to_canonical(tensors, {}, "", "folder")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("nomic_bert", {**NOMIC, "prenorm": True}, "prenorm: got True; expected False"),
        ("nomic_bert", {**NOMIC, "num_experts": 8}, "num_experts: got 8; expected None"),
        ("nomic_bert", {"head_dim": 9}, "head_dim: got 9; expected 8"),
        ("gte", {}, "hidden_act: got silu; expected gelu"),
        (
            "jina_embeddings_v3",
            {"hidden_act": "gelu", "rope_parameters": YARN},
            "rope_parameters: got {'rope_type': 'yar",
        ),
        ("eurobert", {"mlp_bias": True}, "mlp_bias: got True; expected False"),
        ("eurobert", {"classifier_pooling": "max"}, "classifier_pooling: got max; expected bos or mean or late"),
        ("modernbert-decoder", {"local_attention": 3}, "local_attention: got 3; expected at least 4"),
    ],
)
def test_values_that_a_family_does_not_have(family, changes, message):
    with pytest.raises(UserError, match=message):
        families.find(family).read_config({**SIZES, **changes}, Path("config.json"))
