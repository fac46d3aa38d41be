"""Denoising pretraining: batches, metrics, and what becomes of a run."""

import itertools
import json
import re

import numpy as np
import pytest

from bertjax.data.pretraining.denoising import SENTINELS
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, done, flags, lines_of, tree_of

FORMS = ("bart", "t5")
MARKED = {"bart": "the [MASK] dog .", "t5": "the <extra_id_0> dog ."}


def values_of(folder, form, **values):
    text = folder / "text.txt"
    small = tiny.values(text if text.exists() else tiny.write_text(text, documents=80))
    sizes = {"model.num_decoder_layers": 1, "model.max_positions": {"bart": 48, "t5": 0}[form]}
    return {**small, **sizes, **NO_DROPOUT, "decoding.max_length": 32, **values}


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def run(form, tmp_path_factory):
    folder = tmp_path_factory.mktemp(form)
    workdir = folder / "run"
    done(f"--config=configs/denoising.py:tiny,{form}", f"--workdir={workdir}", *flags(values_of(folder, form)))
    return workdir


def command(run, name, **values):
    """Trains from a run on the text or on pairs of texts. Returns the outcome."""
    pairs = run.parent / "pairs.tsv"
    rows = (f"{' '.join(words)}\t{words[0]}" for words in itertools.permutations(tiny.WORDS[:4], 3))
    pairs.write_text("\n".join(["source\ttarget", *rows]) + "\n")
    columns = {"data.source": pairs, "data.source_column": "source", "data.target_column": "target"}
    of_pairs = {**columns, "data.valid_fraction": 0.2, "decoding.max_length": 16}
    of_text = {"data.source": run.parent / "text.txt", "data.lines": "sentence", "data.workers": 1}
    small = {"num_steps": 2, "batch_size": 8, "evaluate_every": 2, "checkpoint.save_every": 2, "data.seq_len": 32}
    small |= {"decoding.max_length": 32, "model.dropout": 0.0}
    small |= of_pairs if name == "text_to_text.py" else of_text
    return f"--config=configs/{name}", *flags({**small, "optimizer.warmup_steps": 0, **values})


def test_batches_do_not_depend_on_how_rows_are_divided(tmp_path, form):
    _, data, *_ = tiny.ready(tree_of("denoising", f"tiny,{form}", values_of(tmp_path, form)), tmp_path / "run")
    whole = list(itertools.islice(data.batches("train", 0, np.arange(16)), 4))
    parts = [itertools.islice(data.batches("train", 0, part), 4) for part in np.split(np.arange(16), 4)]
    for batch, *some in zip(whole, *parts, strict=True):
        for name, rows in batch.items():
            np.testing.assert_array_equal(rows, np.concatenate([part[name] for part in some]))
    later = next(data.batches("train", 3, np.arange(16)))
    np.testing.assert_array_equal(later["input_ids"], whole[3]["input_ids"])


def test_hidden_tokens_of_a_batch_are_those_that_the_source_lacks(tmp_path, form):
    task, data, *_ = tiny.ready(tree_of("denoising", f"tiny,{form}", values_of(tmp_path, form)), tmp_path / "run")
    (specs,) = task.batch_specs()
    batch = next(data.batches("train", 0, np.arange(16)))
    assert {name: (rows.shape, rows.dtype) for name, rows in batch.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
    special = [data.vocabulary.mask_id, *map(data.vocabulary.vocab.index, SENTINELS if form == "t5" else ())]
    for row in range(16):
        source = batch["input_ids"][row][batch["segment_ids"][row] == 1]
        target = batch["labels"][row][batch["target_segment_ids"][row] == 1]
        assert source[-1] == target[-1] == data.vocabulary.sep_id
        kept = source[:-1][~np.isin(source[:-1], special)]
        hidden = batch["labels"][row][batch["hidden_weights"][row] == 1]
        text = target[:-1] if form == "bart" else np.concatenate([kept, hidden])
        assert sorted([*kept, *hidden]) == sorted(text) and not np.isin(hidden, special).any()


def test_a_run_reports_the_loss_of_hidden_tokens_and_that_of_unigrams(run):
    last = lines_of(run / "metrics.jsonl")
    names = {name for line in last for name in line}
    assert {"valid/hidden_loss", "valid/hidden_accuracy", "valid/hidden_unigram_loss", "valid/nll"} <= names


@pytest.mark.slow
def test_a_run_predicts_and_is_exported_and_fine_tuned(run, form, tmp_path):
    filled = tmp_path / "filled.jsonl"
    done("--mode=predict", f"--workdir={run}", f"--output={filled}", stdin=MARKED[form])
    (record,) = lines_of(filled)
    assert record["source"] == MARKED[form]
    done("--mode=export", f"--workdir={run}", f"--output={tmp_path / 'export'}")
    assert json.loads((tmp_path / "export" / "config.json").read_text())["model_type"] == form
    for number, folder in enumerate((run, tmp_path / "export")):
        done(*command(run, "text_to_text.py", init_from=folder), f"--workdir={tmp_path / f'tuned{number}'}")
    done(*command(run, f"denoising.py:{form}", init_from=folder), f"--workdir={tmp_path / 'continued'}")
    tuned = lines_of(tmp_path / "tuned0" / "metrics.jsonl")
    exported = lines_of(tmp_path / "tuned1" / "metrics.jsonl")
    assert tuned[0]["train/loss"] == pytest.approx(exported[0]["train/loss"])


@pytest.mark.parametrize("form", ["bart"], indirect=True, scope="module")
def test_a_vocabulary_without_sentinels_is_refused(run, tmp_path):
    changes = {"init_from": run, "objective": "span_corruption", "noise.permute_sentences": False}
    outcome = tiny.run_on_one(*command(run, "denoising.py", **changes), f"--workdir={tmp_path / 'run'}")
    assert re.search("the vocabulary of init_from: got no such token; expected <extra_id_0>", outcome.error)
