"""Vectors of pieces, words and texts, from lines to files, compared with the model's own layers."""

import functools
import json
import random
from unittest import mock

import jax
import numpy as np
import pytest

import bertjax
from bertjax.data.readers.feature_files import FeatureFiles
from bertjax.errors import UserError
from bertjax.experiments import features
from bertjax.interop import huggingface
from bertjax.models.bert import Bert, BertInputs
from bertjax.modes import stages, streams
from bertjax.training.inference import Inference
from tests import published, tiny
from tests.data.text import byte_bpe
from tests.experiments.commands import done, tree_of
from tests.random_params import random_params

LONG = " ".join(random.Random(0).choices(["the", "cats", "birding", "dog", "sees", "."], k=48))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return published.write_huggingface(tmp_path_factory.mktemp("bert"))


def resolved(folder, variant, **overrides):
    return stages.of_config(features, tree_of("features", variant, {"init_from": str(folder), **overrides}))


@functools.cache
def runner(folder, variant, overrides):
    begun = resolved(folder, variant, **dict(overrides))
    _, settings, task, _ = begun.to_predict()
    fresh = random_params(task.init)  # replaced by the folder's weights
    with tiny.few_devices(1), mock.patch.object(features.Task, "init", lambda *_: fresh):
        return task, Inference(task, settings, None, "final", begun.published)


def extract(folder, lines, variant, **overrides):
    task, inference = runner(folder, variant, tuple(overrides.items()))
    return list(inference.records(task.examples(iter(lines))))


@functools.cache
def model():
    bert = Bert(published.CONFIG, pooler_activation="tanh")
    return jax.jit(functools.partial(bert.apply, deterministic=True, return_attention=False, return_layers=True))


def layers_of(first, second=None):
    """Returns the outputs of all layers for a row: [L + 1, S, H]."""
    tokenizer = published.TOKENIZER
    ids = [tokenizer.cls_id, *first, tokenizer.sep_id]
    types = [0] * len(ids)
    if second is not None:
        ids, types = [*ids, *second, tokenizer.sep_id], types + [1] * (len(second) + 1)
    rows = (ids, types, [1] * len(ids))
    inputs = BertInputs(*(np.pad(np.int32([row]), ((0, 0), (0, 32 - len(ids)))) for row in rows))
    return np.asarray(model()({"params": published.params()}, inputs).layers)[:, 0, : len(ids)]


def encode(text):
    return published.TOKENIZER.encode_batch([text])[0]


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("mixing", ["concatenation", "sum"])
def test_words_have_the_vectors_of_their_first_pieces(folder, mixing):
    (record,) = extract(folder, ["The cats  sees doggy."], "word", **{"model.layers": (0, -2), "model.mixing": mixing})
    assert record["units"] == ["The", "cats", "sees", "doggy."]
    layers = layers_of(encode("the cats sees doggy."))  # [CLS] the cat ##s sees [UNK] . [SEP]
    places = [1, 2, 4, 5]
    both = layers[0][places], layers[-2][places]
    close(record["features"], np.concatenate(both, axis=1) if mixing == "concatenation" else sum(both))


def test_words_have_the_mean_of_their_pieces(folder):
    text = "birdings dogs unknown the"
    assert len(encode(text)) == 7
    (record,) = extract(folder, [text], "word", **{"model.layers": (-1,), "word_pooling": "mean"})
    last = layers_of(encode(text))[-1]
    close(record["features"], [last[1:4].mean(0), last[4:6].mean(0), last[6], last[7]])


def test_the_last_four_layers_are_the_default_and_a_shallow_model_has_fewer(folder):
    assert resolved(folder, "word").config["model"]["layers"] == (-4, -3, -2, -1)
    assert resolved(published.GOOGLE, "piece").config["model"]["layers"] == (-2, -1)
    assert resolved(folder, "sentence").config["model"]["layers"] == (-1,)


def test_pairs(folder):
    (record,) = extract(folder, ["the cats\tdogs"], "word", **{"model.layers": (-1,)})
    assert (record["units"], record["second"]) == (["the", "cats", "dogs"], 2)
    close(record["features"], layers_of(encode("the cats"), encode("dogs"))[-1][[1, 2, 5]])
    (record,) = extract(folder, ["the cats\tdogs"], "sentence")
    assert (record["units"], "second" in record) == (["the cats\tdogs"], False)
    close(record["features"], layers_of(encode("the cats"), encode("dogs"))[-1].mean(0, keepdims=True))


