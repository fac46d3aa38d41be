"""Minimal pairs, from files to metrics, compared with transformers."""

import dataclasses
import functools
import gzip
import itertools
import json
import random

import jax
import numpy as np
import pytest
from flax import traverse_util

from bertjax import evaluations
from bertjax.config import check_keys
from bertjax.data.text import byte_bpe_trainer
from bertjax.data.text.vocabulary_config import KINDS
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from bertjax.experiments import bert_pretraining, minimal_pairs
from bertjax.interop import huggingface
from bertjax.models.bert import BertForMaskedLM, BertInputs
from bertjax.modes import stages
from bertjax.runs import run_folder
from bertjax.tools.reporting.runs import read_run
from bertjax.training.inference import Inference
from tests import published, tiny
from tests.experiments.commands import done, lines_of, tree_of
from tests.random_params import random_params

FLAGS = ("--config=configs/minimal_pairs.py", "--mode=evaluate")


def write_model(folder, tokenizer=published.TOKENIZER, scale=0.5, max_positions=32):
    """Writes a folder for transformers' BertForMaskedLM. With scale 0, all logits are 0."""
    sizes = {"vocab_size": tokenizer.vocab_size, "max_positions": max_positions}
    config = dataclasses.replace(published.CONFIG, **sizes)
    ids = np.zeros((1, 1), np.int32)
    init = functools.partial(BertForMaskedLM(config).init, deterministic=True)
    params = random_params(init, BertInputs(ids, ids, ids), ids, scale=scale)["params"]
    huggingface.save(folder, params, config, "BertForMaskedLM")
    tokenizer.save(folder)
    return folder


