"""What the modes do around training."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertjax import modes
from bertjax.errors import UserError
from bertjax.modes import evaluate, train
from bertjax.modes.request import Request, config_of

METRICS = {"valid/f1": 0.7512345, "valid/f1_low": 0.71, "valid/f1_high": 0.79, "test/f1": 0.8, "test/pairs": 67000}
TABLE = """\
       valid                test
f1     0.7512 [0.71, 0.79]  0.8
pairs                       67,000
"""


@pytest.mark.parametrize(("is_terminal", "printed"), [(True, TABLE), (False, json.dumps(METRICS) + "\n")])
def test_metrics_are_a_table_only_on_a_terminal(capsys, monkeypatch, is_terminal, printed):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    modes._write("-", METRICS, evaluate.table)
    assert capsys.readouterr().out == printed


class Scored:
    def test_examples(self):
        return iter(["an example"])


def test_a_test_score_is_logged_beside_its_baselines(tmp_path, monkeypatch):
    settings = SimpleNamespace(num_steps=4, checkpoint=SimpleNamespace(best_metric=""))
    lines = {"step": 0, "valid/lead_rouge1": 41.0, "test/lead_rouge1": 40.0}, {"step": 4, "valid/nll": 1}
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    scored = SimpleNamespace(test=lambda data: {"test/rouge1": 50.0})
    monkeypatch.setattr(train.inference, "Inference", lambda *_: scored)
    for _ in range(2):
        train._test(None, Scored(), settings, 4, tmp_path)
    *_, before, last = map(json.loads, path.read_text().splitlines())
    assert before == {"step": 4, "valid/nll": 1}
    assert last == {"step": 4, "test/lead_rouge1": 40.0, "test/rouge1": 50.0}


@pytest.mark.parametrize(
    ("mode", "output", "flag", "values"),
    [
        ("predict", "in.txt", "--input", {"input": "in.txt"}),
        ("evaluate", "in.txt", "--config.data.test_source", {"overrides": {"data.test_source": "./in.txt"}}),
        ("export", "run", "--workdir", {}),
    ],
)
def test_an_output_does_not_replace_what_the_command_reads(tmp_path, monkeypatch, mode, output, flag, values):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").touch()
    Path("run").mkdir()
    request = Request(mode=mode, workdir="run", output=output, **values)
    with pytest.raises(UserError, match=f"^--output: got {output}, which is also {flag}; "):
        config_of(request, None)
