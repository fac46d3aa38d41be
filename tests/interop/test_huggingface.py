import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bertjax.errors import UserError, build
from bertjax.interop import huggingface
from bertjax.models.bert import BertConfig, BertForPreTraining

# Written by `save_pretrained` of transformers; see tests/parity/make_golden.py.
GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "bert_erf"
CHOICES = {"dtype": "float32", "attention_backend": "xla", "scan_layers": True, "remat": False, "next_sentence": True}
CONFIG = build(BertConfig, {**huggingface.read_config(GOLDEN), **CHOICES}, "model")
NO_NEXT_SENTENCE = dataclasses.replace(CONFIG, next_sentence=False)
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "model.safetensors")


@pytest.fixture(scope="module")
def params():
    return huggingface.load(GOLDEN, CONFIG)[0]


def write(folder, tensors):
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def write_config(folder, remove=(), **changes):
    values = json.loads((GOLDEN / "config.json").read_text()) | changes
    text = json.dumps({key: value for key, value in values.items() if key not in remove})
    (folder / "config.json").write_text(text)
    return folder


def assert_equal(tree, reference):
    jax.tree.map(np.testing.assert_array_equal, tree, reference)


def test_read_config():
    assert huggingface.read_config(GOLDEN) == {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_layers": 2,
        "num_heads": 3,
        "intermediate_size": 50,
        "max_positions": 15,
        "type_vocab_size": 2,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "gelu": "erf",
        "norm": "post",
        "norm_eps": 1e-12,
        "initializer_range": 0.02,
        "direction": "both",
    }


