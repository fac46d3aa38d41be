"""Metrics of translations with one or more references, in percent.

BLEU and chrF are computed by sacreBLEU (Post, 2018) on detokenized text; their `signature` makes scores comparable.

- "bleu": sacreBLEU's default: cased, tokenized by 13a, for languages that put spaces between words.
- "bleu_lowercase": the same of lowercased text, comparable with published scores on Multi30k. These (41.02 for en-de,
  2016) use Moses' tokenizer, which also separates apostrophes and keeps the full stop of abbreviations. It tokenizes 4
  of the 1,000 German references of 2016 differently. Lowercase BLEU is higher than cased BLEU; do not compare the two.
- "bleu_intl": separates the punctuation and symbols of all scripts, as WMT's mteval-v14.
- "bleu_zh": as in WMT for Chinese: each Chinese character is a token, other text is tokenized by 13a.
- "bleu_ja_mecab", "bleu_ko_mecab": Japanese and Korean words by MeCab, in sacreBLEU's extras `ja` and `ko`.
- "bleu_spm": the SentencePiece model of FLORES-101 for all languages (spBLEU). It needs the package sentencepiece, and
  sacreBLEU downloads the model once.
- "bleu_char": each character is a token, for scripts without spaces between words, without extras.
- "chrf": chrF2 (Popović, 2015): the F-score of character n-grams, for any script.
- "exact_match": the percentage of hypotheses that are identical to one of their references.
- "rouge1", "rouge2", "rougeL", "rougeLsum": those of `rouge`, for summaries.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bertjax.data.text import sentences
from bertjax.errors import UserError
from bertjax.progress import log_once
from bertjax.scoring import rouge
from bertjax.scoring.rouge import RougeConfig
from bertjax.words import ascii_share

if TYPE_CHECKING:  # imported only when needed, so that translation starts faster
    from sacrebleu.metrics import BLEU, CHRF

# The references of each hypothesis.
References = Sequence[Sequence[str]]

_LOOKED_AT = 1000  # the number of references from which the script is estimated
# Languages of scripts that 13a cannot tokenize, and their metrics, by the first word of the names of letters.
_LANGUAGES = {
    **dict.fromkeys(("HIRAGANA", "KATAKANA"), ("Japanese", "bleu_ja_mecab")),
    "CJK": ("Chinese", "bleu_zh"),
    "HANGUL": ("Korean", "bleu_ko_mecab"),
    **{name.upper(): (name, "bleu_spm") for name in ("Thai", "Lao", "Khmer", "Myanmar", "Tibetan")},
}


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
        "bleu_intl": partial(_bleu, tokenize="intl"),
        "bleu_ja_mecab": partial(_bleu, tokenize="ja-mecab"),
        "bleu_ko_mecab": partial(_bleu, tokenize="ko-mecab"),
        "bleu_lowercase": partial(_bleu, tokenize="13a", lowercase=True),
        "bleu_spm": partial(_bleu, tokenize="flores101"),
        "bleu_zh": partial(_bleu, tokenize="zh"),
        "chrf": _chrf,
    }
)
ROUGE = rouge.METRICS
_ROUGE = RougeConfig()
SIGNED = frozenset(_METRICS)  # the metrics with a `signature`
_OF_13A = ("bleu", "bleu_lowercase")
_OPTIONAL = {"bleu_ja_mecab": "sacrebleu[ja]", "bleu_ko_mecab": "sacrebleu[ko]", "bleu_spm": "sentencepiece"}


def _corpus_score(name: str, hypotheses: Sequence[str], references: References) -> float:
    # sacreBLEU expects the first references of all rows, then the second and so on, with None for missing ones.
    return float(_METRICS[name]().corpus_score(hypotheses, list(itertools.zip_longest(*references))).score)


def _exact_match(hypotheses: Sequence[str], references: References) -> float:
    return 100.0 * sum(one in row for one, row in zip(hypotheses, references, strict=True)) / len(hypotheses)


SCORES: Mapping[str, Callable[[Sequence[str], References], float]] = MappingProxyType(
    {**{name: partial(_corpus_score, name) for name in _METRICS}, "exact_match": _exact_match}
)


def check_installed(names: Iterable[str]) -> None:
    """Raises UserError if a metric needs a package that is not installed, or a model that cannot be downloaded."""
    for name in _OPTIONAL.keys() & set(names):
        try:
            _METRICS[name]()
        except (ImportError, RuntimeError, OSError) as error:
            fix = f"pip install '{_OPTIONAL[name]}', or use bleu_char or chrf, which need nothing else"
            got = f"{name}, whose tokenizer is missing ({' '.join(str(error).split())})"
            raise UserError("config key metrics", got=got, expected=_OPTIONAL[name], fix=fix) from error


def letters_warning(names: Sequence[str], references: Iterable[str], settings: RougeConfig) -> str:
    """Returns a warning if a metric is ROUGE of ASCII letters, but most letters of the references are others; or "".

    Args:
      names: the metrics.
      references: the references.
      settings: the settings of ROUGE.
    """
    if settings.flavor == "unicode" or not set(names) & set(ROUGE) or (share := ascii_share(references)) >= 0.5:
        return ""
    fix = "set --config.rouge.flavor=unicode --config.rouge.stem=False"
    return f"ROUGE reads ASCII letters only, {share:.0%} of the letters of the references; for other languages, {fix}"


def tokenizer_warning(names: Sequence[str], references: Iterable[str]) -> str:
    """Returns a warning if a metric tokenizes by 13a, but most letters are of scripts that 13a cannot tokenize; or "".

    Args:
      names: the metrics.
      references: texts in the target language. Only the first are read.
    """
    metrics = [name for name in names if name in _OF_13A]
    letters = list(filter(str.isalpha, "".join(itertools.islice(references, _LOOKED_AT) if metrics else ())))
    languages = Counter(_LANGUAGES.get(unicodedata.name(letter, "").split(" ")[0]) for letter in letters)
    count = sum(number for language, number in languages.items() if language)
    if 2 * count <= len(letters):
        return ""
    japanese = _LANGUAGES["HIRAGANA"]  # also has Chinese characters
    pairs = [pair for pair, _ in languages.most_common() if pair]
    language, metric = japanese if japanese in pairs else pairs[0]
    package = f" (pip install '{_OPTIONAL[metric]}')" if metric in _OPTIONAL else ""
    return (
        f"{' and '.join(metrics)}: the tokenizer 13a separates words at spaces, but {count / len(letters):.0%} of the "
        f"letters of the references are {language}, so scores are near 0 or too low; for {language}, set {metric}"
        f"{package} or bleu_char in --config.metrics and --config.checkpoint.best_metric"
    )


def names(metrics: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the values that `score` returns: those of metrics, and intervals of ROUGE."""
    return (*metrics, *(f"{name}{end}" for name in metrics if name in ROUGE for end in ("_low", "_high")))


