"""Files of vectors: their content, whatever was killed when, and what they refuse."""

import io
import json

import numpy as np
import pytest

from bertjax.data.readers.vector_files import DTYPES, to_dtype, writing
from bertjax.errors import UserError
from bertjax.files import alone

TEXTS = ["one", ("two", "한국어"), "three", "\ud800", "four"]


def vector(text):
    return np.random.default_rng(len(repr(text))).standard_normal(3).astype(np.float32)


def write(path, texts=TEXTS, stop=None, dtype="float32", **made_with):
    """Writes the vectors of texts, and is interrupted before the text with the number `stop`. Returns those written."""
    written = []
    with writing(path, made_with, 3, dtype) as file:
        for number, text in enumerate(file.unread(iter(texts)), start=file.done):
            if number == stop:
                raise KeyboardInterrupt
            file.add(to_dtype(vector(text), 3, dtype, number))
            written.append(text)
    return written


def interrupted(path, stop, **options):
    with pytest.raises(KeyboardInterrupt):
        write(path, stop=stop, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lost", "texts"), [(0, 0), (1, 0), (0, 3), (20, 1), (10**3, 0)])
def test_a_killed_process_is_resumed_with_the_same_bytes(tmp_path, dtype, lost, texts):
    write(tmp_path / "whole.npy", dtype=dtype)
    path, partial = tmp_path / "a.npy", tmp_path / "a.npy.partial"
    interrupted(path, 3, dtype=dtype)
    assert not path.exists()
    row = 3 * np.dtype(dtype).itemsize
    with partial.open("r+b") as file:
        file.truncate(max(0, partial.stat().st_size - lost))
    with (tmp_path / "a.npy.texts").open("r+b") as file:
        file.truncate(3 * 8 - texts)
    assert write(path, dtype=dtype) == TEXTS[min(max(0, 3 * row - lost) // row, (24 - texts) // 8) :]
    expected = io.BytesIO()
    np.save(expected, np.stack([to_dtype(vector(text), 3, dtype, 0) for text in TEXTS]))
    assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes() == expected.getvalue()
    assert {each.name for each in tmp_path.glob("a.npy*")} == {"a.npy", "a.npy.json", "a.npy.texts"}


def test_the_vectors_of_other_texts_or_options_are_not_continued(tmp_path):
    path = tmp_path / "a.npy"
    interrupted(path, 3, layer=-1)
    for texts, options, message in (
        (TEXTS, {"layer": 1}, r"got vectors with layer=-1; expected layer=1\. Fix: choose another --output, or delete"),
        (TEXTS, {"layer": -1, "dtype": "float16"}, "got vectors with dtype='float32'; expected dtype='float16'"),
        (["one", "zwei"], {"layer": -1}, "got the vectors of other texts: text 2 is another one"),
        (TEXTS[:2], {"layer": -1}, r"got the vectors of 3 texts, but only 2 texts; expected the same texts"),
    ):
        with pytest.raises(UserError, match=message):
            write(path, texts, **options)
    with alone(path), pytest.raises(UserError, match="another process is writing"):
        write(path, layer=-1)
    assert write(path, layer=-1) == TEXTS[3:]
    assert json.loads((tmp_path / "a.npy.json").read_text()) == {"layer": -1, "dtype": "float32"}


def test_a_complete_file_is_compared_and_not_written(tmp_path):
    path = tmp_path / "a.npy"
    assert write(path) == TEXTS
    before = path.read_bytes()
    assert write(path) == []
    for texts in ([*TEXTS, "five"], TEXTS[:-1], [*TEXTS[:-1], "five"]):
        with pytest.raises(UserError, match="got the vectors of"):
            write(path, texts)
    assert path.read_bytes() == before
    path.write_bytes(before[:-1])
    with pytest.raises(UserError, match=r"got 4 vectors; expected 5, as in .*a\.npy\.texts"):
        write(path)
    (tmp_path / "a.npy.texts").unlink()
    with pytest.raises(UserError, match=r"got 4 vectors; expected 0, as in .*a\.npy\.texts"):
        write(path)
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(UserError, match=r"got a file without a description; expected .*b\.npy\.json"):
        write(tmp_path / "b.npy")


def test_a_file_of_no_texts_opens(tmp_path):
    write(tmp_path / "a.npy", [])
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (0, 3)


def test_a_rounded_vector_has_the_documented_error():
    vectors = np.random.default_rng(0).standard_normal((100, 384)).astype(np.float32)
    vectors *= np.logspace(-6, 3, 100, dtype=np.float32)[:, None]
    for each in vectors:
        scale = np.abs(each).max()
        found = to_dtype(each, 384, "int8", 1)
        assert found.dtype == np.int8 and np.abs(found).max() == 127
        error = np.abs(found * (scale / 127) - each)
        assert error.max() <= scale / 254 * (1 + 1e-5)
        cosine = found @ each / np.linalg.norm(found.astype(np.float32)) / np.linalg.norm(each)
        assert cosine > 0.9999
        np.testing.assert_array_equal(to_dtype(each, 384, "float16", 1), each.astype(np.float16))
        assert to_dtype(each, 384, "float32", 1) is each


def test_what_a_dtype_does_not_hold():
    assert np.isnan(to_dtype(None, 2, "float16", 1)).all() and not to_dtype(None, 2, "int8", 1).any()
    assert not to_dtype(np.zeros(2, np.float32), 2, "int8", 1).any()
    for value, dtype in ((1e5, "float16"), (np.nan, "int8"), (np.inf, "float32")):
        with pytest.raises(UserError, match=r"the vector of text 7: got numbers that are not finite.*65504"):
            to_dtype(np.float32([1, value]), 2, dtype, 7)
