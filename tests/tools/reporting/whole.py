"""Folders that have all that a page can show."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.reporting.conftest import lines

WORDS = ["[CLS]", "the", "cat", "##s", "[MASK]", ".", "[SEP]"]
QUERIES = ["<s>", "il", "dort"]
CONTEXT = "It was pale Green, and early Monday."


def array(values: np.ndarray) -> dict[str, Any]:
    """An array as a run writes it, of numbers between 0 and 1."""
    data = base64.b64encode(np.round(255 * values).astype(np.uint8).tobytes()).decode()
    return {"shape": list(values.shape), "low": 0.0, "high": 1.0, "data": data}


def attended(queries: list[str], keys: list[str], layers: int = 2, heads: int = 3) -> dict[str, Any]:
    """Weights: in layer 1, head 2, each word looks at the one of the same number, elsewhere at all alike."""
    weights = np.full((layers, heads, len(queries), len(keys)), 1 / len(keys))
    weights[1, 2] = np.eye(len(queries), len(keys))
    return {"queries": queries, "keys": keys, "weights": array(weights)}


SAMPLES: list[dict[str, Any]] = [
    {
        "kind": "masks",
        "words": WORDS,
        "masks": [
            {"position": 2, "label": "dog", "tokens": ["dog", "cat"], "probabilities": [0.75, 0.25]},
            {"position": 4, "label": "sleep", "tokens": ["run", "sleep"], "probabilities": [0.5, 0.25]},
        ],
        "is_next_probability": 0.875,
        "is_next": False,
        "attention": {"encoder": attended(WORDS, WORDS)},
    },
    {
        "kind": "label",
        "text": "A cat .",
        "second": "",
        "reference": "no",
        "label": "yes",
        "probabilities": {"no": 0.25, "yes": 0.75},
    },
    {"kind": "label", "text": "Two .", "second": "cats .", "reference": 3.5, "score": 2.25},
    {
        "kind": "label",
        "text": "Three .",
        "second": "",
        "reference": ["cat"],
        "labels": ["cat", "dog"],
        "probabilities": {"cat": 0.75, "dog": 0.5, "fish": 0.25},
    },
    {
        "kind": "tags",
        "words": ["Jane", "Austen", "wrote"],
        "tags": ["B-PER", "O", "O"],
        "reference": ["B-PER", "I-PER", "O"],
    },
    {
        "kind": "answer",
        "question": "Which color?",
        "context": CONTEXT,
        "answer": "Green, and",
        "start": 12,
        "end": 22,
        "reference": ["pale Green", "Green"],
        "reference_starts": [7, None],
    },
    {
        "kind": "answer",
        "question": "Why?",
        "context": CONTEXT,
        "answer": "",
        "start": None,
        "end": None,
        "reference": [],
    },
    {
        "kind": "translation",
        "source": "He sleeps.",
        "translation": "Il dort.",
        "reference": "Il dort.",
        "score": -0.5,
        "attention": {
            "encoder": attended(["he", "sleeps", "</s>"], ["he", "sleeps", "</s>"]),
            "cross": attended(QUERIES, ["he", "sleeps", "</s>"]),
        },
    },
    {
        "kind": "extract",
        "id": "a1",
        "summary": ["First."],
        "positions": [0],
        "sentences": ["First.", "Second <b>.", "Third."],
        "scores": [0.75, 0.25, None],
        "refused": [],
        "oracle": [1],
        "reference": ["What was first."],
    },
    {
        "kind": "summary",
        "id": "a2",
        "summary": ["Short."],
        "reference": ["Shorter."],
        "article": ["Long.", "Longer."],
        "score": -1.0,
    },
    {"kind": "matrix", "title": "Position embeddings", "caption": "A row each.", "values": array(np.eye(4))},
]


def run(make_run: Callable[..., Path], name: str = "whole") -> Path:
    """The folder of a run with everything in it."""
    folder = make_run(name, lines(list(range(10, 310, 10))), seed=3)
    write_samples(folder, SAMPLES)
    environment = {
        "command": ["python", "launch.py", "--config.seed=3"],
        "Python": "3.11",
        "packages": {"jax": "0.10"},
        "devices": {"TPU v5e": 8},
    }
    (folder / "environment.json").write_text(json.dumps({**environment, "defaults": {"seed": 0, "num_steps": 300}}))
    ledger = [{"step": 300, "kind": kind, "seconds": seconds} for kind, seconds in (("compile", 20.0), ("step", 80.0))]
    (folder / "goodput.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ledger))
    return folder


def write_samples(folder: Path, samples: list[dict[str, Any]]) -> None:
    """Writes what a run shows."""
    text = "".join(json.dumps({**sample, "checkpoint": "300"}) + "\n" for sample in samples)
    (folder / "samples.jsonl").write_text(text)


def sweep(make_run: Callable[..., Path]) -> Path:
    """The folder of a sweep with two rows, a run that has not begun, and a table."""
    for name, seed in (("small-seed0", 0), ("large-seed0", 1)):
        make_run(f"sweep/runs/{name}", lines([100, 200, 300]), seed=seed)
    folder = make_run("sweep/runs/new-seed0", []).parents[1]
    rows = {"small": {"train": "5a"}, "large": {"train": "1a"}}
    names = {"5a-0": "small-seed0", "1a-1": "large-seed0", "5a-1": "new-seed0"}
    (folder / "sweep.json").write_text(
        json.dumps({"sweep": "configs/sweeps/sizes.py:tiny", "rows": rows, "names": names})
    )
    table = [
        [("small", None), ("80.5 ± 0.5", 80.5), ("-", None), ("84.6", 84.6), ("5M", 5e6)],
        [("large", None), ("9.2 ± 1.2", 9.25), ("-71.2 [-80.0, -60.0]", -71.25), ("-", None), ("5M", 5e6)],
    ]
    cells = [[{"text": text, "value": value, "best": text[:4] == "80.5"} for text, value in row] for row in table]
    notes = ["Mean over seeds.", "Paper: table 5."]
    header = ["row", "MNLI", "vs small", "paper", "tokens"]
    points = [
        {"row": row, "cost": cost, "cost_low": cost - 1, "cost_high": cost + 1, "score": score}
        | {"score_low": score - 0.5, "score_high": score + 0.5}
        for row, cost, score in (("small", 3.0, 80.5), ("large", 9.0, 9.25))
    ]
    charts = [{"cost": "ms", "score": "MNLI", "points": points}]
    (folder / "table.json").write_text(json.dumps({"header": header, "rows": cells, "notes": notes, "charts": charts}))
    return folder
