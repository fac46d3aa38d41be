"""Tests of what folders of sentence-transformers have in addition to an encoder."""

import json

import pytest

from bertjax.errors import UserError
from bertjax.interop import sentence_transformers
from bertjax.interop.sentence_transformers import Sentences
from bertjax.models.heads import DenseConfig

TANH = {"in_features": 4, "out_features": 3, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


def write(folder, pooling, modules=("Transformer", "Pooling"), dense=TANH):
    """Writes a folder; `pooling` has modes of early versions, or the values of newer ones."""
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    values = pooling if isinstance(pooling, dict) else {f"pooling_mode_{mode}": mode in pooling for mode in flags}
    configs = {"Pooling": {"word_embedding_dimension": 4, **values}, "Dense": dense}
    found = [
        {"idx": i, "path": f"{i}_{name}", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(modules)
    ]
    for name, each in zip(modules, found, strict=True):
        (folder / each["path"]).mkdir()
        (folder / each["path"] / "config.json").write_text(json.dumps(configs.get(name, {})))
    (folder / "modules.json").write_text(json.dumps(found))
    return folder


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"pooling": ["cls_token"]}, Sentences("cls")),
        ({"pooling": ["mean_tokens", "max_tokens", "lasttoken"]}, Sentences("max+mean+lasttoken")),
        ({"pooling": []}, Sentences("mean")),
        (
            {"pooling": {"pooling_mode": "weightedmean", "include_prompt": False}},
            Sentences("weightedmean", (), False, False),
        ),
        ({"pooling": {"pooling_mode": ["mean", "cls"]}}, Sentences("mean+cls")),
        (
            {"pooling": {}, "modules": ("Transformer", "Pooling", "Dense", "Dense", "Normalize")},
            Sentences("mean", (DenseConfig(3),) * 2, True, True, 4),
        ),
        (
            {
                "pooling": {},
                "modules": ("Transformer", "Pooling", "Dense"),
                "dense": {**TANH, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
            },
            Sentences("mean", (DenseConfig(3, "identity", False),), False, True, 4),
        ),
    ],
)
def test_the_modules_of_a_folder(tmp_path, written, expected):
    assert sentence_transformers.read(tmp_path) is None
    assert sentence_transformers.read(write(tmp_path, **written)) == expected


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"pooling": {"pooling_mode": ["mean", "median"]}}, "got mean and median; expected poolings of cls, max, mean"),
        ({"pooling": {"pooling_mode": [[3]]}}, r"got \[3\]; expected poolings of"),
        ({"pooling": {"pooling_mode_new": True}}, "got pooling_mode_new; expected poolings of"),
        ({"pooling": [], "modules": ("Transformer", "Pooling", "CNN")}, "got Transformer, Pooling, CNN; expected Tr"),
        ({"pooling": [], "modules": ("Transformer", "Pooling", "Normalize", "Dense")}, "Dense; expected Transformer"),
        *(
            ({"pooling": [], "modules": ("Transformer", "Pooling", "Dense"), "dense": {**TANH, key: value}}, message)
            for key, value, message in (
                ("activation_function", "my.Act", "activation_function: got my.Act; expected 'torch.nn.modules"),
                ("use_residual", True, "use_residual: got True"),
                ("module_input_name", "token_embeddings", "module_input_name: got token_embeddings"),
                ("out_features", None, "out_features: got None; expected a value of type int"),
            )
        ),
    ],
)
def test_unsupported_modules_are_refused(tmp_path, written, message):
    write(tmp_path, **written)
    with pytest.raises(UserError, match=message):
        sentence_transformers.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim: got 0; expected a number of 1 or"),
        ("config_sentence_transformers.json", {"truncate_dim": True}, "truncate_dim: got True"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type: got SparseEncoder"),
        ("config_sentence_transformers.json", {"prompts": {"query": 5}}, "query: got 5; expected a value of type str"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "the only module of a cross-encoder"),
        ("0_Transformer/sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "expected no value or {}"),
        ("0_Transformer/sentence_bert_config.json", {"query_length": 8}, "query_length: got 8; expected no value"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name: got token_embed"),
        ("modules.json", [{"path": "", "type": "x", "name": "0"}] * 2, "name: got a repeated name"),
        ("modules.json", [{"type": "own.Transformer"}, {"type": "own.Pooling"}], "got Transformer, own.Pooling"),
    ],
)
def test_unsupported_settings_are_refused(tmp_path, name, values, message):
    write(tmp_path, {}, ("Transformer", "Pooling", "Normalize"))
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        sentence_transformers.read(tmp_path)


def test_settings_without_modules_are_not_read(tmp_path):
    """As in sentence-transformers. Version 6 has empty prompts of the names query and document."""
    values = {"prompts": {"other": None}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(values))
    assert sentence_transformers.read_similarity(tmp_path) == "cosine"
    sentences = sentence_transformers.read(write(tmp_path, {}))
    assert (sentences.default_prompt, sentences.prompts) == (None, {"other": ""})
    assert sentence_transformers.read_similarity(tmp_path) == "dot"


def test_the_maximum_length(tmp_path):
    """From the file of early versions, in which it may be missing, or from that of the tokenizer."""
    assert sentence_transformers.read_length(tmp_path) is None
    path, tokenizer = tmp_path / "sentence_xlm-roberta_config.json", tmp_path / "tokenizer_config.json"
    for of_tokenizer in (512, int(1e30)):
        tokenizer.write_text(json.dumps({"model_max_length": of_tokenizer}))
        default = of_tokenizer if of_tokenizer == 512 else None
        for text, length in (('{"max_seq_length": 256}', 256), ('{"max_seq_length": null}', default), ("{}", default)):
            path.write_text(text)
            assert sentence_transformers.read_length(tmp_path) == length
    path.write_text('{"max_seq_length": "256"}')
    with pytest.raises(UserError, match=r"config\.json: max_seq_length: got '256'; expected a value of type int"):
        sentence_transformers.read_length(tmp_path)
