import os
import pickle
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.interop.formats import torch_pickle
from tests.interop.formats.damage import damaged, errors_name

# Written by torch; see golden/make_torch_files.py.
GOLDEN = Path(__file__).parents[1] / "golden" / "torch"
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
STATE = {
    "grid": GRID,
    "transposed": GRID.T,
    "row": GRID[1],
    "half": GRID.astype(np.float16),
    "bfloat16": GRID.astype(ml_dtypes.bfloat16),
    "parameter": GRID + 1,
    "position_ids": np.arange(4)[None],
    "mask": np.array([1, 0, 1], np.uint8),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 3), np.float32),
}


def name(dotted):
    module, attribute = dotted.rsplit(".", 1)
    return f"c{module}\n{attribute}\n".encode()


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def plain(value):
    """The opcodes of a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def storage(key="0", kind="torch.FloatStorage", size=6):
    return b"(" + text("storage") + name(kind) + text(key) + text("cpu") + plain(size) + b"tQ"


def tensor(offset=0, size=(2, 3), stride=(3, 1), stored=None, function="torch._utils._rebuild_tensor_v2", more=b""):
    hooks = b"\x89" + name("collections.OrderedDict") + b")R"
    numbers = plain(offset) + plain(size) + plain(stride)
    return name(function) + b"(" + (stored or storage()) + numbers + hooks + more + b"tR"


def write_zip(folder, pickled, entries=None):
    path = folder / "weights.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, content in ({"data/0": GRID.tobytes()} if entries is None else entries).items():
            archive.writestr(f"archive/{key}", content)
    return path


MACHINE = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


def write_legacy(folder, pickled, keys=("0",), data=None, machine=MACHINE):
    path = folder / "weights.bin"
    head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, machine)]
    data = struct.pack("<q", 6) + GRID.tobytes() if data is None else data
    path.write_bytes(b"".join([*head, pickled, pickle.dumps(list(keys), 2), data]))
    return path


WRITERS = pytest.mark.parametrize("write", [write_zip, write_legacy])


def state(value):
    """A pickle of a dict with one item."""
    return b"\x80\x02}" + text("a") + value + b"s."


@pytest.mark.parametrize("file", ["state_zip.bin", "state_legacy.bin"])
def test_state_dicts(file):
    tensors = torch_pickle.read_tensors(GOLDEN / file)
    assert list(tensors) == list(STATE)
    for key, expected in STATE.items():
        assert (tensors[key].dtype, tensors[key].shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(tensors[key], expected)
    assert not tensors["grid"].flags.writeable
    assert np.shares_memory(tensors["grid"], tensors["row"])


@pytest.mark.parametrize("file", ["nested_zip.pt", "nested_legacy.pt", "nested_protocol_4.pt"])
def test_nested_containers(file):
    found = torch_pickle.read(GOLDEN / file)
    np.testing.assert_array_equal(found["model"].pop("weight"), GRID)
    np.testing.assert_array_equal(found["optim"]["state"][0].pop("exp_avg"), GRID + 1)
    optim = {"state": {0: {"step": 7}}, "betas": (0.9, 0.999), "flags": [True, False, None]}
    assert found == {"model": {}, "optim": optim, "note": "größer", "large": 2**70}
    message = f"{file}: model: got dict; expected a tensor with a string as its name. Fix: save only"
    with pytest.raises(UserError, match=message):
        torch_pickle.read_tensors(GOLDEN / file)


class Call:
    """An object that is pickled as a call."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def dumped(value, protocol=2):
    return pickle.dumps(value, protocol)


