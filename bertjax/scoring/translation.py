"""Metrics of translations with one or more references, in percent.

BLEU and chrF are computed by sacreBLEU (Post, 2018) on detokenized text; their `signature` makes scores comparable.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bertjax.errors import UserError

if TYPE_CHECKING:  # imported only when needed, so that translation starts faster
    from sacrebleu.metrics import BLEU, CHRF

# The references of each hypothesis.
References = Sequence[Sequence[str]]


def _bleu(**options: Any) -> "BLEU":
    from sacrebleu.metrics import BLEU

    return BLEU(**options)


def _chrf() -> "CHRF":
    from sacrebleu.metrics import CHRF

    return CHRF()


_METRICS: Mapping[str, Callable[[], "BLEU | CHRF"]] = MappingProxyType(
    {
        "bleu": partial(_bleu, tokenize="13a"),
        "bleu_char": partial(_bleu, tokenize="char"),
        "bleu_lowercase": partial(_bleu, tokenize="13a", lowercase=True),
        "bleu_zh": partial(_bleu, tokenize="zh"),
        "chrf": _chrf,
    }
)
SIGNED = frozenset(_METRICS)  # the metrics with a `signature`


def bleu(hypotheses: Sequence[str], references: References) -> float:
    """Returns sacreBLEU's default BLEU: cased, 13a tokenization, for languages that put spaces between words."""
    return _corpus_score("bleu", hypotheses, references)


def bleu_lowercase(hypotheses: Sequence[str], references: References) -> float:
    """Returns BLEU of lowercased text with 13a tokenization, comparable with published scores on Multi30k.

    These published scores (41.02 for en-de, 2016) use Moses' tokenizer, which also separates apostrophes and keeps the
    full stop of abbreviations. It tokenizes 4 of the 1,000 German references of 2016 differently. Lowercase BLEU is
    higher than cased BLEU; do not compare the two.
    """
    return _corpus_score("bleu_lowercase", hypotheses, references)


def bleu_zh(hypotheses: Sequence[str], references: References) -> float:
    """Returns BLEU as in WMT for Chinese: each Chinese character is a token, other text is tokenized by 13a."""
    return _corpus_score("bleu_zh", hypotheses, references)


def bleu_char(hypotheses: Sequence[str], references: References) -> float:
    """Returns BLEU of characters, for scripts without spaces between words, such as Japanese and Thai."""
    return _corpus_score("bleu_char", hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> float:
    """Returns chrF2 (Popović, 2015): the F-score of character n-grams, for any script."""
    return _corpus_score("chrf", hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """Returns the percentage of hypotheses that are identical to one of their references."""
    return 100.0 * sum(one in row for one, row in zip(hypotheses, references, strict=True)) / len(hypotheses)


SCORES: Mapping[str, Callable[[Sequence[str], References], float]] = MappingProxyType(
    {
        "bleu": bleu,
        "bleu_char": bleu_char,
        "bleu_lowercase": bleu_lowercase,
        "bleu_zh": bleu_zh,
        "chrf": chrf,
        "exact_match": exact_match,
    }
)


def score(names: Sequence[str], hypotheses: Sequence[str], references: References) -> dict[str, float]:
    """Returns the value of each metric, from 0 to 100.

    >>> score(["bleu", "exact_match"], ["A dog runs fast.", "Two men"], [["A dog runs fast."], ["Two women"]])
    {'bleu': 90.99882808096075, 'exact_match': 50.0}

    Args:
      names: names in `SCORES`.
      hypotheses: detokenized translations.
      references: the references of each hypothesis, at least one; their number may vary. BLEU uses the n-grams of all
        references, and the other metrics use the best one.
    Raises:
      UserError: if a name is unknown, if there are no rows, if the numbers of hypotheses and references differ, or if a
        row has no reference.
    """
    for name in names:
        _check_name(name, SCORES)
    _check_rows(hypotheses, references)
    return {name: SCORES[name](hypotheses, references) for name in names}


def signature(name: str, references: References, normalization: str = "") -> str:
    """Returns sacreBLEU's signature to publish with a score: number of references, case, tokenization, version.

    Args:
      name: the name of the metric.
      references: see `score`.
      normalization: the normalization of the references; empty if they are as published.
    Raises:
      UserError: if the metric has no signature, such as `exact_match`.
    """
    _check_name(name, _METRICS)
    metric, counts = _METRICS[name](), {len(row) for row in references}
    metric.num_refs = counts.pop() if len(counts) == 1 else -1  # set by scoring; -1 if the number varies
    return f"{metric.get_signature()}{normalization and f'|normalized:{normalization}'}"


def _corpus_score(name: str, hypotheses: Sequence[str], references: References) -> float:
    # sacreBLEU expects the first references of all rows, then the second and so on, with None for missing ones.
    return float(_METRICS[name]().corpus_score(hypotheses, list(zip_longest(*references))).score)


def _check_name(name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise UserError("score", got=repr(name), expected="one of " + ", ".join(known), fix="choose one of these")


def _check_rows(hypotheses: Sequence[str], references: References) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            "translations",
            got=f"{len(hypotheses)} translations, but references for {len(references)} sentences",
            expected="one translation per sentence, in the same order",
            fix="translate the whole file, and use the references of that file",
        )
    if not hypotheses:
        raise UserError("scoring", got="no rows", expected="at least one", fix="check the evaluated file")
    for number, row in enumerate(references):
        if not row or isinstance(row, str):
            raise UserError(
                f"references of sentence {number} (from 0)",
                got="a text" if row else "none",
                expected="a list of at least one text",
                fix="use such a list, or remove the sentence from both files",
            )
