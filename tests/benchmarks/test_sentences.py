import json
import sys

from benchmarks import sentences
from benchmarks.sentences import Counts


def test_sentences_and_boundaries_are_counted_by_position():
    text = "가. 가. 나 다. 라."
    counts = sentences.count(text, ["가.", "가.", "나 다.", "라."], ["가. 가.", "나", "다.", "라."])
    assert counts == Counts(sentences=4, exact=1, expected=3, returned=3, common=2)
    assert counts.cells() == ["4", "0.250", "0.667", "0.667", "0.667"]


def test_the_table_has_each_source_and_splitter(tmp_path, monkeypatch, capsys):
    path = tmp_path / "dev.jsonl"
    texts = {"blogs-1": ["비가 왔다", "눈도 와요"], "blogs-2": ["끝."], "etn-1": ["아 정말", "좋다"]}
    rows = [{"id": name, "text": " ".join(parts), "sentences": parts} for name, parts in texts.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["sentences", f"--data={path}"])
    monkeypatch.setattr(sentences.importlib.util, "find_spec", lambda name: None)
    sentences.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "| all | punkt | 5 | 0.600 | 1.000 | 0.500 | 0.667 |",
        "| blogs | punkt | 3 | 1.000 | 1.000 | 1.000 | 1.000 |",
        "| etn | punkt | 2 | 0.000 | 0.000 | 0.000 | 0.000 |",
    ]
