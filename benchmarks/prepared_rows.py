"""Speed and memory of preparing rows of text classification, and the time to start a run with prepared rows.

    python -m benchmarks.prepared_rows --rows=5000000 --workers=1,2

The texts are sequences of 17 to 21 English words of the embedded documentation, with one of two labels. The vocabulary
is trained on the documentation. Memory is the largest sum of the proportional set sizes of the process and its workers.
`start` is the time from building the data to the first batch when the rows are prepared; `resume` is the time to batch
100,000. Imports are not counted. Each number of workers prepares in a new process, in turn, `--repeats` times; the
table has the median and the range.
"""

import argparse
import json
import multiprocessing
import platform
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.preparation import memory
from bertjax.configs import classification as config_file
from bertjax.data.readers import documentation
from bertjax.data.text import wordpiece_trainer
from bertjax.data.text.wordpiece import WordPiece
from bertjax.experiments import classification
from bertjax.modes.stages import Resolved, of_config

LATER = 100_000  # the batch that `resume` waits for


def make(folder: Path, rows: int) -> None:
    """Writes rows.tsv, valid.tsv and a vocabulary."""
    texts = [line for _, lines in documentation.documents() for line in lines]
    WordPiece(wordpiece_trainer.train(wordpiece_trainer.count_words(texts, True), 8000), True).save(folder / "vocab")
    words = [word for text in texts for word in text.split()]
    choose = random.Random(0)
    for name, count in (("rows.tsv", rows), ("valid.tsv", 1000)):
        with (folder / name).open("w", encoding="utf-8") as file:
            file.write("text\tlabel\n")
            for _ in range(count):
                start, length = choose.randrange(len(words) - 21), choose.randint(17, 21)
                file.write(f"{' '.join(words[start : start + length])}\t{choose.randrange(2)}\n")


def resolved_of(folder: Path, workers: int) -> Resolved:
    """Resolves the config for the rows in a folder."""
    tree = config_file.get_config("tiny")
    values = {"source": folder / "rows.tsv", "valid_source": folder / "valid.tsv", "vocab_file": folder / "vocab"}
    tree.update_from_flattened_dict({f"data.{key}": str(path) for key, path in values.items()})
    tree.update_from_flattened_dict({"data.text_columns": ("text",), "data.label_column": "label"})
    tree.data.workers = workers
    return of_config(classification, json.loads(tree.to_json_best_effort()))


def first_batch(resolved: Resolved, folder: Path, step: int) -> float:
    """Returns the seconds from building the data to a batch. Prepares the rows unless they are prepared."""
    began = time.monotonic()
    data = resolved.data(folder)
    _ = data.fingerprint
    data.prepare()
    config = data.complete(resolved.config)
    next(data.batches("train", step, np.arange(config["batch_size"])))
    return time.monotonic() - began


def measure(folder: Path, workers: int, results: Any) -> None:
    """Prepares, starts and resumes in this process, and puts the results into a queue."""
    resolved, peak, done = resolved_of(folder, workers), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, memory(multiprocessing.current_process().pid or 0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as kept:
        seconds = first_batch(resolved, Path(kept), 0)
        done.set()
        watcher.join()
        start, resume = (first_batch(resolved, Path(kept), step) for step in (0, LATER))
    results.put({"prepare": seconds, "MB": peak / 1e6, "start": start, "resume": resume})


def main() -> None:
    """Prints the results for each number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    numbers = list(map(int, arguments.workers.split(",")))
    found: dict[int, list[dict[str, float]]] = {number: [] for number in numbers}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), arguments.rows)
        for number in numbers * arguments.repeats:
            results = context.Queue()
            process = context.Process(target=measure, args=(Path(name), number, results))
            process.start()
            found[number].append(results.get())
            process.join()
    print(f"{arguments.rows:,} rows, {platform.processor() or platform.machine()}, Python {platform.python_version()}")
    for number, each in found.items():
        told = [f"{key} {_spread([one[key] for one in each])}" for key in each[0]]
        print(f"{number} workers: {', '.join(told)}")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


if __name__ == "__main__":
    main()
