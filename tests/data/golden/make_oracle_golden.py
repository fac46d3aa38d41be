"""Writes oracle.json with the published code's choices of sentences, or oracle_digests.json for real articles.

    python -m tests.data.golden.make_oracle_golden PATH/TO/BertSum
    python -m tests.data.golden.make_oracle_golden PATH/TO/PreSumm --digests DATA_FOLDER
    python -m tests.data.golden.make_oracle_golden PATH/TO/PreSumm --verify DATA_FOLDER

DATA_FOLDER holds the data sets named below. --verify compares each of their articles with our choice. PreSumm's and
BertSum's greedy searches are the same; only BertSum has `combination_selection`.
"""

import argparse
import ast
import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bertjax.data.codecs.summarization.articles import Articles, ArticlesConfig
from bertjax.data.codecs.summarization.oracle import OracleConfig, oracle

GOLDEN = Path(__file__).with_name("oracle.json")
DIGESTS = Path(__file__).with_name("oracle_digests.json")
SETS = ("bbc_news_summary", "cnn_dailymail_small", "sumpubmed_small")
# Sentence ends, so that the choices do not depend on our sentence splitter.
ENDS = re.compile(r"(?<=[.!?]) ")
# Few short words, so that many scores are equal; and characters that are stripped, or words that differ only in case.
WORDS = [*"abcdefg", "A", "B", "a-b", "c.", "don't", "1,000", "£5", "é", "naïve", "--", "'", "\u2019", "\x1c", "e\xa0f"]

FIRST_SENTENCES = 100
NUM_SENTENCES = 3
_FUNCTIONS = {
    "src/prepro/utils.py": ("_get_ngrams", "_get_word_ngrams"),
    "src/prepro/data_builder.py": ("cal_rouge", "greedy_selection", "combination_selection"),
}
PRESUMM = OracleConfig("greedy", "sets", (1, 2), False, False, NUM_SENTENCES, FIRST_SENTENCES)

Text = tuple[Sequence[str], Sequence[str]]  # sentences of an article, sentences of its summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--digests", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--verify", type=Path, metavar="DATA_FOLDER")
    arguments = parser.parse_args()
    functions = published(arguments.repository)
    if folder := arguments.digests or arguments.verify:
        found = {}
        for name in SETS:
            texts = read_set(folder, name)
            theirs = [tuple(sorted(functions["greedy_selection"](*text, NUM_SENTENCES))) for text in as_words(texts)]
            found[name] = {"articles": len(theirs), "sha256": digest(theirs)}
            if arguments.verify:
                different = sum(oracle(*text, PRESUMM) != chosen for text, chosen in zip(texts, theirs, strict=True))
                print(f"{name}: {different} of {len(theirs)} articles differ")
        if arguments.digests:
            DIGESTS.write_text(json.dumps(found, indent=2) + "\n")
        return
    GOLDEN.write_text(json.dumps([case(functions, random.Random(seed)) for seed in range(60)], ensure_ascii=True))


def published(repository: Path) -> dict[str, Callable[..., list[int]]]:
    """Returns the functions in a copy of PreSumm's or BertSum's repository, by name."""
    scope: dict[str, Any] = {"re": re, "itertools": itertools}
    for file, names in _FUNCTIONS.items():
        module = ast.parse((repository / file).read_text())
        module.body = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name in names]
        exec(compile(module, file, "exec"), scope)
    return scope


def read(source: str) -> list[Text]:
    """Reads all articles of a source and their summaries, with a sentence per line."""
    config = ArticlesConfig("file", "article", "summary", "", "numbers", "", "", source, 0.0, "lines", "stop")
    articles = Articles(config, "test", 0, needs_summary=True).articles()
    return [(article.sentences[:FIRST_SENTENCES], article.summary or ()) for article in articles]


def as_words(texts: Sequence[Text]) -> list[list[list[list[str]]]]:
    """Converts texts to the input of PreSumm, lists of words."""
    return [[[sentence.split() for sentence in side] for side in text] for text in texts]


def read_set(folder: Path, name: str) -> list[Text]:
    """Returns all articles of one of `SETS`, with their summaries."""
    files = ",".join(str(folder / name / f"{split}.jsonl.gz") for split in ("train", "valid", "test"))
    texts = read(files)
    parts = [[part for line in lines for part in ENDS.split(line)] for lines, _ in texts]
    return [(each[:FIRST_SENTENCES], summary) for each, (_, summary) in zip(parts, texts, strict=True)]


def digest(choices: Iterable[tuple[int, ...]]) -> str:
    """Returns the digest of the numbers of the selected sentences, for all articles in order."""
    return hashlib.sha256("\n".join(" ".join(map(str, chosen)) for chosen in choices).encode()).hexdigest()


def case(functions, rng: random.Random) -> dict[str, object]:
    sides = [[sentence(rng) for _ in range(rng.randint(1, most))] for most in (9, 3)]
    words = as_words([sides])[0]
    found = {name: functions[f"{name}_selection"](*words, NUM_SENTENCES) for name in ("greedy", "combination")}
    return {"sentences": sides[0][:FIRST_SENTENCES], "summary": sides[1], **found}


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 2, 4, 8))))


if __name__ == "__main__":
    main()
