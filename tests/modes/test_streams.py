"""Lines that come in."""

import gzip

from bertjax.modes import streams


def test_a_byte_order_mark_is_omitted(tmp_path):
    content = "\ufeffa cat\r\n\ufeffold bird\n".encode()
    (tmp_path / "in.txt").write_bytes(content)
    with gzip.open(tmp_path / "in.txt.gz", "wb") as file:
        file.write(content)
    for name in ("in.txt", "in.txt.gz"):
        assert list(streams.read_lines(str(tmp_path / name))) == ["a cat", "\ufeffold bird"]


def test_a_file_of_a_byte_order_mark_has_no_line(tmp_path):
    (tmp_path / "in.txt").write_bytes("\ufeff".encode())
    assert list(streams.read_lines(str(tmp_path / "in.txt"))) == []


def test_a_line_that_is_not_utf8_keeps_its_bytes(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"a cat\n" + b"\xff dog\nbird")
    assert list(streams.read_lines(str(tmp_path / "in.txt"))) == ["a cat", "\udcff dog", "bird"]
