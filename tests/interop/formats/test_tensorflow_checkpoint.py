import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.interop.formats import sstable, tensorflow_checkpoint
from bertjax.interop.formats.tensorflow_checkpoint import Checkpoint, Tensor
from tests.interop.bundles import HEADER, entry, message, write
from tests.interop.formats.damage import damaged, errors_name

# Written by TensorFlow; see golden/make_tensorflow_checkpoints.py.
GOLDEN = Path(__file__).parents[1] / "golden"
BERT = GOLDEN / "uncased_L-2_H-8_A-2" / "bert_model.ckpt"
PARTITIONED = GOLDEN / "partitioned" / "model.ckpt-7"
TYPES = GOLDEN / "types" / "model.ckpt"
OBJECTS = GOLDEN / "object_based" / "ckpt-1"
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
KEY = b"\0x\0\1\1\2"  # the key of a slice of the matrix x, without its extents


def part(*extents):
    """A TensorSliceProto."""
    return (7, [(1, [(1, start), (2, length)]) for start, length in extents])


@pytest.mark.parametrize("prefix", [BERT, PARTITIONED, OBJECTS], ids=lambda path: path.parent.name)
def test_all_numbers_equal_those_of_tensorflow(prefix):
    checkpoint, expected = Checkpoint(prefix), np.load(prefix.parent / "values.npz")
    names = [name for name, tensor in checkpoint.tensors.items() if tensor.dtype != "string"]
    assert sorted(names) == expected["names"].tolist()
    arrays = [checkpoint.read(name) for name in sorted(names)]
    assert [array.shape for array in arrays] == [checkpoint.tensors[name].shape for name in sorted(names)]
    np.testing.assert_array_equal(np.concatenate([array.ravel() for array in arrays]), expected["values"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"])
def test_types(dtype):
    array = Checkpoint(TYPES).read(dtype)
    assert array.dtype.name == dtype
    np.testing.assert_array_equal(array.astype(np.float32), VALUES)
    assert not array.flags.writeable


def test_a_scalar_and_an_empty_tensor():
    checkpoint = Checkpoint(TYPES)
    assert checkpoint.read("scalar") == np.float32(2.5)
    assert checkpoint.read("empty").shape == (0, 3)


@pytest.mark.parametrize("name", ["bool", "complex64", "string"])
def test_other_types_are_refused_by_name(name):
    with pytest.raises(UserError, match=rf"model.ckpt.index: {name}: got {name}; expected one of float32, .*leave"):
        Checkpoint(TYPES).read(name)


def test_an_unknown_name():
    with pytest.raises(UserError, match=r"ckpt-7.index: other: got no such tensor; expected one of part/columns, part"):
        Checkpoint(PARTITIONED).read("other")


def test_the_first_format_is_refused_by_name():
    with pytest.raises(UserError, match=r"old.ckpt: got a checkpoint of TensorFlow's first format.*Fix: load it with"):
        Checkpoint(GOLDEN / "types" / "old.ckpt")


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"none.index: got No such file or directory; .*Fix: check the path"):
        Checkpoint(tmp_path / "none")
    shutil.copy(f"{BERT}.index", tmp_path)
    with pytest.raises(UserError, match=r"bert_model.ckpt.data-00000-of-00001: got No such file"):
        Checkpoint(tmp_path / "bert_model.ckpt")


@pytest.mark.parametrize(
    ("items", "got"),
    [
        ([(b"x", entry(VALUES))], "no header"),
        ([(b"", message((1, 1), (2, 1)))], "big-endian byte order; expected little-endian"),
        ([HEADER, (b"\xfe", entry(VALUES))], r"name b'.*xfe'; expected names in UTF-8"),
        ([HEADER, (b"x", entry(VALUES, shard=1))], "data file 1; expected one of the 1"),
        ([HEADER, (b"x", entry(VALUES, shard=-1))], "data file -1; expected one of the 1"),
        ([HEADER, (b"x", entry(VALUES, 4))], "a tensor from byte 4 to 28 of data file 0; expected .* within its 24"),
        ([HEADER, (b"x", entry(VALUES, -4))], "a tensor from byte -4 to 20"),
        ([HEADER, (b"x", entry(VALUES, 2**62))], "a tensor from byte 4611686018427387904"),
        ([HEADER, (b"x", entry(VALUES)), (b"y", entry(VALUES))], "48 bytes of tensors; expected at most 24"),
        ([HEADER, (b"x", entry(VALUES, shape=(-1,)))], r"shape \(-1,\)"),
        ([HEADER, (b"x", entry(VALUES, shape=(2**40, 2**40, 0)))], r"shape \(1099511627776, 1099511627776, 0\)"),
        ([HEADER, (b"x", entry(VALUES, shape=(1,) * 65))], r"shape \(1, 1"),
        ([HEADER, (b"x", entry(VALUES, 0, part((-1, 1), (0, 3))))], "slices .*expected starts and lengths"),
    ],
)
def test_a_damaged_index(tmp_path, items, got):
    with pytest.raises(UserError, match=f"x.index(: x)?: got {got}"):
        Checkpoint(write(tmp_path / "x", items, VALUES.tobytes()))


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"shape": (7,)}, r"24 bytes; expected 28 for shape \(7,\) of float32"),
        ({"shape": (2**40,)}, "24 bytes; expected 4398046511104 for"),
        ({"dtype": 2}, r"24 bytes; expected 48 for shape \(2, 3\) of float64"),
        ({"dtype": 99}, "number 99; expected one of float32"),
        ({"checksum": 1}, "another checksum in data file 0"),
    ],
)
def test_a_damaged_tensor(tmp_path, fields, got):
    checkpoint = Checkpoint(write(tmp_path / "x", [HEADER, (b"x", entry(VALUES, **fields))], VALUES.tobytes()))
    with pytest.raises(UserError, match=f"x.index: x: got {got}"):
        checkpoint.read("x")


