"""Speed of the input pipeline without a model: finished batches, and the time to make a plan.

    python -m benchmarks.input_pipeline                                # the embedded documentation
    python -m benchmarks.input_pipeline --source='wiki/*.txt'
    python -m benchmarks.input_pipeline --source=docstrings            # short documents, one per docstring
    python -m benchmarks.input_pipeline --documents=10000000 --sentences=25      # only plans, of synthetic lengths

Batches come from `PretrainingBatches.training`, including prefetching, as in a run. Each result is the median of three
rounds, in which all settings alternate.
"""

import argparse
import itertools
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks import common
from bertjax.data.pretraining.batches import BatchConfig, InstanceRowsConfig, PretrainingBatches
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation
from bertjax.data.pretraining.epoch_plan import EpochPlan
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.pretraining.sentence_pairs import PairsConfig, Sentences

# (seq_len, predictions, batch size): 32,768 positions each.
SHAPES = ((128, 20, 256), (512, 80, 64))
TURNS = 3


def batch_config(shape: tuple[int, int, int], next_sentence: bool, packing: bool) -> BatchConfig:
    """Returns BERT's settings for a shape."""
    seq_len, predictions, rows = shape
    masking = MaskingConfig(0.15, predictions, 0.8, 0.1, 0.1, whole_word=False, mode="dynamic", dupe_factor=10)
    pairs = PairsConfig(seq_len, next_sentence, whole_sentences=False, short_seq_prob=0.1, random_next_prob=0.5)
    return BatchConfig(
        pairs, masking, InstanceRowsConfig(packing, valid_rows=0), "masked_lm", "both", 0, rows, num_steps=1
    )


def settings() -> Iterator[BatchConfig]:
    """Yields the measured settings."""
    for shape, next_sentence, packing in itertools.product(SHAPES, (True, False), (False, True)):
        yield batch_config(shape, next_sentence, packing)


def described(config: BatchConfig) -> str:
    """Describes a setting."""
    next_sentence, packing = config.pairs.next_sentence, config.rows.packing
    return (
        f"{config.batch_size:4} x {config.pairs.seq_len}  next sentence {'on ' if next_sentence else 'off'}  "
        f"{'packed' if packing else 'padded'}"
    )


def prepared(source: str, folder: Path) -> Corpus:
    """Prepares the text of a source, uncased, with a vocabulary trained on it."""
    if source == "docstrings":
        source = str(common.docstrings(folder))
    config = CorpusConfig(source, "", 0.02, "text", "stop", "paragraph", "", 30_522, True, 0, str(folder))
    preparation = Preparation(config, folder)
    preparation.run()
    return Corpus(preparation.folder)


def measure(corpus: Corpus, config: BatchConfig, seconds: float) -> tuple[float, float, float]:
    """Returns tokens per second without and with padding, and the share of padding."""
    batches = PretrainingBatches(corpus, "train", config).training(0, np.arange(config.batch_size))
    for _ in range(8):  # more than the pipeline prefetches
        next(batches)
    tokens = places = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        segments = next(batches)["segment_ids"]
        tokens, places = tokens + int(np.count_nonzero(segments)), places + segments.size
    return tokens / spent, places / spent, 1 - tokens / places


def measure_batches(corpus: Corpus, seconds: float) -> None:
    """Prints the speed of each setting."""
    metrics: dict[BatchConfig, list[tuple[float, float, float]]] = {config: [] for config in settings()}
    for _, (config, measured) in itertools.product(range(TURNS), metrics.items()):
        measured.append(measure(corpus, config, seconds))
    for config, measured in metrics.items():
        real, padded, padding = (statistics.median(each) for each in zip(*measured, strict=True))
        capacity = config.capacity
        shape = f"P {capacity.predictions:2}  E {capacity.segments if config.pairs.next_sentence else 0:2}"
        print(f"{described(config)}  {shape}  {real:12,.0f} tokens/s  {padded:12,.0f} with padding, {padding:6.2%}")


def measure_plans(documents: int, mean_sentences: float) -> None:
    """Prints the time to plan documents with synthetic sentence lengths."""
    rng = np.random.default_rng(0)
    sizes = rng.geometric(1 / mean_sentences, documents).astype(np.int32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths"
        with path.open("wb") as file:  # a file on disk, as in a prepared split
            for part in np.array_split(sizes, max(1, documents // 100_000)):
                np.clip(rng.lognormal(3.1, 0.6, part.sum()), 1, 2000).astype(np.int32).tofile(file)
        print(f"{documents:,} documents, {sizes.sum():,} sentences")
        for config in (config for config in settings() if config.pairs.seq_len == 128):
            start, start_of_cpu = time.perf_counter(), time.process_time()
            lengths = np.memmap(path, np.int32, "r")
            room = config.capacity if config.rows.packing else None
            sentences, special = Sentences(lengths, sizes), 1 + config.pairs.num_texts
            options = {"num_special": special, "seed": 0, "folder": Path(folder)}
            plan = EpochPlan(sentences, config.pairs, config.masking, room, **options)
            opened = time.perf_counter() - start
            plan.rows(0, 0, 256)
            first = time.perf_counter() - start
            rows = plan.count(0)
            whole, cpu = time.perf_counter() - start, time.process_time() - start_of_cpu
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{described(config)}  opened {opened:.2f} s, first batch {first:.2f} s, whole epoch {whole:.1f} s "
                f"({cpu:.1f} s of processor time), {rows:,} rows; "
                f"peak memory so far {memory:.2f} GiB, including mapped files"
            )


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="documentation", help="as data.source, or 'docstrings'")
    parser.add_argument("--folder", default="runs/input_pipeline", help="the folder for prepared text")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--documents", type=int, default=0, help="measure plans of synthetic documents instead")
    parser.add_argument("--sentences", type=float, default=25.0, help="the mean number of their sentences")
    arguments = parser.parse_args()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "grain", "array_record"))
    print(f"Python {platform.python_version()}, {versions}; {platform.machine()}, {os.cpu_count()} cores")
    if arguments.documents:
        measure_plans(arguments.documents, arguments.sentences)
        return
    print(f"{arguments.source}: int32 and float32, 1 thread for batches and 1 for plans, median of {TURNS} rounds")
    measure_batches(prepared(arguments.source, Path(arguments.folder)), arguments.seconds)


if __name__ == "__main__":
    main()
