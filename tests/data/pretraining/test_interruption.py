import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertjax.data.pretraining import corpus, preparation
from bertjax.data.pretraining.corpus import CorpusConfig, Preparation
from bertjax.data.readers import records
from bertjax.data.text import word_counts
from tests.data.folders import TRAINED, digests, fingerprint, left_behind, texts_of


def in_small_parts(monkeypatch) -> None:
    """Divides the tiny corpus into many blocks and parts."""
    monkeypatch.setattr(preparation, "_BLOCK_CHARACTERS", 100)
    monkeypatch.setattr(preparation, "_PART_TOKENS", 200)
    monkeypatch.setattr(word_counts, "_WORDS", 100)


@pytest.fixture(scope="module")
def never_interrupted(tiny_values, tmp_path_factory) -> dict[str, str]:
    """The digests of the tiny corpus with a trained vocabulary, prepared in small parts without interruption."""
    values = {**tiny_values, **TRAINED, "prepared_dir": str(tmp_path_factory.mktemp("never"))}
    with pytest.MonkeyPatch.context() as patch:
        in_small_parts(patch)
        preparing = Preparation(CorpusConfig(**values), Path("unused"))
        preparing.run()
    return digests(preparing.folder)


# Functions of the preparation, the number of calls before the interruption, and the exception that interrupts.
INTERRUPTIONS = [
    (word_counts, "_write", 3, RuntimeError),
    (word_counts, "most_frequent", 0, KeyboardInterrupt),
    (preparation, "train_vocabulary", 0, RuntimeError),
    (corpus.Tokenized, "save", 0, RuntimeError),
    (corpus.Tokenized, "save", 2, KeyboardInterrupt),
    (preparation.SplitCounter, "add", 2, KeyboardInterrupt),
    (preparation.SplitCounter, "finish", 1, RuntimeError),
    (np, "save", 0, KeyboardInterrupt),
    (records, "write_tokens", 0, RuntimeError),
    (records, "_examples", 2, KeyboardInterrupt),
    (corpus.json, "dumps", 2, RuntimeError),
    (corpus.shutil, "rmtree", 1, KeyboardInterrupt),
]


@pytest.mark.parametrize(("owner", "name", "count", "error"), INTERRUPTIONS)
def test_an_interrupted_preparation_resumes_to_the_same_bytes(
    owner, name, count, error, make_config, prepare, never_interrupted, tmp_path, monkeypatch
):
    config = make_config(**TRAINED)
    in_small_parts(monkeypatch)
    original, passed = getattr(owner, name), []

    def interrupted(*arguments: object, **named: object) -> object:
        passed.append(name)
        if len(passed) > count:
            raise error("interrupted")
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(error):
            Preparation(config, tmp_path).run()
    assert len(passed) == count + 1
    assert left_behind(config) == [f"{fingerprint(config)}.partial"]
    assert not Preparation(config, tmp_path).is_finished()
    again = prepare(config)
    assert digests(again.folder) == never_interrupted
    assert left_behind(config) == [again.folder.name]
    assert len(list(again.folder.rglob("*-train.array_record*"))) > 3


def test_finished_parts_are_not_computed_again(make_config, tmp_path, monkeypatch):
    config = make_config(**TRAINED)
    in_small_parts(monkeypatch)
    made = []

    def watch(name: str) -> None:
        work = getattr(preparation, name)

        def working(block: list, **named: object) -> object:
            made.extend((name, tuple(document)) for document in block)
            return work(block, **named)

        monkeypatch.setattr(preparation, name, working)

    watch("_count_words")
    watch("_tokenize")
    write, writes = records.write_tokens, []
    monkeypatch.setattr(records, "write_tokens", lambda *_: writes.append(1) or 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            Preparation(config, tmp_path).run()
    monkeypatch.setattr(records, "write_tokens", write)
    Preparation(config, tmp_path).run()
    assert len(writes) == 2
    assert len(made) == len(set(made))
    assert {name for name, _ in made} == {"_count_words", "_tokenize"}


# Runs a preparation that kills its own process at the given moment.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from bertjax.config import build
from bertjax.data.pretraining import corpus, preparation
from bertjax.data.readers import records
from bertjax.data.text import word_counts

if __name__ == "__main__":
    preparation._BLOCK_CHARACTERS, preparation._PART_TOKENS, word_counts._WORDS = 100, 200, 100
    module, name, count = {"words": (word_counts, "_write", 3), "tokens": (corpus.Tokenized, "save", 2),
                           "records": (records, "_examples", 2), "nothing": (records, "_examples", -1)}[sys.argv[1]]
    original, passed = getattr(module, name), []

    def killed(*arguments):
        passed.append(name)
        if len(passed) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(module, name, killed)
    corpus.Preparation(build(corpus.CorpusConfig, json.loads(sys.argv[2]), ""), Path("unused")).run()
"""


def start_killed(config: CorpusConfig, moment: str, script: Path) -> subprocess.Popen:
    script.write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": str(Path(corpus.__file__).parents[3])}
    arguments = [sys.executable, str(script), moment, json.dumps(dataclasses.asdict(config))]
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)


def test_a_killed_preparation_resumes_to_the_same_bytes(make_config, prepare, never_interrupted, tmp_path, monkeypatch):
    config, parts = make_config(**TRAINED), {}
    partial = Preparation(config, tmp_path).folder.with_suffix(".partial")
    for moment, kind in (("words", "words/*.txt"), ("tokens", "train/*.npz"), ("records", "valid/*.npz")):
        assert start_killed(config, moment, tmp_path / "killed.py").wait() == -signal.SIGKILL
        parts[moment] = len(list(partial.glob(f"parts/{kind}")))
    assert parts["words"] == 2
    assert parts["tokens"] == 1
    assert parts["records"] > 1
    in_small_parts(monkeypatch)
    again = prepare(config)
    assert digests(again.folder) == never_interrupted
    assert left_behind(config) == [again.folder.name]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_parts_change_only_the_division_into_record_files(workers, make_config, prepare, tmp_path, monkeypatch):
    one = prepare(make_config(**TRAINED, prepared_dir=str(tmp_path / "one")))
    in_small_parts(monkeypatch)
    many = prepare(make_config(**TRAINED, prepared_dir=str(tmp_path / "many"), workers=workers))
    for name in corpus.SPLITS:
        assert texts_of(one, name) == texts_of(many, name)
        assert len(list(many.folder.rglob(f"*-{name}.array_record*"))) > 1
    differ = {name for name, digest in digests(one.folder).items() if digests(many.folder).get(name) != digest}
    assert all(name.startswith(("records/", "manifest.json")) for name in differ)  # the manifest has the sizes of files
