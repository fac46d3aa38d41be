"""Makes tags.json with entities and scores of seqeval, or compares ours with it.

    python -m tests.scoring.golden.make_tags_golden
    python -m tests.scoring.golden.make_tags_golden --verify 2000

Needs seqeval 1.2.2.
"""

import argparse
import json
import random
import warnings
from pathlib import Path

from seqeval import metrics
from seqeval.metrics.sequence_labeling import get_entities

from bertjax.data.codecs.tagging.tag_schemes import spans
from bertjax.scoring import tags

GOLDEN = Path(__file__).with_name("tags.json")
CASES = 120
TAGS = ["O", "O", *(f"{letter}-{kind}" for letter in "BBIIES" for kind in ("X", "Y", "a-b")), "B", "I", "I-", "E", "S-"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--verify", type=int, help="compare on this many random files of up to four sentences")
    flags = parser.parse_args()
    warnings.filterwarnings("ignore")  # warnings about undefined scores
    if flags.verify is not None:
        verify(flags.verify)
    else:
        cases = [json.dumps(make(random.Random(seed)), separators=(",", ":")) for seed in range(CASES)]
        GOLDEN.write_text("[\n" + ",\n".join(cases) + "\n]\n")


def make(rng: random.Random) -> dict[str, object]:
    """Sentences of random tags, some well-formed, and predictions that partly agree with them."""
    vocabulary = TAGS if rng.random() < 0.7 else rng.choice([["O", "I-X"], ["O", "B-X", "I-X"], ["O", "B-X", "I-Y"]])
    references = [rng.choices(vocabulary, k=rng.randint(1, 9)) for _ in range(rng.randint(1, 4))]
    kept = rng.choice([0, 0.7, 0.9, 1])
    predictions = [[tag if rng.random() < kept else rng.choice(vocabulary) for tag in row] for row in references]
    report = metrics.classification_report(references, predictions, output_dict=True)
    kinds = sorted({kind for row in references for kind, _, _ in get_entities(row)})
    return {
        "references": [" ".join(row) for row in references],
        "predictions": [" ".join(row) for row in predictions],
        "spans": [get_entities(row) for row in references],
        "scores": {
            "precision": float(metrics.precision_score(references, predictions)),
            "recall": float(metrics.recall_score(references, predictions)),
            "f1": float(metrics.f1_score(references, predictions)),
            **{f"f1_{kind}": float(report[kind]["f1-score"]) for kind in kinds},
        },
        "token_accuracy": metrics.accuracy_score(references, predictions),
    }


def verify(count: int) -> None:
    """Prints the number of files whose entities differ from seqeval's, and the largest difference of scores."""
    entities, largest = 0, 0.0
    for seed in range(count):
        case = make(random.Random(f"verify {seed}"))
        references, predictions = ([row.split(" ") for row in case[side]] for side in ("references", "predictions"))
        entities += [spans(row) for row in references] != case["spans"]
        scores = tags.score(predictions, references)
        assert list(scores) == list(case["scores"]), (scores, case["scores"])
        largest = max(largest, *(abs(scores[name] - case["scores"][name]) for name in scores))
        largest = max(largest, abs(tags.token_accuracy(predictions, references) - case["token_accuracy"]))
    print(f"{entities} of {count} files differ in entities; scores by {largest:.1e} at most")


if __name__ == "__main__":
    main()
