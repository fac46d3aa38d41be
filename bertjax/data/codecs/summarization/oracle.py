"""Selects the sentences of an article that are closest to its summary, as labels for extractive models.

The measure and the greedy search are PreSumm's (Liu and Lapata 2019, `greedy_selection` in `data_builder.py`, after
Nallapati et al. 2017), and select the same sentences. The exhaustive search is BertSum's `combination_selection`. If
summaries consist of sentences of their articles, these can be selected exactly.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from bertjax.config import Constrained, Count, Size, at_least, each, one_of
from bertjax.words import UNITS, WORDS, composed, ngram_counts, porter_stem, units_of

_Words = Sequence[bytes]
_Score = Callable[[tuple[int, ...]], float]

_KEPT = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SPACES = b"\t\v\f\r\x1c\x1d\x1e\x1f"  # the white space of str.split, other than the space and the line end
_TO_SPACES = bytes.maketrans(_SPACES, b" " * len(_SPACES))
_DELETED = bytes(set(range(128)) - set(_KEPT + _SPACES + b" \n"))
_ROUGE_WORD = re.compile(r"[a-z0-9]+")
_EPSILON = 1e-8  # PreSumm's protection against division by zero
_SLACK = 1e-9  # larger than the rounding error of a bound


@dataclasses.dataclass(frozen=True)
class OracleConfig(Constrained, prefix="data.oracle"):
    """The selection of sentences. PreSumm's settings are in brackets.

    Attributes:
      method: "greedy" adds the best sentence until there are enough or none improves the score (PreSumm); "combination"
        takes the best set of sentences, of equal ones the smallest and first (100 sentences have 170,000 sets of 3);
        "verbatim" the first copy of each sentence of the summary, ignoring white space, with PreSumm's values of
        `counts` to `lowercase`. BertSum's 3 is `num_sentences` 4 here.
      counts: "sets" for the sum of F1 of ROUGE-1 and ROUGE-2 over sets of n-grams, which cross sentence boundaries in
        the summary only (PreSumm); "counts" for F1 as in ROUGE: n-grams are counted with repetition, stay within a
        sentence, and are lower-cased; words are runs of letters and digits.
      ngrams: the values of n whose ROUGE-n are added; (1, 2) with "sets".
      stem: with "counts", whether NLTK's Porter stemmer stems words of four letters or more, as in rouge-score.
      lowercase: with "sets", whether case is ignored (PreSumm lower-cases only afterwards).
      num_sentences: the maximum number of selected sentences; with "verbatim", the first in the article.
      first_sentences: the number of sentences considered, from the first; 0 for all (BertSum).
      letters: the characters of words: "ascii" letters and digits (PreSumm, ROUGE), which removes all text of many
        languages, or "unicode" for all scripts.
      units: what "unicode" compares, as `rouge.units`.

    Raises:
      UserError: if a value is out of range.
    """

    method: Annotated[str, one_of("greedy", "combination", "verbatim")] = "greedy"
    counts: Annotated[str, one_of("sets", "counts")] = "sets"
    ngrams: Annotated[tuple[int, ...], each(at_least(1))] = (1, 2)
    stem: bool = False
    lowercase: bool = False
    num_sentences: Size = 3
    first_sentences: Count = 0
    letters: Annotated[str, one_of("ascii", "unicode")] = "ascii"
    units: Annotated[str, one_of(*UNITS)] = WORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        compares = self.method != "verbatim"
        checks = (
            ("ngrams", bool(self.ngrams), "numbers from 1, such as (1, 2)"),
            ("ngrams", self.counts == "counts" or self.ngrams == (1, 2), "(1, 2) with data.oracle.counts=sets"),
            ("stem", self.counts == "counts" or not self.stem, "False with data.oracle.counts=sets"),
            ("stem", self.letters == "ascii" or not self.stem, "False with data.oracle.letters=unicode"),
            ("units", self.letters == "unicode" or self.units == WORDS, f"{WORDS} with data.oracle.letters=ascii"),
            ("counts", compares or self.counts == "sets", "sets with data.oracle.method=verbatim"),
            ("lowercase", compares or not self.lowercase, "False with data.oracle.method=verbatim"),
        )
        for key, good, expected in checks:
            self.check(good, key, expected)


_DEFAULT = OracleConfig()


def oracle(sentences: Sequence[str], summary: Sequence[str], config: OracleConfig = _DEFAULT) -> tuple[int, ...]:
    """Returns the numbers of the selected sentences, ascending; () if none has anything in common with the summary.

    In that case BertSum's exhaustive search selects the first sentence.

    Args:
      sentences: the sentences of the article.
      summary: the sentences of the summary.
      config: the settings.
    """
    sentences = sentences[: config.first_sentences or len(sentences)]
    if config.method == "verbatim":
        return _verbatim(sentences, summary)[: config.num_sentences]
    if config.counts == "counts":
        score = _counts_score(sentences, summary, config)
    else:
        words, reference = _clean_words(sentences, summary, config)
        if config.method == "greedy":
            return tuple(sorted(_greedy_sets(words, reference, config.num_sentences)))
        score = _sets_score(words, reference)
    search = _greedy if config.method == "greedy" else _combination
    return search(score, len(sentences), config.num_sentences)


def _verbatim(sentences: Sequence[str], summary: Sequence[str]) -> tuple[int, ...]:
    """Returns the sentences of the article that the summary contains, at their first occurrence."""
    wanted = {" ".join(composed(sentence).split()) for sentence in summary} - {""}
    numbers: dict[str, int] = {}
    for i, sentence in enumerate(sentences):
        numbers.setdefault(" ".join(composed(sentence).split()), i)
    return tuple(sorted(numbers[text] for text in wanted if text in numbers))


def _greedy(score: _Score, count: int, num_sentences: int) -> tuple[int, ...]:
    """Repeatedly adds the best sentence, the first of equal ones, while the score improves."""
    chosen: tuple[int, ...] = ()
    best = 0.0
    for _ in range(num_sentences):
        wider = [tuple(sorted((*chosen, i))) for i in range(count) if i not in chosen]
        scores = [score(numbers) for numbers in wider]
        if max(scores, default=0.0) <= best:
            break
        best = max(scores)
        chosen = wider[scores.index(best)]
    return chosen


def _combination(score: _Score, count: int, num_sentences: int) -> tuple[int, ...]:
    """Returns the best set of sentences with nonzero scores. Tries smaller sets first, then in order of numbers."""
    chosen: tuple[int, ...] = ()
    best = 0.0
    useful = [i for i in range(count) if score((i,)) > 0]
    for size in range(1, num_sentences + 1):
        for numbers in itertools.combinations(useful, size):
            if (value := score(numbers)) > best:
                chosen = numbers
                best = value
    return chosen


def _sets_score(words: Sequence[_Words], reference: _Words) -> _Score:
    """Returns PreSumm's measure."""
    wanted_1 = set(reference)
    wanted_2 = set(_pairs(reference))

    def score(numbers: tuple[int, ...]) -> float:
        union_1 = set(itertools.chain.from_iterable(words[i] for i in numbers))
        union_2 = set(itertools.chain.from_iterable(_pairs(words[i]) for i in numbers))
        score_1 = _f1(len(union_1 & wanted_1), len(union_1), len(wanted_1))
        return score_1 + _f1(len(union_2 & wanted_2), len(union_2), len(wanted_2))

    return score


