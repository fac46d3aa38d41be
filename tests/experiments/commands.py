"""Commands of the experiments, run on one device, and the lines that they write."""

import json
from pathlib import Path

from tests import tiny

SIZES = {
    "model.num_layers": 1,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.intermediate_size": 32,
    "model.max_positions": 24,
}
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}


def flags(values):
    return [f"--config.{key}={value}" for key, value in values.items()]


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def done(*command, stdin=b""):
    """Runs a command, which must succeed."""
    outcome = tiny.run_on_one(*map(str, command), stdin=stdin.encode() if isinstance(stdin, str) else stdin)
    assert outcome.status is None, outcome.status
    return outcome
