"""Every task trains, predicts and is exported with byte-level BPE, given or trained on its text."""

import json
import shutil

import numpy as np
import pytest

import bertjax
from bertjax.data.text.vocabulary_config import load_saved
from tests import test_configs as configs
from tests import tiny
from tests.data.text import byte_bpe

TRAINED = {"data.vocab_file": "", "data.tokenizer": "byte_bpe", "data.vocab_size": 300}


def values_of(name, folder):
    """Config values for a tiny run with byte-level BPE."""
    values = configs.small(name, folder)
    if name in ("bert_pretraining", "bertsum_abs", "bertsum_ext"):
        return {**values, **TRAINED}
    byte_bpe.trained(lowercase=name != "tagging").save(folder / "tokenizer")
    if name == "translation":
        return {**values, "data.vocab_file": folder / "tokenizer" / "tokenizer.json", "data.lowercase": False}
    return {**values, "data.vocab_file": folder / "tokenizer", "data.seq_len": 48}


def train(name, folder, **more):
    workdir = folder / "run"
    values = {**values_of(name, folder), **more}
    outcome = tiny.run_on_one(
        f"--config=configs/{name}.py:{configs.SIZES[name][0]}",
        f"--workdir={workdir}",
        *(f"--config.{key}={value}" for key, value in values.items()),
    )
    assert outcome.status is None, outcome.status
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("name", configs.MODULES)
def test_each_task_trains_with_byte_level_bpe(name, tmp_path):
    workdir = train(name, tmp_path)
    losses = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1]["step"] == 2
    assert (workdir / "tokenizer.json").exists() and not (workdir / "vocab.txt").exists()
    configs._check_library(name, workdir, tmp_path)


def test_vectors_of_words_and_tokens_of_a_pretraining_run(tmp_path):
    workdir = train("bert_pretraining", tmp_path, **{"masking.whole_word": True, "num_steps": 1})
    with tiny.few_devices(1):
        model = bertjax.load(workdir)
        (record,) = model.predict(["the [MASK] sees a dog ."])
        assert len(record["masks"][0]["tokens"]) == 5 and record["masks"][0]["position"] > 1
        words = bertjax.load(workdir, "features", config={"pooling": "word"})
        (record,) = words.predict(["the cat 서울은"])
        assert record["units"] == ["the", "cat", "서울은"]
        tokens = bertjax.load(workdir, "features", config={"pooling": "piece"})
        (record,) = tokens.predict(["the cat"])
        assert record["units"][0] == "the" and len(record["units"]) == len(record["features"])
        assert np.isfinite(model.encode(["the cat"])).all()


@pytest.mark.slow
def test_a_classifier_starts_from_a_pretraining_run(tmp_path):
    """The run determines the tokenizer, and its casing."""
    before = train("bert_pretraining", tmp_path, **{"data.lowercase": False, "num_steps": 1})
    source = tiny.write_table(tmp_path / "table")["data.source"]
    values = {"init_from": before, "data.source": source, "num_steps": 1, "batch_size": 8, "data.seq_len": 48}
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    outcome = tiny.run_on_one("--config=configs/classification.py", f"--workdir={tmp_path / 'classifier'}", *flags)
    assert outcome.status is None, outcome.status
    assert load_saved(tmp_path / "classifier") == load_saved(before)
    config = json.loads((tmp_path / "classifier" / "config.json").read_text())
    assert config["data"]["lowercase"] is False
    shutil.rmtree(before)
    command = ["--mode=predict", f"--workdir={tmp_path / 'classifier'}"]
    predicted = tiny.run_on_one(*command, stdin=b"the cat sees .\n").stdout
    assert json.loads(predicted)["label"] in ("yes", "no")


@pytest.mark.parametrize(
    ("flags", "what", "got", "expected"),
    [
        ({"data.tokenizer": "bpe"}, "data.tokenizer", "'bpe'", "wordpiece, byte_bpe"),
        ({"data.tokenizer": "byte_bpe", "data.vocab_size": 260}, "data.vocab_size", "260", "at least 261.*all bytes"),
    ],
)
@pytest.mark.parametrize("name", ["bert_pretraining", "bertsum_ext"])
def test_bad_settings_of_a_trained_vocabulary_are_errors(flags, what, got, expected, name, tmp_path):
    values = {**configs.small(name, tmp_path), "data.vocab_file": "", **flags}
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    outcome = tiny.run_on_one(f"--config=configs/{name}.py:tiny", f"--workdir={tmp_path / 'run'}", *flags)
    tiny.check_message(outcome.error, what=what, got=got, expected=expected, fix="")
