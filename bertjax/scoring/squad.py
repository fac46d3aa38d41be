"""The official evaluation of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016; 2018), in percent as its scripts print it.

The two scripts differ where nothing is left of an answer after normalization: if that is so of both prediction and
reference, F1 is 0 in `evaluate-v1.1.py` (the exact match is 1 all the same), and 1 in `evaluate-v2.0.py`.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from bertjax.errors import UserError

References = Mapping[str, Sequence[str]]

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Returns the answer in lowercase without ASCII punctuation and articles, its words one space apart."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def score_v1(predictions: Mapping[str, str], references: References) -> dict[str, float]:
    """Returns `exact_match` and `f1` in percent, as `evaluate-v1.1.py`.

    A question counts with the reference answer that is best for it. One that has no prediction counts as wrong.
    Predictions for other questions count for nothing.

    Args:
      predictions: for each question id, the answer.
      references: for each question id, the reference answers, at least one.
    Raises:
      UserError: no questions, or one without reference answer.
    """
    _check_any(references)
    exact, f1 = [], []
    for question, answers in references.items():
        if not answers:
            raise UserError(
                f"question {question}",
                got="no reference answer",
                expected="at least one, as SQuAD 1.1 has no question without answer",
                fix="score it as SQuAD 2.0, or leave the question out",
            )
        found = question in predictions
        exact.append(_best_exact(predictions[question], answers) if found else 0.0)
        f1.append(_best_f1(predictions[question], answers, both_empty=0.0) if found else 0.0)
    return {"exact_match": _percent(exact), "f1": _percent(f1)}


def score_v2(
    predictions: Mapping[str, str],
    references: References,
    null_scores: Mapping[str, float] | None,
    *,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Returns the figures of `evaluate-v2.0.py` under its names, in percent except for `*total` and `*_thresh`.

    `exact`, `f1` and `total` are of all questions; `HasAns_exact`, `HasAns_f1` and `HasAns_total` of those with an
    answer, `NoAns_...` of those without, each left out if there are none. With null scores, `best_exact` is the best
    that predicting no answer above some threshold could give, and `best_exact_thresh` the lowest such threshold;
    likewise `best_f1` and `best_f1_thresh`. As in the script, the threshold is 0.0 where it is best to answer nothing,
    though null scores may be below that, and equal null scores are taken one by one, in the order of the mapping.

    Args:
      predictions: for each question id, the answer; "" for none.
      references: for each question id, the reference answers; none if it is not answerable.
      null_scores: for each question id, how much speaks against any answer, on any scale.
      null_threshold: a question whose null score is above it counts as predicted to have no answer, in `exact`, `f1`
        and their parts. The default is the script's. It changes nothing if the null scores are probabilities, or if
        such predictions are "" already; else `math.inf` takes the predictions as they are.
    Raises:
      UserError: no questions, or one that has no prediction or no null score, at which the script fails; a null score
        of NaN.
    """
    _check_any(references)
    _check_complete("predicted answers", predictions, references)
    if null_scores is not None:
        _check_complete("null scores", null_scores, references)
        _check_numbers(null_scores)
    has_answer = {question: bool(answers) for question, answers in references.items()}
    raw: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question, answers in references.items():
        # What the script does with an answer such as "the": it counts as none, but the question as answerable.
        answers = [answer for answer in answers if normalize(answer)] or [""]
        raw["exact"][question] = _best_exact(predictions[question], answers)
        raw["f1"][question] = _best_f1(predictions[question], answers, both_empty=1.0)
    final = raw
    if null_scores is not None:
        final = {name: _with_nulls(scores, null_scores, null_threshold, has_answer) for name, scores in raw.items()}
    figures = _averages(final, references, "")
    figures |= _averages(final, [question for question in references if has_answer[question]], "HasAns_")
    figures |= _averages(final, [question for question in references if not has_answer[question]], "NoAns_")
    if null_scores is not None:
        for name, scores in raw.items():
            best = _best_threshold(predictions, scores, null_scores, has_answer)
            figures[f"best_{name}"], figures[f"best_{name}_thresh"] = best
    return figures


def _best_exact(prediction: str, answers: Sequence[str]) -> float:
    return float(normalize(prediction) in map(normalize, answers))


def _best_f1(prediction: str, answers: Sequence[str], *, both_empty: float) -> float:
    words = normalize(prediction).split()
    return max(_f1(words, normalize(answer).split(), both_empty) for answer in answers)


def _f1(predicted: list[str], reference: list[str], both_empty: float) -> float:
    """Returns the F1 of the words, each as often as it occurs."""
    if not predicted and not reference:
        return both_empty
    same = (Counter(predicted) & Counter(reference)).total()
    if not same:
        return 0.0
    # In the scripts' own steps: sums of these are compared for the best threshold, where the last bit matters.
    precision, recall = same / len(predicted), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def _with_nulls(
    scores: Mapping[str, float], null_scores: Mapping[str, float], threshold: float, has_answer: Mapping[str, bool]
) -> dict[str, float]:
    """Returns the scores if no answer is predicted above the threshold."""
    return {
        question: float(not has_answer[question]) if null_scores[question] > threshold else value
        for question, value in scores.items()
    }


def _best_threshold(
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    null_scores: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """Returns the best score in percent and its threshold; the script's 0.0 if it is best to answer nothing."""
    questions = sorted((question for question in null_scores if question in scores), key=lambda q: null_scores[q])
    gains = (scores[q] if has_answer[q] else -float(predictions[q] != "") for q in questions)
    totals = list(accumulate(gains, initial=float(sum(not has for has in has_answer.values()))))
    best = totals.index(max(totals))
    return 100.0 * totals[best] / len(scores), float(null_scores[questions[best - 1]]) if best else 0.0


def _averages(scores: Mapping[str, Mapping[str, float]], questions: Iterable[str], prefix: str) -> dict[str, float]:
    chosen = list(questions)
    if not chosen:
        return {}
    averages = {f"{prefix}{name}": _percent([values[q] for q in chosen]) for name, values in scores.items()}
    return {**averages, f"{prefix}total": float(len(chosen))}


def _percent(scores: Sequence[float]) -> float:
    return 100.0 * sum(scores) / len(scores)


def _check_any(references: References) -> None:
    if not references:
        raise UserError(
            "scoring", got="no questions", expected="at least one", fix="check the file that is evaluated on"
        )


def _check_complete(what: str, values: Mapping[str, object], references: References) -> None:
    missing = [question for question in references if question not in values]
    if missing:
        raise UserError(
            what,
            got=f"none for {len(missing)} of {len(references)} questions, first {missing[0]}",
            expected="one for each question",
            fix='predict each question of the file; an answer of "" stands for none',
        )


def _check_numbers(null_scores: Mapping[str, float]) -> None:
    for question, value in null_scores.items():
        if math.isnan(value):
            raise UserError(
                f"null score of question {question}",
                got="NaN",
                expected="a number",
                fix="look for the step at which training diverged",
            )
