import doctest
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.scoring import tags

LETTERS = {"BIO": "BI", "IOB1": "BI", "IO": "I", "BIOES": "BIES"}
SENTENCE = st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in "XY")]), max_size=9)
SENTENCES = st.lists(SENTENCE, min_size=1, max_size=5)


@st.composite
def entities(draw):
    """Entities of a sentence, in order, as type, first and last token; and the sentence's length."""
    found, size = [], 0
    for gap, kind, length in draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("XY"), st.integers(1, 3)))):
        found.append((kind, size + gap, size + gap + length - 1))
        size += gap + length
    return found, size + draw(st.integers(0, 2))


def write(found, size, scheme):
    """The tags of a sentence in a scheme, by its definition."""
    row = ["O"] * size
    before = None
    for kind, first, last in found:
        touches = before is not None and before == (kind, first - 1)
        row[first : last + 1] = [f"I-{kind}"] * (last - first + 1)
        if scheme != "IO" and (scheme != "IOB1" or touches):
            row[first] = f"B-{kind}"
        if scheme == "BIOES":
            row[last] = f"E-{kind}" if last > first else f"S-{kind}"
        before = (kind, last)
    return row


def merged(found):
    """What IO can say of entities: those of a type that touch are one."""
    result = []
    for kind, first, last in found:
        if result and result[-1][0] == kind and result[-1][2] == first - 1:
            result[-1] = (kind, result[-1][1], last)
        else:
            result.append((kind, first, last))
    return result


def conll(path):
    rows = path.read_text(encoding="utf-8").split("\n\n")
    return [[line.split()[-1] for line in row.split("\n") if line] for row in rows]


@pytest.fixture(scope="module")
def golden():
    return json.loads(Path(__file__).with_name("golden").joinpath("tags.json").read_text())


def test_docstrings():
    assert doctest.testmod(tags) == doctest.TestResults(failed=0, attempted=3)


def test_golden_entities(golden):
    assert len(golden) == 120
    for case in golden:
        assert [[list(span) for span in tags.spans(row.split(" "))] for row in case["references"]] == case["spans"]


def test_golden_scores(golden):
    for case in golden:
        predictions, references = ([row.split(" ") for row in case[side]] for side in ("predictions", "references"))
        scores = tags.score(predictions, references)
        assert list(scores) == list(case["scores"])
        assert scores == pytest.approx(case["scores"], abs=1e-12)
        assert tags.token_accuracy(predictions, references) == pytest.approx(case["token_accuracy"], abs=1e-12)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("B-X I-X O B-Y", [("X", 0, 1), ("Y", 3, 3)]),
        ("O I-X I-X", [("X", 1, 2)]),
        ("B-X I-Y I-Y", [("X", 0, 0), ("Y", 1, 2)]),
        ("B-X B-X I-X", [("X", 0, 0), ("X", 1, 2)]),
        ("S-X I-X E-X E-X", [("X", 0, 0), ("X", 1, 2), ("X", 3, 3)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 1)]),
        ("B I- O I", [("_", 0, 1), ("_", 3, 3)]),
        ("", []),
    ],
)
def test_entities(row, found):
    assert tags.spans(row.split()) == found


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        (["O B-X I-X", "O"], "BIO"),
        (["B-X"], "BIO"),
        (["O I-X", "B-X I-X"], "BIO"),  # ill-formed in the first sentence
        (["I-X B-Y"], "BIO"),
        (["I-X O B-X"], "BIO"),
        (["I-X B-X", "O B-X"], "BIO"),
        (["I-X B-X I-X", "I-Y"], "IOB1"),
        (["I-X B-X B-X"], "IOB1"),
        (["I-X I-Y O", "O I-X"], "IO"),
        (["B-X E-X O"], "BIOES"),
        (["B-X", "S-X"], "BIOES"),
        (["I-X E-X E-X"], "BIOES"),
        (["B I O"], "BIO"),
        (["DT NN", "VBZ"], None),
        (["B-X I-X", "U-X"], None),
        (["B_X"], None),
        (["O O", ""], None),
        ([], None),
    ],
)
def test_recognition(rows, scheme):
    assert tags.recognize([row.split() for row in rows]) == scheme


