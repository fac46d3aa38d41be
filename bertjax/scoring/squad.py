"""The official evaluation of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016; 2018), in percent as in its scripts.

The two scripts differ if both prediction and reference are empty after normalization: F1 is 0 in `evaluate-v1.1.py`
(although the exact match is 1), and 1 in `evaluate-v2.0.py`.
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
    """Returns the answer in lowercase, without ASCII punctuation and articles, with single spaces between words."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def score_v1(predictions: Mapping[str, str], references: References) -> dict[str, float]:
    """Returns `exact_match` and `f1` in percent, as in `evaluate-v1.1.py`.

    The score of a question is the maximum over its reference answers. A question without prediction counts as wrong.
    Predictions for other questions are ignored.

    Args:
      predictions: the answer to each question, by question id.
      references: the reference answers of each question, at least one, by question id.
    Raises:
      UserError: if there are no questions, or if a question has no reference answer.
    """
    _check_any(references)
    exact = []
    f1 = []
    for question, answers in references.items():
        if not answers:
            expected = "at least one, since SQuAD 1.1 has no questions without answer"
            fix = "score the file as SQuAD 2.0, or remove the question"
            raise UserError(f"question {question}", got="no reference answer", expected=expected, fix=fix)
        is_answered = question in predictions
        exact.append(_best_exact(predictions[question], answers) if is_answered else 0.0)
        f1.append(_best_f1(predictions[question], answers, both_empty=0.0) if is_answered else 0.0)
    return {"exact_match": _percent(exact), "f1": _percent(f1)}


def score_v2(
    predictions: Mapping[str, str],
    references: References,
    null_scores: Mapping[str, float] | None,
    *,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Returns the metrics of `evaluate-v2.0.py` under its names, in percent except for `*total` and `*_thresh`.

    `exact`, `f1` and `total` cover all questions; `HasAns_exact`, `HasAns_f1` and `HasAns_total` those with an answer;
    `NoAns_...` those without. Each group is omitted if it is empty. With null scores, `best_exact` is the best score
    over all thresholds above which no answer is predicted, and `best_exact_thresh` is the lowest threshold with this
    score; likewise `best_f1` and `best_f1_thresh`. As in the script, the threshold is 0.0 if answering no question is
    best, even if null scores are lower, and equal null scores are processed one by one, in the order of the mapping.

    Args:
      predictions: the answer to each question, by question id; "" for no answer.
      references: the reference answers of each question, by question id; empty for unanswerable questions.
      null_scores: the score of "no answer" for each question, by question id, on any scale.
      null_threshold: in `exact`, `f1` and their parts, questions with a null score above this count as predicted to
        have no answer. The default is the script's. It has no effect if null scores are probabilities, or if such
        predictions are already "". `math.inf` leaves the predictions unchanged.
    Raises:
      UserError: if there are no questions; if a question has no prediction or no null score, at which the script fails;
        or if a null score is NaN.
    """
    _check_any(references)
    _check_complete("predicted answers", predictions, references)
    if null_scores is not None:
        _check_complete("null scores", null_scores, references)
        _check_numbers(null_scores)
    has_answer = {question: bool(answers) for question, answers in references.items()}
    raw: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question, answers in references.items():
        # As in the script, an answer such as "the" counts as no answer, while its question counts as answerable.
        answers = [answer for answer in answers if normalize(answer)] or [""]
        raw["exact"][question] = _best_exact(predictions[question], answers)
        raw["f1"][question] = _best_f1(predictions[question], answers, both_empty=1.0)
    final = raw
    if null_scores is not None:
        final = {name: _with_nulls(scores, null_scores, null_threshold, has_answer) for name, scores in raw.items()}
    metrics = _averages(final, references, "")
    metrics |= _averages(final, [question for question in references if has_answer[question]], "HasAns_")
    metrics |= _averages(final, [question for question in references if not has_answer[question]], "NoAns_")
    if null_scores is not None:
        for name, scores in raw.items():
            best = _best_threshold(predictions, scores, null_scores, has_answer)
            metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best
    return metrics


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Returns the F1 of an answer, from 0 to 1; without reference answers, 1 if it is empty."""
    return _best_f1(prediction, answers or [""], both_empty=1.0)


def _best_exact(prediction: str, answers: Sequence[str]) -> float:
    return float(normalize(prediction) in map(normalize, answers))


def _best_f1(prediction: str, answers: Sequence[str], *, both_empty: float) -> float:
    words = normalize(prediction).split()
    return max(_f1(words, normalize(answer).split(), both_empty) for answer in answers)


def _f1(predicted: list[str], reference: list[str], both_empty: float) -> float:
    """Returns the F1 of two bags of words."""
    if not predicted and not reference:
        return both_empty
    same = (Counter(predicted) & Counter(reference)).total()
    if not same:
        return 0.0
    # Computed in the same steps as in the scripts: the search for the best threshold compares sums to the last bit.
    precision = same / len(predicted)
    recall = same / len(reference)
    return 2 * precision * recall / (precision + recall)


def _with_nulls(
    scores: Mapping[str, float], null_scores: Mapping[str, float], threshold: float, has_answer: Mapping[str, bool]
) -> dict[str, float]:
    """Returns the scores with no answer predicted for questions with a null score above the threshold."""
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
    """Returns the best score in percent and its threshold; the threshold is 0.0 if answering no question is best."""
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
        raise UserError("scoring", got="no questions", expected="at least one", fix="check the evaluated file")


def _check_complete(what: str, values: Mapping[str, object], references: References) -> None:
    missing = [question for question in references if question not in values]
    if missing:
        got = f"none for {len(missing)} of {len(references)} questions, the first of which is {missing[0]}"
        fix = 'predict all questions of the file; use "" for no answer'
        raise UserError(what, got=got, expected="one for each question", fix=fix)


def _check_numbers(null_scores: Mapping[str, float]) -> None:
    for question, value in null_scores.items():
        if math.isnan(value):
            fix = "find the step at which training diverged"
            raise UserError(f"null score of question {question}", got="NaN", expected="a number", fix=fix)