# Pickles that make the folder of that name with Python's own unpickler, and the names in the refusals.
ATTACKS = {
    "os.system": (lambda p: dumped(Call(os.system, f"mkdir {p}")), r"posix\.system"),
    "eval": (lambda p: dumped(Call(eval, f"__import__('os').mkdir({p!r})"), 4), r"builtins\.eval"),
    "getattr": (
        lambda p: name("__builtin__.getattr") + name("__builtin__.__import__") + text("os") + b"\x85R"
        + text("mkdir") + b"\x86R" + text(p) + b"\x85R.",
        r"__builtin__\.getattr",
    ),
    "nested pickle": (lambda p: dumped(Call(pickle.loads, dumped(Call(os.mkdir, p))), 4), r"_pickle\.loads"),
    "a value of an OrderedDict": (
        lambda p: name("collections.OrderedDict") + b")R" + text("a") + dumped(Call(os.mkdir, p))[2:-1] + b"s.",
        r"posix\.mkdir",
    ),
    "the state of an OrderedDict": (
        lambda p: name("collections.OrderedDict") + b")R}" + text("a") + dumped(Call(os.mkdir, p))[2:-1] + b"sb.",
        r"posix\.mkdir",
    ),
}  # fmt: skip


@WRITERS
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_code_is_executed(tmp_path, write, attack):
    """`test_restricted_pickle.py` has the other opcodes."""
    make, named = ATTACKS[attack]
    canary = tmp_path / "canary"
    content = make(str(canary))
    with pytest.raises(UserError, match=rf"weights.bin.*: got .*{named}.*; expected .*Fix: if you trust its source"):
        torch_pickle.read(write(tmp_path, content))
    assert not canary.exists()
    # The attack is real: it succeeds with Python's unpickler.
    pickle.loads(content)
    assert canary.exists()


# Pickles that only torch's own loader would execute or resolve, so the attack cannot be shown.
TORCH_ATTACKS = {
    "pickle within a storage": (name("torch.storage._load_from_bytes") + text("x") + b"\x85R", "_load_from_bytes"),
    "a module": (name("torch.nn.modules.linear.Linear") + b")\x81", r"torch\.nn\.modules\.linear\.Linear"),
    "source of a module": (b"(" + text("module") + text("code") + b"tQ", r"persistent id \(module, code\)"),
    "another persistent id": (b"K\x05Q", "persistent id int"),
    "a function as a storage": (
        b"(" + text("storage") + name("torch._utils._rebuild_parameter") + text("0") + text("cpu") + b"K\x06tQ",
        r"persistent id \(storage, Function, 0, cpu, 6\)",
    ),
    "a call of a storage": (name("torch.FloatStorage") + b")R", "a call of _StorageType"),
    "fields of an array": (tensor() + b"}" + text("__class__") + b"K\x01sb", "attributes for a value of type ndarray"),
    "attributes of a storage": (storage() + b"}b", "attributes for a value of type _Storage"),
    "sparse tensors": (name("torch._utils._rebuild_sparse_tensor"), r"torch\._utils\._rebuild_sparse_tensor"),
    "float64": (storage(kind="torch.DoubleStorage"), r"torch\.DoubleStorage"),
    "bytes without type": (storage(kind="torch.storage.UntypedStorage"), r"torch\.storage\.UntypedStorage"),
}


@WRITERS
@pytest.mark.parametrize("attack", TORCH_ATTACKS)
def test_names_that_only_torch_resolves_are_refused(tmp_path, write, attack):
    value, named = TORCH_ATTACKS[attack]
    with pytest.raises(UserError, match=rf"weights.bin.*: got .*{named}"):
        torch_pickle.read(write(tmp_path, state(value)))


@WRITERS
def test_tensors_by_hand(tmp_path, write):
    for value in (
        tensor(),
        tensor(more=plain(None)),
        tensor(more=plain({})),
        name("torch._utils._rebuild_tensor") + b"(" + storage() + plain(0) + plain((2, 3)) + plain((3, 1)) + b"tR",
        name("torch._utils._rebuild_parameter") + b"(" + tensor() + b"\x88}tR",
    ):
        np.testing.assert_array_equal(torch_pickle.read_tensors(write(tmp_path, state(value)))["a"], GRID)
    # The stride of an axis of size 1 has no effect.
    found = torch_pickle.read_tensors(write(tmp_path, state(tensor(1, (1, 2), (2**62, 3)))))
    assert found["a"].tolist() == [[1, 4]]


