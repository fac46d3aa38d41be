"""Reranks paragraphs with a short-trained cross-encoder, and compares the speed with `CrossEncoder`, on a CPU.

    python -m benchmarks.reranking ENCODER --train=new_wiki.train.json.gz --dev=new_wiki.dev.json.gz

ENCODER is a folder of sentence-transformers, such as all-MiniLM-L6-v2. It finds the candidates of each question among
the paragraphs of both SQuAD files, and the cross-encoder starts from it. Training rows are questions of the first file
with their paragraph and hard negatives. For questions of the second file it prints nDCG@10 and MRR@10 of the order of
the encoder and of the cross-encoder, the seconds of reranking all candidates, and, for some of the questions, the
speeds of both libraries in turns, from text to scores, after a first call that compiles or warms up. Both truncate
alike. Batches have about 4,096 tokens (ours) or 32 pairs (the default of `CrossEncoder`). The scores are compared.
"""

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertjax
from benchmarks import common
from bertjax.configs import reranker
from bertjax.scoring import retrieval

_HARDEST, _NEGATIVES = 30, 4  # negatives of a training row are drawn from so many candidates
_METRICS = ("ndcg@10", "mrr@10")


class Questions(NamedTuple):
    """Questions, the number of the paragraph of each, and the paragraphs."""

    questions: Sequence[str]
    relevant: Sequence[int]
    paragraphs: Sequence[str]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("encoder", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--train", type=Path, required=True, help="a SQuAD file, which may be gzipped")
    parser.add_argument("--dev", type=Path, required=True, help="another one")
    parser.add_argument("--rows", type=int, default=400, help="training rows")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--candidates", type=int, default=100, help="paragraphs of each question")
    parser.add_argument("--timed", type=int, default=10, help="questions of the comparison of speeds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seq_len", type=int, default=256)
    args = parser.parse_args()
    print(f"{common.describe_machine()}; {args.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


def run(args: argparse.Namespace, folder: Path) -> None:
    """Trains, reranks and compares."""
    from sentence_transformers import CrossEncoder

    train, dev = read(args.train, args.rows), read(args.dev, args.questions)
    paragraphs = [*train.paragraphs, *dev.paragraphs]
    encode = bertjax.load(args.encoder).encode
    documents = encode(paragraphs)
    _, near = retrieval.search(encode(train.questions), documents, _HARDEST)
    _, found = retrieval.search(encode(dev.questions), documents, args.candidates)
    write_rows(train, near, paragraphs, folder / "train.jsonl")
    began = time.perf_counter()
    ours = bertjax.train(config(args, folder / "train.jsonl"), folder / "run", report=False)
    print(f"trained on {len(train.questions)} rows in {time.perf_counter() - began:.0f} s", flush=True)

    pairs = [[(query, paragraphs[i]) for i in row] for query, row in zip(dev.questions, found, strict=True)]
    flat = [pair for row in pairs for pair in row]
    began = time.perf_counter()
    scores = np.array([record["score"] for record in ours.predict(flat)]).reshape(found.shape)
    print(f"{len(flat):,} pairs reranked in {time.perf_counter() - began:.0f} s, including compilation")
    relevant = [len(train.paragraphs) + i for i in dev.relevant]
    reranked = np.take_along_axis(found, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    rows = [[name, *metrics(order, relevant)] for name, order in (("encoder", found), ("reranked", reranked))]
    print("\n" + common.table(["order", *_METRICS], rows) + "\n", flush=True)

    ours.task.export(ours.params, folder / "exported")
    theirs = CrossEncoder(str(folder / "exported"), device="cpu")
    timed = [pair for row in pairs[: args.timed] for pair in row]
    difference = np.abs(theirs.predict(timed) - scores[: args.timed].ravel()).max()
    print(f"{len(timed):,} pairs; largest difference of a score {difference:.1e}")
    ours.predict(timed)
    calls: dict[str, Any] = {"bertjax": lambda: ours.predict(timed), "CrossEncoder": lambda: theirs.predict(timed)}
    seconds = common.interleave(calls, args.rounds)
    speeds = {name: [len(timed) / each for each in values] for name, values in seconds.items()}
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    lines = [[name, common.spread(values, 0)] for name, values in speeds.items()]
    print("\n" + common.table(["cross-encoder", "pairs/s"], [*lines, ["ratio", common.spread(ratios, 2)]]))


def read(path: Path, count: int) -> Questions:
    """Returns `count` questions of a SQuAD file, evenly spread, and all its paragraphs."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    paragraphs = [each for article in json.loads(text)["data"] for each in article["paragraphs"]]
    asked = [(qa["question"], number) for number, each in enumerate(paragraphs) for qa in each["qas"]]
    chosen = [asked[i] for i in np.linspace(0, len(asked) - 1, min(count, len(asked))).astype(int)]
    return Questions([q for q, _ in chosen], [i for _, i in chosen], [each["context"] for each in paragraphs])


def write_rows(train: Questions, near: np.ndarray, paragraphs: Sequence[str], path: Path) -> None:
    """Writes rows of a question, its paragraph and negatives among the nearest paragraphs."""
    rng, rows = np.random.default_rng(0), []
    for query, own, candidates in zip(train.questions, train.relevant, near, strict=True):
        others = [i for i in candidates if paragraphs[i] != paragraphs[own]]
        negatives = [paragraphs[i] for i in rng.choice(others, _NEGATIVES, replace=False)]
        rows.append({"query": query, "positive": paragraphs[own], "negatives": negatives})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def config(args: argparse.Namespace, source: Path) -> Any:
    """Returns the config of the run."""
    tree = reranker.get_config("listwise")
    tree.init_from, tree.data.source, tree.data.seq_len = str(args.encoder), str(source), args.seq_len
    tree.batch_size, tree.optimizer.learning_rate, tree.log_every = 8, 1e-4, 10
    return tree


def metrics(order: np.ndarray, relevant: Sequence[int]) -> list[str]:
    """Returns the cells of a row of the table."""
    values = []
    for name in _METRICS:
        score, cutoff = retrieval.METRICS[name]
        each = [score(list(map(str, row)), {str(own): 1}, cutoff) for row, own in zip(order, relevant, strict=True)]
        values.append(f"{np.mean(each):.3f}")
    return values


if __name__ == "__main__":
    main()