def write_pairs(path, count=40, vocab=("the", "cats", "dogs", "sees", "birding", ".")):
    """Writes pairs of two phenomena with two paradigms each. Returns the path."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            good, bad = (" ".join(rng.choices(vocab, k=rng.randint(1, 9))) for _ in range(2))
            names = {"phenomenon": "ab"[number % 2], "paradigm": "wxyz"[number % 4]}
            if good != bad:
                file.write(json.dumps({"good": good, "bad": bad, **names}) + "\n")
    return path


def inference(folder, **overrides):
    """The task with the weights in a folder."""
    tree = tree_of("minimal_pairs", "", {"init_from": str(folder), **overrides})
    resolved = stages.of_config(minimal_pairs, tree)
    _, settings, task, _ = resolved.to_predict()
    with tiny.few_devices(1):
        return Inference(task, settings, None, "final", resolved.published), resolved


def scores(folder, pairs, **overrides):
    used, resolved = inference(folder, **{"data.valid_source": str(pairs), **overrides})
    return used.evaluate(resolved.data(folder))


def records(folder, lines, **overrides):
    used, _ = inference(folder, **overrides)
    return list(used.records(used.task.examples(iter(lines))))


def test_a_record_has_the_share_of_every_token(tmp_path):
    folder = write_model(tmp_path)
    (record,) = records(folder, ["The cats ."])
    assert record["tokens"] == ["the", "cat", "##s", "."]
    assert record["score"] == pytest.approx(sum(record["log_probabilities"]), abs=1e-5)
    assert record["per_token_score"] == pytest.approx(record["score"] / 4, abs=1e-6)
    within = records(folder, ["The cats ."], method="within_word_l2r")[0]["log_probabilities"]
    differs = [a != b for a, b in zip(within, record["log_probabilities"], strict=True)]
    assert differs == [False, True, False, False]


def test_the_command_line_evaluates_and_predicts(tmp_path):
    folder, pairs = write_model(tmp_path / "model"), write_pairs(tmp_path / "pairs.jsonl")
    init_from = f"--config.init_from={folder}"
    found = json.loads(done(*FLAGS, init_from, f"--config.data.test_source={pairs}").stdout)
    assert 0 < found["test/pairs/accuracy_low"] < found["test/pairs/accuracy"] < 1
    assert found.keys() >= {"test/pairs/a/accuracy", "test/pairs/a/w/per_token_accuracy_high"}
    rows = lines_of(pairs)
    lines = "".join(f"{row['good']}\n{row['bad']}\n" for row in rows)
    outcome = done(*FLAGS[:1], "--mode=predict", init_from, stdin=lines.encode())
    values = np.array([json.loads(line)["score"] for line in outcome.stdout.splitlines()]).reshape(-1, 2)
    assert found["test/pairs/accuracy"] == np.mean(values[:, 0] > values[:, 1])
    (tmp_path / "table.csv").write_text("sentence\nthe cat\n")
    flags = (init_from, f"--input={tmp_path / 'table.csv'}", "--config.data.text_field=sentence")
    outcome = tiny.run_on_one(*FLAGS[:1], "--mode=predict", *flags)
    assert json.loads(outcome.stdout)["tokens"] == ["the", "cat"]


@pytest.mark.parametrize("columns", [("good",), ("good", "good"), ("good", "bad", "other")])
def test_a_pair_has_two_columns(tmp_path, columns):
    with pytest.raises(UserError, match=r"data\.pair_columns: got .*; expected two different columns"):
        inference(write_model(tmp_path), **{"data.pair_columns": columns})


def test_a_pair_of_python_texts_is_no_sentence(tmp_path):
    used, _ = inference(write_model(tmp_path))
    with pytest.raises(UserError, match="input 1: got 2 texts; expected one text"):
        list(used.task.examples_in([("the cat", "the dog")]))


def check_chain_rule(run, direction):
    """Compares the scores of a causal run with its own predictions of each next token."""
    (record,) = records(run, ["the cat sees ."])
    used, _ = inference(run)
    tokens = used.task.tokenizer.encode_batch(["the cat sees ."])[0]
    ids = [used.task.tokenizer.cls_id, *tokens, used.task.tokenizer.sep_id]
    infer = jax.jit(used.task.infer)
    for place in range(1, 5):
        # Tokens on the other side do not matter: they are replaced by [UNK].
        seen = range(place) if direction == "left_to_right" else range(place + 1, 6)
        known = np.array([ids[i] if i in seen else used.task.tokenizer.unk_id for i in range(6)])[None]
        batch = {"input_ids": known, "token_type_ids": 0 * known, "segment_ids": 0 * known + 1}
        shift = -1 if direction == "left_to_right" else 1
        labels = {"masked_positions": np.array([place + shift]), "masked_labels": np.array([ids[place]])}
        found = infer(used.params, {**batch, **labels})["log_probabilities"]
        assert record["log_probabilities"][place - 1] == pytest.approx(float(found[0, 0]), abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_a_causal_run_is_scored_by_its_log_likelihood(tmp_path, direction):
    causal = {"objective": "causal_lm", "model__direction": direction, "data__next_sentence": False}
    pairs = {"minimal_pairs__source": pairs_of_run(tmp_path)}
    done(*tiny.arguments(tiny.write_text(tmp_path / "t.txt"), tmp_path / "run", **causal, **pairs))
    check_chain_rule(tmp_path / "run", direction)
    found = scores(tmp_path / "run", pairs_of_run(tmp_path))
    logged = read_run(tmp_path / "run").final_metrics()
    assert found["valid/pairs/accuracy"] == logged["valid/pairs/accuracy"]
    with pytest.raises(UserError, match=r"objective: got masked_lm; expected causal_lm, which .* was trained with"):
        inference(tmp_path / "run", objective="masked_lm")


def pairs_of_run(folder):
    return write_pairs(folder / "pairs.jsonl", 30, tiny.WORDS)


def test_pretraining_scores_pairs_at_each_evaluation(tmp_path):
    pairs, run = pairs_of_run(tmp_path), tmp_path / "run"
    options = {"minimal_pairs__source": pairs, "minimal_pairs__per_paradigm": 4}
    best = {"best_metric": "valid/pairs/accuracy", "best_mode": "max", "keep_best": 1, "save_every": 3}
    best = {f"checkpoint__{key}": value for key, value in best.items()}
    done(*tiny.arguments(tiny.write_text(tmp_path / "t.txt"), run, **options, **best))
    evaluated = [record for record in read_run(run).records if "valid/pairs/accuracy" in record]
    assert [record["step"] for record in evaluated] == [3, 6]
    assert "valid/masked_lm_loss" in evaluated[0] and "valid/pairs/a/w/accuracy" not in evaluated[0]
    of_phenomena = [evaluated[1][f"valid/pairs/{name}/accuracy"] for name in "ab"]
    assert evaluated[1]["valid/pairs/accuracy"] == pytest.approx(np.mean(of_phenomena))
    found = scores(run, pairs, **{"data.per_paradigm": 4})  # of the final checkpoint, the latest
    assert found["valid/pairs/accuracy"] == evaluated[1]["valid/pairs/accuracy"]


def test_a_run_older_than_the_pairs_can_be_used_and_resumed(tmp_path):
    config = tiny.config(tiny.write_text(tmp_path / "t.txt"))
    newer = ("minimal_pairs", "causal_pairs", "likelihood", "word_likelihood", "evaluations")
    older = {key: value for key, value in config.items() if key not in newer}
    flat = (traverse_util.flatten_dict(each, sep=".") for each in (older, config))
    assert run_folder.differences(*flat) == []
    check_keys(stages.readers(bert_pretraining, older), older)
    assert evaluations.names(older) == ()


def test_pretraining_reports_bad_pairs_before_it_starts(tmp_path):
    text, pairs = tiny.write_text(tmp_path / "t.txt"), tmp_path / "pairs.txt"
    pairs.write_text("the cat\tthe cats\nthe cat\n")
    outcome = tiny.run_on_one(*tiny.arguments(text, tmp_path / "run", minimal_pairs__source=pairs))
    tiny.check_message(outcome.error, what="pairs.txt:2", got="one sentence", expected="separated", fix="correct")
    assert not (tmp_path / "run").exists()
    outcome = tiny.run_on_one(*tiny.arguments(text, tmp_path / "run", minimal_pairs__source="gone.txt"))
    tiny.check_message(outcome.error, what="minimal_pairs.source", got="not exist", expected="files", fix="path")


@pytest.mark.slow
@pytest.mark.parametrize("method", minimal_pairs.METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_transformers(tmp_path, data_folder, method, kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    with gzip.open(data_folder / "blimp" / "blimp.jsonl.gz", "rt") as file:
        rows = sorted(map(json.loads, file), key=lambda row: row["pair_id"])[:70]  # of each paradigm in turn
    texts = list(itertools.chain.from_iterable((row["good"], row["bad"]) for row in rows))
    if kind == "wordpiece":
        tokenizer = WordPiece.from_file(data_folder / "vocab" / "bert-base-uncased-vocab.txt", lowercase=True)
    else:
        tokenizer = byte_bpe_trainer.train(byte_bpe_trainer.count_words(texts, False), 600, lowercase=False)
    folder = write_model(tmp_path, tokenizer, scale=0.3, max_positions=64)
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = []
    for text in texts:
        encoded = theirs(text, return_tensors="pt")
        ids, words = encoded["input_ids"][0], encoded.word_ids()
        copies = ids.repeat(len(ids) - 2, 1)
        for row, place in enumerate(range(1, len(ids) - 1)):
            later = [i for i in range(place, len(ids) - 1) if words[i] == words[place]]
            copies[row, later if method == "within_word_l2r" else place] = theirs.mask_token_id
        places = torch.arange(len(copies))
        with torch.no_grad():
            hidden = model.bert(input_ids=copies).last_hidden_state[places, places + 1]
            log_probs = model.cls(hidden).log_softmax(-1)
        expected.append(log_probs[places, ids[1:-1]].double().sum().item())
    found = [record["score"] for record in records(folder, texts, method=method)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.std(expected) > 1  # the scores differ between sentences
    pieces = tokenizer.encode_batch(texts)
    assert any(tokenizer.is_continuation[ids[1:]].any() for ids in pieces)  # some words have several tokens