@WRITERS
@pytest.mark.parametrize(
    ("value", "got"),
    [
        (tensor(offset=1), "a tensor of 6 elements up to index 6 of its storage; expected .* which has 6 elements"),
        (tensor(offset=-1), r"offset -1 and strides \(3, 1\)"),
        (tensor(offset=2**70), "a tensor of 6 elements up to"),
        (tensor(stride=(-3, 1)), r"offset 0 and strides \(-3, 1\); expected an offset and 2 strides of 0 or more"),
        (tensor(stride=(1,)), r"offset 0 and strides \(1\)"),
        (tensor(stride=(1.0, 1)), r"offset 0 and strides \(float, 1\)"),
        (tensor(size=(7,), stride=(0,)), "a tensor of 7 elements up to index 0"),
        (tensor(size=(2**30, 2**10), stride=(0, 0)), "a tensor of 1099511627776 elements"),
        (tensor(size=(2**62, 2**62), stride=(0, 0)), "shape"),
        (tensor(size=(-1, 3)), r"shape \(-1, 3\)"),
        (tensor(size=(True, 3)), r"shape \(True, 3\)"),
        (tensor(size=(1,) * 100, stride=(1,) * 100), "shape"),
        (tensor(size=[2, 3]), r"tensor arguments \(_Storage, 0, list, tuple\)"),
        (tensor(stored=tensor()), r"tensor arguments \(ndarray, 0, tuple, tuple\)"),
        (tensor(more=plain({"neg": True})), "tensor arguments .*; expected 6 arguments, without marks"),
        (tensor(more=tensor()), "tensor arguments .*; expected 6 arguments, without marks"),
        (tensor(function="torch._utils._rebuild_tensor"), "tensor arguments .*; expected storage, offset, size and"),
        (name("torch._utils._rebuild_parameter") + b"(}\x88}tR", r"parameter arguments \(dict, bool, dict\)"),
        (name("collections.OrderedDict") + b"]\x85R", r"OrderedDict arguments \(list\)"),
        (b"(" + tensor() + storage()[len(b"(" + text("storage")) :], r"persistent id \(ndarray, _StorageType"),
        (storage(size=-1), r"persistent id \(storage, _StorageType, 0, cpu, -1\)"),
        (storage(size=5), "storage|another size"),
        (storage(kind="torch.HalfStorage"), "storage|another size"),
    ],
)
def test_damaged_tensors(tmp_path, write, value, got):
    with pytest.raises(UserError, match=f"weights.bin.*: got .*{got}"):
        torch_pickle.read(write(tmp_path, state(value)))


@WRITERS
@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"]" + tensor() + b"a.", "got list; expected a dict of tensors. Fix: save only model.state"),
        (b"}" + text("a") + tensor() + b"s" + text("b") + b"K\x01s.", "b: got int; expected a tensor with a string"),
        (b"}K\x01" + tensor() + b"s.", "1: got a name that is a number; expected a tensor with a string as its name"),
        (state(storage()), "a: got _Storage"),
    ],
)
def test_other_objects_than_state_dicts(tmp_path, write, pickled, message):
    with pytest.raises(UserError, match=f"weights.bin: {message}"):
        torch_pickle.read_tensors(write(tmp_path, pickled))


