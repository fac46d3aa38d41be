"""Time of exact search, compared with the matrix product of all queries and documents alone, interleaved, on a CPU.

    python -m benchmarks.search --queries=256 --documents=100000 --size=384 --count=100 --rounds=9

The aim is a ratio of at most 1.5. `OPENBLAS_NUM_THREADS=1` shows the ratio of the work on a busy machine, whose other
processes slow down products of several threads the most.
"""

import argparse

import numpy as np

from benchmarks import common
from bertjax.scoring import retrieval


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in {"queries": 256, "documents": 100_000, "size": 384, "count": 100, "rounds": 9}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    print(f"{common.describe_machine()}; {args.rounds} rounds", flush=True)
    rng = np.random.default_rng(0)
    queries, documents = (
        rng.standard_normal((count, args.size), np.float32) for count in (args.queries, args.documents)
    )
    calls = {
        "matrix product": lambda: (queries @ documents.T, None)[1],
        "search": lambda: (retrieval.search(queries, documents, args.count), None)[1],
    }
    common.interleave(calls, 1)
    seconds = common.interleave(calls, args.rounds)
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    rows = [[name, common.spread([1e3 * each for each in values], 0)] for name, values in seconds.items()]
    print("\n" + common.table(["work", "ms"], [*rows, ["ratio", common.spread(ratios, 2)]]))


if __name__ == "__main__":
    main()
