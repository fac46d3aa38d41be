"""Compares the oracle with PreSumm's `greedy_selection`: the selected sentences of every article, and the speed.

    python -m benchmarks.oracle PATH/TO/PreSumm SOURCE                        # paragraphs
    python -m benchmarks.oracle PATH/TO/PreSumm SOURCE --splitter=lines       # a sentence per line

SOURCE has the form of data.source. The benchmark extracts PreSumm's functions from its files, without the libraries
that the files import. A copy of BertSum's repository also works, and also has `combination_selection`. Both sides start
from sentences (PreSumm's are lists of words) and return sentence numbers, among the first 100 sentences of an article.
Each round processes all articles with one, then with the other; ratios are computed within rounds.
"""

import argparse
import ast
import itertools
import platform
import re
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import common
from bertjax.data.codecs.summarization.articles import Articles, ArticlesConfig
from bertjax.data.codecs.summarization.oracle import OracleConfig, oracle

FIRST_SENTENCES = 100
NUM_SENTENCES = 3
_FUNCTIONS = {
    "src/prepro/utils.py": ("_get_ngrams", "_get_word_ngrams"),
    "src/prepro/data_builder.py": ("cal_rouge", "greedy_selection", "combination_selection"),
}
PRESUMM = OracleConfig("greedy", "sets", (1, 2), False, False, NUM_SENTENCES, FIRST_SENTENCES)

Text = tuple[Sequence[str], Sequence[str]]  # sentences of an article, sentences of its summary


def published(repository: Path) -> dict[str, Callable[..., list[int]]]:
    """Returns the functions in a copy of PreSumm's or BertSum's repository, by name."""
    scope: dict[str, Any] = {"re": re, "itertools": itertools}
    for file, names in _FUNCTIONS.items():
        module = ast.parse((repository / file).read_text())
        module.body = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name in names]
        exec(compile(module, file, "exec"), scope)
    return scope


def read(source: str, splitter: str) -> list[Text]:
    """Reads all articles of a source and their summaries."""
    config = ArticlesConfig("file", "article", "summary", "", "numbers", "", "", source, 0.0, splitter, "stop")
    articles = Articles(config, "test", 0, needs_summary=True).articles()
    return [(article.sentences[:FIRST_SENTENCES], article.summary or ()) for article in articles]


def as_words(texts: Sequence[Text]) -> list[list[list[list[str]]]]:
    """Converts texts to the input of PreSumm, lists of words."""
    return [[[sentence.split() for sentence in side] for side in text] for text in texts]


def main() -> None:
    """Prints the number of articles that differ, and the speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path, help="a copy of nlpyang/PreSumm or nlpyang/BertSum")
    parser.add_argument("source", help="articles with summaries")
    parser.add_argument("--splitter", default="punkt", help="see data.splitter")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    greedy = published(arguments.repository)["greedy_selection"]
    texts = read(arguments.source, arguments.splitter)
    words = as_words(texts)
    sides: dict[str, list[Any]] = {"theirs": [], "ours": []}

    def theirs() -> None:
        sides["theirs"] = [tuple(sorted(greedy(*text, NUM_SENTENCES))) for text in words]

    def ours() -> None:
        sides["ours"] = [oracle(*text, PRESUMM) for text in texts]

    seconds = common.interleave({"theirs": theirs, "ours": ours}, arguments.rounds)
    different = sum(one != other for one, other in zip(*sides.values(), strict=True))
    lengths = [len(sentences) for sentences, _ in texts]
    print(f"Python {platform.python_version()}, nltk {metadata.version('nltk')}; {platform.machine()}, one thread, ")
    print(f"load average {common.load_average()}")
    print(f"{len(texts):,} articles, {sum(lengths) / len(texts):.1f} sentences each; {different} selections differ")
    for name, values in seconds.items():
        print(f"{name:6} {common.spread([len(texts) / value for value in values], 0)} articles/s")
    ratios = [old / new for old, new in zip(*seconds.values(), strict=True)]
    print(f"ratio  {common.spread(ratios, 2)} over {arguments.rounds} rounds")


if __name__ == "__main__":
    main()
