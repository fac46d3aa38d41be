import json
import re
import sys

from benchmarks import rouge


def test_each_round_scores_all_summaries(tmp_path, monkeypatch, capsys):
    articles = tmp_path / "articles.jsonl"
    articles.write_text(json.dumps({"article": ["the dog ran", "it rained"], "summary": "x"}) + "\n")
    scored = []

    def score(summaries, references, *args, **options):
        scored.append((len(summaries), len(references)))
        return real(summaries, references, *args, **options)

    real = rouge.rouge
    monkeypatch.setattr(rouge, "rouge", score)
    monkeypatch.setattr(sys, "argv", ["rouge", str(articles), "--count=30", "--rounds=2"])
    rouge.main()
    assert scored == [(30, 30)] * 2
    printed = capsys.readouterr().out
    assert re.search(r"numpy \d.*threads", printed)
    assert re.search(r"30 summaries, rouge-1\.5\.5\|stem:yes\|words:all: rouge1 \d+\.\d\d, ", printed)
    assert re.search(r"\d\.\d \(.*\) s over 2 rounds", printed)
