import pytest

from bertjax.data.parts import Parts


def test_parts_are_found_again_in_order(tmp_path):
    parts = Parts(tmp_path / "parts", ".txt")
    assert (parts.paths, parts.num_documents) == ([], 0)
    for number in (9, 90, 900):
        with parts.adding(number) as path:
            path.write_text(str(number))
    assert parts.num_documents == 999
    again = Parts(tmp_path / "parts", ".txt")
    assert again.paths == parts.paths
    assert again.num_documents == 999
    assert [path.read_text() for path in again.paths] == ["9", "90", "900"]


def test_what_was_not_finished_is_no_part(tmp_path):
    parts = Parts(tmp_path, ".txt")
    with parts.adding(5) as path:
        path.write_text("whole")
    with pytest.raises(KeyboardInterrupt), parts.adding(5) as path:
        path.write_text("half")
        left = path.name
        raise KeyboardInterrupt
    assert parts.num_documents == 5
    # What a killed process leaves.
    (tmp_path / left).write_text("half")
    (tmp_path / "merged-0-0").write_text("in between")
    (tmp_path / "000000000000009.npz").write_text("of another kind")
    assert [path.read_text() for path in Parts(tmp_path, ".txt").paths] == ["whole"]
