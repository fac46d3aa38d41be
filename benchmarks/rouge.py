"""Time of ROUGE on as many summaries as CNN/Daily Mail's test set has, with the intervals of ROUGE-1.5.5.

    python -m benchmarks.rouge DATA/cnn_dailymail_small/test.jsonl.gz

SOURCE has the form of data.source. Summaries of three and references of four sentences are drawn at random from its
articles, so the scores have no meaning. Each round scores all summaries with stemming and resamples 1,000 times, in one
process.
"""

import argparse
import os
import platform
import random
from collections.abc import Sequence
from importlib import metadata

from benchmarks import common, oracle
from bertjax.scoring.rouge import METRICS, RougeConfig, rouge, signature

CONFIG = RougeConfig(flavor="rouge-1.5.5", stem=True, words=None)
SENTENCES = (3, 4)  # of a summary, of a reference

Summaries = list[list[str]]


def make_up(sentences: Sequence[str], count: int, seed: int) -> tuple[Summaries, Summaries]:
    """Draws random summaries and references."""
    rng = random.Random(seed)
    summaries, references = ([rng.choices(sentences, k=size) for _ in range(count)] for size in SENTENCES)
    return summaries, references


def main() -> None:
    """Prints the times and the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="articles with summaries")
    parser.add_argument("--splitter", default="punkt", help="see data.splitter")
    parser.add_argument("--count", type=int, default=11_490, help="summaries of a round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = oracle.read(arguments.source, arguments.splitter)
    sides = make_up([sentence for article, _ in texts for sentence in article], arguments.count, 0)
    scores: dict[str, float] = {}

    def score() -> None:
        scores.update(rouge(*sides, CONFIG, confidence=True))

    seconds = common.interleave({"rouge": score}, arguments.rounds)["rouge"]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "nltk"))
    threads = len(os.sched_getaffinity(0))
    print(f"Python {platform.python_version()}, {versions}; {platform.machine()}, one of {threads} threads, ")
    print(f"load average {common.load_average()}")
    means = ", ".join(f"{name} {scores[name]:.2f}" for name in METRICS)
    print(f"{arguments.count:,} summaries, {signature(CONFIG)}: {means}")
    print(f"{common.spread(seconds, 1)} s over {arguments.rounds} rounds")


if __name__ == "__main__":
    main()
