"""Detects schemes of entity tags, converts tags to BIO, and finds the entities of a sentence.

A chunk tag is "O", or one of the letters B, I, E, S, L and U followed by a hyphen and the type of the entity. L and U
of BILOU are E and S of BIOES: the last word of an entity, and its only word. An entity without a type ("B", "B-") has
type "_". All other tags, such as parts of speech, are plain.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from bertjax.errors import UserError

Span = tuple[str, int, int]  # type, first token, last token

# The letters of each scheme.
SCHEMES = {"BIO": "BI", "IOB1": "BI", "IO": "I", "BIOES": "BIES", "BILOU": "BILU"}
PLAIN = "plain"  # tags of single words

_CHUNK_TAG = re.compile(r"([BIESLU])(?:-(.*))?", re.DOTALL)
_OUTSIDE = ("O", "_")


class Detector:
    """Detects the scheme of the tags of a whole file.

    Attributes:
      tags: the distinct tags so far.
    """

    def __init__(self) -> None:
        self.tags = set[str]()
        self._b_only_divides = True

    def add(self, tags: Sequence[str]) -> None:
        """Adds the tags of a sentence."""
        self.tags.update(tags)
        self._b_only_divides = self._b_only_divides and are_chunk_tags(tags) and _b_only_divides(tags)

    @property
    def scheme(self) -> str:
        """The scheme of the sentences so far.

        - "BILOU": there is an L or a U.
        - "BIOES": there is an E or an S. IOE1 and IOE2, which have E but no S, are also reported as BIOES.
        - "IO": there is no B. It may be IOB1 without adjacent entities of the same type; both then have the same
          meaning.
        - "IOB1": each B directly follows an entity of the same type, that is, B only divides entities.
        - "BIO", also called IOB2: all other chunk tags. An I may follow no entity of its type, which is an error in
          BIO; the B that does not divide shows that the scheme is not IOB1.
        - "plain": some tag is not a chunk tag, or there is only "O".
        """
        chunk_tags = self.tags - {"O"}
        if not chunk_tags or not are_chunk_tags(chunk_tags):
            return PLAIN
        letters = {tag[0] for tag in chunk_tags}
        if letters & {"L", "U"}:
            return "BILOU"
        if letters & {"E", "S"}:
            return "BIOES"
        if "B" not in letters:
            return "IO"
        return "IOB1" if self._b_only_divides else "BIO"


def recognize(sentences: Iterable[Sequence[str]]) -> str:
    """Returns the scheme of the tags of a whole file; see `Detector.scheme`."""
    detector = Detector()
    for tags in sentences:
        detector.add(tags)
    return detector.scheme


def are_chunk_tags(tags: Iterable[str]) -> bool:
    """Returns whether all tags are chunk tags."""
    return all(tag == "O" or _CHUNK_TAG.fullmatch(tag) for tag in tags)


def to_bio(tags: Sequence[str]) -> list[str]:
    """Returns the tags of a sentence in BIO, with the same entities.

    >>> to_bio(["I-PER", "I-PER", "B-PER", "O"])
    ['B-PER', 'I-PER', 'B-PER', 'O']

    Args:
      tags: chunk tags of any scheme; ill-formed sequences are read as in `spans`.
    Raises:
      UserError: if a tag is not a chunk tag.
    """
    converted = ["O"] * len(tags)
    for kind, first, last in spans(tags):
        converted[first : last + 1] = [f"B-{kind}"] + [f"I-{kind}"] * (last - first)
    return converted


def continued(tag: str) -> str:
    """Returns the tag in BIO of the next character of the same token: I of the same type after B, else the same tag."""
    return f"I{tag[1:]}" if tag.startswith("B-") else tag


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the entities of a sentence in order: type, first token, last token.

    The rules are those of conlleval and of seqeval's default mode, which accept any sequence: a tag continues the
    entity before it if it is an I, E or L of the same type and directly follows a B or I; any other tag except "O"
    starts an entity. So the result does not depend on which of the `SCHEMES` is used.

    >>> spans(["I-PER", "I-LOC", "E-LOC", "I-LOC", "O"])
    [('PER', 0, 0), ('LOC', 1, 2), ('LOC', 3, 3)]

    Raises:
      UserError: if a tag is not a chunk tag.
    """
    entities: list[Span] = []
    previous = _OUTSIDE
    for i, tag in enumerate(tags):
        letter, kind = _parse(tag)
        if letter in "IEL" and previous in (("B", kind), ("I", kind)):
            entities[-1] = (kind, entities[-1][1], i)
        elif letter != "O":
            entities.append((kind, i, i))
        previous = letter, kind
    return entities


def _parse(tag: str) -> tuple[str, str]:
    """Returns the letter and the type; the type is "_" if the tag has none."""
    if tag == "O":
        return _OUTSIDE
    match = _CHUNK_TAG.fullmatch(tag)
    if match is None:
        got = "a tag that is not an entity tag"
        expected = "O, or B, I, E, S, L or U with a hyphen and a type, such as B-PER"
        fix = "convert the tags to BIO; plain tags, such as parts of speech, are scored by accuracy"
        raise UserError(f"tag {tag!r}", got=got, expected=expected, fix=fix)
    return match[1], match[2] or "_"


def _b_only_divides(tags: Sequence[str]) -> bool:
    parsed = [_parse(tag) for tag in ("O", *tags)]
    return all(tag[0] != "B" or (before[0] != "O" and before[1] == tag[1]) for before, tag in pairwise(parsed))