@pytest.mark.parametrize(("pooling", "line"), [("word", LONG), ("piece", LONG), ("word", f"{LONG}\t{LONG[::-1]}")])
def test_every_word_of_a_long_text_has_a_vector(folder, pooling, line):
    texts = line.split("\t")
    units, kinds = [], []
    for kind, text in enumerate(texts):
        pieces = [published.TOKENIZER.vocab[i] for i in encode(text)]
        units += text.split() if pooling == "word" else pieces
        kinds += [kind] * (len(units) - len(kinds))
    options = {"data.seq_len": 12, "model.layers": (0, -1)}
    (record,) = extract(folder, [line], pooling, **options)
    assert record["units"] == units and record["split"] is True and "truncated" not in record
    embedded, last = np.split(record["features"], 2, axis=1)
    assert len({row.tobytes() for row in last}) == len(units)  # no position occurs twice
    # The embeddings determine piece, position and text.
    for unit, kind, vector in zip(units, kinds, embedded, strict=True):
        first_piece = encode(unit)[:1] if pooling == "word" else [published.TOKENIZER.vocab.index(unit)]
        rows = layers_of([], first_piece * 9) if kind else layers_of(first_piece * 10)
        assert np.abs(rows[0] - vector).max(axis=1).min() < 1e-5, unit


def test_a_text_without_pieces_has_no_vectors(folder):
    options = {"model.layers": (-1,)}
    empty, other = extract(folder, ["\u200b", "the"], "piece", **options)
    assert (empty["units"], empty["features"].shape) == ([], (0, 16))
    assert other["features"].shape == (1, 16)
    (record,) = extract(folder, ["\u200b the"], "word", **options)
    assert record["units"] == ["\u200b", "the"]


