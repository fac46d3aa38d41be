"""Speed of translation training, compared with `torch.nn.Transformer` on PyTorch, interleaved, on a CPU.

    BERTJAX_DATA=FOLDER python -m benchmarks.translation_step --rounds=5 [--malloc=tcmalloc]

Both train on the same batches of Multi30k, those of a run: the same buckets, padding and target tokens. Both have
dropout, label smoothing, Adam and the schedule, in float32. Compilation time is listed separately.
"""

import argparse
import dataclasses
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
from bertjax.config import part
from bertjax.configs.translation import get_config
from bertjax.contract import Batch
from bertjax.experiments import translation
from bertjax.models.encoder_decoder import EncoderDecoderConfig

_HEADER = ["model", "target positions per batch", "ours, target tokens/s", "PyTorch", "ratio", "our compilation"]


def main() -> None:
    """Times both for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=("tiny", "base"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10, help="updates of a round")
    parser.add_argument("--warmup", type=int, default=60, help="updates before timing, in which all buckets must occur")
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
    """Returns a table row: in each round, `updates` of our updates, then of theirs with the same batches.

    Exits if a timed batch has a shape that does not occur in the first `warmup` batches, because its compilation would
    be timed.
    """
    from benchmarks.torch_translation import TorchTranslationStep

    config = config_of(size)
    opened = common.open_task(translation, config, folder)
    vocabulary = opened.data.vocabulary.target
    sizes = dict.fromkeys(("source_vocab_size", "target_vocab_size"), vocabulary.vocab_size)
    model = part(EncoderDecoderConfig, dataclasses.replace(opened.keys.model, **sizes))
    known = {batch["labels"].shape for batch in itertools.islice(batches(opened, 0), warmup)}
    timed = list(itertools.islice(batches(opened, warmup), rounds * updates))
    if {batch["labels"].shape for batch in timed} - known:
        sys.exit("error: some buckets first occur in the timed batches: raise --warmup")
    ours = common.OurTraining(opened, updates, warmup)
    theirs = TorchTranslationStep(model, config.optimizer, opened.keys.label_smoothing, vocabulary.cls_id)
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
    label = f"{places:,.0f}, {targets.mean() / places:.0%} of them tokens"
    row = [size, label, *cells, f"{ours.compile_seconds:.0f} s"]
    print(row, flush=True)
    return row


def batches(opened: common.Opened, start: int) -> Iterator[Batch]:
    """Returns the training batches from an update on."""
    batches: Iterator[Batch] = opened.data.batches("train", start, np.arange(opened.settings.batch_size))
    return batches


def config_of(size: str) -> ConfigDict:
    """Returns the config of a size for Multi30k, with joint subwords."""
    data = Path(os.environ["BERTJAX_DATA"]) / "multi30k"
    config = get_config(size)
    for side, language in (("source", "en"), ("target", "de")):
        config.data[side] = str(data / f"train.{language}.gz")
        config.data[f"valid_{side}"] = str(data / f"val.{language}")
    config.data.update({"seq_len": 128, "vocab_size": 10_000})
    config.batch_size = 32
    config.num_steps = 10**6  # more than the benchmark makes
    return config


if __name__ == "__main__":
    main()