def _counts_score(sentences: Sequence[str], summary: Sequence[str], config: OracleConfig) -> _Score:
    """Returns ROUGE's measure."""
    words = [_rouge_words(sentence, config) for sentence in sentences]
    wanted = [_rouge_words(sentence, config) for sentence in summary]
    references = {n: sum((ngram_counts(sentence, n) for sentence in wanted), Counter()) for n in config.ngrams}
    ngrams = {n: [ngram_counts(sentence, n) for sentence in words] for n in config.ngrams}
    sizes = {n: [counts.total() for counts in ngrams[n]] for n in config.ngrams}
    hits = {n: [counts & reference for counts in ngrams[n]] for n, reference in references.items()}

    def score(numbers: tuple[int, ...]) -> float:
        total = 0.0
        for n, reference in references.items():
            both = Counter(itertools.chain.from_iterable(hits[n][i].elements() for i in numbers)) & reference
            size = reference.total() + sum(sizes[n][i] for i in numbers)
            total += 2 * both.total() / size if size else 0.0
        return total

    return score


def _greedy_sets(words: Sequence[_Words], reference: _Words, num_sentences: int) -> list[int]:
    """Returns the result of `_greedy` with `_sets_score`, but tries the most promising sentences first.

    The upper bound of a sentence's score assumes that all its hits are new and that no other words are. If the bound
    exceeds the best score so far, the new hits and words are counted. A second bound uses that a pair ends in each new
    word except the first, so there are at least as many new pairs as new words, minus one. Sentences above that bound
    are scored exactly.
    """
    wanted_1 = set(reference)
    wanted_2 = set(_pairs(reference))
    size_1 = len(wanted_1)
    size_2 = len(wanted_2)
    # For each sentence, the parts not in the selection when last updated: words, hits among words, hits among pairs.
    fresh = list(map(set, words))
    hits_1 = [wanted_1 & of_sentence for of_sentence in fresh]
    hits_2 = [wanted_2.intersection(_pairs(of_sentence)) for of_sentence in words]
    union_1: set[bytes] = set()
    union_2: set[tuple[bytes, bytes]] = set()
    in_1 = in_2 = 0  # hits of the current selection
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < num_sentences:
        all_1 = len(union_1) + size_1
        all_2 = len(union_2) + size_2 or 1
        bounds = [
            2 * (in_1 + (x := len(one))) / (all_1 + x) + 2 * (in_2 + (y := len(two))) / (all_2 + y)
            if one or two
            else 0.0
            for one, two in zip(hits_1, hits_2, strict=True)
        ]
        winner = -1
        highest = best
        for i in sorted(range(len(words)), key=bounds.__getitem__, reverse=True):
            if bounds[i] + _SLACK < highest:
                break
            hits_1[i], hits_2[i] = hits_1[i] - union_1, hits_2[i] - union_2
            x = len(hits_1[i])
            y = len(hits_2[i])
            if not (x or y):
                continue  # the sentence cannot improve the score
            fresh[i] = fresh[i] - union_1
            new = len(fresh[i])
            score = _f1(in_1 + x, len(union_1) + new, size_1)
            if score + 2 * (in_2 + y) / (all_2 + max(y, new - 1)) + _SLACK < highest:
                continue
            score += _f1(in_2 + y, len(union_2.union(_pairs(words[i]))), size_2)
            if score > highest or (score == highest and i < winner):
                winner = i
                highest = score
        if winner < 0:
            break
        best = highest
        chosen.append(winner)
        in_1 = in_1 + len(hits_1[winner])
        in_2 = in_2 + len(hits_2[winner])
        union_1.update(words[winner])
        union_2.update(_pairs(words[winner]))
    return chosen


