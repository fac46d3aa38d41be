"""Makes rouge_score.json with the scores of rouge-score for the texts of rouge.json, or compares our scores with it.

    python -m tests.scoring.golden.make_rouge_score_golden
    python -m tests.scoring.golden.make_rouge_score_golden --verify DATA_FOLDER

Needs Google's package rouge-score 0.1.2.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from bertjax.scoring.rouge import METRICS, RougeConfig, score
from tests.scoring.golden.rouge_summaries import make_up, read

GOLDEN = Path(__file__).with_name("rouge_score.json")
TEXTS = Path(__file__).with_name("rouge.json")
Summaries = Sequence[Sequence[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--verify", type=Path)
    flags = parser.parse_args()
    if flags.verify is not None:
        verify(flags.verify)
    else:
        texts = json.loads(TEXTS.read_text(encoding="utf-8"))
        runs = [figures(texts["candidates"], texts["references"], stem) for stem in (True, False)]
        lines = [json.dumps({"stem": stem, "documents": run}) for stem, run in zip((True, False), runs, strict=True)]
        GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def figures(candidates: Summaries, references: Summaries, stem: bool) -> dict[str, list[float]]:
    """The scores of each document in percent, by our metric names."""
    scorer = RougeScorer(METRICS, use_stemmer=stem)
    pairs = zip(references, candidates, strict=True)
    scores = [scorer.score("\n".join(reference), "\n".join(candidate)) for reference, candidate in pairs]
    parts = {"": "fmeasure", "_precision": "precision", "_recall": "recall"}
    return {
        metric + part: [round(100 * getattr(row[metric], name), 9) for row in scores]
        for metric in METRICS
        for part, name in parts.items()
    }


def verify(data: Path) -> None:
    """Prints the largest difference between our scores and the package's, in percent."""
    for name, (candidates, references) in (("real", read(data)), ("made up", make_up(500))):
        for stem in (True, False):
            expected = figures(candidates, references, stem)
            ours = score(candidates, references, RougeConfig(flavor="rouge-score", stem=stem, words=None))
            largest = max(np.abs(ours[key] - row).max() for key, row in expected.items())
            print(f"{name}, stem {stem}: {len(candidates)} documents differ by {largest:.1e} at most")


if __name__ == "__main__":
    main()
