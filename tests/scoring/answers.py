"""Generated answers to SQuAD questions, of all kinds that its evaluation distinguishes."""

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

WORDS = ["the", "a", "an", "red", "Red", "green", "blue,", "sea", "Élan", "x-ray", "1,000", "U.S.", "theory", "anagram"]
WORDS += ["(big)", "“quoted”", "naïve"]


def read(path: Path) -> dict[str, list[str]]:
    """The reference answers of each question of a SQuAD file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    questions = [qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    return {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa in questions}


def make_up(rng: random.Random, count: int, answerable: float) -> dict[str, list[str]]:
    """Reference answers of `count` questions, of which a fraction `answerable` has answers."""

    def answers() -> list[str]:
        return [" ".join(rng.choices(WORDS, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]

    return {f"q{number}": answers() if rng.random() < answerable else [] for number in range(count)}


def predict(references: Mapping[str, Sequence[str]], rng: random.Random) -> dict[str, str]:
    """For each question an answer that is correct, nearly correct, that of another question, or none."""
    pool = [answer for answers in references.values() for answer in answers] or WORDS
    return {question: _answer(answers or [rng.choice(pool)], pool, rng) for question, answers in references.items()}


def doubt(references: Mapping[str, Sequence[str]], rng: random.Random) -> dict[str, float]:
    """A null score for each question, in random order; often equal to another's, and usually on the correct side."""
    questions = rng.sample(sorted(references), len(references))
    return {question: round(rng.uniform(-1, 2) + (not references[question]), 2) for question in questions}


def _answer(answers: Sequence[str], pool: Sequence[str], rng: random.Random) -> str:
    answer, draw = rng.choice(answers), rng.randrange(10)
    words = answer.split()
    if draw < 3:
        return answer
    if draw == 3:
        return rng.choice(["The ", "an ", "  ", '"']) + answer.swapcase() + rng.choice([".", " !", "\n", "'s"])
    if draw == 4:
        return " ".join(words[: rng.randint(0, len(words))])
    if draw == 5:
        return " ".join([*words, *rng.choice(pool).split()])
    if draw == 6:
        return " ".join(rng.sample(words, len(words)) + words[:1])
    if draw == 7:
        return rng.choice(["the", "A.", "...", " "])
    return rng.choice(pool) if draw == 8 else ""
