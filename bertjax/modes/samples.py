"""Validation examples with outputs of the model, for a run's page.

`samples.jsonl` has a few with attention, `predictions.jsonl` up to 20,000, those of the highest loss first.
"""

import base64
import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import distributed
from bertjax.contract import Attended, Data, Record, TrainingTask
from bertjax.files import completed, read_records
from bertjax.progress import track
from bertjax.training import inference
from bertjax.training.config import InferenceConfig

FILE, PREDICTIONS = "samples.jsonl", "predictions.jsonl"
_EXAMPLES, _PREDICTIONS = 8, 20_000
_GENERATED = 500  # examples of a task that generates texts, which takes long
# The keys of texts and golds, by which the records of two runs for one example are found.
_IDENTITY = ("id", "text", "second", "question", "context", "source", "words", "reference")
_WEIGHTS = 600_000  # attention weights in all, a byte each, so that a page is smaller than 3 MB


def write(task: TrainingTask, data: Data, settings: InferenceConfig, workdir: Path) -> None:
    """Writes the samples and the predictions of a trained task by the run's final checkpoint."""
    runner = inference.Inference(task, settings, workdir, "final")
    made_by = {"checkpoint": runner.checkpoint}
    for name, records in (
        (PREDICTIONS, predictions(runner, data)),
        (FILE, map(_plain, _fitting(runner.samples(data, _EXAMPLES)))),
    ):
        lines = [json.dumps({**record, **made_by}, ensure_ascii=False) + "\n" for record in records]
        distributed.on_first_process(functools.partial(_write, workdir / name, lines))


def predictions(runner: inference.Inference, data: Data) -> list[Record]:
    """Returns the records of the validation examples, each with a "digest" of text and gold, by descending loss."""
    most = _GENERATED if getattr(runner.task, "decodes", False) else _PREDICTIONS
    records = track(runner.errors(data, most), "predicting for the page", "example")
    with_loss = ({"loss": None, **record, "digest": _digest(record)} for record in records)
    return sorted(with_loss, key=_loss, reverse=True)


def _digest(record: Record) -> str:
    identity = [record.get(key) for key in _IDENTITY]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _loss(record: Record) -> float:
    return -math.inf if record["loss"] is None else record["loss"]


def are_current(workdir: Path) -> bool:
    """Returns whether a run's folder has samples of its final checkpoint, or of a checkpoint that is gone."""
    path = workdir / FILE
    made_by = None
    if not path.exists() or not (workdir / PREDICTIONS).exists():
        return False
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # of a damaged folder
        made_by = inference.checkpoint_name(workdir, "final")
    first = next(read_records(path), {})
    return made_by is None or first.get("checkpoint", made_by) == made_by


def _write(path: Path, lines: list[str]) -> None:
    with completed(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def _fitting(records: Iterable[Record]) -> Iterator[Record]:
    """Yields the records. Attention weights are omitted if they exceed the limit in all."""
    room = _WEIGHTS
    for record in records:
        size = sum(attention.weights.size for attention in record.get("attention", {}).values())
        if size > room:
            record = {key: value for key, value in record.items() if key != "attention"}
            size = 0
        room -= size
        yield record


def _plain(value: Any) -> Any:
    """Returns a value that JSON can represent. Arrays become a byte per number, from the lowest to the highest."""
    if isinstance(value, Attended):
        # Attention weights are between 0 and 1.
        return {"queries": list(value.queries), "keys": list(value.keys), "weights": _bytes(value.weights, 0.0, 1.0)}
    if isinstance(value, np.ndarray):
        numbers = np.nan_to_num(value.astype(np.float64))
        return _bytes(numbers, float(numbers.min(initial=0.0)), float(numbers.max(initial=0.0)))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _bytes(values: np.ndarray, low: float, high: float) -> Record:
    shades = np.round(255 * (np.nan_to_num(values) - low) / max(high - low, 1e-12)).astype(np.uint8)
    data = base64.b64encode(shades.tobytes()).decode()
    return {"shape": list(values.shape), "low": low, "high": high, "data": data}
