"""Each kind of folder in `init_from`: what it determines, and its weights."""

import contextlib
import dataclasses
import functools
import json
import logging
import shutil
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

import bertjax
from bertjax.data.text.vocabularies import Added
from bertjax.data.text.vocabulary_config import load_wordpiece
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.interop.families import google
from bertjax.interop.published import MODEL_KEYS, open_weights
from bertjax.models.bert import BertForPreTraining, BertInputs
from bertjax.models.heads import BertForSequenceClassification
from bertjax.runs import checkpoints
from bertjax.tasks import completion, pretrained
from bertjax.tasks.objectives import OBJECTIVES
from tests import published, tiny
from tests.experiments.commands import done, flags
from tests.random_params import random_params

SIZES = {
    "num_layers": 4,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 32,
    "type_vocab_size": 2,
    "activation": "gelu",
    "norm_eps": 1e-12,
    "norm": "post",
    "direction": "both",
}
# The values of folders that cannot express others.
BERT = {"positions": "learned", "gated": False, "biases": True, "tie_output": True, "head": "pooler"}
IDS = np.zeros((1, 1), np.int32)


def check_bert(folder, sizes):
    """Checks that a folder has an uncased BERT of these sizes without classes."""
    found = open_weights(folder)
    assert found.model.items() >= {**BERT, **{key: sizes[key] for key in (*SIZES, "vocab_size")}}.items()
    assert set(found.model) == set(MODEL_KEYS)
    assert (found.lowercase, found.labels, found.rows, found.num_classes) == (True, (), {}, 0)
    assert found.objective is None


