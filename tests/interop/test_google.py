import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.interop.families import google
from bertjax.models.bert import HeadConfig
from tests.interop.bundles import HEADER, entry, write

# Written by TensorFlow; see golden/make_tensorflow_checkpoints.py.
GOLDEN = Path(__file__).with_name("golden") / "uncased_L-2_H-8_A-2"
CONFIG = {
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 12,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "norm_eps": 1e-12,
    "initializer_range": 0.02,
    "vocab_size": 30,
    "max_positions": 10,
    "type_vocab_size": 2,
    "activation": "gelu",
    "norm": "post",
    "direction": "both",
}


@pytest.fixture(scope="module")
def tensors():
    return google.read_tensors(GOLDEN)


def write_config(folder, remove=(), **changes):
    values = json.loads((GOLDEN / "bert_config.json").read_text()) | changes
    (folder / "bert_config.json").write_text(json.dumps({k: v for k, v in values.items() if k not in remove}))
    return folder


def write_tensors(folder, **arrays):
    """Writes a checkpoint of float32 tensors. "__" in a name stands for "/"."""
    items, data = [HEADER], b""
    for name, array in arrays.items():
        items.append((name.replace("__", "/").encode(), entry(array, len(data))))
        data += array.tobytes()
    write(folder / "bert_model.ckpt", items, data)
    return folder


@pytest.mark.parametrize("given", [GOLDEN, str(GOLDEN), GOLDEN / "bert_model.ckpt"])
def test_read_config(given):
    assert google.read_config(given) == CONFIG
    build(HeadConfig, {**CONFIG, "scan_layers": True}, "model")


@pytest.mark.parametrize(
    ("remove", "changes", "message"),
    [
        (["hidden_size"], {}, "hidden_size: got no value; expected a value of type int. Fix: correct"),
        ([], {"vocab_size": True}, "vocab_size: got True"),
        ([], {"vocab_size": 2**31}, r"vocab_size: got 2147483648; expected a value of type int, at most 2147483647"),
        ([], {"initializer_range": "0.02"}, "initializer_range: got '0.02'; expected a value of type float"),
        ([], {"hidden_act": "relu"}, "hidden_act: got 'relu'; expected 'gelu'. Fix: use a model with that value"),
    ],
)
def test_configs_that_are_refused(tmp_path, remove, changes, message):
    with pytest.raises(UserError, match=rf"bert_config\.json: {message}"):
        google.read_config(write_config(tmp_path, remove, **changes))


def test_additional_keys_of_the_chinese_config_are_ignored(tmp_path):
    extra = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}
    assert google.read_config(write_config(tmp_path, hidden_dropout_prob=0, **extra))["dropout"] == 0


def test_a_config_is_not_taken_from_the_folder_above(tmp_path):
    write_config(tmp_path)
    with pytest.raises(UserError, match=r"none/bert_config.json: got .*No such file"):
        google.read_config(tmp_path / "none")


def test_find(tmp_path):
    assert google.find(GOLDEN) == google.find(GOLDEN / "bert_model.ckpt") == GOLDEN / "bert_model.ckpt"
    assert google.find(tmp_path) is google.find(tmp_path / "none") is None
    (tmp_path / "model.ckpt-100.index").touch()
    assert google.find(tmp_path) == tmp_path / "model.ckpt-100"
    (tmp_path / "model.ckpt-200.index").touch()
    message = r"got checkpoints model.ckpt-100, model.ckpt-200; expected one, .*such as .*200"
    with pytest.raises(UserError, match=message):
        google.find(tmp_path)
    (tmp_path / "bert_model.ckpt.index").touch()
    assert google.find(tmp_path) == tmp_path / "bert_model.ckpt"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uncased_L-12_H-768_A-12", True),
        ("bert_uncased_L-2_H-128_A-2", True),
        ("chinese_L-12_H-768_A-12", True),
        ("multilingual_L-12_H-768_A-12", True),
        ("cased_L-12_H-768_A-12", False),
        ("my_model", None),
        ("encased", None),
    ],
)
def test_the_folder_name_determines_lowercase(tmp_path, name, expected):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "bert_model.ckpt.index").touch()
    assert google.lowercase(folder) is google.lowercase(folder / "bert_model.ckpt") is expected


def test_heads_of_fine_tuned_models(tmp_path):
    weights, bias = np.ones((3, 8), np.float32), np.zeros(3, np.float32)
    heads = {"output_weights": weights, "output_bias": bias}
    heads |= {"cls__squad__output_weights": 2 * weights, "cls__squad__output_bias": bias + 1}
    found = google.read_tensors(write_tensors(tmp_path, **heads))
    assert sorted(found) == ["classifier.bias", "classifier.weight", "qa_outputs.bias", "qa_outputs.weight"]
    np.testing.assert_array_equal(found["qa_outputs.weight"], 2 * weights)
    np.testing.assert_array_equal(found["classifier.weight"], weights)
    assert (google.count_classes(tmp_path), google.count_classes(GOLDEN)) == (3, 0)


def test_optimizer_state_is_omitted(tmp_path):
    one = np.ones(2, np.float32)
    slots = ("adam_m", "adam_v", "lamb_m", "lamb_v", "Adam", "Adam_1")
    names = ["global_step", "beta1_power", "beta2_power", *(f"bert__pooler__dense__bias__{slot}" for slot in slots)]
    found = google.read_tensors(write_tensors(tmp_path, bert__pooler__dense__bias=one, **dict.fromkeys(names, one)))
    assert list(found) == ["bert.pooler.dense.bias"]


@pytest.mark.parametrize(
    "name",
    [
        "bert__embeddings__word_embeddings_2",
        "bert__encoder__layer_0__attention__self__query__gamma",
        "bert__encoder__layer_x__output__dense__bias",
        "bert__encoder__layer_0__output__LayerNorm__kernel",
        "bert__pooler__LayerNorm__beta",
        "loss__bert__pooler__dense__bias",
        "model__step__.ATTRIBUTES__VARIABLE_VALUE",
    ],
)
def test_unknown_tensors_are_named(tmp_path, name):
    with pytest.raises(UserError, match=f"tensors: got 1 unknown: {name.replace('__', '/')}; expected only tensors"):
        google.read_tensors(write_tensors(tmp_path, **{name: np.ones(1, np.float32)}))


def test_a_weight_of_another_type(tmp_path):
    values = np.ones(2, np.int32)
    write(tmp_path / "bert_model.ckpt", [HEADER, (b"output_bias", entry(values, dtype=3))], values.tobytes())
    with pytest.raises(UserError, match="output_bias: got int32; expected float32, float16 or bfloat16"):
        google.read_tensors(tmp_path)


def test_a_folder_without_checkpoint(tmp_path):
    shutil.copy(GOLDEN / "vocab.txt", tmp_path)
    with pytest.raises(UserError, match=r"got no checkpoint; expected bert_model.ckpt.index. Fix: use a google"):
        google.read_tensors(tmp_path)
