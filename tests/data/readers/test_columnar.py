"""Tests that Parquet and Arrow files give the rows of the JSON lines that they were made from."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.data.readers import columnar, tables
from bertjax.data.readers.lines import BadRows
from bertjax.errors import UserError

ROWS = [
    {"sentence": f"größe {i}", "label": i % 3, "several": [i % 3, 1], "choices": ["a", None], "more": {"x": i / 2}}
    for i in range(9)
]
_CLASSES = {"names": ["no", "yes", "maybe"], "_type": "ClassLabel"}
FEATURES = {"info": {"features": {"label": _CLASSES, "several": {"feature": _CLASSES, "_type": "Sequence"}}}}


def write(folder, rows=ROWS, named=False):
    """Writes the same rows to files of all kinds."""
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
def test_rows_equal_those_of_json_lines(tmp_path, name):
    write(tmp_path)
    source = f"hf:{tmp_path}" if name == "hf:" else tmp_path / name
    found = read(source)
    assert [row.values for row in found] == [row.values for row in read(tmp_path / "rows.jsonl")] == ROWS
    assert found[6].where == f"{tmp_path / ('stream.arrow' if name == 'hf:' else name)}: row 7"
    assert tables.fingerprint(str(source), "data.source")[0]["bytes"] > 0


def test_class_numbers_are_read_as_class_names(tmp_path):
    write(tmp_path, named=True)
    for name in ("rows.parquet", "stream.arrow"):
        rows = [row.values for row in read(tmp_path / name)]
        assert [row["label"] for row in rows] == ["no", "yes", "maybe"] * 3
        assert [row["several"] for row in rows] == [["no", "yes"], ["yes", "yes"], ["maybe", "yes"]] * 3
        for column in ("label", "several"):
            assert tables.class_names(str(tmp_path / name), "data.source", column) == ("no", "yes", "maybe")
        assert tables.class_names(str(tmp_path / name), "data.source", "sentence") == ()


def test_text_that_is_not_utf8_is_a_bad_row(tmp_path):
    table = pyarrow.table({"sentence": pyarrow.array([b"a", b"caf\xe9", b"b\0", b"c"]).cast(pyarrow.binary())})
    bad = pyarrow.table({"sentence": pyarrow.StringArray.from_buffers(4, *table["sentence"].chunk(0).buffers()[1:])})
    parquet.write_table(bad, tmp_path / "rows.parquet")
    assert [row.values["sentence"] for row in read(tmp_path / "rows.parquet", "skip")] == ["a", "c"]
    with pytest.raises(UserError, match=r"rows\.parquet: row 2: got bytes that are not UTF-8"):
        read(tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow"])
@pytest.mark.parametrize("keeps", [0, 0.5, 0.9])
def test_damage_is_reported(tmp_path, name, keeps):
    write(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(keeps * len(content))])
    message = rf"{name}: got a damaged or incomplete (Parquet|Arrow) file .* Fix: make or copy"
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_folders_that_are_not_datasets_are_errors(tmp_path):
    (tmp_path / "train").mkdir()
    write(tmp_path / "train")
    with pytest.raises(UserError, match=r"got a folder with the splits train; .*Fix: name the folder of one split"):
        columnar.find_files(f"hf:{tmp_path}", "data.source")
    with pytest.raises(UserError, match=r"data\.source=hf:.*none: got no readable state\.json"):
        columnar.find_files(f"hf:{tmp_path}/none", "data.source")
    (tmp_path / "train" / "stream.arrow").unlink()
    with pytest.raises(UserError, match=r"got no stream\.arrow; expected the files in its state\.json"):
        columnar.find_files(f"hf:{tmp_path}/train", "data.source")


def test_prediction_reads_tables(tmp_path):
    write(tmp_path)
    for name in ("rows.parquet", "file.arrow"):
        rows = tables.read_input(str(tmp_path / name), "data.text_columns", ("sentence",), True, "", BadRows("stop"))
        assert [row.values["sentence"] for row in rows or ()] == [row["sentence"] for row in ROWS]
        rows = tables.read_input(str(tmp_path / name), "data.text_columns", ("none",), True, "", BadRows("stop"))
        with pytest.raises(UserError, match="no column 'none'"):
            next(rows or iter(()))


def test_a_value_that_python_cannot_represent_is_none(tmp_path):
    kinds = {"ns": pyarrow.timestamp("ns"), "us": pyarrow.timestamp("us"), "gap": pyarrow.duration("ns")}
    columns = {name: pyarrow.array([1, 2**62 + 1], kind) for name, kind in kinds.items()}
    parquet.write_table(pyarrow.table({"sentence": ["a", "b"], **columns}), tmp_path / "rows.parquet")
    first, second = (row.values for row in read(tmp_path / "rows.parquet"))
    assert first["sentence"] == "a" and first["ns"] is None and first["gap"] is None and first["us"].microsecond == 1
    assert second == {"sentence": "b", "ns": None, "us": None, "gap": None}


def test_a_stream_without_its_end_mark_is_damaged(tmp_path):
    write(tmp_path)
    content = (tmp_path / "stream.arrow").read_bytes()
    (tmp_path / "stream.arrow").write_bytes(content[:-8])
    with pytest.raises(UserError, match=r"incomplete Arrow file \(its end mark is missing\)"):
        read(tmp_path / "stream.arrow")


def test_two_columns_of_one_name_are_an_error(tmp_path):
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array([1])], names=["x", "x"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"rows\.parquet: got two columns 'x'; expected unique column names"):
        read(tmp_path / "rows.parquet")


def test_a_class_without_a_name_is_an_error(tmp_path):
    write(tmp_path, [{"sentence": "x", "label": label} for label in (2, -1, 3, -2, 0, None)], named=True)
    for name in ("rows.parquet", "stream.arrow"):
        assert [row.values["label"] for row in read(tmp_path / name, "skip")] == ["maybe", None, "no", None]
        with pytest.raises(UserError, match=r"row 3: got class 3 in column 'label'; expected 0 to 2, the classes"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    "features",
    [
        {"label": {"names": "abc", "_type": "ClassLabel"}},
        {"label": {"names": {"dtype": "string", "_type": "Value"}}},
        {"label": [{"names": ["a", "b", "c"], "_type": "ClassLabel"}]},
    ],
)
def test_metadata_without_class_names_is_ignored(tmp_path, features, monkeypatch):
    monkeypatch.setitem(FEATURES["info"], "features", features)
    write(tmp_path, named=True)
    assert [row.values for row in read(tmp_path / "rows.parquet")] == ROWS
    assert tables.class_names(str(tmp_path / "rows.parquet"), "data.source", "label") == ()


def test_class_names_in_some_files_only_are_an_error(tmp_path):
    for name, named in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, named=named)
    source = f"{tmp_path}/*/rows.parquet"
    with pytest.raises(UserError, match=r"got names for the classes of 'label' in .*a/rows.* none in .*b/rows"):
        tables.class_names(source, "data.source", "label")


@pytest.mark.parametrize("separator", ["", "\t"])
def test_a_gzipped_columnar_file_is_an_error(tmp_path, separator):
    path = tmp_path / "rows.parquet.gz"
    path.write_bytes(b"\x1f\x8b")
    with pytest.raises(UserError, match=r"rows\.parquet\.gz.*got a gzipped Parquet or Arrow file.*Fix: unpack it"):
        list(tables.read_rows(str(path), "data.source", True, separator, BadRows("stop")))
    with pytest.raises(UserError, match="Fix: unpack it"):
        list(tables.read_input(str(path), "data.text_columns", ("sentence",), True, "", BadRows("stop")) or ())


def test_a_dataset_with_indices_is_an_error(tmp_path):
    write(tmp_path)
    state = {"_data_files": [{"filename": "stream.arrow"}], "_indices_data_files": [{"filename": "indices.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"selects rows by indices.*flatten_indices"):
        columnar.find_files(f"hf:{tmp_path}", "data.source")
