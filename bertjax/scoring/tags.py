"""Tag sequences: the scheme they are written in, the entities in them, and entity-level scores as seqeval's.

A chunk tag is "O", or one of the letters B, I, E and S with the type of the entity after a hyphen; an entity without
a type ("B", "B-") has type "_". All other tags, such as parts of speech, are plain.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from bertjax.errors import UserError

Sentences = Sequence[Sequence[str]]
Span = tuple[str, int, int]  # type, first token, last token

# For each scheme, the letters that may occur in it.
SCHEMES = {"BIO": "BI", "IOB1": "BI", "IO": "I", "BIOES": "BIES"}

_CHUNK_TAG = re.compile(r"([BIES])(?:-(.*))?", re.DOTALL)
_OUTSIDE = ("O", "_")


def recognize(sentences: Sentences) -> str | None:
    """Returns the scheme that the tags of a whole file are written in; None for plain tags.

    - "BIOES": there is an E or an S. IOE1 and IOE2, which have E but no S, count as this too.
    - "IO": no B at all. This may be IOB1 in which no two entities of a type touch; both then mean the same.
    - "IOB1": each B directly follows an entity of the same type, so that B only ever divides.
    - "BIO", also called IOB2: any other. It may have an I that follows no entity of its type, which is an error in
      BIO: some B that does not divide shows that IOB1 was not meant.

    None if any tag is no chunk tag (so BILOU, with L and U, is not known), and if there is nothing but "O".
    """
    chunk_tags = {tag for tags in sentences for tag in tags} - {"O"}
    if not chunk_tags or not all(map(_CHUNK_TAG.fullmatch, chunk_tags)):
        return None
    letters = {tag[0] for tag in chunk_tags}
    if letters & {"E", "S"}:
        return "BIOES"
    if "B" not in letters:
        return "IO"
    return "IOB1" if all(map(_b_only_divides, sentences)) else "BIO"


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Returns the tags of a sentence in BIO, with the same entities.

    >>> convert(["I-PER", "I-PER", "B-PER", "O"], "IOB1")
    ['B-PER', 'I-PER', 'B-PER', 'O']

    Args:
      tags: chunk tags; ill-formed ones are read as `spans` reads them.
      scheme: the one that they are written in, out of `SCHEMES`.
    Raises:
      UserError: a tag that the scheme does not have.
    """
    for tag in tags:
        if _parse(tag)[0] not in SCHEMES[scheme] + "O":
            raise UserError(
                f"tag {tag!r}",
                got="a letter that the other tags do not use",
                expected=f"tags of scheme {scheme}: O and " + ", ".join(f"{letter}-" for letter in SCHEMES[scheme]),
                fix="write all files in one scheme",
            )
    converted = ["O"] * len(tags)
    for kind, first, last in spans(tags):
        converted[first : last + 1] = [f"B-{kind}"] + [f"I-{kind}"] * (last - first)
    return converted


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the entities of a sentence in order: type, first token, last token.

    The rules are those of conlleval and of seqeval's default mode, which make the best of any sequence: a tag goes on
    with the entity before it if it is an I or E of the same type and directly follows a B or I; any other tag but "O"
    begins an entity. So it makes no difference which of the `SCHEMES` is used.

    >>> spans(["I-PER", "I-LOC", "E-LOC", "I-LOC", "O"])
    [('PER', 0, 0), ('LOC', 1, 2), ('LOC', 3, 3)]

    Raises:
      UserError: a tag that is no chunk tag.
    """
    found: list[Span] = []
    previous = _OUTSIDE
    for i, tag in enumerate(tags):
        letter, kind = _parse(tag)
        if letter in "IE" and previous in (("B", kind), ("I", kind)):
            found[-1] = (kind, found[-1][1], i)
        elif letter != "O":
            found.append((kind, i, i))
        previous = letter, kind
    return found


def score(predictions: Sentences, references: Sentences) -> dict[str, float]:
    """Returns precision, recall and F1 of entities, as fractions, over all sentences together.

    An entity counts as found if its type and both ends are right. The names are `precision`, `recall` and `f1`, and
    `f1_TYPE` for each type in the references. As in seqeval, what would be 0/0 is 0.0: precision if nothing is
    predicted, recall if there is nothing to find.

    >>> score([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    {'precision': 0.5, 'recall': 1.0, 'f1': 0.6666666666666666, 'f1_PER': 1.0}

    Raises:
      UserError: sentences that differ in number or length, none at all, or a tag that is no chunk tag.
    """
    _check_aligned(predictions, references)
    predicted, present, right = Counter[str](), Counter[str](), Counter[str]()
    for ours, theirs in zip(predictions, references, strict=True):
        our_spans, their_spans = set(spans(ours)), set(spans(theirs))
        predicted.update(kind for kind, _, _ in our_spans)
        present.update(kind for kind, _, _ in their_spans)
        right.update(kind for kind, _, _ in our_spans & their_spans)
    return {
        "precision": _ratio(right.total(), predicted.total()),
        "recall": _ratio(right.total(), present.total()),
        "f1": _ratio(2 * right.total(), predicted.total() + present.total()),
        **{f"f1_{kind}": _ratio(2 * right[kind], predicted[kind] + present[kind]) for kind in sorted(present)},
    }


def token_accuracy(predictions: Sentences, references: Sentences) -> float:
    """Returns the fraction of tokens whose tag is right, over all sentences together; tags may be plain.

    Raises:
      UserError: sentences that differ in number or length, or no tokens at all.
    """
    _check_aligned(predictions, references)
    pairs = [pair for row in zip(predictions, references, strict=True) for pair in zip(*row, strict=True)]
    if not pairs:
        raise UserError("scoring", got="no tokens", expected="at least one", fix="check the file that is evaluated on")
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def _parse(tag: str) -> tuple[str, str]:
    """Returns the letter and the type, which is "_" where the tag has none."""
    if tag == "O":
        return _OUTSIDE
    match = _CHUNK_TAG.fullmatch(tag)
    if match is None:
        raise UserError(
            f"tag {tag!r}",
            got="no tag of an entity",
            expected="O, or B, I, E or S with a hyphen and a type, such as B-PER",
            fix="convert the tags to BIO; plain tags, such as parts of speech, are scored by accuracy",
        )
    return match[1], match[2] or "_"


def _b_only_divides(tags: Sequence[str]) -> bool:
    parsed = [_parse(tag) for tag in ("O", *tags)]
    return all(tag[0] != "B" or (before[0] != "O" and before[1] == tag[1]) for before, tag in pairwise(parsed))


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0


def _check_aligned(predictions: Sentences, references: Sentences) -> None:
    if len(predictions) != len(references) or not references:
        raise UserError(
            "predicted tags",
            got=f"{len(predictions)} sentences",
            expected=f"the {len(references)} of the references, and at least one",
            fix="predict each sentence of the file once, in order",
        )
    for i, (ours, theirs) in enumerate(zip(predictions, references, strict=True)):
        if len(ours) != len(theirs):
            raise UserError(
                f"predicted tags, sentence {i} (from 0)",
                got=f"{len(ours)} tags",
                expected=f"{len(theirs)}, as in the references",
                fix="predict one tag for each token, also for those that a row had no room for",
            )
