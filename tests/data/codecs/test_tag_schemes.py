import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.codecs.tagging.tag_schemes import SCHEMES, recognize, spans, to_bio
from bertjax.errors import UserError


@st.composite
def entities(draw):
    """Draws the entities of a sentence, in order, as type, first and last token; and the sentence's length."""
    found, size = [], 0
    for gap, kind, length in draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("XY"), st.integers(1, 3)))):
        found.append((kind, size + gap, size + gap + length - 1))
        size += gap + length
    return found, size + draw(st.integers(0, 2))


def write(found, size, scheme):
    """Returns the tags of a sentence in a scheme, by the scheme's definition."""
    row = ["O"] * size
    before = None
    for kind, first, last in found:
        touches = before is not None and before == (kind, first - 1)
        row[first : last + 1] = [f"I-{kind}"] * (last - first + 1)
        if scheme != "IO" and (scheme != "IOB1" or touches):
            row[first] = f"B-{kind}"
        if scheme in ("BIOES", "BILOU"):
            end, single = scheme[3:] if scheme == "BIOES" else scheme[2::2]
            row[last] = f"{end if last > first else single}-{kind}"
        before = (kind, last)
    return row


def merged(found):
    """Returns the entities as IO can express them: adjacent entities of the same type are one."""
    result = []
    for kind, first, last in found:
        if result and result[-1][0] == kind and result[-1][2] == first - 1:
            result[-1] = (kind, result[-1][1], last)
        else:
            result.append((kind, first, last))
    return result


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("B-X I-Y I-Y", [("X", 0, 0), ("Y", 1, 2)]),
        ("S-X I-X E-X E-X", [("X", 0, 0), ("X", 1, 2), ("X", 3, 3)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 1)]),
        ("B I- O I", [("_", 0, 1), ("_", 3, 3)]),
        ("", []),
    ],
)
def test_entities(row, found):
    assert spans(row.split()) == found


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        (["O I-X", "B-X I-X"], "BIO"),  # ill-formed in the first sentence
        (["I-X B-Y"], "BIO"),
        (["I-X B-X", "O B-X"], "BIO"),
        (["I-X E-X E-X"], "BIOES"),
        (["B I O"], "BIO"),
        (["DT NN", "VBZ"], "plain"),
        (["B-X I-X", "N-X"], "plain"),
        ([], "plain"),
    ],
)
def test_recognition(rows, scheme):
    assert recognize([row.split() for row in rows]) == scheme


@given(st.lists(entities(), min_size=1, max_size=4), st.sampled_from(sorted(SCHEMES)))
def test_tags_written_in_a_scheme_are_detected_and_converted(rows, scheme):
    written = [write(found, size, scheme) for found, size in rows]
    recognized = recognize(written)
    if not any(found for found, _ in rows):
        assert recognized == "plain"
    elif scheme == "IOB1" and not any(tag.startswith("B") for row in written for tag in row):
        assert recognized == "IO"
    else:
        assert recognized == scheme
    for (found, size), row in zip(rows, written, strict=True):
        if scheme == "IO":
            found = merged(found)
        assert spans(row) == found
        assert to_bio(row) == write(found, size, "BIO")


@pytest.mark.parametrize("tag", ["NN", "N-X", "B_X", "", "b-X", "-X", "O-X"])
def test_entities_of_plain_tags_are_errors(tag):
    with pytest.raises(UserError, match=f"tag {tag!r}: got a tag that is not an entity tag; expected O, .* Fix: conv"):
        spans(["O", tag])
