"""Speed of `bertjax.load(...).encode`, compared with sentence-transformers, interleaved, on a CPU.

    python -m benchmarks.encode FOLDER --sentences=2000 --rounds=5 [--clock=cpu]

FOLDER is an encoder of sentence-transformers. Both encode the same paragraphs of Python's documentation from text to
float32 vectors, truncated alike, after a first call that compiles or warms up. The vectors are compared. `encode` takes
part with `exact=True`, the default, and False. With `--clock=cpu`, seconds are those of all cores together.
"""

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

import bertjax
from benchmarks import common
from bertjax.data.readers import documentation

_BATCH_SIZE = 32  # the default of sentence-transformers
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=_CLOCKS, default="wall")
    parser.add_argument("--malloc", choices=common.MALLOCS, default="default")
    args = parser.parse_args()
    common.use_malloc(args.malloc)
    print(f"{common.describe_machine()}; {args.rounds} rounds", flush=True)
    compare(args.folder, args.sentences, args.rounds, args.clock)


def compare(folder: Path, count: int, rounds: int, clock: str) -> None:
    """Prints sentences per second of each, and the ratios of the first to the others in each round."""
    from sentence_transformers import SentenceTransformer

    paragraphs = (text for _, texts in documentation.documents() for text in texts)
    sentences = list(itertools.islice(paragraphs, count))
    ours, theirs = bertjax.load(folder), SentenceTransformer(str(folder), device="cpu")
    found, expected = ours.encode(sentences), theirs.encode(sentences, batch_size=_BATCH_SIZE)
    print(f"{len(sentences)} sentences; largest difference of a vector's element {np.abs(found - expected).max():.1e}")
    calls = {
        "bertjax": lambda: (ours.encode(sentences), None)[1],
        "bertjax, exact=False": lambda: (ours.encode(sentences, exact=False), None)[1],
        "sentence-transformers": lambda: (theirs.encode(sentences, batch_size=_BATCH_SIZE), None)[1],
    }
    calls["bertjax, exact=False"]()  # compiles
    seconds = common.interleave(calls, rounds, _CLOCKS[clock])
    first = seconds["bertjax"]
    rows = [
        [
            name,
            common.spread([len(sentences) / each for each in values], 0),
            common.spread([each / own for each, own in zip(values, first, strict=True)], 2),
        ]
        for name, values in seconds.items()
    ]
    print("\n" + common.table(["encoder", "sentences/s", "bertjax over it"], rows))


if __name__ == "__main__":
    main()