def _f1(hits: int, candidate_size: int, reference_size: int) -> float:
    """Returns PreSumm's F1, bit by bit: which of nearly equal sentences is selected depends on it."""
    precision = hits / candidate_size if candidate_size else 0.0
    recall = hits / reference_size if reference_size else 0.0
    return 2.0 * ((precision * recall) / (precision + recall + _EPSILON))


def _clean_words(
    sentences: Sequence[str], summary: Sequence[str], config: OracleConfig
) -> tuple[list[list[bytes]], list[bytes]]:
    """Returns the words of each sentence and of the summary: split at white space, with only letters and digits."""
    texts = [*sentences, " ".join(summary)]
    if config.lowercase:
        texts = [text.lower() for text in texts]
    if config.letters == "unicode":
        *words, reference = [[unit.encode() for unit in units_of(text, config.units, joins=True)] for text in texts]
        return words, reference
    # Non-ASCII white space also separates words, but encoding would drop it. Line ends mark sentence ends below.
    texts = [text if text.isascii() and "\n" not in text else " ".join(text.split()) for text in texts]
    joined = "\n".join(texts).encode("ascii", "ignore").translate(_TO_SPACES, _DELETED)
    *words, reference = [line.split() for line in joined.split(b"\n")]
    return words, reference


def _rouge_words(text: str, config: OracleConfig) -> list[str]:
    if config.letters == "unicode":
        return units_of(text.lower(), config.units, joins=False)
    words: list[str] = _ROUGE_WORD.findall(text.lower())
    return [porter_stem(word) for word in words] if config.stem else words


def _pairs(words: _Words) -> Iterator[tuple[bytes, bytes]]:
    return itertools.pairwise(words)
