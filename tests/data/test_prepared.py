"""Tests that rows are encoded once, to the same files with any number of workers, and reused."""

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertjax import progress
from bertjax.data import prepared
from bertjax.data.codecs.labeled_text import LabeledTextCodec
from bertjax.data.prepared import PreparationConfig, PreparedRows, ValidRows
from bertjax.data.rows import stored
from bertjax.data.rows.buckets import Rows
from bertjax.data.rows.stored import Ragged
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests.data.codecs.test_labeled_text import config as labeled_config

WORDS = ["the", "cat", "dog", "sees", "a", "bird"]


def write(path: Path, count: int = 600) -> Path:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 12))) for _ in range(count)]
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{len(text) % 3}\n" for text in texts))
    return path


def codec_of(path: Path, **changes: object) -> LabeledTextCodec:
    config = labeled_config(**{"source": str(path), "valid_fraction": 0.2, **changes})
    return LabeledTextCodec(config, WordPiece([*SPECIALS, *WORDS], lowercase=True), seq_len=10, is_numeric=False)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepare(codec: LabeledTextCodec, home: Path, **config: object) -> PreparedRows:
    rows = PreparedRows(codec, home, PreparationConfig(**config))
    rows.run()
    return rows


def test_fields_are_written_and_memory_mapped(tmp_path):
    blocks = [
        {"input_ids": Ragged(np.arange(5, dtype=np.int32), np.array([2, 3])), "labels": np.array([0.5, 1], np.float32)},
        {"input_ids": Ragged(np.arange(2, dtype=np.int32), np.array([2])), "labels": np.array([2], np.float32)},
    ]
    writer = stored.Writer(tmp_path / "rows")
    for block in blocks:
        writer.add(block)
    writer.finish()
    fields = stored.load(tmp_path / "rows")
    assert fields["input_ids"].values.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert fields["input_ids"].lengths.tolist() == [2, 3, 2]
    assert fields["labels"].tolist() == [0.5, 1, 2] and fields["labels"].dtype == np.float32
    assert not fields["labels"].flags.writeable
    batch = Rows(fields).padded(np.array([1, -1]), 4)
    assert batch["input_ids"].tolist() == [[2, 3, 4, 0], [0] * 4] and batch["labels"].tolist() == [1, 0]


def test_names_are_numbered_in_the_order_of_appearance(tmp_path):
    def tags(*numbers: int) -> Ragged:
        return Ragged(np.array(numbers, np.int32), np.array([len(numbers)], np.int32))

    writer = stored.Writer(tmp_path / "rows")
    classes = np.array([2, 1, 2], np.int32)
    writer.add({"label": classes, "tags": tags(1, 0, 2)}, {"label": ["x", "y"], "tags": ["r", "s"]})
    writer.add({"label": classes, "tags": tags(0, 1)}, {"label": ["z", "x"], "tags": ["s"]})
    writer.finish()
    fields = stored.load(tmp_path / "rows")
    assert stored.load_names(tmp_path / "rows") == {"label": ["x", "y", "z"], "tags": ["r", "s"]}
    assert fields["label"].tolist() == [2, 1, 2, 1, 3, 1] and fields["label"].dtype == np.int32
    assert fields["tags"].values.tolist() == [1, 0, 2, 0, 2] and fields["tags"].lengths.tolist() == [3, 2]


def test_workers_start_only_for_much_text_and_write_the_same_files(tmp_path, monkeypatch):
    started, map_blocks = [], prepared.workers.map_blocks
    monkeypatch.setattr(prepared.workers, "map_blocks", lambda *args: started.append(args[-1]) or map_blocks(*args))
    monkeypatch.setattr(prepared, "_BLOCK_CHARACTERS", 2000)
    path = write(tmp_path / "a.tsv")
    here = prepare(codec_of(path), tmp_path / "little", workers=3)
    assert not started
    monkeypatch.setattr(prepared, "_FEW_CHARACTERS", 5000)
    assert files_of(prepare(codec_of(path), tmp_path / "much", workers=3).folder) == files_of(here.folder)
    assert started == [3]