@pytest.fixture(scope="module")
def huggingface_folder(tmp_path_factory):
    return published.write_huggingface(tmp_path_factory.mktemp("huggingface"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A classifier trained for a step from a google-research checkpoint that does not say its casing."""
    folder = tmp_path_factory.mktemp("runs")
    values = {**tiny.write_table(folder / "rows"), "data.seq_len": 10, "num_steps": 1, "batch_size": 8}
    values |= {"init_from": shutil.copytree(published.GOOGLE, folder / "mine") / "bert_model.ckpt"}
    values |= {"data.vocab_file": "", "data.lowercase": True}  # the folder has a vocabulary
    done("--config=configs/classification.py", f"--workdir={folder / 'run'}", *flags(values))
    return folder / "run"


def with_config(folder, copy, **values):
    """A copy of a folder with other values in its config.json."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **values}))
    return copy


def resolve(folder, model=None, **data):
    """Resolves a config that sets only the arguments."""
    sizes = {**dict.fromkeys((*SIZES, "vocab_size")), **(model or {})}
    data = {"vocab_file": "", "lowercase": None, **data}
    config = {"experiment": "classification", "init_from": str(folder), "model": sizes, "data": data}
    return completion.bert(config, open_weights(Path(folder)) if folder else None)


def init(model, *arguments, **options):
    """Random parameters of a model; its arguments are BERT's inputs and `arguments`."""
    inputs, options = BertInputs(IDS, IDS, IDS), {"deterministic": True, **options}
    params = random_params(functools.partial(model.init, **options), inputs, *arguments, seed=1)["params"]
    return jax.device_put(params)


@functools.cache
def classifier():
    return init(BertForSequenceClassification(published.CONFIG, 3, 0.0, 0))


def classifier_of(run, lstm_size=0):
    """Random parameters of a classifier with a run's sizes."""
    sizes = dataclasses.replace(published.CONFIG, **open_weights(run).model)
    return init(BertForSequenceClassification(sizes, 2, 0.0, lstm_size))


def equal(tree, other):
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def test_a_hugging_face_folder(huggingface_folder):
    check_bert(huggingface_folder, {**SIZES, "vocab_size": published.TOKENIZER.vocab_size})
    resolved = resolve(huggingface_folder)
    assert resolved["model"] == {**open_weights(huggingface_folder).model, "family": "bert"}
    assert resolved["data"] == {"vocab_file": str(huggingface_folder), "lowercase": True}


def test_a_hugging_face_folder_with_classes(huggingface_folder, tmp_path):
    def opened(**values):
        values = {"id2label": {"0": "no", "1": "yes"}, **values}
        return open_weights(with_config(huggingface_folder, tmp_path, **values))

    assert opened().labels == ("no", "yes")
    assert pretrained.has_classes(opened(), ("no", "yes"))
    for labels in (("yes", "no"), ("no", "yes", "maybe"), ()):
        assert not pretrained.has_classes(opened(), labels)
    for kind, is_of_texts in (("BertForSequenceClassification", True), ("BertForTokenClassification", False)):
        assert pretrained.has_classes(opened(architectures=[kind]), ("no", "yes")) == is_of_texts
    fits = {None: (1, 1), "single_label": (1, 0), "multi_label": (0, 1), "regression": (0, 0)}
    for kind, expected in fits.items():
        problem_type = f"{kind}_classification" if kind and "label" in kind else kind
        weights = opened(architectures=["BertForSequenceClassification"], problem_type=problem_type)
        assert tuple(pretrained.has_classes(weights, ("no", "yes"), many) for many in (False, True)) == expected
    for experiment in ("classification", "relation"):  # another task that extends classification has a head of its own
        with mock.patch.object(type(weights), "experiment", experiment):
            is_loaded = pretrained.has_classes(opened(), ("no", "yes"), experiment="relation")
            assert is_loaded == (experiment == "relation")
    objective = mock.patch.object(type(weights), "objective", "asymmetric")  # a new loss for several classes
    with mock.patch.dict(OBJECTIVES, asymmetric=OBJECTIVES["multi_label"]), objective:
        assert [pretrained.has_classes(weights, ("no", "yes"), many) for many in (False, True)] == [False, True]


@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_a_google_research_folder(name):
    check_bert(published.GOOGLE / name, google.read_config(published.GOOGLE))


def test_a_folder_of_sentence_transformers(tmp_path):
    folder = published.write_sentence_transformers(tmp_path, "mean_tokens", normalize=True, max_seq_length=9)
    assert open_weights(folder).model["hidden_size"] == 16
    inside = tmp_path / "0_Transformer"  # as in older versions
    inside.mkdir()
    for path in folder.glob("*"):
        if path.is_file() and path.name != "modules.json":
            path.rename(inside / path.name)
    check_bert(folder, {**SIZES, "vocab_size": published.TOKENIZER.vocab_size})
    equal(pretrained.warm_start(classifier(), open_weights(folder), ("classifier",))["bert"], published.params())


def test_a_bertjax_run(run):
    found = open_weights(run)
    assert (found.lowercase, found.labels) == (True, ("no", "yes"))
    assert (found.model["hidden_size"], found.model["vocab_size"]) == (8, 30)
    assert found.config == json.loads((run / "config.json").read_text())
    assert resolve(run)["data"]["vocab_file"] == str(run)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({"num_layers": 2}, {}, r"model\.num_layers: got 2; expected 4, as in init_from=.* Fix: omit this key; if"),
        ({"activation": "relu"}, {}, r"model\.activation: got relu; expected gelu"),
        ({"vocab_size": 99}, {}, r"model\.vocab_size: got 99; expected 14"),
        ({}, {"lowercase": False}, r"data\.lowercase: got False; expected True"),
        ({}, {"vocab_file": "other.txt"}, r"data\.vocab_file: got other\.txt; expected .*, as in init_from"),
    ],
)
def test_contradictions_are_reported(huggingface_folder, model, data, message):
    with pytest.raises(UserError, match=message):
        resolve(huggingface_folder, model, **data)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"bos_token_id": 9, "cls_token_id": 2, "sep_token_id": None, "mask_token_id": 4}, None),
        ({"pad_token_id": 5}, r"the tokenizer: got \[PAD\] with id 0; expected id 5, pad_token_id in config\.json"),
        ({"bos_token_id": 0, "cls_token_id": 1}, r"got \[CLS\] with id 2; expected id 1, cls_token_id"),
        ({"eos_token_id": 2}, r"got \[SEP\] with id 3; expected id 2, eos_token_id"),
        ({"mask_token_id": 3}, r"got \[MASK\] with id 4; expected id 3, mask_token_id"),
        ({"vocab_size": 13}, r"data\.vocab_file: got 14 tokens; expected at most 13"),
    ],
)
def test_a_tokenizer_that_does_not_fit_the_weights_is_an_error(huggingface_folder, tmp_path, ids, message):
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        resolve(with_config(huggingface_folder, tmp_path, **ids))


def test_pretraining_predicts_the_next_sentence_only_if_the_family_does(huggingface_folder, tmp_path, caplog):
    assert resolve(huggingface_folder, next_sentence=True)["data"]["next_sentence"]
    folder = with_config(huggingface_folder, tmp_path, model_type="roberta")
    assert not resolve(folder, next_sentence=True)["data"]["next_sentence"]
    assert caplog.messages == ["data.next_sentence=False: RoBERTa has no next-sentence prediction"]


