import re

import pytest

from benchmarks import common, packing


@pytest.mark.slow
def test_packing_reduces_padding_and_times_every_contender(tmp_path, monkeypatch):
    text = "".join("It says so. " * (1 + n % 5) + f"This is text {n}.\n\n" for n in range(300))
    (tmp_path / "text.txt").write_text(text)
    data = {"data.source": str(tmp_path / "text.txt"), "data.vocab_size": 200, "data.workers": 1}
    monkeypatch.setattr(packing, "data_of", lambda source, folder: data)
    monkeypatch.setattr(packing, "_COUNTED", 2048)
    shape = common.Shape("tiny", 4, 32, 200)
    rows, note = packing.measure(shape, "made up", True, "eager", 2, tmp_path)
    padding = {row[3]: float(row[4].rstrip("%")) for row in rows}
    assert list(padding) == ["ours, packed", "ours, padded", "transformers, eager"]
    assert padding["ours, packed"] < padding["ours, padded"] == padding["transformers, eager"]
    assert all(float(row[5].split()[0].replace(",", "")) > 0 for row in rows)
    assert len(re.findall(r"\d+\.\d+ \(", note)) == 2
