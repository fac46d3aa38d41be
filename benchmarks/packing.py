"""The effect of packing on real lengths: the share of padding, and the speed in tokens/s without padding, on a CPU.

    BERTJAX_DATA=FOLDER python -m benchmarks.packing --rounds=10
    BERTJAX_DATA=FOLDER python -m benchmarks.packing --tasks mrpc sst2 multi30k --size=tiny --rounds=10

For pretraining, the contenders are ours with packed rows, ours with one instance per row, and
`transformers.BertForPreTraining` on PyTorch with the same padded rows, interleaved in one process, without and with
next-sentence prediction. The sources are Wikipedia articles, and short documents (one per docstring of the embedded
documentation).

For fine-tuning and translation (`--tasks`), the contenders are ours with packed rows and ours with the default batches
by length, also interleaved. Their updates have about the same number of examples.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common, translation_step
from bertjax.configs import classification as classification_config
from bertjax.contract import Batch
from bertjax.experiments import classification, translation

SHAPES = ("base:8x128:30522", "base:2x512:30522")
_COUNTED = 2**21  # tokens, including padding, over which the share of padding is counted
_TIMED = 8  # batches used in turn
_WARMUP = 120  # enough updates for all lengths to occur
_FILES = {"mrpc": ("mrpc/train.tsv", "mrpc/dev.tsv"), "sst2": ("sst2/train.tsv.gz", "sst2/dev.tsv")}
_TASKS = (*_FILES, "multi30k")
_TASK_HEADER = ["task", "batches", "rows", "examples", "padding", "real tokens/s, median (quartiles)"]
_HEADER = ["source", "batch", "next sentence", "contender", "padding", "real tokens/s, median (quartiles)"]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sources", nargs="+", choices=("wikipedia", "docstrings"), default=("wikipedia", "docstrings")
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SIZE:ROWSxLENGTH:VOCABULARY")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tasks", nargs="+", choices=_TASKS, help="tasks to measure instead of pretraining")
    parser.add_argument("--size", default="tiny", help="size of the tasks' model")
    parser.add_argument("--updates", type=int, default=10, help="updates of a task's round")
    parser.add_argument("--peer", choices=("eager", "compiled", "none"), default="eager")
    parser.add_argument("--malloc", choices=common.MALLOCS, default="default")
    args = parser.parse_args()
    common.use_malloc(args.malloc)
    if "BERTJAX_DATA" not in os.environ:
        sys.exit("error: set BERTJAX_DATA to the folder with wikipedia_en, vocab, mrpc, sst2 and multi30k")
    print(f"{common.describe_machine()}; float32; {args.rounds} rounds\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        header, rows = measure_all(args, Path(folder))
    print("\n" + common.table(header, rows))
    print(f"\nLoad average at the end {common.load_average()}")


def measure_all(args: argparse.Namespace, folder: Path) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of the table. Prints the ratios meanwhile."""
    rows = []
    for name in args.tasks or ():
        found, note = measure_task(name, args.size, args.updates, args.rounds, folder / name)
        rows += found
        print(note, flush=True)
    if args.tasks:
        return _TASK_HEADER, rows
    for source, text, next_sentence in itertools.product(args.sources, args.shapes, (False, True)):
        shape = common.Shape.parse(text)
        found, note = measure(shape, source, next_sentence, args.peer, args.rounds, folder)
        rows += found
        print(note, flush=True)
    return _HEADER, rows


def data_of(source: str, folder: Path) -> dict[str, Any]:
    """Returns the config values of a source."""
    data = Path(os.environ["BERTJAX_DATA"])
    text = data / "wikipedia_en/train-00.txt.gz" if source == "wikipedia" else common.docstrings(folder)
    return {"data.source": str(text), "data.vocab_file": f"{data}/vocab/bert-base-uncased-vocab.txt"}


