"""Tests of the records of families."""

import dataclasses
import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.interop import families, huggingface
from bertjax.interop.bert_tensors import assemble
from bertjax.interop.published import Run, open_weights
from bertjax.models.bert import BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.replaced_tokens import BertForReplacedTokens
from tests import published

BERT = Path(__file__).parents[1] / "parity/golden/bert_erf"


@pytest.mark.parametrize("name", families.ENCODERS)
def test_a_record_decides_on_structures_that_few_families_have(name):
    own = {"albert": {"layer_groups"}, "deberta-v2": {"convolution_size"}, "eurobert": {"num_key_value_heads"}}
    rare = {"relative_positions", "convolution_size", "layer_groups", "num_key_value_heads", "masked_lm_head"}
    assert rare - families.find(name).fixed.keys() == own.get(name, set())


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
        ({"positions": "rotary", "direction": "left_to_right"}, "modernbert-decoder"),
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
        ("roberta", {"hidden_act": "relu"}, "hidden_act: got relu; expected gelu"),
        ("camembert", {"pad_token_id": None}, "pad_token_id: got None; expected a value of type int"),
        ("mpnet", {"pad_token_id": 1, "relative_attention_num_buckets": 64}, "num_buckets: got 64; expected 32, as in"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id: got 0; expected 1, as in transformers"),
        ("electra", {"hidden_act": "gelu_new"}, "hidden_act: got gelu_new; expected 'gelu'"),
        ("electra", {"summary_type": "mean"}, "summary_type: got mean; expected 'first'"),
        ("electra", {"summary_activation": None}, "summary_activation: got None; expected 'gelu'"),
        ("albert", {"inner_group_num": 2}, "inner_group_num: got 2; expected 1"),
        ("albert", {"embedding_size": 36}, "embedding_size: got 36; expected another size than hidden_size"),
        ("mpnet", {"pad_token_id": 1, "hidden_act": "relu"}, "hidden_act: got relu; expected gelu"),
        ("nomic_bert", {**NOMIC, "prenorm": True}, "prenorm: got True; expected False"),
        ("nomic_bert", {**NOMIC, "num_experts": 8}, "num_experts: got 8; expected no value"),
        ("nomic_bert", {"head_dim": 7}, "head_dim: got 7; expected "),
        ("gte", {"hidden_act": "silu"}, "hidden_act: got silu; expected gelu"),
        ("jina_embeddings_v3", {"rope_parameters": YARN}, "rope_parameters: got {'rope_type': 'yarn'"),
        ("eurobert", {"tie_word_embeddings": False, "mlp_bias": True}, "mlp_bias: got True; expected False"),
        ("eurobert", {"tie_word_embeddings": False, "classifier_pooling": "max"}, "classifier_pooling: got max"),
        ("modernbert-decoder", {"local_attention": 3}, "local_attention: got 3; expected at least 4"),
    ],
)
def test_values_that_a_family_does_not_have(family, changes, message):
    raw = {**json.loads((BERT / "config.json").read_text()), "embedding_size": 9, "model_type": family, **changes}
    with pytest.raises(UserError, match=message):
        huggingface.read_config(raw, Path("config.json"))


@pytest.mark.parametrize("family", ["bert", "electra", "distilbert", "eurobert"])
def test_ties_have_no_effect_without_output_embeddings(family):
    is_tied = families.find(family).fixed["tie_output"]
    config = dataclasses.replace(published.CONFIG, **families.find(family).fixed)
    raw = {**families.find(family).write_config(config), "model_type": family, "initializer_range": 0.02}
    other = {**raw, "tie_word_embeddings": not is_tied}
    path = Path("config.json")
    classifier = {**other, "architectures": ["BertForSequenceClassification"]}
    assert huggingface.read_config(classifier, path) == huggingface.read_config(raw, path)
    for model in (other, {**other, "architectures": ["BertForMaskedLM"]}):
        with pytest.raises(UserError, match=f"tie_word_embeddings: got .* expected {is_tied} in a masked"):
            huggingface.read_config(model, path)


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


def test_heads_of_electra_that_a_model_does_not_have_are_reported(tmp_path, caplog):
    raw = {**json.loads((BERT / "config.json").read_text()), "model_type": "electra"}
    (tmp_path / "config.json").write_text(json.dumps({**raw, "architectures": ["ElectraForPreTraining"]}))
    folder, ids = open_weights(tmp_path), jnp.zeros((1, 1), jnp.int32)
    assert folder.experiment == "replaced_tokens" and folder.required == {"generator.width": 0.0}
    config = build(HeadConfig, folder.fields, "model")
    assert config.embedding_size == 128  # transformers omits its default
    inputs, discriminator = BertInputs(ids, ids, ids), BertForReplacedTokens(config)
    params = jax.jit(lambda key: discriminator.init(key, inputs, deterministic=True))(jax.random.key(0))["params"]
    huggingface.save(tmp_path, params, config, "BertForPreTraining", family="electra")
    generator = BertForPreTraining(config, predicts_next=False)
    options = {"deterministic": True, "return_attention": False}
    like = jax.eval_shape(lambda: generator.init(jax.random.key(0), inputs, ids, **options))["params"]
    with caplog.at_level(logging.INFO):
        _, report = huggingface.load(tmp_path, like, family="electra")
    assert report.missing == ("masked_lm",) and len(report.unused) == 4
    assert "4 tensors of other heads are not used: discriminator_predictions.dense, " in caplog.text
    params["masked_lm"] = like["masked_lm"]
    with pytest.raises(UserError, match=r"got electra; expected bert, because ELECTRA has no class like Bert"):
        huggingface.save(tmp_path, params, config, "BertForPreTraining", family="electra")


def test_an_export_to_mpnet_needs_its_id_of_padding(tmp_path):
    config = dataclasses.replace(published.CONFIG, type_vocab_size=0, relative_positions="bucketed")
    params = {"bert": published.params(config)}
    with pytest.raises(UserError, match="id of padding in the vocabulary: got 0; expected 1, as in MPNet"):
        huggingface.save(tmp_path, params, config, "BertModel", family="mpnet")


@pytest.mark.parametrize(
    ("make", "names"),
    [(published.write_huggingface, "pooler.dense"), (lambda folder: published.GOOGLE, "bert/pooler/dense, cls/")],
)
def test_tensors_without_use_have_their_names_in_the_folder(tmp_path, caplog, make, names):
    weights = open_weights(make(tmp_path / "model"))
    config = build(HeadConfig, {**dataclasses.asdict(published.CONFIG), **weights.model}, "model")
    params = published.params(config)
    with caplog.at_level(logging.INFO):
        weights.load({"bert": {name: tree for name, tree in params.items() if name != "pooler"}})
    assert f"tensors of other heads are not used: {names}" in caplog.text
