"""Folders of ModernBERT without torch: config.json of all versions, tensors, and heads that start from other heads."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax.config import build
from bertjax.configs import bert_pretraining
from bertjax.errors import UserError
from bertjax.interop import families, huggingface
from bertjax.interop.published import open_weights
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from tests.random_params import random_params
from tests.trees import assert_equal

# The config.json of the published base size, as transformers 4.48 wrote it, and its newer form.
OLDER = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "vocab_size": 50368,
}
OLD_KEYS = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
GLOBAL, LOCAL = "full_attention", "sliding_attention"
NEWER = {key: value for key, value in OLDER.items() if key not in OLD_KEYS} | {
    "layer_types": [GLOBAL if layer % 3 == 0 else LOCAL for layer in range(22)],
    "rope_parameters": {
        GLOBAL: {"rope_theta": 160000.0, "rope_type": "default"},
        LOCAL: {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
FIELDS = {
    **families.find("modernbert").fixed,
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_layers": 22,
    "num_heads": 12,
    "intermediate_size": 1152,
    "max_positions": 8192,
    "rotary_base": 160_000.0,
    "local_rotary_base": 10_000.0,
    "local_attention": 128,
    "global_every": 3,
    "activation": "gelu",
    "biases": False,
    "norm_biases": False,
    "norm_eps": 1e-5,
    "tie_output": True,
    "pooling": "mean",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "initializer_range": 0.02,
}
TINY = {"hidden_size": 12, "num_heads": 2, "num_layers": 3, "intermediate_size": 10, "vocab_size": 17}
CONFIG = build(HeadConfig, {**FIELDS, **TINY, "max_positions": 40}, "model")
IDS = np.zeros((1, 1), np.int32)
INPUTS = BertInputs(IDS, IDS, IDS)
ARCHITECTURES = {
    "BertModel": lambda config: Bert(config),
    "BertForMaskedLM": lambda config: BertForPreTraining(config, predicts_next=False),
    "BertForSequenceClassification": lambda config: BertForSequenceClassification(config, 4, 0.0, 0),
    "BertForMultipleChoice": lambda config: BertForSequenceClassification(config, 1, 0.0, 0),
    "BertForTokenClassification": lambda config: BertForTokenClassification(config, 4, 0.0, 0),
    "BertForQuestionAnswering": lambda config: BertForQuestionAnswering(config, 0),
}


@functools.cache
def params_of(architecture, config=CONFIG):
    arguments = (INPUTS, IDS) if architecture == "BertForMaskedLM" else (INPUTS,)
    options = {"return_attention": False} if architecture in ("BertModel", "BertForMaskedLM") else {}
    init = functools.partial(ARCHITECTURES[architecture](config).init, deterministic=True, **options)
    params = random_params(init, *arguments)["params"]
    norm = params.get("bert", params)["encoder"]["layers"]["attention_norm"]  # not used in the first layer
    for name, leaf in norm.items():
        leaf[0] = name == "scale"
    return params


def test_the_config_of_the_published_base_size():
    model = bert_pretraining.get_config("modernbert_base").model.to_dict()
    assert {key: model[key] for key in FIELDS} == FIELDS


def write_config(folder, values, remove=(), **changes):
    kept = {key: value for key, value in {**values, **changes}.items() if key not in remove}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("values", [OLDER, NEWER, {**NEWER, **OLDER}])
def test_both_forms_of_the_config_are_read(tmp_path, values):
    assert open_weights(write_config(tmp_path, values)).fields == FIELDS


def test_omitted_keys_have_the_defaults_of_transformers(tmp_path):
    prefixes = ("attention", "classifier", "mlp", "norm", "local", "global")
    optional = [key for key in OLDER if key.split("_")[0] in prefixes]
    optional += ["decoder_bias", "embedding_dropout", "hidden_activation", "initializer_range", "tie_word_embeddings"]
    found = open_weights(write_config(tmp_path, OLDER, remove=optional)).fields
    assert found == {**FIELDS, "pooling": "cls"}


@pytest.mark.parametrize(
    ("types", "every", "expected"),
    [
        ([GLOBAL, LOCAL, LOCAL, GLOBAL], 3, (128, 3)),
        ([GLOBAL, LOCAL, GLOBAL, LOCAL], None, (128, 2)),
        ([GLOBAL, LOCAL], 3, (128, 3)),
        ([GLOBAL, LOCAL], 7, (128, 7)),
        ([GLOBAL, LOCAL, LOCAL], None, (128, 3)),
        ([LOCAL, LOCAL], None, (128, 0)),
        ([GLOBAL, GLOBAL], None, (0, 3)),
        (None, 1, (0, 3)),
        (None, 2, (128, 2)),
    ],
)
def test_layer_types_become_the_distance_of_global_layers(tmp_path, types, every, expected):
    changes = {"num_hidden_layers": len(types or "four"), **({"layer_types": types} if types else {})}
    changes |= {"global_attn_every_n_layers": every} if every else {}
    found = open_weights(write_config(tmp_path, OLDER, () if every else OLD_KEYS[:1], **changes)).fields
    assert (found["local_attention"], found["global_every"]) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "tanh"}, "hidden_activation: got tanh; expected one of gelu, "),
        ({"classifier_activation": "relu"}, "classifier_activation: got relu; expected gelu, as hidden_activation"),
        ({"mlp_bias": True}, "mlp_bias: got True; expected False, as attention_bias"),
        ({"decoder_bias": False}, "decoder_bias: got False; expected True"),
        ({"norm_bias": 1}, "norm_bias: got 1; expected a value of type bool"),
        ({"layer_types": [LOCAL, GLOBAL] * 11}, "layer_types: got .*; expected full_attention in every n-th layer"),
        ({"layer_types": "all"}, "layer_types: got all"),
        ({"layer_types": [GLOBAL]}, "layer_types: got "),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: got .*; expected None"),
        ({"rope_parameters": {LOCAL: {"rope_type": "yarn"}}}, f"rope_parameters.{LOCAL}: got .*yarn"),
        ({"rope_parameters": {GLOBAL: {"rope_theta": "1"}}}, f"rope_parameters.{GLOBAL}.rope_theta: got '1'"),
        ({"rope_parameters": [1]}, f"rope_parameters.{GLOBAL}: got "),
        ({"remove": ("hidden_size",)}, "hidden_size: got no value"),
    ],
)
def test_unsupported_models_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=rf"config\.json: {message}"):
        _ = open_weights(write_config(tmp_path, OLDER, **changes)).fields


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"biases": True, "norm_biases": True, "tie_output": False, "activation": "gelu_tanh", "pooling": "cls"},
        {"local_attention": 0, "dropout": 0.25, "attention_dropout": 0.5, "activation_dropout": 0.125},
        {"global_every": 0, "rotary_base": 70.0, "local_rotary_base": 50.0},
        {"global_every": 7, "norm_eps": 1e-3, "initializer_range": 0.5},
    ],
)
def test_save_and_load_round_trip(tmp_path, changes):
    architecture = "BertForMaskedLM"
    config = dataclasses.replace(CONFIG, **changes)
    params = params_of(architecture, config)
    huggingface.save(tmp_path, params, config, architecture, family="modernbert")
    assert HeadConfig(**open_weights(tmp_path).fields) == config
    loaded, report = huggingface.load(tmp_path, params, family="modernbert")
    assert report == ((), ())
    assert_equal(loaded, params)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_files_name_their_class_and_special_tokens(tmp_path, architecture):
    params = params_of(architecture)
    special = {"pad": 7, "cls": 5, "sep": 3}
    huggingface.save(tmp_path, params, CONFIG, architecture, special=special, family="modernbert")
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["architectures"] == [f"Modern{architecture}"]
    names = ("pad", "cls", "bos", "sep", "eos")
    assert [values[f"{name}_token_id"] for name in names] == [7, 5, 5, 3, 3]
    loaded, report = huggingface.load(tmp_path, params, f"Modern{architecture}", family="modernbert")
    assert report == ((), ())
    assert_equal(loaded, params)


@pytest.mark.parametrize(("tie_output", "unused"), [(True, ("bias",)), (False, ("bias", "weight"))])
def test_the_head_of_a_task_starts_from_that_of_masked_words(tmp_path, tie_output, unused):
    config = dataclasses.replace(CONFIG, tie_output=tie_output)
    words, classes = params_of("BertForMaskedLM", config), params_of("BertForSequenceClassification")
    huggingface.save(tmp_path, words, config, "BertForMaskedLM", family="modernbert")
    loaded, report = huggingface.load(tmp_path, classes, family="modernbert")
    assert report == (("classifier",), tuple(f"cls.predictions.{name}" for name in unused))
    head = {name: words["masked_lm"][name] for name in ("transform", "norm")}
    assert_equal(loaded, {"bert": words["bert"], **head})


def test_heads_of_other_tasks_are_not_used(tmp_path):
    classes = params_of("BertForSequenceClassification")
    huggingface.save(tmp_path, classes, CONFIG, "BertForSequenceClassification", family="modernbert")
    loaded, report = huggingface.load(tmp_path, params_of("BertForMaskedLM"), family="modernbert")
    assert report.missing == ("masked_lm",)
    assert_equal(loaded, {"bert": classes["bert"]})
    spans = params_of("BertForQuestionAnswering")
    _, report = huggingface.load(tmp_path, spans, "ModernBertForSequenceClassification", family="modernbert")
    assert report == (("qa_outputs",), ("classifier.bias", "classifier.weight"))
    huggingface.save(tmp_path, spans, CONFIG, "BertForQuestionAnswering", family="modernbert")
    _, report = huggingface.load(tmp_path, classes, "ModernBertForQuestionAnswering", family="modernbert")
    assert report == (("classifier",), ("qa_outputs.bias", "qa_outputs.weight"))


def test_an_encoder_has_no_heads(tmp_path):
    huggingface.save(tmp_path, params_of("BertModel"), CONFIG, "BertModel", family="modernbert")
    loaded, report = huggingface.load(tmp_path, params_of("BertForTokenClassification"), family="modernbert")
    assert report == (("transform", "norm", "classifier"), ())
    assert_equal(loaded, {"bert": params_of("BertModel")})


def test_damaged_tensors_are_user_errors(tmp_path):
    params = params_of("BertModel")
    huggingface.save(tmp_path, params, CONFIG, "BertModel", family="modernbert")
    zeros = functools.partial(np.zeros, dtype=np.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    for changes, message in (
        ({"layers.1.attn.Wqkv.weight": zeros((35, 12))}, r"layers\.1\.attn\.Wqkv\.weight: got shape \(35, 12\)"),
        ({"layers.1.mlp.Wi.weight": zeros(())}, r"layers\.1\.mlp\.Wi\.weight: got shape \(\)"),
        ({"layers.1.mlp.Wi.weight": zeros((22, 12))}, r"layer\.1\.gate\.dense\.weight: got \(11, 12\)"),
        ({"layers.0.attn_norm.weight": np.ones(12, np.float32)}, "norm of the first attention"),
        ({"layers.1.crf.weight": np.ones(12, np.float32)}, "got 1 unknown"),
    ):
        huggingface.write_tensors(tmp_path, {**tensors, **changes})
        with pytest.raises(UserError, match=message):
            huggingface.load(tmp_path, params, family="modernbert")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qk_norm", True),
        ("gated", False),
        ("norm_type", "rms"),
        ("first_attention_norm", True),
        ("embedding_norm", False),
        ("embedding_size", 6),
        ("type_vocab_size", 2),
        ("direction", "left_to_right"),
        ("head", "pooler"),
    ],
)
def test_options_that_modernbert_does_not_have_cannot_be_saved(tmp_path, field, value):
    config = dataclasses.replace(CONFIG, **{field: value, **({"pooling": "cls"} if field == "head" else {})})
    with pytest.raises(UserError, match=rf"model\.{field}: got {value}; expected .*, as in Hugging Face's ModernBERT"):
        huggingface.save(tmp_path, {}, config, "BertForMaskedLM", family="modernbert")


def test_a_model_that_has_no_modernbert_cannot_be_saved(tmp_path):
    expected = "got modernbert; expected bert, because ModernBERT has no class like BertForPreTraining"
    with pytest.raises(UserError, match=rf"model\.family: {expected}"):
        huggingface.save(tmp_path, {}, CONFIG, "BertForPreTraining", family="modernbert")
