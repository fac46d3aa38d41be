import json
import math
import random
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.scoring.squad import normalize, score_v1, score_v2
from tests.scoring.answers import doubt, predict, read


@pytest.fixture(scope="module")
def golden():
    return json.loads(Path(__file__).with_name("golden").joinpath("squad.json").read_text(encoding="utf-8"))


def same(figures):
    """Approximate equality, because Python 3.12 and 3.11 round sums differently."""
    return pytest.approx(figures, rel=1e-12)


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Quick, brown\tFOX.", "quick brown fox"),
        ("a an THE", ""),
        ("an-aphora", "anaphora"),  # punctuation is removed first
        ("the-end", "theend"),
        ("anagram theory", "anagram theory"),
        ("U.S.A.", "usa"),
        ("$1,000", "1000"),
        ("“the” naïve\xa0Élan", "“ ” naïve élan"),  # only ASCII punctuation is removed
        ("", ""),
    ],
)
def test_normalization(answer, normal):
    assert normalize(answer) == normal


def test_golden_of_version_1(golden):
    cases = [case for case in golden["cases"] if "v1" in case]
    assert len(cases) > 5
    for case in cases:
        predictions, references = case["predictions"], case["references"]
        assert score_v1(predictions, references) == same(case["v1"])
        first = next(iter(references))
        some = {question: answer for question, answer in predictions.items() if question != first}
        assert score_v1(some, references) == same(case["v1_without_first"])


@pytest.mark.parametrize(
    ("prediction", "reference", "exact", "f1"),
    [
        ("세종대왕은", "세종대왕", 0, 100 * 2 * 4 / 9),  # 4 common characters of 5 and 4
        ("《훈민 정음》", "훈민 정음", 100, 100),
        ("훈민정음", "훈민 정음", 0, 100),  # spaces count in the exact match alone
        ("the A-b", "The Ab.", 100, 100),  # no articles are removed
        ("한글", "1446년", 0, 0),
        ("()", "〈〉", 100, 0),
    ],
)
def test_korquad(prediction, reference, exact, f1):
    """Values of evaluate-v1.0.py."""
    scores = score_v1({"q": prediction}, {"q": [reference]}, "korquad")
    assert scores == pytest.approx({"exact_match": exact, "f1": f1})
    scores = score_v2({"q": prediction}, {"q": [reference]}, None, metric="korquad")
    assert (scores["exact"], scores["f1"]) == pytest.approx((exact, f1 or exact))


def test_golden_of_version_2(golden):
    assert len(golden["cases"]) == 24
    for case in golden["cases"]:
        predictions, references, null_scores = case["predictions"], case["references"], case["null_scores"]
        for got, expected in [
            (score_v2(predictions, references, None), case["v2"]),
            (score_v2(predictions, references, null_scores), case["v2_null"]),
            (score_v2(predictions, references, null_scores, null_threshold=0.5), case["v2_null_at_half"]),
        ]:
            assert list(got) == list(expected)
            assert got == same(expected)


def test_real_questions_score_as_in_the_official_scripts(data_folder, golden):
    v1, v2 = "squad_v11_xquad_en/dev.json.gz", "squad_v2_small/dev.json.gz"
    rng, references = random.Random(1), read(data_folder / v1)
    assert score_v1(predict(references, rng), references) == same(golden["real"][v1])
    references = read(data_folder / v2)
    predictions, null_scores = predict(references, rng), doubt(references, rng)
    assert score_v2(predictions, references, null_scores) == same(golden["real"][v2])


def test_predictions_for_other_questions_are_ignored():
    references, predictions, null_scores = {"a": ["x"], "b": []}, {"a": "x", "b": "x"}, {"a": 0.5, "b": 0.7}
    more, more_nulls = {"c": "x", **predictions, "d": ""}, {"c": 0.1, **null_scores, "d": 0.9}
    assert score_v1(more, {"a": ["x"]}) == score_v1(predictions, {"a": ["x"]})
    assert score_v2(more, references, more_nulls) == score_v2(predictions, references, null_scores)


def test_null_scores_above_the_threshold_predict_no_answer():
    references, predictions = {"a": ["x"], "b": []}, {"a": "x", "b": "x"}
    null_scores = {"a": 1.5, "b": 2.5}
    exact = [
        score_v2(predictions, references, null_scores, null_threshold=threshold)["exact"]
        for threshold in (math.inf, 2.0, 1.5, 1.0)
    ]
    assert exact == [50.0, 100.0, 100.0, 50.0]
    assert score_v2(predictions, references, null_scores)["exact"] == exact[-1]


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: score_v2({"a": "x"}, {}, None), "scoring: got no questions; expected at least one"),
        (lambda: score_v1({"a": "x"}, {"a": ["x"], "b": []}), "question b: got no reference answer; expected at least"),
        (lambda: score_v2({"a": "x"}, {"a": ["x"], "b": [], "c": []}, None), "predicted answers: got none for 2 of 3"),
        (lambda: score_v2({"a": "x"}, {"a": ["x"]}, {}), "null scores: got none for 1 of 1 questions, the first of wh"),
        (lambda: score_v2({"a": "x"}, {"a": ["x"]}, {"a": math.nan}), "null score of question a: got NaN; expected"),
    ],
)
def test_invalid_input(score, message):
    with pytest.raises(UserError, match=message):
        score()
