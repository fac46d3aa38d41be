"""What a run shows of itself, `samples.jsonl` in its folder: held-out examples with what the model made of them."""

import base64
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import distributed
from bertjax.contract import Attended, Data, Task
from bertjax.files import completed, read_records
from bertjax.training import inference
from bertjax.training.config import TrainingConfig

FILE = "samples.jsonl"
_EXAMPLES = 8
_WEIGHTS = 600_000  # of attention in all: a byte each, and a page has less than 3 MB


def write(task: Task, data: Data, settings: TrainingConfig, workdir: Path) -> None:
    """Writes what a trained task shows, by the run's final checkpoint."""
    runner = inference.Inference(task, settings, workdir, "final")
    made_by = {"checkpoint": runner.checkpoint}
    lines = [
        json.dumps(_plain({**record, **made_by}), ensure_ascii=False)
        for record in _fitting(runner.samples(data, _EXAMPLES))
    ]
    distributed.on_first_process(lambda: _write(workdir, lines))


def are_current(workdir: Path) -> bool:
    """Whether a run's folder has samples, and its final checkpoint is the one that made them or is gone."""
    path, made_by = workdir / FILE, None
    if not path.exists():
        return False
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # of a damaged folder
        made_by = inference.checkpoint_name(workdir, "final")
    first = next(read_records(path), {})
    return made_by is None or first.get("checkpoint", made_by) == made_by


def _write(workdir: Path, lines: list[str]) -> None:
    with completed(workdir / FILE) as partial:
        partial.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _fitting(records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The records, without attention where there would be too much of it."""
    room = _WEIGHTS
    for record in records:
        size = sum(each.weights.size for each in record.get("attention", {}).values())
        if size > room:
            record = {key: value for key, value in record.items() if key != "attention"}
            size = 0
        room -= size
        yield record


def _plain(value: Any) -> Any:
    """The same of what JSON has; of an array a byte for each number, from its lowest to its highest."""
    if isinstance(value, Attended):
        # All weights are shades between 0 and 1.
        return {"queries": list(value.queries), "keys": list(value.keys), "weights": _bytes(value.weights, 0.0, 1.0)}
    if isinstance(value, np.ndarray):
        numbers = np.nan_to_num(value.astype(np.float64))
        return _bytes(numbers, float(numbers.min(initial=0.0)), float(numbers.max(initial=0.0)))
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _bytes(values: np.ndarray, low: float, high: float) -> dict[str, Any]:
    shades = np.round(255 * (np.nan_to_num(values) - low) / max(high - low, 1e-12)).astype(np.uint8)
    data = base64.b64encode(shades.tobytes()).decode()
    return {"shape": list(values.shape), "low": low, "high": high, "data": data}
