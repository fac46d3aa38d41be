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
from benchmarks.common import Speed
from bertjax.config import part
from bertjax.configs.translation import get_config
from bertjax.contract import Batch
from bertjax.experiments import translation
from bertjax.models.encoder_decoder import EncoderDecoderConfig


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=5)
    parser.add_argument("--sizes", nargs="+", default=("tiny", "base"))
    parser.add_argument("--updates", type=int, default=10, help="updates of a round")
    parser.add_argument("--warmup", type=int, default=60, help="updates before timing, in which all buckets must occur")
    args = parser.parse_args()
    if "BERTJAX_DATA" not in os.environ:
        sys.exit("error: set BERTJAX_DATA to the folder with multi30k")
    if args.smoke:
        args.sizes = ("tiny",)
        args.updates = 2
        args.warmup = 2
    common.report(measure, args)


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields the speed of each size."""
    with tempfile.TemporaryDirectory() as folder:
        for size in args.sizes:
            yield compare(size, args, Path(folder) / size)


def compare(size: str, args: argparse.Namespace, folder: Path) -> Speed:
    """Returns the speed of a size: in each round, our updates, then theirs with the same batches.

    Exits if a timed batch has a shape that does not occur in the first `--warmup` batches, because its compilation
    would be timed.
    """
    from benchmarks.torch_translation import TorchTranslationStep

    config = config_of(size, args.smoke)
    updates, warmup = args.updates, args.warmup
    opened = common.open_task(translation, config, folder)
    vocabulary = opened.data.vocabulary.target
    sizes = dict.fromkeys(("source_vocab_size", "target_vocab_size"), vocabulary.vocab_size)
    model = part(EncoderDecoderConfig, dataclasses.replace(opened.keys.model, **sizes))
    warm_shapes = {batch["labels"].shape for batch in itertools.islice(batches(opened, 0), warmup)}
    timed = list(itertools.islice(batches(opened, warmup), args.rounds * updates))
    if {batch["labels"].shape for batch in timed} - warm_shapes:
        sys.exit("error: some buckets first occur in the timed batches: raise --warmup")
    ours = common.OurTraining(opened, updates, warmup)
    theirs = TorchTranslationStep(model, config.optimizer, opened.keys.label_smoothing, vocabulary.cls_id)
    theirs(next(batches(opened, 0)))

    targets = np.array([np.count_nonzero(batch["target_segment_ids"]) for batch in timed])
    tokens = targets.reshape(args.rounds, updates).sum(axis=1)
    remaining = iter(timed)

    def train_theirs() -> None:
        for batch in itertools.islice(remaining, updates):
            theirs(batch)

    seconds = common.interleave({"ours": ours, "theirs": train_theirs}, args.rounds)
    speeds = {name: [n / s for n, s in zip(tokens, times, strict=True)] for name, times in seconds.items()}
    places = statistics.mean(batch["labels"].size for batch in timed)
    print(f"{size}: {places:,.0f} target positions per batch, {targets.mean() / places:.0%} of them tokens")
    peer = "torch.nn.Transformer"
    work = f"training translation, {size}"
    return Speed(work, "target tokens/s", speeds["ours"], peer, speeds["theirs"], ours.compile_seconds)


def batches(opened: common.Opened, start: int) -> Iterator[Batch]:
    """Returns the training batches from an update on."""
    batches: Iterator[Batch] = opened.data.batches("train", start, np.arange(opened.settings.batch_size))
    return batches


def config_of(size: str, is_smoke: bool) -> ConfigDict:
    """Returns the config of a size for Multi30k, with joint subwords; with rows of one length for a smoke test."""
    data = Path(os.environ["BERTJAX_DATA"]) / "multi30k"
    config = get_config(size)
    for side, language in (("source", "en"), ("target", "de")):
        config.data[side] = str(data / f"train.{language}.gz")
        config.data[f"valid_{side}"] = str(data / f"val.{language}")
    config.data.update({"seq_len": 128, "vocab_size": 10_000})
    config.batch_size = 32
    if is_smoke:
        config.data.update({"seq_len": 32, "vocab_size": 1000, "row_lengths": (32,)})
    config.num_steps = 10**6  # more than the benchmark makes
    return config


if __name__ == "__main__":
    main()
