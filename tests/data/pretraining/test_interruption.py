from pathlib import Path

import numpy as np
import pytest

from bertjax.data.pretraining import corpus, preparation
from bertjax.data.pretraining.corpus import CorpusConfig, Preparation
from bertjax.data.readers import records
from bertjax.data.text import word_counts
from tests.data.folders import TRAINED, digests, fingerprint, left_behind


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
    (preparation, "train_tokenizer", 0, RuntimeError),
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
