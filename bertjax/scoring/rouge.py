"""ROUGE (Lin, 2004), without Perl: how much of a reference summary is in a summary, all in percent.

Programs that go by this name give different figures for the same summaries, so the one that is followed is part of the
configuration, and `signature` says what to publish beside a figure:

- "rouge-1.5.5": the Perl program, which gave the published figures on CNN/Daily Mail under `-c 95 -m -r 1000 -n 2 -a`.
  Figures agree with it to its fifth decimal. Its ROUGE-L is `rougeLsum` here.
- "rouge-score": Google's package of that name. It differs in the stemmer, and rounds nothing.
- "unicode": "rouge-score" for all languages, without stemming. Words consist of letters, marks and digits of all
  scripts; in scripts without spaces each letter is a word (see `words.without_punctuation`). The other two find no
  words in such texts.

What comes before counting is the caller's: PreSumm, for one, puts the brackets back that CoreNLP wrote as -lrb-, which
would count as the word "lrb", and leaves out documents without reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import numpy as np
from jaxtyping import Float64

from bertjax.config import Constrained, one_of
from bertjax.errors import UserError
from bertjax.scoring import bootstrap
from bertjax.scoring.rouge_overlap import lcs_length, shared_ngrams, union_lcs_length
from bertjax.scoring.rouge_words import FLAVORS, Flavor, count_written, cut, encode, vocabulary

# For each document, the sentences of its summary.
Summaries = Sequence[Sequence[str]]
# For each figure by name, its value for each document.
Scores = Mapping[str, Float64[np.ndarray, " D"]]

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_PARTS = ("", "_precision", "_recall")
_TO_REFERENCE = "reference"


@dataclass(frozen=True)
class RougeConfig(Constrained, prefix="rouge"):
    """What is counted; figures under different configurations cannot be compared.

    Attributes:
      flavor: the program that is followed: "rouge-1.5.5", the Perl program, or "rouge-score", Google's package, of
        which both know ASCII letters alone; or "unicode", for other languages than English.
      stem: whether words with the same stem are the same; False with "unicode".
      words: how many words of a summary count: all where it is not set (None); a number for as many, of the reference
        too, as option -l of ROUGE-1.5.5; "reference" for as many as the reference has, for the limited-length recall on
        New York Times articles (Durrett et al., 2016), `rouge1_recall` and so on, told beside F1 where words are
        limited. Words are what spaces separate.

    Raises:
      UserError: an unknown flavor, stems that it does not have, or another limit.
    """

    flavor: Annotated[str, one_of(*FLAVORS)]
    stem: bool
    words: int | str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stem and FLAVORS[self.flavor].stem is None:
            expected, fix = f"False with rouge.flavor={self.flavor}", "set --config.rouge.stem=False"
            raise UserError("config key rouge.stem", got=True, expected=expected, fix=fix)
        if self.words is not None and self.words != _TO_REFERENCE and not _is_count(self.words):
            raise UserError(
                "config key rouge.words",
                got=repr(self.words),
                expected="at least 1, 'reference', or None",
                fix="give None to count all words",
            )


def signature(config: RougeConfig) -> str:
    """Returns what to publish beside a figure.

    >>> signature(RougeConfig(flavor="rouge-1.5.5", stem=True, words=None))
    'rouge-1.5.5|stem:yes|words:all'
    """
    words = "all" if config.words is None else config.words
    return f"{config.flavor}|stem:{'yes' if config.stem else 'no'}|words:{words}"


def rouge(
    candidates: Summaries, references: Summaries, config: RougeConfig, *, confidence: bool = False
) -> dict[str, float]:
    """Returns the means over documents, in percent, as `score` and `summarize` tell.

    >>> config = RougeConfig(flavor="rouge-1.5.5", stem=True, words=None)
    >>> figures = rouge([["Two dogs ran.", "It rained."]], [["The dog ran in rain."]], config)
    >>> {name: round(value, 3) for name, value in figures.items() if "_" not in name}
    {'rouge1': 60.0, 'rouge2': 25.0, 'rougeL': 60.0, 'rougeLsum': 60.0}
    """
    return summarize(score(candidates, references, config), confidence=confidence)


def score(candidates: Summaries, references: Summaries, config: RougeConfig) -> Scores:
    """Returns for each document its figures in percent.

    `rouge1`, `rouge2`, `rougeL` and `rougeLsum` are F1 (harmonic means); `rouge1_precision`, `rouge1_recall` and so on
    their parts. ROUGE-L is in two forms: `rougeL` takes a summary as one sequence of words, `rougeLsum` joins what each
    of its sentences has in common with each of the reference's. Nothing in common with nothing is 0.

    Args:
      candidates: for each document the summary to be judged, a list of sentences.
      references: for each document in the same order the summary to judge it by.
      config: what is counted.
    Raises:
      UserError: no documents, not as many of both, or a text where a list of sentences is due.
    """
    _check(candidates, references)
    flavor = FLAVORS[config.flavor]
    known = vocabulary(flavor, stemmed=config.stem)
    rows = []
    for candidate, reference in zip(candidates, references, strict=True):
        kept, wanted = _limited(candidate, reference, config.words)
        counts = _counts(encode(kept, known, flavor), encode(wanted, known, flavor))
        rows.append([value for count in counts for value in _figures(*count, flavor)])
    names = [metric + part for metric in METRICS for part in _PARTS]
    return dict(zip(names, 100 * np.array(rows).T, strict=True))


def summarize(scores: Scores, *, confidence: bool = False) -> dict[str, float]:
    """Returns the mean of each figure over documents.

    Args:
      scores: out of `score`.
      confidence: whether to resample the documents as ROUGE-1.5.5 does, if they are numbered from 1 in their order.
        Then each `figure` comes with its 95 % interval, `figure_low` and `figure_high`, and with `figure_resampled`:
        the mean over all resamples, which is what that program prints as the average. It differs from the mean of the
        documents by chance, by about 0.02 for 500 documents.
    """
    figures = {name: float(values.mean()) for name, values in scores.items()}
    if confidence:
        values = np.stack(list(scores.values()), axis=1)
        # It sorts documents by their numbers as texts: 1, 10, 100, 11.
        order = sorted(range(len(values)), key=lambda document: str(document + 1))
        for name, means in zip(scores, bootstrap.resampled_means(values[order]).T, strict=True):
            low, high, middle = bootstrap.interval(means)
            figures |= {f"{name}_low": low, f"{name}_high": high, f"{name}_resampled": middle}
    return figures


def _limited(
    candidate: Sequence[str], reference: Sequence[str], words: int | str | None
) -> tuple[Sequence[str], Sequence[str]]:
    if words is None:
        return candidate, reference
    if words == _TO_REFERENCE:
        return cut(candidate, count_written(reference)), reference
    assert isinstance(words, int)
    return cut(candidate, words), cut(reference, words)


def _counts(candidate: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """Returns for each metric what is in both, how much the candidate has, and how much the reference."""
    ours, theirs = list(chain.from_iterable(candidate)), list(chain.from_iterable(reference))
    sizes = len(ours), len(theirs)
    bigrams = max(sizes[0] - 1, 0), max(sizes[1] - 1, 0)
    return [
        (shared_ngrams(ours, theirs, 1), *sizes),
        (shared_ngrams(ours, theirs, 2), *bigrams),
        (lcs_length(theirs, ours), *sizes),
        (union_lcs_length(reference, candidate), *sizes),
    ]


def _figures(shared: int, ours: int, theirs: int, flavor: Flavor) -> tuple[float, float, float]:
    """Returns F1, precision and recall as fractions."""
    precision = _rounded(shared / ours if ours else 0.0, flavor)
    recall = _rounded(shared / theirs if theirs else 0.0, flavor)
    total = precision + recall
    return _rounded(2 * precision * recall / total if total else 0.0, flavor), precision, recall


def _rounded(value: float, flavor: Flavor) -> float:
    return value if flavor.decimals is None else round(value, flavor.decimals)


def _is_count(words: int | str) -> bool:
    return isinstance(words, int) and not isinstance(words, bool) and words >= 1


def _check(candidates: Summaries, references: Summaries) -> None:
    if len(candidates) != len(references):
        raise UserError(
            "summaries",
            got=f"{len(candidates)} for the references of {len(references)} documents",
            expected="one for each document, in the same order",
            fix="summarize the whole file, and give the references of that file",
        )
    if not candidates:
        raise UserError(
            "scoring", got="no documents", expected="at least one", fix="check the file that is evaluated on"
        )
    for name, summaries in (("summary", candidates), ("reference", references)):
        for number, sentences in enumerate(summaries):
            if isinstance(sentences, str):
                raise UserError(
                    f"{name} of document {number} (from 0)",
                    got="a text",
                    expected="a list of sentences, which ROUGE-L depends on",
                    fix="split it into sentences, or give a list of this one text",
                )
