"""`bertjax.load` and `bertjax.train`: models as Python objects."""

import json
import pickle
import random
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import bertjax
from bertjax.configs import classification
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.interop.published import open_weights
from bertjax.training import inference, loop
from tests import published, tiny

TEXTS = ["the cat sees the dog.", "dogs.", "the bird sees the cat. the dog sees the bird."]


@pytest.fixture(scope="module", autouse=True)
def _one_device():
    with tiny.few_devices(1):
        yield


@pytest.fixture(scope="module")
def model(encoder):
    return bertjax.load(encoder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return published.write_sentence_transformers(tmp_path_factory.mktemp("encoder"), "mean_tokens", True, 16)


def test_the_import_starts_no_jax(tmp_path):
    """It also finds the package where a folder has its name, such as the one that contains a clone."""
    (tmp_path / "bertjax").mkdir()
    code = "import sys, bertjax; assert 'jax' not in sys.modules and 'numpy' not in sys.modules; bertjax.load"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_vectors_equal_those_of_the_command_line(encoder, model, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    flags = ["--mode=predict", "--config=configs/features.py:sentence", f"--config.init_from={encoder}"]
    outcome = tiny.run_on_one(*flags, f"--input={path}")
    expected = [json.loads(line)["features"][0] for line in outcome.stdout.splitlines()]
    vectors = model.encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert vectors.dtype == np.float32 and vectors.shape == (3, 16)
    np.testing.assert_array_equal(np.concatenate([each["features"] for each in model.predict(TEXTS)]), vectors)
    assert model.encode([]).shape == (0, 16)


def test_layers_and_pooling_are_options(encoder, model):
    whole = model.encode(TEXTS, normalize=False)
    np.testing.assert_allclose(model.encode(TEXTS), whole / np.linalg.norm(whole, axis=1, keepdims=True), rtol=1e-5)
    assert not np.allclose(model.encode(TEXTS, layer=1, normalize=False), whole)
    assert not np.allclose(model.encode(TEXTS, pooling="cls", normalize=False), whole)
    with pytest.raises(UserError, match=r"^pooling: got 'sum'.*one of"):
        model.encode(TEXTS, pooling="sum")
    for options in ({"layer": [1, 2]}, {"pooling": ["cls"]}, {"prompt": 5}):
        with pytest.raises(UserError, match=r"got .*; expected a"):
            model.encode(TEXTS, **options)
    assert not np.allclose(bertjax.load(encoder, config={"normalize": False}).encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(UserError, match=r"pickle: got a model.*Fix: call bertjax\.load"):
        pickle.dumps(model)


def test_the_module_applies_to_its_parameters(model):
    ids = np.array([model.tokenizer.encode_batch(["the cat"])[0]])
    from bertjax.models.bert import BertInputs

    inputs = BertInputs(ids, np.zeros_like(ids), np.ones_like(ids))
    assert model.model.apply({"params": model.params}, inputs, deterministic=True).shape == (1, 2, 16)
    assert model.config.model.hidden_size == model.config["model"]["hidden_size"] == 16
    with pytest.raises(AttributeError, match="no config key hidden_size"):
        _ = model.config.hidden_size


def test_a_printed_model_names_its_task_classes_and_sizes(encoder, model, monkeypatch):
    monkeypatch.setattr(model.task, "labels", ("no", "yes"), raising=False)
    lines = ["task     features", f"folder   {encoder}", "classes  2: no, yes"]
    lines += ["model    4 layers, 2 heads, hidden size 16, 8.64k parameters"]
    assert str(model) == "\n  ".join(["bertjax model", *lines])


def test_weights_without_next_sentences_predict_none(tmp_path):
    for name, tensors in (("with", ["cls.seq_relationship.weight"]), ("without", ["other"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
        huggingface.write_tensors(tmp_path / name, {tensor: np.zeros(1, np.float32) for tensor in tensors})
    assert not open_weights(tmp_path / "with").required
    assert open_weights(tmp_path / "without").required == {"data.next_sentence": False}


@pytest.mark.parametrize(
    ("folder", "experiment", "config", "message"),
    [
        ("bert-base-uncased", "", {}, r"^folder=bert-base-uncased: got no such folder.* hf download bert-base-uncased"),
        ("ENCODER", "summaries", {}, r"experiment: got 'summaries'.*one of .*bertsum_ext"),
        ("ENCODER", "", {"poolling": "cls"}, r"poolling"),
        ("ENCODER", "", {"data.seq_len.x": 3}, r"data\.seq_len\.x: got a key below seq_len, which is a value"),
        ("ENCODER", "", {"data": None}, r"key data: got None \(NoneType\); expected a value of type DataConfig"),
        ("ENCODER", "", {"experiment": 5}, r"experiment: got 5; expected one of"),
        ("ENCODER", "", {"data": {"seq_len": 9}}, r"config: got 'data': \{.*expected values by dotted key"),
        ("ENCODER", "", {5: 1}, r"config: got 5: 1; expected values by dotted key"),
        ("ENCODER", "", ["poolling"], r"config: got an object of type list; expected a dict"),
        (None, "", {}, r"folder: got an object of type NoneType; expected a path"),
        ("ENCODER", "bert_pretraining", {"data.next_sentence": False}, r"^folder: got no weights of masked_lm"),
        ("ENCODER", "", {"data.seq_len": "long"}, r"data\.seq_len: got 'long'.* Fix: set config\[\"data\.seq_len"),
    ],
)
def test_mistakes_are_user_errors(encoder, folder, experiment, config, message):
    with pytest.raises(UserError, match=message):
        bertjax.load(encoder if folder == "ENCODER" else folder, experiment, config=config)


def test_a_checkpoint_is_a_name_or_a_step(encoder):
    with pytest.raises(UserError, match=r"^checkpoint: got '30', but weights without.* Fix: omit checkpoint;"):
        bertjax.load(encoder, checkpoint=30)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, r"inputs: got an object of type NoneType; expected a list"),
        ("one text", r"inputs: got an object of type str.*\[text\]"),
        (["a", 3], r"input 2: got an object of type int"),
        (["a", ("b", None)], r"input 2: got an object of type tuple"),
        (["a", ""], r"input 2: got an empty text"),
    ],
)
def test_bad_inputs_are_user_errors(model, inputs, message):
    for call in (model.predict, model.encode):
        with pytest.raises(UserError, match=message):
            call(inputs)


def test_the_vector_of_a_skipped_text_is_nan(encoder, caplog):
    model = bertjax.load(encoder, config={"data.on_bad_row": "skip"})
    found, rounded = (model.encode(["dogs.", "", "the cat"], dtype=dtype) for dtype in ("float16", "int8"))
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    assert rounded.any(axis=1).tolist() == [True, False, True]
    np.testing.assert_array_equal(found[::2], model.encode(["dogs.", "the cat"]).astype(np.float16))
    assert "1 of 3 texts are bad: their vectors are NaN" in caplog.messages
    assert "1 of 3 texts are bad: their vectors are zeros" in caplog.messages


def test_vectors_have_the_same_bits_in_any_order_batch_and_file(encoder, model, tmp_path, monkeypatch):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(["the", "cats", "dog", "sees", "."], k=rng.randint(1, 12))) for _ in range(100)]
    monkeypatch.setattr(inference, "_EXACT_BATCHES", 1)  # several windows
    expected = model.encode(texts)
    np.testing.assert_array_equal(model.encode(texts[::-1])[::-1], expected)
    for size in (1, 7):
        parts = [model.encode(texts[start : start + size]) for start in range(0, 28, size)]
        np.testing.assert_array_equal(np.concatenate(parts), expected[:28])
    np.testing.assert_array_equal(np.concatenate([each["features"] for each in model.predict(texts)]), expected)
    read = []
    stream = (text if number < 90 else read.append(number) or 1 / 0 for number, text in enumerate(texts))
    with pytest.raises(ZeroDivisionError):
        model.encode(stream, output=tmp_path / "a" / "vectors.npy")
    assert read == [90] and [*tmp_path.rglob("*.npy")] == []
    with pytest.raises(UserError, match=r"^input 100: got an object of type int"):
        model.encode([*texts[:99], 5], output=tmp_path / "a" / "vectors.npy")
    with pytest.raises(UserError, match=r"^output=.*: got vectors with pooling='mean'; expected pooling='cls'"):
        model.encode(texts, pooling="cls", output=tmp_path / "a" / "vectors.npy")
    found = model.encode(iter(texts), output=tmp_path / "a" / "vectors.npy")
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, expected)
    again = bertjax.load(encoder)
    again.params = jax.tree.map(lambda leaf: leaf * 2, again.params)
    with pytest.raises(UserError, match=r"^output=.*: got vectors with weights='\w{64}'; expected weights='\w{64}'"):
        again.encode(texts, output=tmp_path / "a" / "vectors.npy")
    assert np.abs(model.encode(texts, exact=False) - expected).max() < 1e-6