def test_what_heads_read_may_differ_from_the_folder(huggingface_folder):
    resolved = resolve(huggingface_folder, {"head": "transform", "pooling": "mean"})
    assert (resolved["model"]["head"], resolved["model"]["pooling"]) == ("transform", "mean")
    resolved = resolve(huggingface_folder, {"head": None, "pooling": None})
    assert (resolved["model"]["head"], resolved["model"]["pooling"]) == ("pooler", "cls")


def test_a_missing_size():
    told = r"neither a size nor init_from \(model\.num_layers is not set\).* Fix: append.* such as \$BERT must be set"
    with pytest.raises(UserError, match=told):
        resolve("")
    assert resolve("", SIZES, lowercase=True)["model"] == {**SIZES, "vocab_size": None, "family": "bert"}


@pytest.mark.parametrize(("is_there", "got"), [(False, "no such folder"), (True, "no checkpoint, config.json or")])
def test_folders_without_a_model(tmp_path, is_there, got):
    folder = tmp_path if is_there else tmp_path / "none"
    expected = "expected a run, a folder.* Fix: correct the path"
    with pytest.raises(UserError, match=rf"init_from={folder}: got {got}.*; {expected}"):
        open_weights(folder)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("bert-base-uncased", "download it: hf download bert-base-uncased --local-dir bert-base-uncased;"),
        ("google-bert/bert-base-uncased", "download it: hf download google-bert/bert-base-uncased --local-dir bert-"),
        ("runs/nosuch", "correct the path"),
        ("tests/no-such-run", "correct the path"),  # a folder of this name exists
        ("nosuch", "correct the path"),
        ("tests/tiny.py", r"correct the path\.$"),
    ],
)
def test_only_names_of_the_hub_can_be_downloaded(name, fix):
    with pytest.raises(UserError, match=f"init_from={name}: got no .* Fix: {fix}"):
        open_weights(Path(name))


@pytest.mark.parametrize(
    ("files", "name", "fix"),
    [
        (("config.json", "x"), "x", "name its folder, "),
        (("pytorch_model.bin",), "", "copy config.json and the vocabulary "),
        (("model.safetensors",), "model.safetensors", "copy config.json and the vocabulary "),
    ],
)
def test_weights_that_lack_a_config(tmp_path, files, name, fix):
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(UserError, match=f" Fix: {fix}.*{tmp_path}"):
        open_weights(tmp_path / name)


def test_an_adapter_is_not_ignored(huggingface_folder, tmp_path):
    folder = shutil.copytree(huggingface_folder, tmp_path / "folder")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"got an adapter of PEFT \(adapter_config\.json\).* merge_and_unload"):
        open_weights(folder)


def test_a_folder_without_a_vocabulary_can_have_that_of_the_config(huggingface_folder, tmp_path):
    folder = shutil.copytree(huggingface_folder, tmp_path / "folder")
    vocabulary = shutil.move(folder / "vocab.txt", tmp_path / "vocab.txt")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match=rf"data\.vocab_file: got no value, and no vocabulary in {folder}.* or copy"):
        bertjax.load(folder)
    vectors = bertjax.load(folder, config={"data.vocab_file": str(vocabulary), "data.lowercase": True}).encode(["cat"])
    np.testing.assert_array_equal(vectors, bertjax.load(huggingface_folder).encode(["cat"]))


def test_weights_of_hugging_face(huggingface_folder, caplog):
    with caplog.at_level(logging.WARNING):
        params = pretrained.warm_start(classifier(), open_weights(huggingface_folder))
    equal(params["bert"], published.params())
    equal(params["classifier"], classifier()["classifier"])
    assert caplog.messages == [
        f"module classifier keeps its random initialization: {huggingface_folder} has no weights for it in this task"
    ]


