import doctest
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.fine_tuning.tag_schemes import spans
from bertjax.errors import UserError
from bertjax.scoring import tags

SENTENCE = st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in "XY")]), max_size=9)
SENTENCES = st.lists(SENTENCE, min_size=1, max_size=5)


@pytest.fixture(scope="module")
def golden():
    return json.loads(Path(__file__).with_name("golden").joinpath("tags.json").read_text())


def test_docstrings():
    assert doctest.testmod(tags) == doctest.TestResults(failed=0, attempted=1)


def test_golden_entities(golden):
    assert len(golden) == 120
    for case in golden:
        assert [[list(span) for span in spans(row.split(" "))] for row in case["references"]] == case["spans"]


def test_golden_scores(golden):
    for case in golden:
        predictions, references = ([row.split(" ") for row in case[side]] for side in ("predictions", "references"))
        scores = tags.score(predictions, references)
        assert list(scores) == list(case["scores"])
        assert scores == pytest.approx(case["scores"], abs=1e-12)
        assert tags.token_accuracy(predictions, references) == pytest.approx(case["token_accuracy"], abs=1e-12)


@given(SENTENCES)
def test_perfect_predictions_score_1(rows):
    scores = tags.score(rows, rows)
    assert set(scores.values()) == ({1.0} if len(scores) > 3 else {0.0})


@settings(max_examples=50)
@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_sentences_does_not_matter(pairs, random):
    pairs = [(ours[: len(theirs)], theirs[: len(ours)]) for ours, theirs in pairs]
    predictions, references = zip(*pairs, strict=True)
    scores = tags.score(predictions, references)
    assert tags.score(*zip(*random.sample(pairs, len(pairs)), strict=True)) == scores
    swapped = tags.score(references, predictions)
    assert (swapped["precision"], swapped["recall"]) == (scores["recall"], scores["precision"])
    assert swapped["f1"] == scores["f1"]
    assert all(0 <= value <= 1 for value in scores.values())


def test_scores_of_a_worked_example():
    references = [["B-X", "I-X", "O", "B-Y"], ["B-X", "O", "B-Z"]]
    predictions = [["B-X", "I-X", "B-X", "B-X"], ["B-X", "B-W", "O"]]
    assert tags.score(predictions, references) == {
        "precision": 2 / 5,
        "recall": 2 / 4,
        "f1": 4 / 9,
        "f1_X": 4 / 6,
        "f1_Y": 0.0,
        "f1_Z": 0.0,
    }
    assert tags.token_accuracy(predictions, references) == 3 / 7


def test_types_that_are_missing_on_one_side_score_0():
    assert tags.score([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert tags.score([["B-X"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert tags.score([["O"]], [["B-X"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "f1_X": 0.0}


def test_accuracy_of_plain_tags():
    assert tags.token_accuracy([["DT", "NN"], ["VB"]], [["DT", "VB"], ["VB"]]) == 2 / 3


@pytest.mark.parametrize("score", [tags.score, tags.token_accuracy])
@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (
            [["O"], ["O", "O"]],
            [["O"], ["O"]],
            "predicted tags, sentence 1 (from 0): got 2 tags; expected 1, as in the references. "
            "Fix: predict one tag per token, including tokens that did not fit into a row.",
        ),
        (
            [["O"], ["O"]],
            [["O"]],
            "predicted tags: got 2 sentences; expected 1 sentences, as in the references, and at least one. "
            "Fix: predict each sentence of the file once, in order.",
        ),
        (
            [],
            [],
            "predicted tags: got 0 sentences; expected 0 sentences, as in the references, and at least one. "
            "Fix: predict each sentence of the file once, in order.",
        ),
    ],
)
def test_unaligned_tags(score, predictions, references, message):
    with pytest.raises(UserError) as error:
        score(predictions, references)
    assert str(error.value) == message


def test_accuracy_without_tokens_is_a_user_error():
    with pytest.raises(UserError) as error:
        tags.token_accuracy([[], []], [[], []])
    assert str(error.value) == ("scoring: got no tokens; expected at least one. Fix: check the evaluated file.")
