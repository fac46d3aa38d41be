"""Measurements of attention and recurrent layers, at lengths that take no time."""

import json

import pytest

from benchmarks import attention_length
from bertjax.reporting import lengths


@pytest.mark.slow
def test_each_layer_is_measured_at_each_length(tmp_path, monkeypatch, capsys):
    path = tmp_path / lengths.FILE
    flags = ["--lengths", "4", "8", "--hidden_size", "8", "--heads", "2", "--batch_size", "2", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["attention_length", f"--output={path}", *flags])
    attention_length.main()
    rows = json.loads(path.read_text())["rows"]
    measured = {(row["layer"], row["length"]): row for row in rows}
    names = ["self-attention", "local attention, 128 tokens", "LSTM", "GRU"]
    assert measured.keys() == {(name, length) for name in names for length in (4, 8)}
    assert all(row["seconds"] > 0 and row["bytes"] >= 0 for row in rows)
    # Weights [B, N, S, S] alone need four times as much.
    assert measured["self-attention", 8]["bytes"] > measured["self-attention", 4]["bytes"]
    assert "self-attention" in capsys.readouterr().out
    shown = lengths.read(tmp_path)
    assert [run["name"] for run in shown["data"]["runs"]] == names
    assert [point[0] for point in shown["data"]["panels"][1]["series"][3]["points"]] == [4, 8]
