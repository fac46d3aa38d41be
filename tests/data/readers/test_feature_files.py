import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from bertjax.data.readers.feature_files import FeatureFiles, writing
from bertjax.errors import UserError

MADE_WITH = {"layers": [-1], "pooling": "word"}


def record(counts, size=3, dtype=np.float32, seed=0):
    """Returns random vectors of a text, or of a pair, with the given numbers of words."""
    rng, count = np.random.default_rng(seed), sum(counts)
    units = [f"wörd\u2028{i}\n" for i in range(count)]
    pair = {"second": counts[0]} if len(counts) == 2 else {}
    return {"units": units, **pair, "features": rng.standard_normal((count, size)).astype(dtype)}


def write(folder, records, dtype="float32"):
    with writing(folder, MADE_WITH, 3, dtype) as writer:
        for each in records:
            writer.add(each)
    return FeatureFiles(folder)


def write_shards(folder, shards):
    """Writes a folder in the format of earlier versions."""
    index = []
    for number, records in enumerate(shards):
        names = {"features": f"features-{number:05d}.safetensors", "units": f"units-{number:05d}.jsonl"}
        offsets = np.cumsum([0, *(len(each["units"]) for each in records)])
        features = np.concatenate([each["features"] for each in records])
        save_file({"features": features, "offsets": offsets}, folder / names["features"])
        lines = [json.dumps({key: each[key] for key in each if key != "features"}) + "\n" for each in records]
        (folder / names["units"]).write_text("".join(lines))
        index.append({**names, "texts": len(records)})
    (folder / "index.json").write_text(json.dumps({**MADE_WITH, "shards": index}))


def check(found, expected):
    assert (found.units, found.second) == (expected["units"], expected.get("second"))
    assert found.truncated == expected.get("truncated", False)
    assert found.features.dtype == expected["features"].dtype
    np.testing.assert_array_equal(found.features, expected["features"])


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=2), max_size=12), st.sampled_from(["float16", "float32"])
)
def test_reading_returns_what_was_written(tmp_path_factory, texts, dtype):
    folder = tmp_path_factory.mktemp("features") / "out"
    records = [record(counts, dtype=dtype, seed=i) for i, counts in enumerate(texts)]
    records[:1] = [{**each, "truncated": True} for each in records[:1]]
    files = write(folder, records, dtype)
    assert files.made_with == MADE_WITH
    assert len(files) == len(records)
    for found, expected in zip(files, records, strict=True):
        check(found, expected)
    for i in range(len(records) - 1, -1, -1):
        check(files[i], records[i])


def test_numpy_reads_the_files(tmp_path):
    records = [record([2, 1]), record([0]), record([1], seed=1)]
    write(tmp_path, records)  # an existing empty folder is allowed
    vectors, offsets = (np.load(tmp_path / name, mmap_mode="r") for name in ("vectors.npy", "offsets.npy"))
    lines = (tmp_path / "units.jsonl").read_bytes()
    np.testing.assert_array_equal(vectors, np.concatenate([each["features"] for each in records]))
    assert offsets[:, 0].tolist() == [0, 3, 3, 4]
    assert [json.loads(lines[slice(*offsets[i : i + 2, 1])])["units"] for i in range(3)] == [
        r["units"] for r in records
    ]


def test_shards_of_earlier_versions_are_read(tmp_path):
    records = [record([2]), record([1, 3], seed=1), record([0]), record([1], seed=2)]
    write_shards(tmp_path, [records[:3], records[3:]])
    files = FeatureFiles(tmp_path)
    assert files.made_with == MADE_WITH
    for found, expected in zip(files, records, strict=True):
        check(found, expected)
    (tmp_path / "units-00001.jsonl").write_text("")
    with pytest.raises(UserError, match=r"features-00001\.safetensors: got .*; expected a complete shard"):
        FeatureFiles(tmp_path)[3]


def test_the_folder_appears_only_when_it_is_complete(tmp_path):
    folder = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt), writing(folder, MADE_WITH, 3, "float32") as writer:
        writer.add(record([2]))
        assert not folder.exists()
        raise KeyboardInterrupt
    assert list((tmp_path / "deep").iterdir()) == []


def test_the_files_of_a_killed_process_are_replaced(tmp_path):
    left = tmp_path / "out.partial"
    left.mkdir()
    (left / "vectors.npy").write_bytes(b"half")
    assert len(write(tmp_path / "out", [record([1])])) == 1
    names = ["index.json", "offsets.npy", "units.jsonl", "vectors.npy"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_existing_output_is_an_error(tmp_path, is_folder):
    (tmp_path / "mine").write_text("precious")
    folder = tmp_path if is_folder else tmp_path / "mine"
    got = "a folder that is not empty" if is_folder else "a file"
    with pytest.raises(UserError, match=f"got {got}; expected a new or empty folder. Fix: choose another"):
        write(folder, [])
    assert (tmp_path / "mine").read_text() == "precious"


def test_numbers_that_are_not_finite_are_errors(tmp_path):
    infinite = {"units": ["a"], "features": np.full((1, 3), np.inf, np.float16)}
    with pytest.raises(UserError, match=r"text 1: got numbers that are not finite; .*65504\. Fix: set --config\.dtype"):
        write(tmp_path / "out", [record([1], dtype="float16"), infinite], "float16")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("index.json", b"{", r"index\.json: got .*; expected the index of a folder that --mode=predict wrote"),
        ("index.json", b'{"shards": [{"features": "a"}]}', r"index\.json: got no list of shards"),
        ("vectors.npy", b"", r"vectors\.npy: got .*; expected a complete folder"),
        ("offsets.npy", b"\x93NUMPY", r"vectors\.npy: got .*; expected a complete folder"),
        ("units.jsonl", b"{}", r"vectors\.npy: got 4 vectors and 2 bytes of units; expected 4 vectors and \d+ bytes"),
        ("units.jsonl", b" " * 84, r"units\.jsonl: got .*; expected the units of text 0"),
    ],
)
def test_damage_is_reported(tmp_path, name, content, message):
    write(tmp_path, [record([2]), record([2])])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message + r".* Fix: restore the folder, or extract the features again"):
        FeatureFiles(tmp_path)[0]
