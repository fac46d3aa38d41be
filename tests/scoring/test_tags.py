import json
from functools import partial
from pathlib import Path

import pytest

from bertjax.data.codecs.tagging.tag_schemes import spans
from bertjax.errors import UserError
from bertjax.scoring import tags


@pytest.fixture(scope="module")
def golden():
    return json.loads(Path(__file__).with_name("golden").joinpath("tags.json").read_text())


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


def test_characters_as_in_klue():
    """Values of seqeval 1.2.2 (average="macro", mode="strict", scheme=IOB2) and scikit-learn (zero_division=True)."""
    labels = ["B-PS", "I-PS", "B-LC", "I-LC", "B-TI", "I-TI", "O"]
    references = ["B-PS I-PS O B-LC O O B-PS", "B-LC I-LC I-LC O O"]
    predictions = ["B-PS I-PS O I-LC O B-TI B-PS", "B-LC I-LC O O I-PS"]
    scores = tags.score_characters(*([row.split() for row in rows] for rows in (predictions, references)), labels)
    assert scores == pytest.approx({"entity_macro_f1": 1 / 3, "character_macro_f1": 0.6428571428571429}, abs=1e-12)


@pytest.mark.parametrize("score", [tags.score, tags.token_accuracy, partial(tags.score_characters, labels=["O"])])
@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([["O"], ["O", "O"]], [["O"], ["O"]], r"predicted tags, sentence 1 \(from 0\): got 2 tags; expected 1, as in"),
        ([["O"], ["O"]], [["O"]], "predicted tags: got 2 sentences; expected 1 sentences, as in the references"),
        ([], [], "predicted tags: got 0 sentences; expected 0 sentences, as in the references, and at least one"),
    ],
)
def test_unaligned_tags(score, predictions, references, message):
    with pytest.raises(UserError, match=message):
        score(predictions, references)


def test_accuracy_without_tokens_is_a_user_error():
    with pytest.raises(UserError, match="scoring: got no tokens; expected at least one"):
        tags.token_accuracy([[], []], [[], []])