@WRITERS
def test_one_storage_cannot_exhaust_memory(tmp_path, write, monkeypatch):
    monkeypatch.setattr(torch_pickle, "_MAX_SHARING", 1)
    names = b"".join(text(str(n)) + b"h\x00" for n in range(4000))
    message = r"got tensors of 96024 bytes; expected at most \d+, 1 times the size of the file"
    with pytest.raises(UserError, match=message):
        torch_pickle.read_tensors(write(tmp_path, b"\x80\x02}(" + text("a") + tensor() + b"q\x00" + names + b"u."))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, r"archive/data/0: got no such entry"),
        ({"data/0": b"1234"}, r"data.pkl: got storage 0 of 4 bytes; expected 6 elements of float32"),
        ({"byteorder": b"big"}, r"got byte order b'big'; expected b'little'"),
        ({"constants.pkl": b""}, r"got a TorchScript program; expected a file of torch.save"),
        ({"x/data.pkl": b""}, r"got 2 entries data.pkl"),
    ],
)
def test_archives_that_are_refused(tmp_path, entries, message):
    with pytest.raises(UserError, match=message):
        torch_pickle.read(write_zip(tmp_path, state(tensor()), entries))


@pytest.mark.parametrize("key", ["../data.pkl/0", "../../../../../etc/passwd", "/etc/passwd", "0\0", ""])
def test_keys_are_not_used_as_paths(tmp_path, key):
    with pytest.raises(UserError, match="got no such entry; expected an entry of the archive"):
        torch_pickle.read(write_zip(tmp_path, state(tensor(stored=storage(key=key)))))


def test_other_archives(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"1")
    with pytest.raises(UserError, match=r"a.zip: got 0 entries data.pkl; expected one, as in archives of torch.save"):
        torch_pickle.read(tmp_path / "a.zip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ()}, "got a list of storages that differs from those of the tensors; expected the same storages"),
        ({"keys": ("0", "0")}, "got a list of storages that differs"),
        ({"keys": ("1",)}, "got a list of storages that differs"),
        ({"keys": (1,)}, "got a list of storages that differs"),
        ({"data": b""}, "got a storage that is truncated or has another size; expected 6 elements"),
        ({"data": struct.pack("<q", 6) + bytes(23)}, "got a storage that is truncated"),
        ({"data": struct.pack("<q", 6) + bytes(25)}, "got 1 bytes after the storages; expected no bytes"),
        ({"data": struct.pack("<q", 7) + bytes(28)}, "got a storage that is truncated or has another size"),
        ({"machine": {"little_endian": False}}, "big-endian or unknown byte order; expected little-endian byte order"),
        ({"machine": []}, "got numbers in big-endian or unknown byte order"),
    ],
)
def test_older_files_that_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        torch_pickle.read(write_legacy(tmp_path, state(tensor()), **options))


def test_storages_of_two_kinds(tmp_path):
    value = b"(" + storage() + storage(kind="torch.LongStorage") + b"t"
    with pytest.raises(UserError, match="got storage 0 with two types or sizes; expected one type and one size"):
        torch_pickle.read(write_legacy(tmp_path, state(value), data=bytes(100)))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"PK\3\4" + bytes(100), b"weights", b"K\x01.", b"\x80\x02]."])
def test_other_files(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"a.bin: got .*Fix: download"):
        torch_pickle.read(tmp_path / "a.bin")


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"none.bin: got No such file or directory; expected a readable file"):
        torch_pickle.read_tensors(tmp_path / "none.bin")


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_are_user_errors_or_harmless(tmp_path_factory, data):
    """In archives a checksum detects all damage. In the older format, which has no checksum, values may change."""
    file = data.draw(st.sampled_from(["state_zip.bin", "state_legacy.bin", "nested_legacy.pt"]))
    path = tmp_path_factory.mktemp("damaged") / file
    path.write_bytes(damaged(data, (GOLDEN / file).read_bytes()))
    with errors_name(path):
        torch_pickle.read(path)


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_pickles_with_right_checksums_are_user_errors_or_harmless(tmp_path_factory, data):
    with zipfile.ZipFile(GOLDEN / "state_zip.bin") as archive:
        entries = {entry.split("/", 1)[1]: archive.read(entry) for entry in archive.namelist()}
    path = write_zip(tmp_path_factory.mktemp("damaged"), damaged(data, entries.pop("data.pkl")), entries)
    with errors_name(path):
        torch_pickle.read_tensors(path)