@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_google_research_weights(caplog, name):
    """Weights equal those of `google.read_tensors` with kernels transposed back."""
    tensors = google.read_tensors(published.GOOGLE)
    weights = open_weights(published.GOOGLE / name)
    whole = BertForPreTraining(dataclasses.replace(published.CONFIG, **weights.model))
    fresh = init(whole, IDS, return_attention=False)
    with caplog.at_level(logging.WARNING):
        params = pretrained.warm_start(fresh, weights)
    assert caplog.messages == []
    words = params["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(words, tensors["bert.embeddings.word_embeddings.weight"])
    pooler = params["bert"]["pooler"]["kernel"]
    np.testing.assert_array_equal(pooler, tensors["bert.pooler.dense.weight"].T)
    # The outputs of TensorFlow with these weights.
    expected = np.load(published.GOOGLE / "outputs.npz")
    ids, types = expected["ids"].astype(np.int32), expected["types"].astype(np.int32)
    places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    apply = jax.jit(functools.partial(whole.apply, deterministic=True, return_attention=False))
    output = apply({"params": params}, BertInputs(ids, types, np.ones_like(ids)), places)
    np.testing.assert_allclose(output.masked_lm_logits, expected["logits"], atol=2e-5)
    np.testing.assert_allclose(output.next_sentence_logits[:, 0], expected["relationship"], atol=2e-5)


def test_weights_of_a_run(run, caplog):
    fresh = classifier_of(run, lstm_size=3)
    with caplog.at_level(logging.WARNING, "bertjax"):
        params = pretrained.warm_start(fresh, open_weights(run), ("classifier",))
    messages = [message for message in caplog.messages if "no weights" in message]
    assert messages == [
        f"module {name} keeps its random initialization: {run} has no weights for it in this task"
        for name in ("lstm", "classifier")
    ]
    for head in ("lstm", "classifier"):
        equal(params[head], fresh[head])
    equal(params["bert"], checkpoints.restore_shared(run, {"bert": fresh["bert"]})[0]["bert"])


def test_a_classifier_is_trained_from_a_google_research_folder(run):
    resolved = json.loads((run / "config.json").read_text())
    assert (resolved["model"]["hidden_size"], resolved["data"]["lowercase"]) == (8, True)
    before = google.read_tensors(published.GOOGLE)["bert.embeddings.word_embeddings.weight"]
    params = pretrained.warm_start(classifier_of(run), open_weights(run))
    words = params["bert"]["embeddings"]["word_embeddings"]
    assert 0 < np.abs(words - before).max() < 1e-3  # one step at 5e-5
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={run}", stdin=b"the cat\n")
    assert json.loads(outcome.stdout)["label"] in ("no", "yes")


def test_the_config_sets_an_unknown_casing(tmp_path):
    folder = published.write_huggingface(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    told = r"data\.lowercase: got no value, and init_from does not .* casing; .*True for an uncased.*True or False"
    with pytest.raises(UserError, match=told):
        resolve(folder)
    for lowercase in (True, False):
        assert resolve(folder, lowercase=lowercase)["data"]["lowercase"] is lowercase
        assert load_wordpiece(folder, lowercase).lowercase is lowercase


def test_the_rows_of_new_tokens_are_the_means_of_those_that_they_replace(tmp_path):
    size, rows = published.TOKENIZER.vocab_size, published.TOKENIZER.vocab_size + 2  # weights with rows without tokens
    config = dataclasses.replace(published.CONFIG, vocab_size=rows)
    model = BertForPreTraining(config, predicts_next=False)
    init = functools.partial(model.init, deterministic=True, return_attention=False)
    theirs = random_params(init, BertInputs(IDS, IDS, IDS), IDS, scale=0.5)["params"]
    huggingface.save(tmp_path, theirs, config, "BertForMaskedLM")
    published.TOKENIZER.save(tmp_path)
    wider = BertForPreTraining(dataclasses.replace(config, vocab_size=size + 3), predicts_next=False)
    ours = wider.init(jax.random.key(0), BertInputs(IDS, IDS, IDS), IDS, deterministic=True, return_attention=False)
    added = published.TOKENIZER.with_words(["cats", "birdying"]).with_added([Added("日本")])
    tokens = pretrained.NewTokens.of(published.TOKENIZER, added)
    assert pretrained.NewTokens.of(added, added) is None
    found = pretrained.warm_start(ours["params"], open_weights(tmp_path), tokens=tokens)
    ids = {name: number for number, name in enumerate(published.TOKENIZER.vocab)}
    replaced = [[ids["cat"], ids["##s"]], [ids["bird"], ids["##y"], ids["##ing"]], range(size)]  # the last is unknown
    pairs = [(tree["bert"]["embeddings"]["word_embeddings"], tree["masked_lm"]["bias"]) for tree in (theirs, found)]
    for before, after in zip(*pairs, strict=True):
        np.testing.assert_array_equal(after[:size], before[:size])
        np.testing.assert_allclose(after[size:], [before[np.array(rows)].mean(axis=0) for rows in replaced], 1e-5)
    bare = published.write_huggingface(tmp_path / "bare", dataclasses.replace(config, vocab_size=size))
    found = pretrained.warm_start(ours["params"], open_weights(bare), tokens=tokens)
    assert found["masked_lm"]["bias"] is ours["params"]["masked_lm"]["bias"]  # without weights
