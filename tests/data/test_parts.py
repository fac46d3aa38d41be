import pytest

from bertjax.data.parts import Parts


def test_finished_files_are_found_in_order(tmp_path):
    parts = Parts(tmp_path / "parts", ".txt")
    assert (parts.paths, parts.num_documents) == ([], 0)
    for number in (9, 90, 900):
        with parts.add(number) as path:
            path.write_text(str(number))
    assert parts.num_documents == 999
    again = Parts(tmp_path / "parts", ".txt")
    assert again.paths == parts.paths
    assert again.num_documents == 999
    assert [path.read_text() for path in again.paths] == ["9", "90", "900"]


def test_an_unfinished_file_is_ignored(tmp_path):
    parts = Parts(tmp_path, ".txt")
    with parts.add(5) as path:
        path.write_text("whole")
    with pytest.raises(KeyboardInterrupt), parts.add(5) as path:
        path.write_text("half")
        left = path.name
        raise KeyboardInterrupt
    assert parts.num_documents == 5
    # Files that a killed process leaves behind.
    (tmp_path / left).write_text("half")
    (tmp_path / "merged-0-0").write_text("an intermediate file")
    (tmp_path / "000000000000009.npz").write_text("another suffix")
    assert [path.read_text() for path in Parts(tmp_path, ".txt").paths] == ["whole"]