def score(
    metrics: Sequence[str], hypotheses: Sequence[str], references: References, settings: RougeConfig = _ROUGE
) -> dict[str, float]:
    """Returns the value of each metric, from 0 to 100, and the 95 % intervals of ROUGE.

    >>> score(["bleu", "exact_match"], ["A dog runs fast.", "Two men"], [["A dog runs fast."], ["Two women"]])
    {'bleu': 90.99882808096075, 'exact_match': 50.0}

    Args:
      metrics: names in `SCORES` or `ROUGE`.
      hypotheses: detokenized translations.
      references: the references of each hypothesis, at least one; their number may vary. BLEU uses the n-grams of all
        references, ROUGE combines them by its settings, and the other metrics use the best one.
      settings: the settings of ROUGE. The sentences of a text are its lines or, if it has only one, found by rules. For
        other metrics, a line break is a space.
    Raises:
      UserError: if a name is unknown, if there are no rows, if the numbers of hypotheses and references differ, or if a
        row has no reference.
    """
    for name in metrics:
        _check_name(name, (*SCORES, *ROUGE))
    _check_rows(hypotheses, references)
    one_line = list(map(_one_line, hypotheses)), [list(map(_one_line, texts)) for texts in references]
    values = {name: SCORES[name](*one_line) for name in metrics if name in SCORES}
    if len(values) < len(metrics):
        log_once(f"ROUGE settings: {rouge.signature(settings, max(map(len, references)))}")
        of_references = [list(map(_sentences, texts)) for texts in references]
        values |= rouge.rouge(list(map(_sentences, hypotheses)), of_references, settings, confidence=True)
    return {name: values[name] for name in names(metrics)}


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _sentences(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) > 1 else sentences.split(text)


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
    metric = _METRICS[name]()
    counts = {len(row) for row in references}
    metric.num_refs = counts.pop() if len(counts) == 1 else -1  # set by scoring; -1 if the number varies
    return f"{metric.get_signature()}{normalization and f'|normalized:{normalization}'}"


def _check_name(name: str, metrics: Collection[str]) -> None:
    if name not in metrics:
        raise UserError("score", got=repr(name), expected="one of " + ", ".join(metrics), fix="choose one of these")


def _check_rows(hypotheses: Sequence[str], references: References) -> None:
    if len(hypotheses) != len(references):
        got = f"{len(hypotheses)} translations, but references for {len(references)} sentences"
        fix = "translate the whole file, and use the references of that file"
        raise UserError("translations", got=got, expected="one translation per sentence, in the same order", fix=fix)
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
