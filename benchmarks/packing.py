"""What packing gives on real lengths: padding, and tokens/s that are not padding, on a CPU.

    BERTJAX_DATA=FOLDER python -m benchmarks.packing --rounds=10

Ours with several instances in a row, ours with one instance in a row, and `transformers.BertForPreTraining` on PyTorch
on those same padded rows, interleaved in one process; without and with next-sentence prediction. Sources: articles of
Wikipedia, and short documents, each docstring of the embedded documentation being one.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import common

SHAPES = ("base:8x128:30522", "base:2x512:30522")
_COUNTED = 2**21  # tokens, padding included, that padding is counted in
_TIMED = 8  # batches that are taken in turn
_HEADER = ["source", "batch", "next sentence", "contender", "padding", "real tokens/s, median (quartiles)"]


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sources", nargs="+", choices=("wikipedia", "docstrings"), default=("wikipedia", "docstrings")
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SIZE:ROWSxLENGTH:VOCABULARY")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peer", choices=("eager", "compiled", "none"), default="eager")
    parser.add_argument("--malloc", choices=("default", "tuned"), default="default")
    args = parser.parse_args()
    common.use_malloc(args.malloc)
    if "BERTJAX_DATA" not in os.environ:
        sys.exit("error: set BERTJAX_DATA to the folder with wikipedia_en and vocab")
    print(f"{common.describe_machine()}; float32; {args.rounds} rounds\n", flush=True)
    rows, notes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for source in args.sources:
            for text in args.shapes:
                for next_sentence in (False, True):
                    shape = common.Shape.parse(text)
                    found, note = measure(shape, source, next_sentence, args.peer, args.rounds, Path(folder))
                    rows += found
                    notes.append(note)
                    print(note, flush=True)
    print("\n" + common.table(_HEADER, rows))
    print(f"\nLoad average at the end {common.load_average()}")


def data_of(source: str, folder: Path) -> dict[str, Any]:
    """Config values of a source."""
    data = Path(os.environ["BERTJAX_DATA"])
    text = data / "wikipedia_en/train-00.txt.gz" if source == "wikipedia" else common.docstrings(folder)
    return {"data.source": str(text), "data.vocab_file": f"{data}/vocab/bert-base-uncased-vocab.txt"}


def measure(
    shape: common.Shape, source: str, next_sentence: bool, peer: str, rounds: int, folder: Path
) -> tuple[list[list[str]], str]:
    """Rows of the table for one source and shape, and the ratios in words."""
    from benchmarks.torch_peer import TorchStep

    layouts: Mapping[str, dict[str, Any]] = {
        name: {**data_of(source, folder), "data.next_sentence": next_sentence, "data.packing": packing}
        for name, packing in (("packed", True), ("padded", False))
    }
    contenders: dict[str, Any] = {}
    real, padding = {}, {}
    for name, overrides in layouts.items():
        batches = common.real_batches(shape, overrides, folder, _TIMED)
        contenders[f"ours, {name}"] = common.OurStep(shape, overrides, batches)
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


if __name__ == "__main__":
    main()