WHOLE = b"\x80\x7f"  # the start 0, the length -1
LEFT, RIGHT = KEY + WHOLE + b"\x80\x81", KEY + WHOLE + b"\x81\x82"
PARTS = (part((0, -1), (0, 1)), part((0, -1), (1, 2)))
STORED = [(LEFT, entry(VALUES[:, :1])), (RIGHT, entry(VALUES[:, 1:], 8))]
DATA = VALUES[:, :1].tobytes() + VALUES[:, 1:].tobytes()
NONE = np.zeros(0, np.float32)


def test_parts_are_assembled(tmp_path):
    items = [HEADER, (b"x", entry(NONE, 0, *PARTS, shape=(2, 3))), *STORED]
    checkpoint = Checkpoint(write(tmp_path / "x", items, DATA))
    assert checkpoint.tensors == {"x": Tensor("float32", (2, 3))}
    np.testing.assert_array_equal(checkpoint.read("x"), VALUES)


@pytest.mark.parametrize(
    ("shape", "parts", "stored", "got"),
    [
        ((2, 3), PARTS, STORED[:1], r"slice \(\(0, -1\), \(1, 2\)\): got no such entry; expected a part of a float32"),
        ((2, 3), (part((0, 1)), *PARTS), STORED, r"slice \(\(0, 1\),\): got no such entry"),
        ((2, 3), (part(*[(0, 1)] * 300),), STORED, "got no such entry"),
        ((2, 3), PARTS, [(LEFT, entry(VALUES[:, :1], dtype=3)), STORED[1]], r"entry of int32, shape \(2, 1\)"),
        ((2, 3), PARTS[:1], STORED, "slices of 8 bytes; expected 24"),
        ((2, 3), PARTS[:1] * 3, STORED, "slices of 8 bytes; expected 24"),
        ((2**20, 2**20), PARTS, STORED, "slices of 24 bytes; expected 4398046511104"),
        ((3, 2), PARTS, STORED, r"a slice of shape \(2, 1\); expected \(3, 1\)"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, shape, parts, stored, got):
    items = [HEADER, (b"x", entry(NONE, 0, *parts, shape=shape)), *stored]
    checkpoint = Checkpoint(write(tmp_path / "x", items, DATA))
    with pytest.raises(UserError, match=got):
        checkpoint.read("x")


def test_parts_that_overlap(tmp_path):
    parts = (part((0, -1), (0, 1)), part((0, 2), (0, 1)), part((0, -1), (1, 1)))
    keys = [KEY + WHOLE + b"\x80\x81", KEY + b"\x80\x82\x80\x81", KEY + WHOLE + b"\x81\x81"]
    stored = [(key, entry(VALUES[:, :1], 8 * n)) for n, key in enumerate(keys)]
    items = [HEADER, (b"x", entry(NONE, 0, *parts, shape=(2, 3))), *stored]
    checkpoint = Checkpoint(write(tmp_path / "x", items, VALUES[:, :1].tobytes() * 3))
    with pytest.raises(UserError, match="slices that overlap; expected each element in one slice"):
        checkpoint.read("x")


def test_numbers_in_the_keys_of_slices():
    ordered = tensorflow_checkpoint._ordered
    assert [ordered(n) for n in (0, 63, 64, 8191, 8192)] == [
        b"\x80", b"\xbf", b"\xc0\x40", b"\xdf\xff", b"\xe0\x20\x00",
    ]  # fmt: skip
    assert [ordered(n) for n in (-1, -64, -65)] == [b"\x7f", b"\x40", b"\x3f\xbf"]
    numbers = [sign * (2**n + d) for n in range(63) for sign in (-1, 1) for d in (-1, 0, 1)]
    assert [ordered(n) for n in sorted(set(numbers))] == sorted({ordered(n) for n in numbers})


def read_all(prefix):
    """Reads every tensor. Errors must be UserErrors, and tensors must not share memory."""
    checkpoint = Checkpoint(prefix)
    arrays = {}
    for name in checkpoint.tensors:
        with errors_name(prefix):
            arrays[name] = checkpoint.read(name)
    return arrays


@settings(max_examples=80)
@given(data=st.data())
def test_damaged_files_are_user_errors(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    prefix = data.draw(st.sampled_from([PARTITIONED, TYPES, OBJECTS]))
    files = sorted(path for path in prefix.parent.glob(f"{prefix.name}.*"))
    victim = data.draw(st.sampled_from(files))
    for path in files:
        content = path.read_bytes()
        (folder / path.name).write_bytes(damaged(data, content) if path == victim else content)
    with errors_name(folder):
        for name, array in read_all(folder / prefix.name).items():
            np.testing.assert_array_equal(array, Checkpoint(prefix).read(name))


@settings(max_examples=120)
@given(data=st.data())
def test_a_damaged_index_with_right_checksums_is_a_user_error_or_harmless(tmp_path_factory, data):
    prefix = data.draw(st.sampled_from([PARTITIONED, TYPES]))
    table = sstable.read_table(Path(f"{prefix}.index").read_bytes(), "golden")
    key = data.draw(st.sampled_from(sorted(table)))
    table[key] = damaged(data, table[key])
    folder = tmp_path_factory.mktemp("damaged")
    for path in prefix.parent.glob(f"{prefix.name}.data*"):
        shutil.copy(path, folder)
    write(folder / "index", table.items()).with_name("index.index").rename(folder / f"{prefix.name}.index")
    with errors_name(folder):
        read_all(folder / prefix.name)
