"""Pairs of summary and reference to score, generated and from real data."""

import gzip
import json
import random
import re
from pathlib import Path

# A fixed sentence splitter, so that the golden scores do not depend on ours.
_ENDS = re.compile(r"(?<=[.!?]) ")
# Difficult words for stemmers, irregular forms, and tokens that are no words.
_STEMS = (
    "hop hope plan relat generaliz agree happ fl day boy sk control possibl argu element cement die oscillat probat"
)
_ENDINGS = "s es ed ing er ers ly ful fulness ation ational ement ment ent ence y ies e ll ion"
_OTHERS = """
    the the the a a of of in to to and was it he said children went better best offer women wolves found lying axes yes
    2 1999 3,000 U.S. café naïve Zürich \u212a İstanbul 東京 well-known state-of-the-art don't 's -- - $5 <dig> _x_ 'so'
"""
_EDGES: list[tuple[list[str], list[str]]] = [
    ([], ["A reference alone."]),
    (["A summary alone."], []),
    ([], []),
    ([""], ["One."]),
    (["One"], ["one"]),
    (["..."], ["!?", "東京"]),
    (["東京 \u212a İ"], ["k i", "東京"]),
    (["running"], ["runs", "ran", "run"]),
    (["a b c d e f g"], ["g f e d c b a"]),
    (["a b a b a b", "b a b a"], ["b b a a", "a b b a b"]),
    (["the cat", "the cat", "the cat"], ["the cat sat", "the cat ate", "the cat"]),
    (["w1 w2 w3 w4 w5"], ["w1 w2 w6 w7 w8", "w1 w3 w8 w9 w5"]),
    (["police killed the gunman"], ["the gunman police killed"]),
]


def make_up(count: int) -> tuple[list[list[str]], list[list[str]]]:
    """Overlapping summaries and references, with the edge cases first."""
    rng = random.Random("summaries")
    candidates, references = ([list(pair[side]) for pair in _EDGES] for side in (0, 1))
    stems, endings, others = _STEMS.split(), _ENDINGS.split(), _OTHERS.split()
    while len(candidates) < count:
        vocabulary = rng.sample(others, 12) + [
            rng.choice(stems) + rng.choice(endings) for _ in range(rng.choice([3, 20]))
        ]
        reference = [rng.choices(vocabulary, k=rng.randint(1, 14)) for _ in range(rng.randint(1, 5))]
        kept = rng.choice([0.3, 0.7, 0.95])
        changed = [[word if rng.random() < kept else rng.choice(vocabulary) for word in row] for row in reference]
        changed = rng.sample(changed, rng.randint(1, len(changed)))
        candidates.append([" ".join(row).capitalize() + "." for row in changed])
        references.append([" ".join(row) for row in reference])
    return candidates, references


def read(data: Path) -> tuple[list[list[str]], list[list[str]]]:
    """500 good and bad summaries of articles, and their references."""
    rng = random.Random("real")
    candidates, references = [], []
    for name, count in (("cnn_dailymail_small", 200), ("bbc_news_summary", 150), ("sumpubmed_small", 150)):
        with gzip.open(data / name / "test.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file][:count]
        for row in rows:
            article = [sentence for line in row["article"].split("\n") for sentence in _ENDS.split(line)]
            candidates.append(_summary(article, rng))
            references.append(_stripped(row["summary"].split("\n")))
    return candidates, references


def _summary(article: list[str], rng: random.Random) -> list[str]:
    """The first sentences, random sentences, or random truncated sentences."""
    size, kind = rng.randint(1, 6), rng.choice(["first", "any", "cut"])
    chosen = article[:size] if kind == "first" else rng.sample(article, min(size, len(article)))
    if kind == "cut":
        chosen = [sentence[: rng.randint(1, len(sentence))] for sentence in chosen if sentence]
    return _stripped(chosen)


def _stripped(sentences: list[str]) -> list[str]:
    return [sentence.strip() for sentence in sentences]
