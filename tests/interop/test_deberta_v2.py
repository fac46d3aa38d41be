"""Folders of DeBERTa-v2 and v3 without torch: config.json, and the two names of the masked-LM head."""

import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.interop import families, huggingface
from bertjax.interop.published import open_weights
from bertjax.models.bert import BertForPreTraining, BertInputs, HeadConfig
from tests.random_params import random_params
from tests.trees import assert_equal

# The config.json of the published v3 base size.
V3 = {
    "model_type": "deberta-v2",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 0,
    "vocab_size": 128100,
}
FIELDS = {
    **families.find("deberta-v2").fixed,
    "vocab_size": 128100,
    "hidden_size": 768,
    "num_layers": 12,
    "num_heads": 12,
    "intermediate_size": 3072,
    "max_positions": 512,
    "type_vocab_size": 0,
    "positions": "none",
    "relative_buckets": 512,
    "relative_distance": 512,
    "relative_terms": "both",
    "relative_norm": True,
    "convolution_size": 0,
    "convolution_activation": "tanh",
    "activation": "gelu",
    "pooler_activation": "gelu",
    "norm_eps": 1e-7,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "initializer_range": 0.02,
}


def fields(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**V3, **changes}))
    return open_weights(folder).fields


def test_the_published_config(tmp_path):
    assert fields(tmp_path) == FIELDS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_attention": False}, "relative_attention: got False; expected True"),
        ({"share_att_key": False}, "share_att_key: got False; expected True"),
        ({"embedding_size": 128}, "embedding_size: got 128; expected 768"),
        ({"attention_head_size": 32}, "attention_head_size: got 32; expected 64"),
        ({"position_buckets": 512}, "position_buckets: got 512; expected a number below the largest distance, 512"),
        ({"pos_att_type": "p2p"}, "pos_att_type: got p2p; expected c2p, p2c"),
        ({"norm_rel_ebd": "rms"}, "norm_rel_ebd: got rms; expected none or layer_norm"),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups: got 2; expected 1"),
    ],
)
def test_unsupported_values(tmp_path, changes, message):
    with pytest.raises(UserError) as caught:
        fields(tmp_path, **changes)
    assert message in str(caught.value)


def test_a_discriminator_has_the_newer_head_of_masked_words(tmp_path):
    """Published v3 folders do, without saying so in config.json."""
    sizes = {"hidden_size": 12, "num_heads": 2, "num_layers": 1, "intermediate_size": 10, "vocab_size": 17}
    config, ids = build(HeadConfig, {**FIELDS, **sizes}, "model"), np.zeros((1, 1), np.int32)
    options = {"deterministic": True, "return_attention": False}
    init = functools.partial(BertForPreTraining(config, predicts_next=False).init, **options)
    params = random_params(init, BertInputs(ids, ids, ids), ids)["params"]
    huggingface.save(tmp_path, params, config, "BertForMaskedLM", family="deberta-v2")
    names = {"cls.predictions.transform.": "lm_predictions.lm_head.", "cls.predictions.": "lm_predictions.lm_head."}
    tensors = {
        next((new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), name): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    tensors["mask_predictions.classifier.weight"] = np.ones((1, 12), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    found, report = huggingface.load(tmp_path, params, family="deberta-v2")
    assert_equal(found, params)
    assert report == ((), ("mask_predictions.classifier.weight",))
