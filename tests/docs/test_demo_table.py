"""The table at the end of `make demo`."""

import json
from types import SimpleNamespace

import bertjax
from docs.demo_table import TEXT, table


def test_the_table_has_time_losses_and_words_of_each_model(tmp_path, monkeypatch):
    for name in ("untrained", "bert", "modern"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        records = [{"step": 0, "valid/masked_lm_unigram_loss": 6.2412345}]
        records += [{"step": 9, "valid/masked_lm_loss": 4.26123}]
        (tmp_path / name / "goodput.jsonl").write_text(json.dumps({"step": 9, "kind": "step", "seconds": 108.9}))
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    record = {"masks": [{"tokens": ["be", "return", "use", "call"]}]}
    monkeypatch.setattr(bertjax, "load", lambda folder: SimpleNamespace(predict=lambda texts: [record]))
    assert table(tmp_path).splitlines()[:3] == [
        f"model           seconds  masked-LM loss  unigram loss  {TEXT}",
        "untrained                4.26            6.24          be, return, use",
        "BERT            109      4.26            6.24          be, return, use",
    ]
