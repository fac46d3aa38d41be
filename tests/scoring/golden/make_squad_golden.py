"""Makes squad.json with the output of the official scripts, or compares our scores with them.

    python -m tests.scoring.golden.make_squad_golden PATH/TO/evaluate-v1.1.py PATH/TO/evaluate-v2.0.py DATA_FOLDER
    python -m tests.scoring.golden.make_squad_golden EVALUATE_V1 EVALUATE_V2 DATA_FOLDER --verify 20

DATA_FOLDER contains squad_v11_xquad_en and squad_v2_small, of which only scores are stored. With --verify, that number
of random sets of answers is scored by both.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from bertjax.scoring.squad import score_v1, score_v2
from tests.scoring.answers import doubt, make_up, predict, read

GOLDEN = Path(__file__).with_name("squad.json")
V1, V2 = "squad_v11_xquad_en/dev.json.gz", "squad_v2_small/dev.json.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("evaluate_v1", type=Path)
    parser.add_argument("evaluate_v2", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--verify", type=int, help="compare on this many random sets of answers")
    flags = parser.parse_args()
    if flags.verify is not None:
        verify(flags.evaluate_v1, flags.evaluate_v2, flags.data, flags.verify)
    else:
        golden = make(flags.evaluate_v1, flags.evaluate_v2, flags.data)
        GOLDEN.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def make(evaluate_v1: Path, evaluate_v2: Path, data: Path) -> dict[str, object]:
    cases = [made_up(evaluate_v1, evaluate_v2, random.Random(seed)) for seed in range(24)]
    rng, real = random.Random(1), {}
    references = read(data / V1)
    real[V1] = official(evaluate_v1, references, predict(references, rng))
    references = read(data / V2)
    real[V2] = official(evaluate_v2, references, predict(references, rng), doubt(references, rng))
    return {"cases": cases, "real": real}


def made_up(evaluate_v1: Path, evaluate_v2: Path, rng: random.Random) -> dict[str, object]:
    references = make_up(rng, rng.randint(1, 12), rng.choice([0, 0.5, 0.5, 1, 1]))
    predictions, null_scores = predict(references, rng), doubt(references, rng)
    case: dict[str, object] = {"references": references, "predictions": predictions, "null_scores": null_scores}
    case["v2"] = official(evaluate_v2, references, predictions)
    case["v2_null"] = official(evaluate_v2, references, predictions, null_scores)
    case["v2_null_at_half"] = official(evaluate_v2, references, predictions, null_scores, "--na-prob-thresh=0.5")
    if all(references.values()):
        case["v1"] = official(evaluate_v1, references, predictions)
        some = dict(list(predictions.items())[1:])
        case["v1_without_first"] = official(evaluate_v1, references, some)
    return case


def official(
    script: Path,
    references: dict[str, list[str]],
    predictions: dict[str, str],
    null_scores: dict[str, float] | None = None,
    *options: str,
) -> dict[str, float]:
    """The output of a script that runs in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        names = ["data.json", "predictions.json", "null_scores.json"]
        questions = [{"id": q, "answers": [{"text": text} for text in texts]} for q, texts in references.items()]
        data = {"version": "1.1", "data": [{"paragraphs": [{"qas": questions}]}]}
        for name, content in zip(names, (data, predictions, null_scores), strict=True):
            Path(folder, name).write_text(json.dumps(content))
        if null_scores is not None:
            options = (*options, "--na-prob-file=null_scores.json")
        command = [sys.executable, str(script.resolve()), *names[:2], *options]
        printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return json.loads(printed[printed.index("{") :])


def verify(evaluate_v1: Path, evaluate_v2: Path, data: Path, count: int) -> None:
    """Prints the number of sets of answers for which any score differs in any digit."""
    v1, v2 = read(data / V1), read(data / V2)
    different = {"v1": 0, "v2": 0, "v2 with null scores": 0}
    for seed in range(count):
        rng = random.Random(seed)
        predictions = predict(v1, rng)
        for question in rng.sample(sorted(v1), 9):
            del predictions[question]
        different["v1"] += score_v1(predictions, v1) != official(evaluate_v1, v1, predictions)
        predictions, null_scores = predict(v2, rng), doubt(v2, rng)
        different["v2"] += score_v2(predictions, v2, None) != official(evaluate_v2, v2, predictions)
        theirs = official(evaluate_v2, v2, predictions, null_scores)
        different["v2 with null scores"] += score_v2(predictions, v2, null_scores) != theirs
    print(f"of {count}, on {len(v1)} and {len(v2)} questions: {different}")


if __name__ == "__main__":
    main()
