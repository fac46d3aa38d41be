import json
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


def test_types_that_are_missing_on_one_side_score_0():
    assert tags.score([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert tags.score([["B-X"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert tags.score([["O"]], [["B-X"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "f1_X": 0.0}


@pytest.mark.parametrize("score", [tags.score, tags.token_accuracy])
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