def test_a_vocabulary_that_does_not_fit_is_warned_of(tmp_path, caplog):
    progress._logged.clear()
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "한국어 텍스트\t1\n" * 9)
    prepare(codec_of(path), tmp_path)
    assert "100.0% of the tokens are unknown in the first" in caplog.text


def test_rows_are_encoded_and_counted(tmp_path, caplog):
    path = write(tmp_path / "a.tsv")
    with caplog.at_level(logging.INFO, "bertjax"):
        rows = prepare(codec_of(path), tmp_path / "kept")
    train = [row for split, row in codec_of(path).splits() if split == "train"]
    valid = [row for split, row in codec_of(path).splits() if split == "valid"]
    assert list(rows.held_out("valid")) == valid and len(valid) > 60
    fields = rows.fields
    lengths = [min(len(row.first.split()), 8) + 2 for row in train]
    assert fields["input_ids"].lengths.tolist() == lengths
    names = rows.names["labels"]
    assert names == list(dict.fromkeys(row.label for row in train))
    assert [names[number - 1] for number in fields["labels"]] == [row.label for row in train]
    report, texts = rows.report, {row.first for row in train}
    assert report["rows"] == {"train": len(train), "valid": len(valid)}
    assert report["duplicates"] == len(train) - len(texts) > 0
    assert report["leaked"] == sum(row.first in texts for row in valid) > 0
    assert report["truncated"] == sum(len(row.first.split()) > 8 for row in train) > 0
    assert report["lengths"] == {"8": sum(n <= 8 for n in lengths), "12": sum(n > 8 for n in lengths)}
    assert any("are also training rows" in message for message in caplog.messages)


