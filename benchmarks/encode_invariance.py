"""Invariance of `bertjax.load(...).encode`: vectors in several orders and chunks, and in a file after kills.

    python -m benchmarks.encode_invariance FOLDER TEXTS --orders=5 --chunks=1,7,32,256
    python -m benchmarks.encode_invariance FOLDER TEXTS --kills=5 --dtype=int8

FOLDER is an encoder, TEXTS a file with a text per line. The first command encodes the texts in several orders, and with
a call for each chunk. Its digest must be the same in another process. The second command encodes into a file, kills
another process that does the same at random texts (SIGKILL), and resumes it. Prints the number of vectors, or of files,
that differ; the exit status is 1 if it is not 0.
"""

import argparse
import hashlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bertjax

_LOOK_EVERY = 0.01  # seconds
_CHILD = """
import sys, bertjax
folder, texts, output, dtype, layer = sys.argv[1:]
with open(texts, encoding="utf-8") as lines:
    bertjax.load(folder).encode(map(str.strip, lines), output=output, dtype=dtype, layer=int(layer))
"""


def main() -> None:
    """Runs the checks with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--chunks", default="1,7,32,256", help="texts per call")
    parser.add_argument("--calls", type=int, default=10**9, help="the maximum number of calls per chunk size")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--layer", type=int, default=-1)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    if args.kills:
        sys.exit(_different_files(args) != 0)
    texts = args.texts.read_text("utf-8").splitlines()
    sys.exit(_different_vectors(args, texts, [int(chunk) for chunk in args.chunks.split(",") if chunk]) != 0)


def _different_vectors(args: argparse.Namespace, texts: list[str], chunks: list[int]) -> int:
    """Encodes the texts in each way. Returns the number of vectors that differ."""
    model = bertjax.load(args.folder)
    expected = model.encode(texts, layer=args.layer)
    print(f"{len(texts)} texts, digest {hashlib.sha256(expected.tobytes()).hexdigest()[:16]}", flush=True)
    orders = [np.random.default_rng(seed).permutation(len(texts)) for seed in range(args.orders)]
    ways: dict[str, Any] = {f"order {seed}": (order, len(texts)) for seed, order in enumerate(orders)}
    ways |= {f"chunks of {chunk}": (np.arange(len(texts))[: args.calls * chunk], chunk) for chunk in chunks}
    different = 0
    for name, (order, size) in ways.items():
        began = time.process_time()
        parts = [[texts[i] for i in order[start : start + size]] for start in range(0, len(order), size)]
        found = np.concatenate([model.encode(part, layer=args.layer) for part in parts])
        count = int((found != expected[order]).any(axis=1).sum())
        print(
            f"{name}: {count} of {len(found)} vectors differ, {time.process_time() - began:.0f} s of CPU time",
            flush=True,
        )
        different += count
    return different


def _different_files(args: argparse.Namespace) -> int:
    """Encodes into a file without and with kills. Returns 1 if the files differ, 0 otherwise."""

    def start(output: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _CHILD, *map(str, (args.folder, args.texts, output, args.dtype, args.layer))]
        return subprocess.Popen(command)

    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name) / "whole.npy", Path(name) / "killed.npy"
        assert start(whole).wait() == 0
        texts, row = whole.with_name("whole.npy.texts").stat().st_size // 8, np.load(whole, mmap_mode="r")[0].nbytes
        partial = killed.with_name(killed.name + ".partial")
        for target in sorted(random.Random(0).choices(range(texts), k=args.kills)):
            process = start(killed)
            while process.poll() is None and (not partial.exists() or partial.stat().st_size < target * row):
                time.sleep(_LOOK_EVERY)
            process.kill()
            print(f"killed with {partial.stat().st_size // row} of {texts} texts: {process.wait()}", flush=True)
        assert start(killed).wait() == 0
        is_same = whole.read_bytes() == killed.read_bytes()
    megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{texts} texts: the files are {'the same' if is_same else 'DIFFERENT'}; at most {megabytes:.0f} MB of memory"
    )
    return int(not is_same)


if __name__ == "__main__":
    main()