def measure(
    shape: common.Shape, source: str, next_sentence: bool, peer: str, rounds: int, folder: Path
) -> tuple[list[list[str]], str]:
    """Returns the table rows of one source and shape, and the ratios in words."""
    from benchmarks.torch_peer import TorchStep

    layouts: Mapping[str, dict[str, Any]] = {
        name: {**data_of(source, folder), "data.next_sentence": next_sentence, "data.packing": packing}
        for name, packing in (("packed", True), ("padded", False))
    }
    contenders: dict[str, Any] = {}
    real, padding = {}, {}
    for name, overrides in layouts.items():
        batches = common.real_batches(shape, overrides, folder, _TIMED)
        contenders[f"ours, {name}"] = common.OurStep.of(shape, overrides, batches)
        real[f"ours, {name}"] = statistics.mean(map(common.real_tokens, batches))
        counted = common.real_batches(shape, overrides, folder, _COUNTED // shape.tokens)
        padding[f"ours, {name}"] = 1 - statistics.mean(map(common.real_tokens, counted)) / shape.tokens
    if peer != "none":
        name, padded = f"transformers, {peer}", contenders["ours, padded"].batches
        contenders[name] = TorchStep(shape, padded, compiled=peer == "compiled", bfloat16=False)
        real[name], padding[name] = real["ours, padded"], padding["ours, padded"]
    seconds = common.interleave(contenders, rounds)
    speeds = {name: [real[name] / s for s in seconds[name]] for name in contenders}
    label = [source, f"{shape.size} {shape.rows}x{shape.length}", "yes" if next_sentence else "no"]
    rows = [[*label, name, f"{padding[name]:.1%}", common.spread(speeds[name], 0)] for name in contenders]
    ratios = [
        f"{common.spread([a / b for a, b in zip(speeds['ours, packed'], speeds[name], strict=True)], 2)} x {name}"
        for name in contenders
        if name != "ours, packed"
    ]
    return rows, f"{', '.join(label)}: packed is {', '.join(ratios)}"


def measure_task(name: str, size: str, updates: int, rounds: int, folder: Path) -> tuple[list[list[str]], str]:
    """Returns the table rows of one task, and the ratio in words. `updates` is the number of a round."""
    bucketed = task_of(name, size, folder, packing=False, batch_size=32)
    rows = bucketed.settings.batch_size
    if name in _FILES:  # for the same number of examples; translation batches have the same number of tokens
        lengths = bucketed.data.fields()["input_ids"].lengths
        rows = max(1, round(rows * lengths.mean() / bucketed.keys.data.seq_len))
    tasks = {"bucketed": bucketed, "packed": task_of(name, size, folder, packing=True, batch_size=rows)}
    contenders = {key: common.OurTraining(each, updates, _WARMUP) for key, each in tasks.items()}
    seconds = common.interleave(contenders, rounds)
    table, speeds = [], {}
    for key, each in tasks.items():
        made = each.data.batches("train", 0, np.arange(each.settings.batch_size))
        counts = np.array([count(batch) for batch in itertools.islice(made, _WARMUP + rounds * updates)])
        each_row, examples, tokens, places = counts.mean(axis=0)
        timed = counts[_WARMUP:, 2].reshape(rounds, updates).sum(axis=1)
        speeds[key] = [n / s for n, s in zip(timed, seconds[key], strict=True)]
        cells = [f"{each_row:.0f}", f"{examples:.1f}", f"{1 - tokens / places:.1%}", common.spread(speeds[key], 0)]
        table.append([name, key, *cells])
    ratios = [a / b for a, b in zip(speeds["packed"], speeds["bucketed"], strict=True)]
    return table, f"{name}, {size}: packed is {common.spread(ratios, 2)} x bucketed"


def count(batch: Batch) -> tuple[int, int, int, int]:
    """Returns the rows of a batch, its examples, tokens without padding, and positions, summed over both sides."""
    sides = [batch[name] for name in ("segment_ids", "target_segment_ids") if name in batch]
    examples = int(sides[0].max(axis=1).sum())
    return len(sides[0]), examples, sum(map(np.count_nonzero, sides)), sum(side.size for side in sides)


def task_of(name: str, size: str, folder: Path, packing: bool, batch_size: int) -> common.Opened:
    """Builds a task as `launch.py` does."""
    if name in _FILES:
        data = Path(os.environ["BERTJAX_DATA"])
        experiment, config = classification, classification_config.get_config(f"{size},{name},tsv")
        config.data.source, config.data.valid_source = (str(data / file) for file in _FILES[name])
        config.data.vocab_file = f"{data}/vocab/bert-base-uncased-vocab.txt"
    else:
        experiment, config = translation, translation_step.config_of(size)
    config.data.packing, config.batch_size = packing, batch_size
    config.num_steps = 10**6  # more than the benchmark makes
    return common.open_task(experiment, config, folder)


if __name__ == "__main__":
    main()
