import json
import sys
import types

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bertjax.errors import UserError
from bertjax.interop import families, huggingface
from bertjax.interop.published import open_weights
from tests.interop.test_bert_tensors import GOLDEN, configured, shapes
from tests.random_params import random_params
from tests.trees import assert_equal

CONFIG = configured()
SHAPES = shapes("pretraining")


@pytest.fixture(scope="module")
def tensors():
    return load_file(GOLDEN / "model.safetensors")


@pytest.fixture(scope="module")
def params():
    return huggingface.load(GOLDEN, SHAPES)[0]


def write(folder, tensors):
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def write_config(folder, remove=(), **changes):
    values = json.loads((GOLDEN / "config.json").read_text()) | changes
    text = json.dumps({key: value for key, value in values.items() if key not in remove})
    (folder / "config.json").write_text(text)
    return folder


def test_read_config():
    assert open_weights(GOLDEN).fields == {
        **families.find("bert").fixed,
        "vocab_size": 61,
        "hidden_size": 36,
        "num_layers": 2,
        "num_heads": 3,
        "intermediate_size": 50,
        "max_positions": 15,
        "type_vocab_size": 2,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu",
        "norm_eps": 1e-12,
        "initializer_range": 0.02,
    }


TANH = [("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")]


@pytest.mark.parametrize(
    ("hidden_act", "activation"), [("gelu", "gelu"), *TANH, ("relu", "relu"), ("silu", "silu"), ("swish", "silu")]
)
def test_activations(tmp_path, hidden_act, activation):
    assert open_weights(write_config(tmp_path, hidden_act=hidden_act)).fields["activation"] == activation


def test_old_configs_lack_some_keys(tmp_path):
    folder = write_config(tmp_path, remove=("layer_norm_eps", "is_decoder", "tie_word_embeddings"))
    assert open_weights(folder).fields == open_weights(GOLDEN).fields


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: got gpt2; expected bert, .*, mt5. Fix: use a model of one of these fam"),
        ({"model_type": "neobert", "auto_map": {"AutoModel": "model.NeoBERT"}}, r"got neobert, with its own code"),
        ({"hidden_act": "tanh"}, "hidden_act: got tanh; expected one of gelu, "),
        ({"hidden_act": ["gelu"]}, "hidden_act: got "),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: got relative_key"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: got False"),
        ({"remove": ("hidden_size",)}, "hidden_size: got no value"),
        ({"remove": ("model_type",)}, "model_type: got no value"),
    ],
)
def test_other_models_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        _ = open_weights(write_config(tmp_path, **changes)).fields


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"bert"', b"\xff\xfe", b"[" * 100_000])
def test_unreadable_config(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json: got .*Fix: download"):
        _ = open_weights(tmp_path).fields


def test_no_such_folder(tmp_path):
    with pytest.raises(UserError, match=r"got no weights; expected model\.safetensors"):
        huggingface.load(tmp_path / "none", SHAPES)


def without(tensors, *prefixes):
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}


def test_shards(tmp_path, tensors, params):
    weight_map = {}
    for i in range(3):
        names, file = sorted(tensors)[i::3], f"model-{i + 1:05}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names}, tmp_path / file)
        weight_map.update(dict.fromkeys(names, file))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_equal(huggingface.load(tmp_path, SHAPES)[0], params)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="model-00002-of-00003"):
        huggingface.load(tmp_path, SHAPES)


@pytest.mark.parametrize("weight_map", [None, ["x"], {"a": 1}, {"a": "../model.safetensors"}])
def test_bad_shard_index(tmp_path, weight_map):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match="weight_map"):
        huggingface.load(tmp_path, SHAPES)


