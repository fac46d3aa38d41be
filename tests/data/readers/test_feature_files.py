import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from bertjax.data.readers.feature_files import FeatureFiles, writing
from bertjax.errors import UserError

MADE_WITH = {"layers": [-1], "pooling": "word"}


def record(counts, size=3, dtype=np.float32, seed=0):
    """Returns random vectors of a text, or of a pair, with the given numbers of words."""
    rng, count = np.random.default_rng(seed), sum(counts)
    units = [f"wörd\u2028{i}\n" for i in range(count)]
    pair = {"second": counts[0]} if len(counts) == 2 else {}
    return {"units": units, **pair, "features": rng.standard_normal((count, size)).astype(dtype)}


def write(folder, records, shard_bytes=100):
    with writing(folder, MADE_WITH, shard_bytes) as writer:
        for each in records:
            writer.add(each)
    return FeatureFiles(folder)


def check(found, expected):
    assert (found.units, found.second) == (expected["units"], expected.get("second"))
    assert found.truncated == expected.get("truncated", False)
    assert found.features.dtype == expected["features"].dtype
    np.testing.assert_array_equal(found.features, expected["features"])


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=2), max_size=12),
    st.integers(1, 400),
    st.sampled_from([np.float16, np.float32]),
)
def test_reading_returns_what_was_written(tmp_path_factory, texts, shard_bytes, dtype):
    folder = tmp_path_factory.mktemp("features") / "out"
    records = [record(counts, dtype=dtype, seed=i) for i, counts in enumerate(texts)]
    records[:1] = [{**each, "truncated": True} for each in records[:1]]
    files = write(folder, records, shard_bytes)
    assert files.made_with == MADE_WITH
    assert len(files) == len(records)
    for found, expected in zip(files, records, strict=True):
        check(found, expected)
    for i in range(len(records) - 1, -1, -1):
        check(files[i], records[i])


def test_shards_are_aligned_with_their_lines(tmp_path):
    write(tmp_path, [record([2], seed=i) for i in range(10)])  # an existing empty folder is allowed
    # Each text has 24 bytes, so the fifth fills a shard.
    names = [f"{kind}-{i:05d}.{end}" for i in (0, 1) for kind, end in (("features", "safetensors"), ("units", "jsonl"))]
    assert {path.name for path in tmp_path.iterdir()} == {"index.json", *names}
    index = json.loads((tmp_path / "index.json").read_text())
    assert [shard["texts"] for shard in index["shards"]] == [5, 5]
    tensors = load_file(tmp_path / "features-00001.safetensors")
    assert tensors["features"].shape == (10, 3)
    assert tensors["offsets"].tolist() == [0, 2, 4, 6, 8, 10]
    lines = (tmp_path / "units-00001.jsonl").read_text().removesuffix("\n").split("\n")
    assert [len(json.loads(line)["units"]) for line in lines] == [2] * 5


def test_the_folder_appears_only_when_it_is_complete(tmp_path):
    folder = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt), writing(folder, MADE_WITH, 1) as writer:
        writer.add(record([2]))
        assert not folder.exists()
        raise KeyboardInterrupt
    assert list((tmp_path / "deep").iterdir()) == []


def test_the_files_of_a_killed_process_are_replaced(tmp_path):
    left = tmp_path / "out.partial"
    left.mkdir()
    (left / "features-00007.safetensors").write_bytes(b"half")
    assert len(write(tmp_path / "out", [record([1])])) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "features-00000.safetensors",
        "index.json",
        "units-00000.jsonl",
    ]


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_existing_output_is_an_error(tmp_path, is_folder):
    (tmp_path / "mine").write_text("precious")
    folder = tmp_path if is_folder else tmp_path / "mine"
    got = "a folder that is not empty" if is_folder else "a file"
    with pytest.raises(UserError, match=f"got {got}; expected a new or empty folder. Fix: choose another"):
        write(folder, [])
    assert (tmp_path / "mine").read_text() == "precious"


def test_numbers_that_are_not_finite_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"text 1: got numbers that are not finite; .*65504\. Fix: set --config\.dtype"):
        write(tmp_path / "out", [record([1]), {"units": ["a"], "features": np.full((1, 3), np.inf, np.float16)}])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("index.json", b"{", r"index\.json: got .*; expected the index of a folder that --mode=predict wrote"),
        ("index.json", b'{"shards": [{"features": "a"}]}', r"index\.json: got no list of shards"),
        ("features-00000.safetensors", b"", r"features-00000\.safetensors: got .*; expected a complete shard"),
        ("units-00000.jsonl", b'{"units": ["one"\n', r"features-00000\.safetensors: got .*; expected a complete shard"),
        ("units-00000.jsonl", b'{"units": []}\n{"units": []}\n', r"expected 2 texts and 0 vectors, according to the"),
    ],
)
def test_damage_is_reported(tmp_path, name, content, message):
    write(tmp_path, [record([2]), record([2])])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message + r".* Fix: restore the folder, or extract the features again"):
        FeatureFiles(tmp_path)[0]
