"""Tasks train, predict and are exported with byte-level BPE, given or trained on their text."""

import numpy as np
import pytest

import bertjax
from tests import test_configs as configs
from tests import tiny
from tests.data.text import byte_bpe
from tests.data.text.sentencepiece_files import FIRST, model
from tests.experiments.commands import done, flags, lines_of

TRAINED = {"data.vocab_file": "", "data.tokenizer": "byte_bpe", "data.vocab_size": 300}


def values_of(name, folder):
    """Config values for a tiny run with byte-level BPE."""
    values = configs.small(name, folder)
    if name in ("bert_pretraining", "bertsum_abs", "bertsum_ext"):
        return {**values, **TRAINED}
    byte_bpe.trained(lowercase=name != "tagging").save(folder / "tokenizer")
    return {**values, "data.vocab_file": folder / "tokenizer", "data.seq_len": 48}


def train(name, folder, **more):
    workdir = folder / "run"
    values = {**values_of(name, folder), **more}
    done(f"--config=configs/{name}.py:{configs.SIZES[name][0]}", f"--workdir={workdir}", *flags(values))
    return workdir


def sentencepiece(folder):
    """Writes a tokenizer like XLM-R's, with padding 1 and two separators in pairs, and returns config values."""
    pieces = [*(f"\u2581{word}" for word in tiny.WORDS), *"\u2581abcdefghijklmnopqrstuvwxyzABJMT?."]
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(model(FIRST, words=pieces))
    return {"data.vocab_file": folder, "data.lowercase": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write"),
    [
        *((name, None) for name in ("tagging", "bertsum_abs")),
        *((name, sentencepiece) for name in ("question_answering", "bertsum_ext")),
    ],
)
def test_tasks_train_with_a_library_tokenizer(name, write, tmp_path):
    workdir = train(name, tmp_path, **(write(tmp_path / "xlm-r") if write else {}))
    losses = lines_of(workdir / "metrics.jsonl")
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
