"""Speed of `bertjax.load(...).encode`, compared with sentence-transformers, interleaved, on a CPU.

    pip install --no-deps sentence-transformers==6.2.0 scikit-learn narwhals joblib threadpoolctl
    python -m benchmarks.encode FOLDER --sentences=2000 --rounds=5

FOLDER is an encoder of sentence-transformers. Both encode the same paragraphs of Python's documentation from text to
float32 vectors, truncated alike, after a first call that compiles or warms up. The vectors are compared.
"""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

import bertjax
from benchmarks import common
from bertjax.data.readers import documentation

_BATCH_SIZE = 32  # the default of sentence-transformers


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--malloc", choices=common.MALLOCS, default="default")
    args = parser.parse_args()
    if not common.has_module("sentence_transformers"):
        sys.exit("error: sentence-transformers is not installed. Fix: see the docstring of this file")
    common.use_malloc(args.malloc)
    print(f"{common.describe_machine()}; {args.rounds} rounds", flush=True)
    compare(args.folder, args.sentences, args.rounds)


def compare(folder: Path, count: int, rounds: int) -> None:
    """Prints sentences per second of both, and the ratio of each round."""
    from sentence_transformers import SentenceTransformer

    paragraphs = (text for _, texts in documentation.documents() for text in texts)
    sentences = list(itertools.islice(paragraphs, count))
    ours, theirs = bertjax.load(folder), SentenceTransformer(str(folder), device="cpu")
    found, expected = ours.encode(sentences), theirs.encode(sentences, batch_size=_BATCH_SIZE)
    print(f"{len(sentences)} sentences; largest difference of a vector's element {np.abs(found - expected).max():.1e}")
    calls = {
        "bertjax": lambda: (ours.encode(sentences), None)[1],
        "sentence-transformers": lambda: (theirs.encode(sentences, batch_size=_BATCH_SIZE), None)[1],
    }
    seconds = common.interleave(calls, rounds)
    speeds = {name: [len(sentences) / each for each in values] for name, values in seconds.items()}
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    rows = [[name, common.spread(values, 0)] for name, values in speeds.items()]
    print("\n" + common.table(["encoder", "sentences/s"], [*rows, ["ratio", common.spread(ratios, 2)]]))


if __name__ == "__main__":
    main()