@pytest.mark.parametrize("included", [True, False])
def test_prompts_precede_texts_as_in_sentence_transformers(tmp_path, included):
    folder = published.write_sentence_transformers(tmp_path, "mean_tokens", False, 16)
    prompts = {"prompts": {"query": "the cat: ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    modes = {"pooling_mode_mean_tokens": True, "include_prompt": included}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    chosen = {"the cat: ": {}, "": {"prompt_name": "document"}, "bird ": {"prompt": "bird "}}
    with tiny.few_devices(1):
        model = bertjax.load(folder)
        for prompt, options in chosen.items():
            first = 0 if included or not prompt else 1 + len(encode(prompt))  # without [CLS], as there
            expected = layers_of(encode(f"{prompt}dogs."))[-1][first:].mean(0)
            close(model.encode(["dogs."], **options)[0], expected)
            (record,) = extract(folder, ["dogs."], "sentence", **options)
            close(record["features"][0], expected)
        for options, message in (
            ({"prompt_name": "queri"}, "prompt_name: got 'queri'; expected one of query, .* Did you mean 'query'"),
            ({"prompt_name": "query", "prompt": "a"}, "prompt: got 'a' with prompt_name='query'; expected a text"),
        ):
            with pytest.raises(UserError, match=message):
                model.encode(["dogs."], **options)
    with pytest.raises(UserError, match=r"prompt: got 'the cat: ' with pooling=word"):
        resolved(folder, "word", prompt_name="query").to_predict()


def test_the_config_overrides_the_folder(tmp_path):
    folder = published.write_sentence_transformers(tmp_path, "mean_tokens", normalize=True, max_seq_length=9)
    overrides = {"sentence_pooling": "max", "normalize": False, "data.seq_len": 12, "model.layers": (0,)}
    config = resolved(folder, "sentence", **overrides).config
    assert (config["sentence_pooling"], config["normalize"], config["data"]["seq_len"]) == ("max", False, 12)
    assert config["model"]["layers"] == [0]
    of_words = resolved(folder, "word").config
    assert (of_words["normalize"], of_words["data"]["seq_len"]) == (False, 32)


def test_lowercasing_in_front_of_a_cased_tokenizer_is_refused(tmp_path):
    folder = published.write_sentence_transformers(tmp_path, "mean_tokens", normalize=True, max_seq_length=9)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    assert resolved(folder, "sentence").config["data"]["seq_len"] == 9
    (folder / "vocab.txt").unlink()
    byte_bpe.trained().save(folder)
    with pytest.raises(UserError, match="do_lower_case: got True; expected False, or a tokenizer that lowercases"):
        resolved(folder, "sentence")


def write_dense(folder, number, kernel, bias, activation):
    """Adds a module `Dense` after the pooling to a folder of sentence-transformers."""
    path = folder / f"{number}_Dense"
    path.mkdir()
    tensors = {"linear.weight": np.ascontiguousarray(kernel.T)} | ({} if bias is None else {"linear.bias": bias})
    huggingface.write_tensors(path, tensors)
    values = {"in_features": len(kernel), "out_features": kernel.shape[1], "bias": bias is not None}
    values["activation_function"] = f"torch.nn.modules.{activation}"
    (path / "config.json").write_text(json.dumps(values))
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(number, {"path": path.name, "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))


def test_an_export_has_the_vectors_of_its_folder_of_sentence_transformers(tmp_path):
    folder, rng = published.write_sentence_transformers(tmp_path / "a", "", True, 9), np.random.RandomState(0)
    first, second, bias = (np.float32(rng.randn(*shape)) for shape in ((32, 5), (5, 7), (7,)))
    write_dense(folder, 2, first, None, "linear.Identity")
    write_dense(folder, 3, second, bias, "activation.Tanh")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["weightedmean", "cls"]}')
    prompts = {"prompts": {"query": "the cat: ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    expected = []
    for text in ("dogs", LONG):
        tokens = layers_of(encode(f"the cat: {text}")[:7])[-1]
        weights = np.arange(1, len(tokens) + 1)
        pooled = np.concatenate([weights @ tokens / weights.sum(), tokens[0]])
        mapped = np.tanh(pooled @ first @ second + bias)
        expected.append(mapped / np.linalg.norm(mapped))
    with tiny.few_devices(1):
        model = bertjax.load(folder)
        close(model.encode(["dogs", LONG]), expected)
        close(bertjax.load(folder, config={"pooling": "word"}).encode(["dogs", LONG]), expected)
        with pytest.raises(UserError, match="pooling: got 'cls', for vectors of 16; expected vectors of 32"):
            model.encode(["dogs"], pooling="cls")
        with pytest.raises(UserError, match=r"dense: got .* expected \(\) or \[.*, as in"):
            bertjax.load(folder, config={"dense": ({"size": 2},)})
        plain = bertjax.load(folder, config={"dense": (), "normalize": False})
        close(plain.encode(["dogs"])[0][16:], layers_of(encode("the cat: dogs"))[-1][0])
        model.export(tmp_path / "b")
        again = bertjax.load(tmp_path / "b")
        close(again.encode(["dogs", LONG]), expected)
        close(again.encode(["dogs"], prompt_name="document"), model.encode(["dogs"], prompt=""))
        with pytest.raises(UserError, match=r"pooling and model.layers: got sentence and \(0,\); expected sentence"):
            bertjax.load(folder, config={"dense": (), "model.layers": (0,)}).export(tmp_path / "c")


def test_shards_have_the_same_vectors_as_lines(folder, tmp_path):
    lines = ["the cats\tdogs", LONG, "a\tb\tc", "sees"]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    flags = ["--mode=predict", "--config=configs/features.py", f"--config.init_from={folder}"]
    flags += ["--config.data.on_bad_row=skip", f"--input={tmp_path / 'in.txt'}", "--config.model.layers=(-1,-2)"]
    outcome = done(*flags)
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    output = tmp_path / "out"
    outcome = done(*flags, f"--output={output}/", "--config.dtype_out=float16")
    files = FeatureFiles(output)
    assert (files.made_with["size"], files.made_with["model"]["layers"]) == (32, [-1, -2])
    bad, texts = records.pop(2), list(files)
    assert texts.pop(2)[0] == [] and files[2].features.shape == (0, 32)
    assert bad == {"error": files[2].error} and "line 3: got 3 texts;" in bad["error"]
    for text, record in zip(texts, records, strict=True):
        assert (text.units, text.second, text.error) == (record["units"], record.get("second"), None)
        assert text.features.dtype == np.float16
        np.testing.assert_allclose(text.features, record["features"], rtol=1e-3, atol=1e-3)
    outcome = tiny.run_on_one(*flags, f"--output={output}")  # without a slash, but the folder exists
    tiny.check_message(outcome.error, "--output=.*out", "not empty", expected="new or empty", fix="choose another")


def test_lines_have_six_decimals_and_valid_json():
    record = {"units": ["a"], "features": np.array([[1 / 3, 2.0]], np.float16)}
    assert streams.json_line(record) == '{"units": ["a"], "features": [[0.333252, 2.0]]}\n'
    with pytest.raises(UserError, match="numbers that are not finite"):
        streams.json_line({"features": np.array([np.nan])})


def test_features_cannot_be_trained(folder, tmp_path):
    workdir = f"--workdir={tmp_path / 'run'}"
    outcome = tiny.run_on_one("--mode=train", "--config=configs/features.py", f"--config.init_from={folder}", workdir)
    told = {"got": "without training", "expected": "predict", "fix": "--mode=predict --input=FILE"}
    tiny.check_message(outcome.error, what="--mode=train", **told)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.layers": (5,)}, r"model\.layers: got \(5,\); expected one or more of 0 .* to 4, or -5 to -1, each"),
        ({"model.layers": (-1, 4)}, r"model\.layers: got \(-1, 4\); .* Fix: use for example \(-4, -3, -2, -1\)"),
        ({"data.seq_len": 33}, r"data\.seq_len: got 33; expected 8 to model\.max_positions=32"),
        ({"model.num_layers": 2}, r"model\.num_layers: got 2; expected 4, as in init_from"),
    ],
)
def test_bad_values_are_user_errors(folder, overrides, message):
    with pytest.raises(UserError, match=message):
        resolved(folder, "word", **overrides).to_predict()
