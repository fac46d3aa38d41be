"""Scores of tag sequences: of entities as seqeval's, and of single tokens."""

from collections import Counter
from collections.abc import Sequence

from bertjax.data.fine_tuning.tag_schemes import spans
from bertjax.errors import UserError

Sentences = Sequence[Sequence[str]]


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