def test_errors_of_damaged_weights_name_the_folder(tmp_path, tensors):
    with pytest.raises(UserError, match=rf"{tmp_path}: tensors: got 1 unknown: crf\.transitions"):
        huggingface.load(write(tmp_path, {**tensors, "crf.transitions": np.zeros(2, np.float32)}), SHAPES)
    with pytest.raises(UserError, match=rf"{tmp_path}: crf\.tags: got int64; expected float32"):
        huggingface.load(write(tmp_path, {**tensors, "crf.tags": np.zeros(2, np.int64)}), SHAPES)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_bytes_are_user_errors_or_harmless(tmp_path_factory, data):
    """A truncated file never loads. A flipped byte is either detected, or changes only values."""
    content = bytearray((GOLDEN / "model.safetensors").read_bytes())
    truncate = data.draw(st.booleans())
    # The header, which contains the structure, has about 4,000 of the 100,000 bytes.
    at = data.draw(st.one_of(st.integers(0, 4500), st.integers(0, len(content) - 1)))
    if truncate:
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "model.safetensors").write_bytes(content)
    try:
        params, _ = huggingface.load(folder, SHAPES)
    except UserError:
        return
    assert not truncate
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


def test_saved_files_equal_those_of_transformers(tmp_path, tensors, params):
    huggingface.save(tmp_path / "new" / "folder", params, CONFIG, "BertForPreTraining")
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
    assert open_weights(folder).fields == open_weights(GOLDEN).fields


@pytest.mark.parametrize(("activation", "hidden_act"), [("gelu_tanh", "gelu_new"), ("relu", "relu"), ("silu", "silu")])
def test_save_and_load_round_trip_from_device_arrays(tmp_path, activation, hidden_act):
    config = configured(activation=activation)
    params = jax.device_put(random_params(lambda _: shapes("masked_lm")))
    huggingface.save(tmp_path, params, config, "BertForMaskedLM")
    loaded, report = huggingface.load(tmp_path, shapes("masked_lm"))
    assert report == ((), ())
    assert_equal(loaded, params)
    values = json.loads((tmp_path / "config.json").read_text())
    assert (values["architectures"], values["hidden_act"]) == (["BertForMaskedLM"], hidden_act)
    assert open_weights(tmp_path).fields["activation"] == activation


def test_a_model_without_token_types_is_saved_with_zeros(tmp_path):
    """Because BERT of transformers always adds an embedding of token types."""
    config = configured(type_vocab_size=0)
    params = random_params(lambda _: shapes("masked_lm", type_vocab_size=0))
    assert "token_type_embeddings" not in params["bert"]["embeddings"]
    huggingface.save(tmp_path, params, config, "BertForMaskedLM")
    assert open_weights(tmp_path).fields["type_vocab_size"] == 1
    loaded, _ = huggingface.load(tmp_path, shapes("masked_lm", type_vocab_size=1))
    table = loaded["bert"]["embeddings"].pop("token_type_embeddings")
    np.testing.assert_array_equal(table, np.zeros((1, config.hidden_size)))
    assert_equal(loaded, params)


def test_a_failed_save_keeps_the_old_files(tmp_path, params, monkeypatch):
    huggingface.save(tmp_path, params, CONFIG, "BertForPreTraining")
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def half_written(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(huggingface, "save_file", half_written)
    with pytest.raises(OSError, match="disk full"):
        huggingface.save(tmp_path, params, CONFIG, "BertForPreTraining")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("field", "value"), [("norm", "pre"), ("direction", "left_to_right")])
def test_options_without_an_equivalent_cannot_be_saved(tmp_path, field, value):
    config = configured(**{field: value})
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes("pretraining", **{field: value}))
    with pytest.raises(UserError, match=f"{field}: got {value}"):
        huggingface.save(tmp_path, params, config, "BertForPreTraining")
    assert not list(tmp_path.iterdir())


def test_params_must_be_those_of_the_architecture(tmp_path, params):
    with pytest.raises(UserError, match=r"got parameters .*next_sentence.*, for BertForMaskedLM; .* override `export`"):
        huggingface.save(tmp_path, params, CONFIG, "BertForMaskedLM")


