"""Speed of `bertjax.load(...).encode`, compared with sentence-transformers, interleaved, on a CPU.

    python -m benchmarks.encode FOLDER --sentences=2000 --rounds=5 [--clock=cpu]

FOLDER is an encoder of sentence-transformers. Both encode the same paragraphs of Python's documentation from text to
float32 vectors, truncated alike, after a first call that compiles or warms up. The vectors are compared. `encode` takes
part with `exact=True`, the default, and False. With `--clock=cpu`, seconds are those of all cores together.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import bertjax
from benchmarks import common
from benchmarks.common import Speed
from bertjax.data.readers import documentation

_BATCH_SIZE = 32  # the default of sentence-transformers
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=5)
    parser.add_argument("folder", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--clock", choices=_CLOCKS, default="wall")
    common.report(measure, parser.parse_args())


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields the speeds of exact and of fast encoding."""
    from sentence_transformers import SentenceTransformer

    paragraphs = (text for _, texts in documentation.documents() for text in texts)
    sentences = list(itertools.islice(paragraphs, 16 if args.smoke else args.sentences))
    ours = bertjax.load(args.folder)
    theirs = SentenceTransformer(str(args.folder), device="cpu")
    vectors = ours.encode(sentences)
    difference = np.abs(vectors - theirs.encode(sentences, batch_size=_BATCH_SIZE)).max()
    print(f"{len(sentences)} sentences; largest difference of a vector's element {difference:.1e}")
    ours.encode(sentences, exact=False)  # compiles
    calls = {
        "exact": lambda: ours.encode(sentences),
        "exact=False": lambda: ours.encode(sentences, exact=False),
        "sentence-transformers": lambda: theirs.encode(sentences, batch_size=_BATCH_SIZE),
    }
    seconds = common.interleave(calls, args.rounds, _CLOCKS[args.clock])
    peer = "sentence-transformers"
    for name in ("exact", "exact=False"):
        pair = {name: seconds[name], peer: seconds[peer]}
        yield common.speed_of(f"encoding, {name}", "sentences/s", len(sentences), pair)


if __name__ == "__main__":
    main()
