"""Parquet and Arrow files give the rows of the JSON lines that they were made of."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.config import build
from bertjax.data.fine_tuning import labeled_text
from bertjax.data.fine_tuning.labeled_text import LabeledTextConfig
from bertjax.data.readers import columnar, tables
from bertjax.data.readers.lines import BadRows
from bertjax.errors import UserError

ROWS = [
    {"sentence": f"größe {i}", "label": i % 3, "score": i / 2, "choices": ["a", None], "more": {"x": i}}
    for i in range(9)
]
FEATURES = {"info": {"features": {"label": {"names": ["no", "yes", "maybe"], "_type": "ClassLabel"}}}}


def write(folder, rows=ROWS, named=False):
    """The same rows in files of all kinds."""
    table = pyarrow.Table.from_pylist(rows)
    if named:
        table = table.replace_schema_metadata({"huggingface": json.dumps(FEATURES)})
    parquet.write_table(table, folder / "rows.parquet", row_group_size=4)
    with pyarrow.OSFile(str(folder / "file.arrow"), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    with (
        pyarrow.OSFile(str(folder / "stream.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=4)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "stream.arrow"}]}))


def read(source, on_bad_row="stop"):
    return list(tables.read_rows(str(source), "data.source", True, "", BadRows(on_bad_row)))


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow", "hf:"])
def test_rows_are_those_of_json_lines(tmp_path, name):
    write(tmp_path)
    source = f"hf:{tmp_path}" if name == "hf:" else tmp_path / name
    found = read(source)
    assert [row.values for row in found] == [row.values for row in read(tmp_path / "rows.jsonl")] == ROWS
    assert found[6].where == f"{tmp_path / ('stream.arrow' if name == 'hf:' else name)}: row 7"
    assert tables.fingerprint(str(source), "data.source")[0]["bytes"] > 0


def test_numbers_of_classes_with_names_are_the_names(tmp_path):
    write(tmp_path, named=True)
    for name in ("rows.parquet", "stream.arrow"):
        assert [row.values["label"] for row in read(tmp_path / name)] == ["no", "yes", "maybe"] * 3
        assert tables.class_names(str(tmp_path / name), "data.source", "label") == ("no", "yes", "maybe")
        assert tables.class_names(str(tmp_path / name), "data.source", "sentence") == ()


def test_labeled_text_is_read_from_both_alike(tmp_path):
    write(tmp_path, [{"sentence": row["sentence"], "label": str(row["label"])} for row in ROWS])
    values = {"valid_source": "", "valid_fraction": 0.3, "header": True, "separator": "", "on_bad_row": "stop"}
    values |= {"text_columns": ("sentence",), "label_column": "label"}
    splits = []
    for name in ("rows.jsonl", "rows.parquet"):
        config = build(LabeledTextConfig, {**values, "source": str(tmp_path / name)}, "data")
        splits.append([[row[:3] for row in rows] for rows in labeled_text.read_splits(config, False, 0)])
    assert splits[0] == splits[1] and all(splits[0])


def test_text_that_is_none_is_a_bad_row(tmp_path):
    table = pyarrow.table({"sentence": pyarrow.array([b"a", b"caf\xe9", b"b\0", b"c"]).cast(pyarrow.binary())})
    bad = pyarrow.table({"sentence": pyarrow.StringArray.from_buffers(4, *table["sentence"].chunk(0).buffers()[1:])})
    parquet.write_table(bad, tmp_path / "rows.parquet")
    assert [row.values["sentence"] for row in read(tmp_path / "rows.parquet", "skip")] == ["a", "c"]
    with pytest.raises(UserError, match=r"rows\.parquet: row 2: got bytes that are not UTF-8"):
        read(tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow"])
@pytest.mark.parametrize("keeps", [0, 0.5, 0.9])
def test_damage_is_told(tmp_path, name, keeps):
    write(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(keeps * len(content))])
    with pytest.raises(UserError, match=rf"{name}: got what is no complete (Parquet|Arrow) file .* Fix: make or copy"):
        read(tmp_path / name)


def test_folders_that_are_no_dataset(tmp_path):
    (tmp_path / "train").mkdir()
    write(tmp_path / "train")
    with pytest.raises(UserError, match=r"got a folder of the splits train; .*Fix: name the folder of a split"):
        columnar.find_files(f"hf:{tmp_path}", "data.source")
    with pytest.raises(UserError, match=r"data\.source=hf:.*none: got no readable state\.json"):
        columnar.find_files(f"hf:{tmp_path}/none", "data.source")
    (tmp_path / "train" / "stream.arrow").unlink()
    with pytest.raises(UserError, match=r"got no stream\.arrow; expected the files in its state\.json"):
        columnar.find_files(f"hf:{tmp_path}/train", "data.source")


def test_a_file_to_predict_on_is_a_table(tmp_path):
    write(tmp_path)
    for name in ("rows.parquet", "file.arrow"):
        rows = tables.read_input(str(tmp_path / name), "data.text_columns", ("sentence",), True, BadRows("stop"))
        assert [row.values["sentence"] for row in rows or ()] == [row["sentence"] for row in ROWS]
        rows = tables.read_input(str(tmp_path / name), "data.text_columns", ("none",), True, BadRows("stop"))
        with pytest.raises(UserError, match="without column 'none'"):
            next(rows or iter(()))
