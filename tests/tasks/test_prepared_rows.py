"""Each task prepares its rows to the same files in this process, with workers and with Beam, and finds them again."""

import dataclasses

import numpy as np
import pytest

from bertjax import experiments
from bertjax.data import prepared
from bertjax.modes import stages
from tests import tiny
from tests.experiments import test_translation as translations
from tests.experiments.commands import tree_of

SIZES = {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.intermediate_size": 16}
SPANS = {"data.doc_stride": 6, "data.max_query_length": 8, "data.max_answer_length": 4}
ROWS = {"data.seq_len": 24, "data.valid_fraction": 0.2, "batch_size": 4}
SUMMARY = {"target_len": 8, "decoding.max_length": 6, "decoding.min_extra": 1, "num_scored": 2}
TASKS = {
    "classification": ("tiny", tiny.write_table, {}),
    "tagging": ("tiny", tiny.write_sentences, {"data.lowercase": False}),
    "question_answering": ("tiny", tiny.write_questions, SPANS),
    "multiple_choice": ("tiny,swag", tiny.write_choices, {}),
    "embeddings": ("tiny", tiny.write_related, {"data.text_columns": ("query", "positive", "negatives")}),
    "reranker": ("tiny", tiny.write_rankings, {}),
    "bertsum_ext": ("tiny", tiny.write_articles, {}),
    "bertsum_abs": ("tiny", tiny.write_articles, {"data.vocab_size": 60, "data.vocab_file": "", **SUMMARY}),
    "translation": ("tiny", None, {"data.vocab_size": 60, "model.num_decoder_layers": 1}),
}


@pytest.fixture
def data_of(tmp_path):
    """A function that makes the data of a task in a folder, with the same rows at each call."""

    def make(name, folder, **values):
        size, write, own = TASKS[name]
        rows = tmp_path / "rows"
        rows.mkdir(exist_ok=True)
        sources = write(rows) if write else pairs(rows)
        tree = tree_of(name, size, {**SIZES, **ROWS, **sources, **own, "num_steps": 2, **values})
        return stages.of_config(experiments.find(name), tree).data(tmp_path / folder)

    return make


def pairs(folder):
    translations.write_pairs(folder, count=60)
    return {"data.source": str(folder / "train.en"), "data.target": str(folder / "train.de")}


def files_of(folder):
    """The prepared files. The folder has locks, vocabularies and one set of rows."""
    (manifest,) = folder.glob("*/manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in manifest.parent.rglob("*") if path.is_file()}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(prepared, "_BLOCK_CHARACTERS", 500)
    monkeypatch.setattr(prepared, "_FEW_CHARACTERS", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_beam_writes_the_same_files(name, data_of, tmp_path, small_blocks):
    beam = {"data.beam.runner": "DirectRunner", "data.workers": 2}
    data_of(name, "local", **{"data.workers": 1}).prepare()
    data_of(name, "beam", **beam).prepare()
    assert files_of(tmp_path / "local") == files_of(tmp_path / "beam")


@pytest.mark.parametrize("name", TASKS)
def test_another_seed_finds_the_rows(name, data_of, tmp_path, monkeypatch):
    data_of(name, "kept").prepare()
    before = files_of(tmp_path / "kept")
    monkeypatch.setattr(prepared.PreparedRows, "_write", lambda *_: pytest.fail("prepared again"))
    data = data_of(name, "kept", seed=7)
    assert data.is_prepared
    data.prepare()
    assert files_of(tmp_path / "kept") == before
    batch = next(data.batches("train", 0, np.arange(4)))
    assert batch["input_ids"].any() and batch["weights"].any()
    assert data.report()["rows"]["train"] > 20


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("classification", {"is_numeric": True}),
        ("embeddings", {"scores": "pair"}),
        ("reranker", {"compares": False}),
        ("reranker", {"is_probability": True}),
        ("bertsum_abs", {"target_len": 7}),
    ],
)
def test_rows_depend_on_what_the_objective_needs(name, changes, data_of):
    data = data_of(name, "kept")
    data.prepare()
    other = dataclasses.replace(data.codec, **changes)
    assert prepared.PreparedRows(other, data._folder, data._config.data.preparation).folder != data.prepared.folder
