"""ROUGE (Lin, 2004) in Python: the overlap of summaries and reference summaries, in percent.

ROUGE programs give different scores for the same summaries. So the program to reproduce is part of the configuration,
and `signature` returns the settings to publish with a score:

- "rouge-1.5.5": the Perl program, used for published scores on CNN/Daily Mail with `-c 95 -m -r 1000 -n 2 -a`. Scores
  agree to its fifth decimal. Its ROUGE-L is `rougeLsum` here.
- "rouge-score": Google's package. It uses another stemmer and does not round.
- "unicode": "rouge-score" for all languages, without stemming. Words consist of letters, marks and digits of all
  scripts; in scripts without spaces each letter is a word (see `words.without_punctuation`). The other two find no
  words in such texts.

Callers must preprocess the texts. For example, PreSumm restores the brackets that CoreNLP writes as -lrb-, which would
count as the word "lrb", and skips documents without a reference.

If a document has several references, `RougeConfig.references` combines them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Annotated

import numpy as np
from jaxtyping import Float64

from bertjax.config import Constrained, one_of
from bertjax.errors import UserError
from bertjax.korean import analyzer_version
from bertjax.scoring import bootstrap
from bertjax.scoring.rouge_overlap import lcs_length, shared_ngrams, union_lcs_length
from bertjax.scoring.rouge_words import FLAVORS, Flavor, count_written, encode, flavor_of, truncate, vocabulary
from bertjax.words import MORPHEMES, UNITS, WORDS

# The sentences of each document's summary.
Summaries = Sequence[Sequence[str]]
# The sentences of each document's reference, or of each of its references.
References = Sequence[Sequence[str] | Sequence[Sequence[str]]]
# The values of each metric for all documents.
Scores = Mapping[str, Float64[np.ndarray, " D"]]

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_PARTS = ("", "_precision", "_recall")
_TO_REFERENCE = "reference"


@dataclass(frozen=True)
class RougeConfig(Constrained, prefix="rouge"):
    """Settings of ROUGE. Scores with different settings are not comparable.

    Attributes:
      flavor: program to reproduce: "rouge-1.5.5" or "rouge-score", Google's package, for ASCII letters only; or
        "unicode", for other languages than English.
      stem: whether words with the same stem are equal; False with "unicode".
      words: words of a summary to score, separated by spaces: None for all; a number, which limits the reference too,
        as option -l of ROUGE-1.5.5; or "reference" for as many as the reference has (Durrett et al. 2016). A limit adds
        recall (`rouge1_recall` etc.) to F1.
      references: how several references of a document are combined: "average", "best" or "jackknife" (Lin 2004, section
        2.1); see docs/reference/metrics.md.
      units: what "unicode" compares: "words"; "morphemes" of Korean words (extra `korean`); or "characters", letters
        and digits without spaces.

    Raises:
      UserError: if the flavor is unknown, has no stemmer, or if the limit is invalid.
    """

    flavor: Annotated[str, one_of(*FLAVORS)] = "rouge-1.5.5"
    stem: bool = True
    words: int | str | None = None
    references: Annotated[str, one_of("average", "best", "jackknife")] = "average"
    units: Annotated[str, one_of(*UNITS)] = WORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = not self.stem or FLAVORS[self.flavor].stem is not None
        fix = "set --config.rouge.stem=False"
        self.check(ok, "stem", f"False with rouge.flavor={self.flavor}", fix=fix)
        ok = self.units == WORDS or self.flavor == "unicode"
        fix = "set --config.rouge.flavor=unicode --config.rouge.stem=False"
        self.check(ok, "units", f"{WORDS} with rouge.flavor={self.flavor}", fix=fix)
        ok = self.words in (None, _TO_REFERENCE) or _is_count(self.words)
        self.check(ok, "words", "at least 1, 'reference', or None", fix="use None to score all words")


_DEFAULT = RougeConfig()


def signature(config: RougeConfig, num_references: int = 1) -> str:
    """Returns the settings to publish with a score; `num_references` is the largest number of a document.

    >>> signature(RougeConfig())
    'rouge-1.5.5|stem:yes|words:all'
    """
    words = "all" if config.words is None else config.words
    units = "" if config.units == WORDS else f"|units:{config.units}"
    units += f",{analyzer_version()}" if config.units == MORPHEMES else ""
    several = f"|references:{num_references},{config.references}" if num_references > 1 else ""
    return f"{config.flavor}|stem:{'yes' if config.stem else 'no'}|words:{words}{units}{several}"


def rouge(
    candidates: Summaries, references: References, config: RougeConfig = _DEFAULT, *, confidence: bool = False
) -> dict[str, float]:
    """Returns the means of all metrics over documents, in percent; see `score` and `summarize`.

    >>> metrics = rouge([["Two dogs ran.", "It rained."]], [["The dog ran in rain."]])
    >>> {name: round(value, 3) for name, value in metrics.items() if "_" not in name}
    {'rouge1': 60.0, 'rouge2': 25.0, 'rougeL': 60.0, 'rougeLsum': 60.0}
    """
    return summarize(score(candidates, references, config), confidence=confidence)


def score(candidates: Summaries, references: References, config: RougeConfig) -> Scores:
    """Returns the metrics of each document in percent.

    `rouge1`, `rouge2`, `rougeL` and `rougeLsum` are F1; `rouge1_precision`, `rouge1_recall` etc. are precision and
    recall. ROUGE-L has two forms: `rougeL` treats a summary as one sequence of words, and `rougeLsum` uses the union of
    the longest common subsequences of each pair of sentences. Two empty summaries score 0.

    Args:
      candidates: the sentences of each document's summary.
      references: the sentences of each document's reference summary, in the same order; or a list of several summaries.
      config: the settings.
    Raises:
      UserError: if there are no documents, if the numbers of documents differ, or if a summary is not a list.
    """
    _check(candidates, references)
    flavor = flavor_of(config.flavor, config.units)
    vocab = vocabulary(flavor, stemmed=config.stem)
    rows = []
    for candidate, document_references in zip(candidates, references, strict=True):
        overlaps = []
        for reference in several(document_references):
            ours, theirs = _limited(candidate, reference, config.words)
            overlaps.append(_counts(encode(ours, vocab, flavor), encode(theirs, vocab, flavor)))
        rows.append([value for counts in zip(*overlaps, strict=True) for value in _combined(counts, config, flavor)])
    names = [metric + part for metric in METRICS for part in _PARTS]
    return dict(zip(names, 100 * np.array(rows).T, strict=True))


def several(references: Sequence[str] | Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Returns the references of a document, also if it has only one; see `References`."""
    sentences = [reference for reference in references if isinstance(reference, str)]
    return [sentences] if len(sentences) == len(references) else list(references)


