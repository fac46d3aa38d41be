"""Cached digests of large files, and files of JSON lines."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertjax import files


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file above the size for caching that was not changed recently."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_CACHED_ABOVE", 2)
    (tmp_path / "text.txt").write_bytes(b"one")
    os.utime(tmp_path / "text.txt", (1e9, 1e9))
    return tmp_path / "text.txt"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def change(path, content):
    """Changes a file without changing its size or modification time."""
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_digest_is_cached_until_size_or_time_changes(large):
    assert files.digest(large) == sha256(b"one")
    change(large, b"two")
    assert files.digest(large) == sha256(b"one"), "the file was read again"
    os.utime(large, (1e9 + 1, 1e9 + 1))
    assert files.digest(large) == sha256(b"two")
    large.write_bytes(b"three")
    os.utime(large, (1e9 + 1, 1e9 + 1))
    assert files.digest(large) == sha256(b"three")


def test_digests_of_small_and_recently_changed_files_are_not_cached(large, monkeypatch):
    os.utime(large, (time.time(), time.time()))
    files.digest(large)
    change(large, b"two")
    assert files.digest(large) == sha256(b"two")
    os.utime(large, (1e9, 1e9))
    monkeypatch.setattr(files, "_CACHED_ABOVE", 3)
    files.digest(large)
    change(large, b"six")
    assert files.digest(large) == sha256(b"six")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"sha256": 3}'])
def test_a_damaged_cache_is_ignored(large, tmp_path, content):
    files.digest(large)
    (entry,) = (tmp_path / "cache" / "bertjax" / "digests").iterdir()
    entry.write_text(content)
    assert files.digest(large) == sha256(b"one")


def test_a_cache_that_cannot_be_written_is_no_error(large, tmp_path):
    (tmp_path / "cache").touch()
    assert files.digest(large) == sha256(b"one")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.digest(tmp_path / "none")


def test_records_after_damaged_lines_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff{"step": 2}\n' + b"[" * 100_000 + b'\n{"step": 3}\n')
    assert [record["step"] for record in files.read_records(path)] == [1, 3]


def test_a_config_file_is_the_packages_where_the_folder_has_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = Path(files.__file__).parent / "configs" / "features.py"
    assert Path(files.with_packaged("configs/features.py")) == packaged
    assert files.with_packaged("configs/no_such.py") == "configs/no_such.py"
    assert files.with_packaged(str(packaged)) == str(packaged)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "features.py").touch()
    assert files.with_packaged("configs/features.py") == "configs/features.py"


def test_a_completed_file_has_the_permissions_of_a_new_file(tmp_path):
    (tmp_path / "new").touch()
    with files.completed(tmp_path / "weights") as partial:
        save_file({"weight": np.zeros(1)}, partial)
    assert (tmp_path / "weights").stat().st_mode == (tmp_path / "new").stat().st_mode