def with_classifier(params, count):
    rng = np.random.default_rng(0)
    head = {"kernel": rng.standard_normal((36, count), np.float32), "bias": rng.standard_normal(count, np.float32)}
    return {"bert": params["bert"], "classifier": head}


@pytest.mark.parametrize(
    ("labels", "count", "expected", "problem_type"),
    [
        (("no", "yes"), 2, ("no", "yes"), "single_label_classification"),
        (None, 3, ("LABEL_0", "LABEL_1", "LABEL_2"), "single_label_classification"),
        (None, 1, ("LABEL_0",), "regression"),
        ([f"tag {i}" for i in range(12)], 12, tuple(f"tag {i}" for i in range(12)), "single_label_classification"),
    ],
)
def test_classes(tmp_path, params, labels, count, expected, problem_type):
    classifier = with_classifier(params, count)
    huggingface.save(tmp_path, classifier, CONFIG, "BertForSequenceClassification", labels)
    assert open_weights(tmp_path).labels == expected
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["label2id"] == {name: i for i, name in enumerate(expected)}
    assert values["problem_type"] == problem_type
    loaded, report = huggingface.load(tmp_path, classifier)
    assert report == ((), ())
    assert_equal(loaded, classifier)


def test_token_classes_have_no_problem_type(tmp_path, params):
    tagger = with_classifier({"bert": {k: v for k, v in params["bert"].items() if k != "pooler"}}, 2)
    huggingface.save(tmp_path, tagger, CONFIG, "BertForTokenClassification", ("O", "B-PER"))
    assert open_weights(tmp_path).labels == ("O", "B-PER")
    assert "problem_type" not in json.loads((tmp_path / "config.json").read_text())


def test_a_bare_model_is_written_without_prefix(tmp_path, params, tensors):
    huggingface.save(tmp_path, params["bert"], CONFIG, "BertModel")
    saved = load_file(tmp_path / "model.safetensors")
    assert_equal(saved, {name.removeprefix("bert."): tensor for name, tensor in without(tensors, "cls.").items()})
    assert_equal(huggingface.load(tmp_path, params["bert"])[0], params["bert"])


def test_default_labels_that_transformers_omits(tmp_path):
    assert open_weights(GOLDEN).labels == ()  # without a classifier
    folder = write_config(tmp_path, architectures=["BertForSequenceClassification"])
    assert open_weights(folder).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("problem_type", "objective"),
    [
        (None, None),
        ("single_label_classification", "classification"),
        ("multi_label_classification", "multi_label"),
        ("regression", "regression"),
    ],
)
def test_the_objective_of_a_classifier_is_read(tmp_path, problem_type, objective):
    assert open_weights(write_config(tmp_path, problem_type=problem_type)).objective == objective


@pytest.mark.parametrize("id2label", [{"1": "a"}, {"0": 3}, {}, ["a"], {"0": "a", "00": "b"}])
def test_bad_labels(tmp_path, id2label):
    with pytest.raises(UserError, match=r"config\.json: id2label: got .*; expected names by number.*Fix: "):
        _ = open_weights(write_config(tmp_path, id2label=id2label)).labels


@pytest.fixture
def torch_reader(monkeypatch):
    """Replaces the reader of pickled weights. Contains the files that it read, and tensors by file name."""
    read, files = [], {}
    module = types.ModuleType("bertjax.interop.formats.torch_pickle")
    module.read_tensors = lambda path: read.append(path.name) or files[path.name]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("bertjax.interop.formats.torch_pickle", module, raising=False)
    return read, files


def test_pickled_weights_are_read_if_there_are_no_others(tmp_path, tensors, params, torch_reader):
    read, files = torch_reader
    files["pytorch_model.bin"] = tensors
    (tmp_path / "pytorch_model.bin").touch()
    assert_equal(huggingface.load(tmp_path, SHAPES)[0], params)
    assert read == ["pytorch_model.bin"]
    huggingface.load(write(tmp_path, tensors), SHAPES)
    assert read == ["pytorch_model.bin"]
