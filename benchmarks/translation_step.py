"""Speed of training translation beside `torch.nn.Transformer` on PyTorch, interleaved in one process, on a CPU.

    BERTJAX_DATA=FOLDER python -m benchmarks.translation_step --rounds=5 [--malloc=tcmalloc]

Both train pairs of Multi30k in the same batches, those of the run: same buckets, same padding, same tokens to predict.
Dropout, smoothed labels, Adam and the schedule are in both; everything is float32. Compilation is timed apart.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from benchmarks import common
from bertjax.config import build
from bertjax.configs.translation import get_config
from bertjax.contract import Batch
from bertjax.experiments import translation
from bertjax.models.encoder_decoder import EncoderDecoderConfig
from bertjax.tasks.translators import open_vocabularies

_HEADER = ["model", "target places a batch", "ours, target tokens/s", "PyTorch", "ratio", "our compilation"]


def main() -> None:
    """Times both on each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=("tiny", "base"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10, help="of a round")
    parser.add_argument("--warmup", type=int, default=60, help="updates before, in which all buckets are to come")
    parser.add_argument("--malloc", choices=common.MALLOCS, default="default")
    args = parser.parse_args()
    common.use_malloc(args.malloc)
    if "BERTJAX_DATA" not in os.environ:
        sys.exit("error: set BERTJAX_DATA to the folder with multi30k")
    print(f"{common.describe_machine()}; float32; {args.rounds} rounds of {args.updates} updates\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(size, args.rounds, args.updates, args.warmup, Path(folder) / size) for size in args.sizes]
    print("\n" + common.table(_HEADER, rows) + f"\n\nLoad average at the end {common.load_average()}")


def compare(size: str, rounds: int, updates: int, warmup: int, folder: Path) -> list[str]:
    """A row of the table: so many updates a round of ours, then of theirs with the same batches.

    Exits where one of them has a shape that none of the `warmup` batches before had, whose program would be timed.
    """
    from benchmarks.torch_translation import TorchTranslationStep

    config = config_of(size)
    opened = common.open_task(translation, config, folder)
    vocabulary = open_vocabularies(folder / "data")[1]
    sizes = dict.fromkeys(("source_vocab_size", "target_vocab_size"), vocabulary.vocab_size)
    model = build(EncoderDecoderConfig, {**opened.keys.model, **sizes}, "model")
    known = {batch["labels"].shape for batch in itertools.islice(batches(opened, 0), warmup)}
    timed = list(itertools.islice(batches(opened, warmup), rounds * updates))
    if {batch["labels"].shape for batch in timed} - known:
        sys.exit("error: some of the buckets come for the first time in what is timed: raise --warmup")
    ours = common.OurTraining(opened, updates, warmup)
    theirs = TorchTranslationStep(model, config.optimizer, opened.keys.label_smoothing, vocabulary.bos_id)
    theirs(next(batches(opened, 0)))

    targets = np.array([np.count_nonzero(batch["target_segment_ids"]) for batch in timed])
    tokens = targets.reshape(rounds, updates).sum(axis=1)
    places = statistics.mean(batch["labels"].size for batch in timed)
    left = iter(timed)

    def train_theirs() -> None:
        for batch in itertools.islice(left, updates):
            theirs(batch)

    seconds = common.interleave({"ours": ours, "theirs": train_theirs}, rounds)
    speeds = {name: [n / s for n, s in zip(tokens, times, strict=True)] for name, times in seconds.items()}
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["theirs"], strict=True)]
    cells = [common.spread(speeds["ours"], 0), common.spread(speeds["theirs"], 0), common.spread(ratios, 2)]
    label = f"{places:,.0f}, of which {targets.mean() / places:.0%} tokens"
    row = [size, label, *cells, f"{ours.compile_seconds:.0f} s"]
    print(row, flush=True)
    return row


def batches(opened: common.Opened, start: int) -> Iterator[Batch]:
    """Those that training takes from an update on."""
    batches: Iterator[Batch] = opened.data.batches("train", start, np.arange(opened.settings.batch_size))
    return batches


def config_of(size: str) -> ConfigDict:
    """The config of Multi30k at some size, with joint subwords."""
    data = Path(os.environ["BERTJAX_DATA"]) / "multi30k"
    config = get_config(size)
    for side, language in (("source", "en"), ("target", "de")):
        config.data[side] = str(data / f"train.{language}.gz")
        config.data[f"valid_{side}"] = str(data / f"val.{language}")
    config.data.update({"seq_len": 128, "vocab_size": 10_000})
    config.batch_size = 32
    config.num_steps = 10**6  # more than are made
    return config


if __name__ == "__main__":
    main()