@given(st.lists(entities(), min_size=1, max_size=4), st.sampled_from(sorted(LETTERS)))
def test_what_is_written_in_a_scheme_is_recognized_and_converted(rows, scheme):
    written = [write(found, size, scheme) for found, size in rows]
    recognized = tags.recognize(written)
    if not any(found for found, _ in rows):
        assert recognized is None
    elif scheme == "IOB1" and not any(tag.startswith("B") for row in written for tag in row):
        assert recognized == "IO"
    else:
        assert recognized == scheme
    for (found, size), row in zip(rows, written, strict=True):
        if scheme == "IO":
            found = merged(found)
        assert tags.spans(row) == found
        assert tags.convert(row, recognized or scheme) == write(found, size, "BIO")


@given(SENTENCE)
def test_conversion_keeps_the_entities_and_settles(row):
    converted = tags.convert(row, "BIOES")
    assert tags.spans(converted) == tags.spans(row)
    assert tags.convert(converted, "BIO") == converted
    assert tags.score([row], [converted]) == tags.score([converted], [converted])


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


def test_what_is_not_there_scores_0():
    assert tags.score([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert tags.score([["B-X"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert tags.score([["O"]], [["B-X"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "f1_X": 0.0}


def test_plain_tags_have_an_accuracy():
    assert tags.token_accuracy([["DT", "NN"], ["VB"]], [["DT", "VB"], ["VB"]]) == 2 / 3


@pytest.mark.parametrize("score", [tags.score, tags.token_accuracy])
@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (
            [["O"], ["O", "O"]],
            [["O"], ["O"]],
            "predicted tags, sentence 1 (from 0): got 2 tags; expected 1, as in the references. "
            "Fix: predict one tag for each token, also for those that a row had no room for.",
        ),
        (
            [["O"], ["O"]],
            [["O"]],
            "predicted tags: got 2 sentences; expected the 1 of the references, and at least one. "
            "Fix: predict each sentence of the file once, in order.",
        ),
        (
            [],
            [],
            "predicted tags: got 0 sentences; expected the 0 of the references, and at least one. "
            "Fix: predict each sentence of the file once, in order.",
        ),
    ],
)
def test_unaligned_tags(score, predictions, references, message):
    with pytest.raises(UserError) as error:
        score(predictions, references)
    assert str(error.value) == message


def test_no_tokens_have_no_accuracy():
    with pytest.raises(UserError) as error:
        tags.token_accuracy([[], []], [[], []])
    assert str(error.value) == (
        "scoring: got no tokens; expected at least one. Fix: check the file that is evaluated on."
    )


@pytest.mark.parametrize("tag", ["NN", "U-X", "B_X", "", "b-X", "-X", "O-X"])
def test_entities_of_other_tags(tag):
    with pytest.raises(UserError) as error:
        tags.spans(["O", tag])
    assert str(error.value) == (
        f"tag {tag!r}: got no tag of an entity; expected O, or B, I, E or S with a hyphen and a type, such as B-PER. "
        "Fix: convert the tags to BIO; plain tags, such as parts of speech, are scored by accuracy."
    )


def test_conversion_of_tags_of_another_scheme():
    with pytest.raises(UserError) as error:
        tags.convert(["I-X", "S-X"], "IOB1")
    assert str(error.value) == (
        "tag 'S-X': got a letter that the other tags do not use; expected tags of scheme IOB1: O and B-, I-. "
        "Fix: write all files in one scheme."
    )


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("wnut17/train", "BIO"), ("wnut17/dev", "BIO"), ("wikigold/train", "IO"), ("wikigold/dev", "IO")],
)
def test_real_sets_are_recognized(real_data, name, scheme):
    rows = conll(real_data / f"{name}.conll")
    assert tags.recognize(rows) == scheme
    converted = [tags.convert(row, scheme) for row in rows]
    assert tags.recognize(converted) == "BIO"
    assert set(tags.score(rows, converted).values()) == {1.0}
    # These files are well-formed.
    assert scheme != "BIO" or converted == rows
