"""Scores of translations against one or several references, by name, all in percent.

BLEU and chrF are sacreBLEU's own (Post, 2018) over detokenized text, and comparable by their `signature`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bertjax.errors import UserError

if TYPE_CHECKING:  # translating starts faster without it
    from sacrebleu.metrics import BLEU, CHRF

# For each hypothesis, all its references.
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
SIGNED = frozenset(_METRICS)  # the scores that have a `signature`


def bleu(hypotheses: Sequence[str], references: References) -> float:
    """Returns sacreBLEU's default BLEU: cased, 13a tokenization, for languages that put spaces between words."""
    return _corpus_score("bleu", hypotheses, references)


def bleu_lowercase(hypotheses: Sequence[str], references: References) -> float:
    """Returns BLEU of lowercased, tokenized text: what the usual figures on Multi30k are (41.02 for en-de, 2016).

    The tokenization is 13a, after lowercasing. Those figures come from Moses' tokenizer, which also separates
    apostrophes and keeps the full stop of abbreviations: of the 1,000 German references of 2016 it splits 4 otherwise.
    Such figures are above those of cased BLEU: never compare the two.
    """
    return _corpus_score("bleu_lowercase", hypotheses, references)


def bleu_zh(hypotheses: Sequence[str], references: References) -> float:
    """Returns BLEU as WMT has it for Chinese: each Chinese character by itself, the rest as 13a."""
    return _corpus_score("bleu_zh", hypotheses, references)


def bleu_char(hypotheses: Sequence[str], references: References) -> float:
    """Returns BLEU of characters, for scripts without spaces between words, such as Japanese's and Thai's."""
    return _corpus_score("bleu_char", hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> float:
    """Returns chrF2 (Popović, 2015): the F-score of character n-grams, for any script."""
    return _corpus_score("chrf", hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """Returns how many of 100 hypotheses are one of their references, character by character."""
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
    """Returns the value of each score, from 0 to 100.

    >>> score(["bleu", "exact_match"], ["A dog runs fast.", "Two men"], [["A dog runs fast."], ["Two women"]])
    {'bleu': 90.99882808096075, 'exact_match': 50.0}

    Args:
      names: out of `SCORES`.
      hypotheses: detokenized translations.
      references: for each hypothesis in the same order its references, at least one; several are alternatives, of
        which BLEU takes the n-grams of all, and the others the best. Their number may vary.
    Raises:
      UserError: an unknown name, no rows, as many references as there are not hypotheses, or a row without reference.
    """
    for name in names:
        _check_name(name, SCORES)
    _check_rows(hypotheses, references)
    return {name: SCORES[name](hypotheses, references) for name in names}


def signature(name: str, references: References, normalization: str = "") -> str:
    """Returns what to publish with a score, as sacreBLEU writes it: references, case, tokenization, version.

    Args:
      name: of the score.
      references: as for `score`.
      normalization: what the references went through before; empty if they are as published.
    Raises:
      UserError: a score without a signature, as `exact_match`.
    """
    _check_name(name, _METRICS)
    metric, counts = _METRICS[name](), {len(row) for row in references}
    metric.num_refs = counts.pop() if len(counts) == 1 else -1  # what it counts when it scores; -1: their number varies
    return f"{metric.get_signature()}{normalization and f'|normalized:{normalization}'}"


def _corpus_score(name: str, hypotheses: Sequence[str], references: References) -> float:
    # sacreBLEU takes the first references of all rows, the second, and so on; None where a row has no more.
    return float(_METRICS[name]().corpus_score(hypotheses, list(zip_longest(*references))).score)


def _check_name(name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise UserError("score", got=repr(name), expected="one of " + ", ".join(known), fix="choose one of these")


def _check_rows(hypotheses: Sequence[str], references: References) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            "translations",
            got=f"{len(hypotheses)} for the references of {len(references)} sentences",
            expected="one for each sentence, in the same order",
            fix="translate the whole file, and give the references of that file",
        )
    if not hypotheses:
        raise UserError("scoring", got="no rows", expected="at least one", fix="check the file that is evaluated on")
    for number, row in enumerate(references):
        if not row or isinstance(row, str):
            raise UserError(
                f"references of sentence {number} (from 0)",
                got="a text" if row else "none",
                expected="a list of at least one text",
                fix="give such a list, or leave the sentence out on both sides",
            )