def summarize(scores: Scores, *, confidence: bool = False) -> dict[str, float]:
    """Returns the mean of each metric over documents.

    Args:
      scores: the result of `score`.
      confidence: whether to add confidence intervals, by resampling documents as ROUGE-1.5.5 does if they are numbered
        from 1. Each metric NAME then has NAME_low and NAME_high, its 95 % interval, and NAME_resampled, the mean over
        all resamples, which ROUGE-1.5.5 prints as the average. It differs randomly from the mean over documents, by
        about 0.02 for 500 documents.
    """
    metrics = {name: float(values.mean()) for name, values in scores.items()}
    if confidence:
        values = np.stack(list(scores.values()), axis=1)
        # ROUGE-1.5.5 sorts documents by their numbers as strings: 1, 10, 100, 11.
        order = sorted(range(len(values)), key=lambda document: str(document + 1))
        for name, means in zip(scores, bootstrap.resampled_means(values[order]).T, strict=True):
            low, high, middle = bootstrap.interval(means)
            metrics |= {f"{name}_low": low, f"{name}_high": high, f"{name}_resampled": middle}
    return metrics


def _limited(
    candidate: Sequence[str], reference: Sequence[str], words: int | str | None
) -> tuple[Sequence[str], Sequence[str]]:
    if words is None:
        return candidate, reference
    if words == _TO_REFERENCE:
        return truncate(candidate, count_written(reference)), reference
    assert isinstance(words, int)
    return truncate(candidate, words), truncate(reference, words)


def _counts(candidate: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """Returns for each metric the numbers of units in both summaries, in the candidate, and in the reference."""
    ours = list(chain.from_iterable(candidate))
    theirs = list(chain.from_iterable(reference))
    sizes = len(ours), len(theirs)
    bigrams = max(sizes[0] - 1, 0), max(sizes[1] - 1, 0)
    return [
        (shared_ngrams(ours, theirs, 1), *sizes),
        (shared_ngrams(ours, theirs, 2), *bigrams),
        (lcs_length(theirs, ours), *sizes),
        (union_lcs_length(reference, candidate), *sizes),
    ]


def _combined(
    counts: Sequence[tuple[int, int, int]], config: RougeConfig, flavor: Flavor
) -> tuple[float, float, float]:
    """Returns F1, precision and recall, from the counts of each reference."""
    if config.references == "average":
        shared, ours, theirs = map(sum, zip(*counts, strict=True))
        return _f1_and_parts((shared, ours, theirs), flavor)
    sets = combinations(counts, len(counts) - 1) if config.references == "jackknife" and len(counts) > 1 else [counts]
    best = [_f1_and_parts(max(subset, key=lambda count: _rank(count, flavor)), flavor) for subset in sets]
    f1, precision, recall = (sum(values) / len(best) for values in zip(*best, strict=True))
    return f1, precision, recall


def _rank(count: tuple[int, int, int], flavor: Flavor) -> float:
    """Returns the recall or the F1, not rounded, by which the best reference is chosen."""
    shared, ours, theirs = count
    return shared / max(theirs, 1) if flavor.best_by_recall else 2 * shared / max(ours + theirs, 1)


def _f1_and_parts(count: tuple[int, int, int], flavor: Flavor) -> tuple[float, float, float]:
    """Returns F1, precision and recall as fractions."""
    shared, ours, theirs = count
    precision = _rounded(shared / ours if ours else 0.0, flavor)
    recall = _rounded(shared / theirs if theirs else 0.0, flavor)
    total = precision + recall
    return _rounded(2 * precision * recall / total if total else 0.0, flavor), precision, recall


def _rounded(value: float, flavor: Flavor) -> float:
    return value if flavor.decimals is None else round(value, flavor.decimals)


def _is_count(words: int | str) -> bool:
    return isinstance(words, int) and not isinstance(words, bool) and words >= 1


def _check(candidates: Summaries, references: References) -> None:
    if len(candidates) != len(references):
        raise UserError(
            "summaries",
            got=f"{len(candidates)} summaries and {len(references)} references",
            expected="one summary and one reference per document, in the same order",
            fix="summarize the whole file, and use the references of that file",
        )
    if not candidates:
        raise UserError("scoring", got="no documents", expected="at least one", fix="check the evaluated file")
    for name, side in (("summary", candidates), ("reference", references)):
        for number, summary in enumerate(side):
            if isinstance(summary, str) or len({isinstance(sentence, str) for sentence in summary}) > 1:
                expected = "a list of sentences"
                fix = "split the text into sentences, or pass [text] to score it as one sentence"
                raise UserError(f"{name} of document {number} (from 0)", got="a text", expected=expected, fix=fix)
