"""The retrieval task of files in SQuAD's form: one document for equal paragraphs, and no test paragraph in training."""

import json

from benchmarks import squad_retrieval
from bertjax.data.readers import beir
from tests.experiments.commands import lines_of


def write(path, *articles):
    """Writes articles, each a title and pairs of a paragraph and its questions. Returns the path."""
    data = [
        {
            "title": title,
            "paragraphs": [{"context": text, "qas": [{"question": each} for each in qas]} for text, qas in own],
        }
        for title, own in articles
    ]
    path.write_text(json.dumps({"data": data}))
    return path


def test_paragraphs_and_questions_are_merged_and_training_is_disjoint(tmp_path, monkeypatch, capsys):
    test = write(tmp_path / "dev.json", ("A", [("p1", ["q1", "q2"]), ("p1 ", ["q3"])]), ("B", [("p2", ["q1"])]))
    train = write(tmp_path / "train.json", ("A", [("p3", ["q4"])]), ("C", [("p2", ["q5"]), ("p4", ["q6", "q6"])]))
    monkeypatch.setattr("sys.argv", ["", f"{tmp_path}", f"--test={test}", f"--train={train}"])
    squad_retrieval.main()
    found = beir.Folder(f"{tmp_path / 'beir'}", "data.test_source", "test", "stop").read()
    assert found.sizes == {"query": 3, "document": 2}
    texts = dict(found.texts())
    relevant = {found.queries[query]: sorted(map(texts.get, names)) for query, names in found.relevant.items()}
    assert relevant == {"q1": ["p1", "p2"], "q2": ["p1"], "q3": ["p1"]}
    assert lines_of(tmp_path / "train.jsonl") == [{"query": "q6", "positive": "p4"}]
    assert "1 questions, 1 paragraphs; 2 questions left out" in capsys.readouterr().out
