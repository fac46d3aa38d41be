"""Prepared pairs: those that fit, in order, whoever encodes them, and read from the sources once."""

import subprocess
import sys

import numpy as np
import pytest

from bertjax.data import prepared
from bertjax.data.codecs.translation.batches import PairRows
from bertjax.data.codecs.translation.parallel_text import ParallelText, ParallelTextConfig
from bertjax.data.codecs.translation.rows import PairCodec, TranslationRowsConfig
from bertjax.data.prepared import PreparationConfig, PreparedRows
from bertjax.data.rows.stored import Ragged
from bertjax.data.text import subwords
from bertjax.data.text.subword_vocabularies import Vocabularies
from tests.experiments.commands import settings_of

SEQ_LEN = 8
ALPHABETS = ("abcd", "dcba")  # of both sides


def codec_of(folder, sources, targets, seq_len=SEQ_LEN, **settings):
    for side, texts in (("a", sources), ("b", targets)):
        (folder / f"train.{side}").write_text("\n".join(texts) + "\n")
        (folder / f"valid.{side}").write_text("\n".join(texts[:1]) + "\nbad\n")
    names = {"source": f"{folder}/train.a", "target": f"{folder}/train.b"}
    names |= {"valid_source": f"{folder}/valid.a", "valid_target": f"{folder}/valid.b"}
    files = settings_of(ParallelTextConfig, "translation", **names)
    vocabularies = Vocabularies(*map(subwords.characters, ALPHABETS))
    texts = {split: ParallelText(files, split, 0) for split in ("train", "valid")}
    return PairCodec(vocabularies, TranslationRowsConfig(seq_len, False, "split", **settings), files, texts)


def pairs(count=300):
    """Texts of up to 9 characters on each side, and what becomes of those with up to 7."""
    rng = np.random.default_rng(0)
    texts = [["".join(rng.choice(list("abcd"), size)) for size in sizes] for sizes in rng.integers(1, 10, (count, 2))]
    return [[pair[side] for pair in texts] for side in (0, 1)]


def expected(sources, targets):
    """The ids of both sides with their ends: the vocabularies begin with <pad>, <unk>, <s> and </s>."""
    kept = [(a, b) for a, b in zip(sources, targets, strict=True) if len(a) < SEQ_LEN and len(b) < SEQ_LEN]
    return [
        [[*(4 + alphabet.index(c) for c in pair[side]), 3] for pair in kept] for side, alphabet in enumerate(ALPHABETS)
    ]


def arrays(field: Ragged):
    return [part.tolist() for part in np.split(field.values, np.cumsum(field.lengths)[:-1])]


def test_pairs_that_fit_are_stored_in_order_and_others_are_counted(tmp_path):
    sources, targets = pairs()
    rows = PreparedRows(codec_of(tmp_path, sources, targets), tmp_path / "rows", PreparationConfig())
    rows.run()
    kept = expected(sources, targets)
    fields = rows.fields
    assert [arrays(fields[name]) for name in ("input_ids", "labels")] == kept
    assert {field.values.dtype for field in fields.values()} == {np.dtype(np.int32)}
    assert 0 < len(kept[0]) < 300
    assert rows.report["left_out"] == {"data.seq_len": 300 - len(kept[0])}
    assert rows.report["rows"] == {"train": len(kept[0]), "valid": 2} and rows.report["leaked"] == 1
    assert [(pair.source, pair.target) for pair in rows.held_out("valid")] == [(sources[0], targets[0]), ("bad", "bad")]


def test_long_pairs_are_truncated_and_counted(tmp_path):
    """Each side has its maximum, with its end token."""
    sources, targets = pairs()
    codec = codec_of(tmp_path, sources, targets, target_len=4, on_long_pair="truncate")
    rows = PreparedRows(codec, tmp_path / "rows", PreparationConfig())
    rows.run()
    (of_source, of_target) = (arrays(field) for field in rows.fields.values())
    assert (len(of_source), max(map(len, of_source)), max(map(len, of_target))) == (300, 8, 4)
    assert {ids[-1] for ids in [*of_source, *of_target]} == {3}
    assert of_target[0] == [*(4 + "dcba".index(c) for c in targets[0][:3]), 3]
    count = sum(len(a) > 7 or len(b) > 3 for a, b in zip(sources, targets, strict=True))
    assert rows.report["pairs_truncated"] == count > 0 == rows.report["left_out"].get("data.seq_len", 0)
    batch = PairRows(rows.fields, 4).padded(np.arange(3), 8)
    assert (batch["input_ids"].shape, batch["labels"].shape) == ((3, 8), (3, 4))


def test_blocks_without_a_pair_that_fits_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_BLOCK_CHARACTERS", 1)
    sources, targets = ["a" * 9, "ab", "b" * 9], ["a", "cd", "b"]
    rows = PreparedRows(codec_of(tmp_path, sources, targets), tmp_path / "rows", PreparationConfig())
    rows.run()
    assert [arrays(field) for field in rows.fields.values()] == expected(sources, targets)


@pytest.mark.parametrize("change", ["pairs", "seq_len", "nothing"])
def test_other_pairs_and_lengths_have_other_folders(tmp_path, change):
    sources, targets = pairs(20)
    before = PreparedRows(codec_of(tmp_path, sources, targets), tmp_path, PreparationConfig()).folder
    changed = {"pairs": (["d", *sources[1:]], targets), "seq_len": (sources, targets, 7), "nothing": (sources, targets)}
    after = PreparedRows(codec_of(tmp_path, *changed[change]), tmp_path, PreparationConfig(workers=2)).folder
    assert (before == after) == (change == "nothing")


def test_workers_import_no_jax():
    """Vocabularies reach workers by pickle, those of Marian too."""
    modules = "bertjax.data.codecs.translation.rows, bertjax.interop.marian_tokenizers"
    code = f"import sys, {modules}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