def test_prepared_rows_are_reused_without_reading_the_sources(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tsv")
    first = prepare(codec_of(path), tmp_path / "kept")
    monkeypatch.setattr(LabeledTextCodec, "splits", lambda self: pytest.fail("read again"))
    again = prepare(codec_of(path), tmp_path / "kept")
    assert again.folder == first.folder and list(again.held_out("valid")) == list(first.held_out("valid"))
    assert again.facts == first.facts


def test_other_rows_or_settings_are_prepared_separately(tmp_path):
    path = write(tmp_path / "a.tsv")
    folder = PreparedRows(codec_of(path), tmp_path, PreparationConfig()).folder
    assert PreparedRows(codec_of(path, on_bad_row="skip"), tmp_path, PreparationConfig()).folder != folder
    assert PreparedRows(codec_of(path), tmp_path, PreparationConfig(workers=2)).folder == folder
    (tmp_path / "b").mkdir()
    assert PreparedRows(codec_of(path.rename(tmp_path / "b" / "a.tsv")), tmp_path, PreparationConfig()).folder == folder
    write(tmp_path / "b" / "a.tsv", 601)
    assert PreparedRows(codec_of(tmp_path / "b" / "a.tsv"), tmp_path, PreparationConfig()).folder != folder


def test_rows_of_another_kind_or_version_are_prepared_separately(tmp_path, monkeypatch):
    codec = codec_of(write(tmp_path / "a.tsv"))
    folders = {PreparedRows(codec, tmp_path, PreparationConfig()).folder}
    monkeypatch.setattr(LabeledTextCodec, "kind", "other")
    folders.add(PreparedRows(codec, tmp_path, PreparationConfig()).folder)
    monkeypatch.setattr(LabeledTextCodec, "version", 3)
    folders.add(PreparedRows(codec, tmp_path, PreparationConfig()).folder)
    assert len(folders) == 3


def test_folders_of_earlier_versions_are_reused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tsv")
    with monkeypatch.context() as before:
        before.setattr(LabeledTextCodec, "version", 1)
        earlier = prepare(codec_of(path), tmp_path)
    assert PreparedRows(codec_of(path), tmp_path, PreparationConfig()).folder == earlier.folder
    assert prepare(codec_of(path), tmp_path / "new").folder.name != earlier.folder.name


def test_prepared_dir_is_the_parent_folder(tmp_path):
    rows = prepare(codec_of(write(tmp_path / "a.tsv")), tmp_path / "run", prepared_dir=str(tmp_path / "shared"))
    assert rows.folder.parent == tmp_path / "shared" and not (tmp_path / "run").exists()


def test_bad_rows_leave_no_finished_folder(tmp_path):
    path = write(tmp_path / "a.tsv")
    path.write_text(path.read_text() + "no label\n")
    rows = PreparedRows(codec_of(path), tmp_path / "kept", PreparationConfig())
    with pytest.raises(UserError, match=r"a\.tsv:602: got one field"):
        rows.run()
    assert not rows.is_finished and not any(each.is_dir() for each in (tmp_path / "kept").iterdir())
    assert len(prepare(codec_of(path, on_bad_row="skip"), tmp_path / "kept").fields["labels"]) > 0


def test_rows_that_change_while_they_are_read_are_an_error(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tsv")
    rows, encode = PreparedRows(codec_of(path), tmp_path / "kept", PreparationConfig()), LabeledTextCodec.training

    def changing(self, *arguments, **named):
        path.write_text(path.read_text() + "a cat\t1\n")
        return encode(self, *arguments, **named)

    monkeypatch.setattr(LabeledTextCodec, "training", changing)
    with pytest.raises(UserError, match="files that changed while they were read"):
        rows.run()
    assert not rows.is_finished


def test_files_that_another_process_wrote_are_an_error(tmp_path):
    writer = stored.Writer(tmp_path / "rows")
    writer.add({"labels": np.arange(3)})
    (tmp_path / "rows" / "labels").unlink()
    (tmp_path / "rows" / "labels").write_bytes(b"others")
    with pytest.raises(OSError, match="another process"):
        writer.finish()


def _prepare_slowly(path: Path, home: Path) -> None:
    original = stored.Writer.add

    def slow(self: stored.Writer, *block: Any) -> None:
        original(self, *block)
        (home.parent / "began").touch()
        time.sleep(600)

    stored.Writer.add = slow  # type: ignore[method-assign]
    prepare(codec_of(path), home)


def test_a_killed_preparation_starts_again(tmp_path):
    path, home = write(tmp_path / "a.tsv"), tmp_path / "kept"
    process = multiprocessing.get_context("fork").Process(target=_prepare_slowly, args=(path, home))
    process.start()
    while not (tmp_path / "began").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    rows = PreparedRows(codec_of(path), home, PreparationConfig())
    assert not rows.is_finished and rows.folder.with_suffix(".partial").exists()
    rows.run()
    assert files_of(rows.folder) == files_of(prepare(codec_of(path), tmp_path / "other").folder)
    assert not rows.folder.with_suffix(".partial").exists()


def test_a_config_without_training_rows_reads_rows_into_memory(tmp_path):
    path = write(tmp_path / "a.tsv", 50)
    rows = ValidRows(codec_of(path, source="", valid_source=str(path)))
    assert len(list(rows.held_out("valid"))) == len(list(rows.held_out("valid"))) == 50
    assert sum(rows.facts["classes"]["valid"].values()) == 50 and not rows.facts["classes"]["train"]


def test_the_error_of_a_beam_worker_is_that_of_the_row(tmp_path):
    (tmp_path / "0").write_text('"a"\n"b"\n')

    def encode(rows):
        raise UserError("a row", got=rows, expected="another", fix="correct it")

    prepared._encode_file(str(tmp_path / "0"), encode)
    with pytest.raises(UserError, match=r"a row: got \['a', 'b'\]; expected another"):
        prepared._load(str(tmp_path / "0"))
    with pytest.raises(UserError, match=r"got no .*1\.json; expected a folder that all workers of Beam can access"):
        prepared._load(str(tmp_path / "1"))