@pytest.mark.parametrize(("hidden_act", "gelu"), [("gelu", "erf"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh")])
def test_activations(tmp_path, hidden_act, gelu):
    assert huggingface.read_config(write_config(tmp_path, hidden_act=hidden_act))["gelu"] == gelu


def test_config_of_an_old_version_lacks_some_keys(tmp_path):
    folder = write_config(tmp_path, remove=("layer_norm_eps", "is_decoder", "tie_word_embeddings"))
    assert huggingface.read_config(folder) == huggingface.read_config(GOLDEN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, "model_type: got roberta; expected 'bert'"),
        ({"hidden_act": "relu"}, "hidden_act: got relu; expected one of gelu, "),
        ({"hidden_act": ["gelu"]}, "hidden_act: got "),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: got relative_key"),
        ({"is_decoder": True}, "is_decoder: got True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: got False"),
        ({"remove": ("hidden_size",)}, "hidden_size: got no value"),
        ({"remove": ("model_type",)}, "model_type: got no value"),
    ],
)
def test_other_models_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        huggingface.read_config(write_config(tmp_path, **changes))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"bert"', b"\xff\xfe", b"[" * 100_000])
def test_unreadable_config(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json"):
        huggingface.read_config(tmp_path)


def test_no_such_folder(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        huggingface.read_config(tmp_path / "none")
    with pytest.raises(UserError, match=r"got no weights; expected model\.safetensors"):
        huggingface.load(tmp_path / "none", CONFIG)


def test_every_parameter_comes_from_the_tensor_of_that_name(params, tensors):
    layers = params["bert"]["encoder"]["layers"]
    np.testing.assert_array_equal(
        layers["attention"]["value"]["kernel"][1],
        tensors["bert.encoder.layer.1.attention.self.value.weight"].T,
    )
    np.testing.assert_array_equal(
        layers["intermediate"]["kernel"][0], tensors["bert.encoder.layer.0.intermediate.dense.weight"].T
    )
    np.testing.assert_array_equal(
        layers["attention_norm"]["scale"][1],
        tensors["bert.encoder.layer.1.attention.output.LayerNorm.weight"],
    )
    np.testing.assert_array_equal(params["masked_lm"]["bias"], tensors["cls.predictions.bias"])
    np.testing.assert_array_equal(params["bert"]["embeddings"]["word_embeddings"], tensors[WORDS])
    assert {(type(leaf), leaf.dtype.name) for leaf in jax.tree.leaves(params)} == {(np.ndarray, "float32")}
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == sum(t.size for t in tensors.values())


@pytest.mark.parametrize("config", [CONFIG, NO_NEXT_SENTENCE])
def test_tree_is_that_of_the_model(config):
    ids = jnp.zeros((1, 1), jnp.int32)
    model = BertForPreTraining(config)
    expected = jax.eval_shape(
        lambda: model.init(jax.random.key(0), ids, ids, ids, ids, deterministic=True, return_attention=False)
    )["params"]
    params, report = huggingface.load(GOLDEN, config)
    assert report.missing == ()
    assert bool(report.unused) == (not config.next_sentence)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(lambda leaf: leaf.shape, expected)


def test_unused_heads_are_reported():
    _, report = huggingface.load(GOLDEN, NO_NEXT_SENTENCE)
    assert report.unused == (
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
        "cls.seq_relationship.weight",
    )


def without(tensors, *prefixes):
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}


def test_missing_heads_are_reported(tmp_path, tensors, params):
    loaded, report = huggingface.load(write(tmp_path, without(tensors, "bert.pooler", "cls.seq")), CONFIG)
    assert report == (("pooler", "next_sentence"), ())
    assert loaded.keys() == {"bert", "masked_lm"}
    assert_equal(loaded["bert"]["encoder"], params["bert"]["encoder"])


def test_folder_of_bert_model_has_no_prefix_and_no_heads(tmp_path, tensors, params):
    bare = {name.removeprefix("bert."): tensor for name, tensor in without(tensors, "cls.").items()}
    loaded, report = huggingface.load(write(tmp_path, bare), CONFIG)
    assert report == (("masked_lm", "next_sentence"), ())
    assert_equal(loaded, {"bert": params["bert"]})


def test_names_of_old_versions(tmp_path, tensors, params):
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(15)[None]
    old["cls.predictions.decoder.weight"] = tensors[WORDS]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    loaded, report = huggingface.load(write(tmp_path, old), CONFIG)
    assert report == ((), ())
    assert_equal(loaded, params)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_becomes_float32(tmp_path, tensors, params, dtype):
    loaded, _ = huggingface.load(
        write(tmp_path, {name: tensor.astype(dtype) for name, tensor in tensors.items()}), CONFIG
    )
    assert_equal(loaded, jax.tree.map(lambda leaf: leaf.astype(dtype).astype(np.float32), params))


def write_shards(folder, tensors):
    names = sorted(tensors)
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[i::3]}, folder / file)
        weight_map.update(dict.fromkeys(names[i::3], file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path, tensors, params):
    write_shards(tmp_path, tensors)
    assert_equal(huggingface.load(tmp_path, CONFIG)[0], params)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="model-00002-of-00003"):
        huggingface.load(tmp_path, CONFIG)


@pytest.mark.parametrize("weight_map", [None, ["x"], {"a": 1}, {"a": "../model.safetensors"}])
def test_bad_shard_index(tmp_path, weight_map):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match="weight_map"):
        huggingface.load(tmp_path, CONFIG)


def break_missing(tensors):
    del tensors["bert.encoder.layer.1.output.dense.bias"]


def break_half_a_head(tensors):
    del tensors["bert.pooler.dense.bias"]


def break_shape(tensors):
    tensors["bert.encoder.layer.0.output.dense.weight"] = np.zeros((36, 51), np.float32)


def break_unknown(tensors):
    tensors["classifier.weight"] = np.zeros((2, 36), np.float32)


def break_extra_layer(tensors):
    tensors["bert.encoder.layer.2.output.dense.bias"] = np.zeros(36, np.float32)


def break_type(tensors):
    tensors["bert.pooler.dense.bias"] = np.zeros(36, np.int64)


def break_tie(tensors):
    tensors["cls.predictions.decoder.weight"] = tensors[WORDS] + 1


