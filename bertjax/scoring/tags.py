"""Metrics of tag sequences: entity-level F1 as in seqeval, and token accuracy."""

from collections import Counter
from collections.abc import Sequence

from bertjax.data.codecs.tagging.tag_schemes import spans
from bertjax.errors import UserError

Sentences = Sequence[Sequence[str]]


def score(predictions: Sentences, references: Sentences) -> dict[str, float]:
    """Returns precision, recall and F1 of entities over all sentences, as fractions.

    An entity is correct if its type and both boundaries are correct. The names are `precision`, `recall` and `f1`, and
    `f1_TYPE` for each type in the references. As in seqeval, precision is 0.0 without predicted entities, and recall is
    0.0 without reference entities.

    >>> score([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    {'precision': 0.5, 'recall': 1.0, 'f1': 0.6666666666666666, 'f1_PER': 1.0}

    Raises:
      UserError: if numbers or lengths of sentences differ, if there are no sentences, or if a tag is no chunk tag.
    """
    _check_aligned(predictions, references)
    predicted = Counter[str]()
    present = Counter[str]()
    right = Counter[str]()
    for ours, theirs in zip(predictions, references, strict=True):
        our_spans = set(spans(ours))
        their_spans = set(spans(theirs))
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
    """Returns the fraction of tokens with the correct tag, over all sentences. Tags need not be chunk tags.

    Raises:
      UserError: if numbers or lengths of sentences differ, or if there are no tokens.
    """
    _check_aligned(predictions, references)
    pairs = [pair for row in zip(predictions, references, strict=True) for pair in zip(*row, strict=True)]
    if not pairs:
        raise UserError("scoring", got="no tokens", expected="at least one", fix="check the evaluated file")
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0


def _check_aligned(predictions: Sentences, references: Sentences) -> None:
    if len(predictions) != len(references) or not references:
        expected = f"{len(references)} sentences, as in the references, and at least one"
        fix = "predict each sentence of the file once, in order"
        raise UserError("predicted tags", got=f"{len(predictions)} sentences", expected=expected, fix=fix)
    for i, (ours, theirs) in enumerate(zip(predictions, references, strict=True)):
        if len(ours) != len(theirs):
            raise UserError(
                f"predicted tags, sentence {i} (from 0)",
                got=f"{len(ours)} tags",
                expected=f"{len(theirs)}, as in the references",
                fix="predict one tag per token, including tokens that did not fit into a row",
            )