def test_how_vectors_are_stored_is_checked_first(model, tmp_path):
    for options, message in (
        ({"dtype": "int4"}, r"^dtype: got 'int4'; expected one of float32, float16, int8"),
        ({"dtype": "int8", "normalize": False}, r"^dtype: got int8, which has only directions"),
        ({"output": tmp_path / "a.npy", "exact": False}, r"^exact: got False with an output; expected True"),
    ):
        with pytest.raises(UserError, match=message):
            model.encode(TEXTS, **options)


def test_models_of_other_kinds_have_no_vectors(encoder):
    model = bertjax.load(encoder)
    model.task = object()
    with pytest.raises(UserError, match="encode: got a model of the task features; expected a model with a BERT"):
        model.encode(["a"])


def test_a_run_is_trained_and_resumed_from_python(tmp_path, capsys, monkeypatch):
    config = classification.get_config("tiny")
    table = {"data.text_columns": ("sentence",), "data.label_column": "label", **tiny.write_table(tmp_path)}
    config.update_from_flattened_dict({**table, "num_steps": 2, "data.seq_len": 16, "data.workers": 1})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    before = dict(jax.config.values)
    settle = loop.Trainer.settle
    monkeypatch.setattr(loop.Trainer, "settle", lambda *_: (signal.raise_signal(signal.SIGTERM), settle(*_)))
    with pytest.raises(KeyboardInterrupt, match="the same call resumes"):
        bertjax.train(config, tmp_path / "run", report=False)
    monkeypatch.setattr(loop.Trainer, "settle", settle)
    model = bertjax.train(config.to_dict(), tmp_path / "run", report=False)
    assert set(model.predict(["the cat sees the dog."])[0]) >= {"label", "probabilities"}
    assert "resuming after step 1" in capsys.readouterr().err
    assert dict(jax.config.values) == before
    assert any((tmp_path / "cache").rglob("*-cache"))


def test_an_object_that_is_no_config_is_an_error(tmp_path):
    for config in (None, {"data": {}}, {"experiment": object()}):
        with pytest.raises(UserError, match=r"^config: got "):
            bertjax.train(config, tmp_path)