def break_twice(tensors):
    tensors["pooler.dense.bias"] = tensors["bert.pooler.dense.bias"] + 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_missing, r"layer\.1\.output\.dense\.bias: got no such tensor; expected shape \(36,\)"),
        (break_half_a_head, r"bert\.pooler\.dense\.bias: got no such tensor"),
        (break_shape, r"layer\.0\.output\.dense\.weight: got \(36, 51\); expected shape \(36, 50\)"),
        (break_unknown, r"got 1 unknown: classifier\.weight"),
        (break_extra_layer, r"got 1 unknown: bert\.encoder\.layer\.2\.output\.dense\.bias"),
        (break_type, r"bert\.pooler\.dense\.bias: got int64; expected float32, float16 or bfloat16"),
        (break_tie, r"cls\.predictions\.decoder\.weight: got other values"),
        (break_twice, r"pooler\.dense\.bias: got other values"),
    ],
)
def test_damaged_weights_are_user_errors(tmp_path, tensors, damage, message):
    tensors = dict(tensors)
    damage(tensors)
    with pytest.raises(UserError, match=message):
        huggingface.load(write(tmp_path, tensors), CONFIG)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_user_errors_or_harmless(tmp_path_factory, data):
    """A truncated file never loads; a flipped byte either is found, or changes values alone."""
    content = bytearray((GOLDEN / "model.safetensors").read_bytes())
    truncate = data.draw(st.booleans())
    # The header, where the structure is, has some 4,000 of the 100,000 bytes.
    at = data.draw(st.one_of(st.integers(0, 4500), st.integers(0, len(content) - 1)))
    if truncate:
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "model.safetensors").write_bytes(content)
    try:
        params, _ = huggingface.load(folder, CONFIG)
    except UserError:
        return
    assert not truncate
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


def test_save_writes_what_transformers_would(tmp_path, tensors, params):
    huggingface.save(tmp_path / "new" / "folder", params, CONFIG)
    folder = tmp_path / "new" / "folder"
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == tensors.keys()
    assert_equal(saved, tensors)
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert header["__metadata__"] == {"format": "pt"}
    written, theirs = (json.loads((f / "config.json").read_text()) for f in (folder, GOLDEN))
    assert written.pop("position_embedding_type") == "absolute"
    assert written == {key: theirs[key] for key in written}
    assert huggingface.read_config(folder) == huggingface.read_config(GOLDEN)


def test_save_and_load_round_trip_from_device_arrays(tmp_path):
    config = dataclasses.replace(NO_NEXT_SENTENCE, gelu="tanh")
    ids = jnp.zeros((1, 1), jnp.int32)
    model = BertForPreTraining(config)
    params = jax.jit(lambda key: model.init(key, ids, ids, ids, ids, deterministic=True, return_attention=False))(
        jax.random.key(0)
    )["params"]
    huggingface.save(tmp_path, params, config)
    loaded, report = huggingface.load(tmp_path, config)
    assert report == ((), ())
    assert_equal(loaded, params)
    values = json.loads((tmp_path / "config.json").read_text())
    assert (values["architectures"], values["hidden_act"]) == (["BertForMaskedLM"], "gelu_new")


def test_a_failed_save_leaves_the_old_files_whole(tmp_path, params, monkeypatch):
    huggingface.save(tmp_path, params, CONFIG)
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def half_written(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(huggingface, "save_file", half_written)
    with pytest.raises(OSError, match="disk full"):
        huggingface.save(tmp_path, params, CONFIG)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("field", "value"), [("norm", "pre"), ("direction", "left_to_right")])
def test_options_without_an_equivalent_cannot_be_saved(tmp_path, params, field, value):
    with pytest.raises(UserError, match=f"{field}: got {value}"):
        huggingface.save(tmp_path, params, dataclasses.replace(CONFIG, **{field: value}))
    assert not list(tmp_path.iterdir())


def test_post_norm_weights_do_not_load_into_a_pre_norm_model():
    with pytest.raises(UserError, match="norm: got pre"):
        huggingface.load(GOLDEN, dataclasses.replace(CONFIG, norm="pre"))
