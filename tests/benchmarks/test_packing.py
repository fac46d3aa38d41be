import re

import pytest

from benchmarks import common, packing
from tests import tiny


@pytest.mark.slow
@pytest.mark.parametrize("next_sentence", [True, False])
def test_packing_reduces_padding_and_times_every_contender(tmp_path, monkeypatch, next_sentence):
    text = "".join("It says so. " * (1 + n % 5) + f"This is text {n}.\n\n" for n in range(300))
    (tmp_path / "text.txt").write_text(text)
    data = {"data.source": str(tmp_path / "text.txt"), "data.vocab_size": 200, "data.workers": 1}
    monkeypatch.setattr(packing, "data_of", lambda source, folder: data)
    monkeypatch.setattr(packing, "_COUNTED", 2048)
    shape = common.Shape("tiny", 4, 32, 200)
    rows, note = packing.measure(shape, "made up", next_sentence, "eager", 2, tmp_path)
    padding = {row[3]: float(row[4].rstrip("%")) for row in rows}
    assert list(padding) == ["ours, packed", "ours, padded", "transformers, eager"]
    assert padding["ours, packed"] < padding["ours, padded"] == padding["transformers, eager"]
    assert all(float(row[5].split()[0].replace(",", "")) > 0 for row in rows)
    assert len(re.findall(r"\d+\.\d+ \(", note)) == 2


@pytest.mark.slow
def test_packed_batches_of_a_task_are_compared_with_buckets(tmp_path, monkeypatch):
    keys = tiny.write_table(tmp_path / "made", rows=400)
    rows = (tmp_path / "made/rows.tsv").read_text().replace("yes", "1").replace("no", "0")
    (tmp_path / "made/rows.tsv").write_text(rows)
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab/bert-base-uncased-vocab.txt").write_text((tmp_path / "made/vocabulary/vocab.txt").read_text())
    monkeypatch.setenv("BERTJAX_DATA", str(tmp_path))
    monkeypatch.setattr(packing, "_FILES", {"sst2": ("made/rows.tsv", "made/rows.tsv")})
    monkeypatch.setattr(packing, "_WARMUP", 4)
    assert keys["data.source"] == str(tmp_path / "made/rows.tsv")
    table, note = packing.measure_task("sst2", "tiny", 2, 2, tmp_path / "work")
    (_, _, rows, examples, padding, _), (_, _, packed_rows, packed_examples, packed_padding, _) = table
    assert int(packed_rows) < int(rows) == 32
    assert 0.5 < float(packed_examples) / float(examples) < 2
    assert float(packed_padding.rstrip("%")) < 20
    assert float(padding.rstrip("%")) < 100
    assert re.fullmatch(r"sst2, tiny: packed is \d+\.\d+ \(.*\) x bucketed", note)
