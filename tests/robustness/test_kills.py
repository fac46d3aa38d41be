"""Disturbed predictions: the counts and the failures."""

import random
import subprocess
import sys
from collections import Counter

import pytest

from tests.robustness import kills, small_runs

# Writes its lines one by one, and renames the file at the end.
PROGRAM = """
import pathlib, sys, time
output, text = pathlib.Path(sys.argv[1]), sys.argv[2]
partial = output.with_name(output.name + ".x.partial")
done = partial.read_text().count("\\n") if partial.exists() else 0
with partial.open("a", 1) as file:
    for line in text.splitlines(keepends=True)[done:]:
        file.write(line)
        time.sleep(0.05)
partial.rename(output)
"""
TEXT = "".join(f"{number}\n" for number in range(8))


@pytest.fixture
def prediction(tmp_path, monkeypatch):
    """A prediction by a process that starts fast."""

    def start(self):
        command = [sys.executable, "-S", "-c", PROGRAM, str(self.output), TEXT]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(kills.Prediction, "start", start)
    monkeypatch.setattr(small_runs, "train", lambda *_: None)
    monkeypatch.setattr(kills, "_DISTURBANCES", ("SIGKILL", "SIGTERM"))
    return kills.Prediction("masks", tmp_path, dict.fromkeys((0, 1), TEXT.encode()), 0.1, Counter())


def test_a_killed_prediction_is_resumed_until_it_is_finished(prediction):
    told = prediction.disturb(random.Random(0), most=3)
    counts = prediction.counts
    assert counts["files"] == 1 and counts["different"] == 0 and counts["lines kept"] >= 1, told
    assert not prediction.output.exists()
    assert kills.table([prediction])[-1].startswith(f"| all | {counts['SIGKILL']} | {counts['SIGTERM']} | 0 |")


def test_a_different_file_is_counted(prediction):
    prediction.expected = dict.fromkeys((0, 1), b"other\n")
    assert "DIFFERENT" in prediction.disturb(random.Random(0), most=1)
    assert prediction.counts["different"] == 1
