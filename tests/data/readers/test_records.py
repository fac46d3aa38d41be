import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bertjax.data.readers import records
from bertjax.data.readers.sources import TextSource
from bertjax.errors import UserError
from tests.data import tfds_files

TEXTS = ["First line.\nSecond line.", "One\u2028line.", " \n", "bad \udcff byte", "Last."]


def _prepare(folder: Path) -> list[Path]:
    features = {"text": tfds.features.Text(), "title": tfds.features.Text(), "length": np.int32}
    rows = [
        {"text": data, "title": f"Title {key}", "length": len(data)}
        for key, data in enumerate(text.encode("utf-8", "surrogateescape") for text in TEXTS)
    ]
    return tfds_files.prepare(folder, features, rows, ("train", "test"))


@pytest.fixture
def prepared(tmp_path):
    tfds.core.add_data_dir(tmp_path)
    yield _prepare(tmp_path)
    tfds.core.utils.file_utils.clear_registered_data_dirs()


def test_texts_come_in_stored_order(prepared):
    texts = records.TextRecords("tiny_text", "train", "text")
    expected = [text.encode("utf-8", "surrogateescape") for text in TEXTS]
    assert len(texts) == len(TEXTS)
    assert list(texts) == list(texts) == expected
    assert list(records.TextRecords("tiny_text", "test[1:3]", "text")) == expected[1:3]
    assert list(records.TextRecords("tiny_text:1.2.3", "train", "title"))[-1] == b"Title 4"


@pytest.mark.parametrize(
    ("source", "split", "count"),
    [
        ("tfds:tiny_text", "train", 5),
        ("tfds:tiny_text:test", "test", 5),
        ("tfds:tiny_text:1.2.3", "train", 5),
        ("tfds:tiny_text:1.*.*:train[:2]", "train[:2]", 2),
        ("tfds:tiny_text:train+test[40%:60%]", "train+test[40%:60%]", 6),
    ],
)
def test_the_source_names_version_and_split(prepared, source, split, count):
    assert TextSource(source, "text", "stop").fingerprint() == {
        "kind": "tfds",
        "dataset": "tiny_text/1.2.3",
        "split": split,
        "num_examples": count,
        "text_field": "text",
    }


@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        ("tfds:tiny_text:valid", "text", "got split 'valid' .*expected one of test, train, or a slice"),
        ("tfds:tiny_text:train[", "text", r"got split 'train\['"),
        ("tfds:tiny_text", "body", "text_field=body .*got an unknown field; expected one of text, title"),
        ("tfds:tiny_text", "length", "a field without text; expected one of text, title"),
        ("tfds:nonesuch", "text", "unknown dataset .*NAME.*from the TFDS catalog, .*TFDS_DATA_DIR"),
        ("tfds:imdb_reviews", "text", r"not prepared on this machine; nothing is in .*imdb_reviews.*array_record"),
    ],
)
def test_wrong_names_are_reported_at_once(prepared, source, field, message, monkeypatch, tmp_path):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=message) as error:
        TextSource(source, field, "stop")
    assert "Fix:" in str(error.value)


def test_another_file_format_is_reported(prepared):
    info = prepared[0].with_name("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match=r"prepared as .*TFRECORD.*expected array_record"):
        TextSource("tfds:tiny_text", "text", "stop")


@pytest.mark.parametrize("damage", ["missing", "truncated", "overwritten"])
def test_damaged_files_are_reported(prepared, damage):
    train = next(path for path in prepared if "train" in path.name)
    if damage == "missing":
        train.unlink()
    else:
        data = train.read_bytes()
        train.write_bytes(data[:1000] if damage == "truncated" else b"x" * len(data))
    with pytest.raises(UserError, match=r"a file that cannot be read .*Fix: copy or prepare"):
        list(TextSource("tfds:tiny_text", "text", "skip").documents())


def test_tfds_data_dir_is_used_and_tensorflow_is_not_imported(tmp_path):
    _prepare(tmp_path)
    code = (
        "import sys; from bertjax.data.readers.sources import TextSource; "
        "print(len(list(TextSource('tfds:tiny_text', 'title', 'stop').documents()))); "
        "print('tensorflow' in sys.modules, 'jax' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(records.__file__).parents[3]), "TFDS_DATA_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.split() == ["5", "False", "False"]


def test_each_document_is_written_to_its_file(tmp_path):
    documents = [np.arange(length, dtype=np.int32) for length in (3, 1, 4, 1, 5)]
    files = {"train": [documents[:2], iter(documents[2:4]), documents[4:]], "valid": [documents[1:]]}
    records.write_tokens(tmp_path, files)
    names = [path.name.split("-", 1)[1] for path in sorted(tmp_path.rglob("*.array_record*"))]
    assert names == [
        *(f"train.array_record-0000{number}-of-00003" for number in range(3)),
        "valid.array_record-00000-of-00001",
    ]
    for name, expected in (("train", documents), ("valid", documents[1:])):
        lengths = np.array([len(ids) for ids in expected])
        read = records.TokenRecords(tmp_path, name, lengths)
        assert len(read) == read.num_expected == len(expected)
        order = np.arange(len(read))[::-1]
        found = read.read(order, np.zeros_like(order), lengths[order])
        assert [ids.tolist() for ids in found] == [ids.tolist() for ids in reversed(expected)]
