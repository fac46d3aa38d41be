"""Tests that workers on the shares of a source give the same result as one process on the whole source."""

import functools
import itertools
import json
import pickle
import sys

import pytest

from bertjax.data import beam
from bertjax.data.beam import BeamConfig
from bertjax.data.pretraining import corpus, shares
from bertjax.data.pretraining.corpus import Preparation
from bertjax.data.readers import records, sources
from bertjax.data.readers.sources import TextSource
from bertjax.errors import UserError
from tests.data.folders import TRAINED, digests, texts_of

HERE = BeamConfig("DirectRunner")


@pytest.fixture
def files(tiny_documents, tmp_path):
    """The tiny documents in many files, one of which has no text; returns the glob of the files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(10):
        group = tiny_documents[3 * number : 3 * number + 3]
        (folder / f"{number:02d}.txt").write_text("\n\n".join("\n".join(lines) for lines in group) + "\n")
    (folder / "05-empty.txt").write_text("\n\n")
    return str(folder / "*.txt")


@pytest.fixture
def in_turn(monkeypatch):
    """Runs the work of Beam's workers in this process, in reverse order. Each file is a share."""

    def for_each(config, workers, function, items):
        for item in reversed(items):
            pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(item)))

    monkeypatch.setattr(beam, "check", lambda config: None)
    monkeypatch.setattr(beam, "for_each", for_each)
    monkeypatch.setattr(beam, "pipeline_of", lambda config, workers: {})
    monkeypatch.setattr(sources, "_SHARE_BYTES", 1)


def prepare(config, tmp_path):
    made = Preparation(config, tmp_path)
    made.run()
    return made.folder


@pytest.mark.parametrize("changes", [{}, TRAINED, {"valid_source": "here"}])
def test_shares_give_the_result_of_the_whole_source(changes, files, make_config, tmp_path, in_turn):
    changes = {name: files if value == "here" else value for name, value in changes.items()}
    folders = [
        prepare(make_config(source=files, **changes, beam=config, prepared_dir=str(tmp_path / name)), tmp_path)
        for name, config in (("whole", BeamConfig()), ("shares", HERE))
    ]
    names = {"records/", "manifest.json"}  # the records may be in other files, whose sizes are in the manifest
    whole, shared = ({k: v for k, v in digests(f).items() if not any(map(k.startswith, names))} for f in folders)
    assert whole == shared
    whole, shared = (json.loads((folder / "manifest.json").read_text()) for folder in folders)
    assert whole.pop("files") and shared.pop("files") and whole == shared
    for split in corpus.SPLITS:
        one, two = (texts_of(corpus.Corpus(folder), split) for folder in folders)
        assert one == two
        assert len(one) > 3
    assert json.loads((folders[1] / "manifest.json").read_text())["counts"]["train"]["empty_documents"] == 1


def test_the_error_of_the_first_bad_share_is_reported(files, make_config, tmp_path, in_turn):
    for name in ("02", "07"):
        (tmp_path / "files" / f"{name}.txt").write_bytes(b"good\n\xff\n")
    config = make_config(source=files, beam=HERE)
    with pytest.raises(UserError, match=r"files/02\.txt:2: got byte 0xff"):
        prepare(config, tmp_path)
    assert not list((tmp_path / "prepared").glob("*.partial"))
    skipping = make_config(source=files, beam=HERE, on_bad_row="skip")
    counts = json.loads((prepare(skipping, tmp_path) / "manifest.json").read_text())["counts"]
    assert (counts["train"]["skipped_rows"], counts["valid"]["skipped_rows"]) == (2, 0)


def work(documents, workers, parts):
    for _ in documents:
        with parts.add(1) as path:
            path.write_text("done")


def lines_of(source):
    return (document.lines for document in source.documents())


def test_finished_shares_are_not_processed_again(files, tmp_path, in_turn):
    make = functools.partial(shares.make_parts, TextSource(files, "text", "stop"), lines_of)
    folder = tmp_path / "parts"
    paths, counts = make(work, folder, HERE, 1)
    assert len(paths) == counts["documents"] == 30
    assert paths == sorted(paths)
    (folder / "000003" / "done.json").unlink()  # makes the share unfinished
    again, _ = make(work_on, folder, HERE, 1)
    assert again == paths


def work_on(documents, workers, parts):
    """Works on all documents that have no part, like `preparation.tokenize`."""
    assert parts.num_documents == 3
    work(itertools.islice(documents, parts.num_documents, None), workers, parts)


def test_an_unprocessed_share_is_reported(files, tmp_path, in_turn, monkeypatch):
    monkeypatch.setattr(beam, "for_each", lambda *args: None)
    with pytest.raises(UserError, match=r"share 0 of the text: got no result from Beam's workers"):
        shares.make_parts(TextSource(files, "text", "stop"), lines_of, work, tmp_path / "parts", HERE, 1)


def test_lost_records_are_reported(make_config, tmp_path, in_turn, monkeypatch):
    write = records.write_tokens

    def lose(folder, splits, pipeline):
        write(folder, {**splits, "train": [list(splits["train"][0])[1:]]})

    monkeypatch.setattr(beam, "pipeline_of", lambda config, workers: {"runner": "a", "options": "b"})
    monkeypatch.setattr(records, "write_tokens", lose)
    with pytest.raises(UserError, match=r"the train records that Beam wrote: got \d+; expected \d+, the number that"):
        prepare(make_config(beam=HERE), tmp_path)


def test_shares_of_files_depend_on_their_sizes(files, monkeypatch):
    whole = TextSource(files, "text", "stop")
    documents = [document.lines for document in whole.documents()]
    for size, count in ((1, 11), (1000, None), (2**30, 1)):
        monkeypatch.setattr(sources, "_SHARE_BYTES", size)
        found = whole.shares()
        assert (count is None and 1 < len(found) < 11) or len(found) == count
        assert [document.lines for share in found for document in share.documents()] == documents


def test_shares_of_records_are_slices(monkeypatch):
    texts = [f"text {number}" for number in range(10)]

    def open_records(source, text_field, key):
        start, _, stop = sources.split_name(source, "data.source")[1].removeprefix("train").strip("[]").partition(":")
        return texts[int(start or 0) : int(stop) if stop else None]

    monkeypatch.setattr(sources, "_open_records", open_records)
    monkeypatch.setattr(sources, "_SHARE_RECORDS", 4)
    for split, count, total in (("train", 3, 10), ("train[0:7]", 1, 7)):  # a slice is not divided
        found = TextSource(f"tfds:made:{split}", "text", "stop").shares()
        assert len(found) == count
        for several in (found, pickle.loads(pickle.dumps(found))):
            assert [document.lines for share in several for document in share.documents()] == [
                [text] for text in texts[:total]
            ]


def test_a_missing_beam_is_reported_before_anything_is_written(make_config, tmp_path, monkeypatch):
    for name in ("apache_beam", "apache_beam.runners", "apache_beam.runners.runner"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"data\.beam\.runner=DirectRunner: got a runner whose library is not"):
        prepare(make_config(beam=HERE), tmp_path)
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize(
    ("runner", "options", "got"),
    [
        ("DirectRunner", ("--direct_running_mode=multi_threading",), "direct_running_mode=multi_threading; expected"),
        ("", ("--direct_num_workers=2",), r".*direct_num_workers=2.* without a runner; expected no options"),
    ],
)
def test_options_that_lose_records_or_have_no_effect_are_errors(runner, options, got):
    with pytest.raises(UserError, match=rf"config key data\.beam\.options: got {got}"):
        BeamConfig(runner, options)
