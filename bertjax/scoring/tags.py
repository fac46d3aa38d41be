"""Metrics of tag sequences: entity-level F1 as in seqeval, KLUE's F1 of characters, and token accuracy."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bertjax.data.codecs.tagging.tag_schemes import Span, spans
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
    predicted, present, right = _counts(map(spans, predictions), map(spans, references))
    return {
        "precision": _ratio(right.total(), predicted.total()),
        "recall": _ratio(right.total(), present.total()),
        "f1": _ratio(2 * right.total(), predicted.total() + present.total()),
        **{f"f1_{kind}": _ratio(2 * right[kind], predicted[kind] + present[kind]) for kind in sorted(present)},
    }


def score_characters(predictions: Sentences, references: Sentences, labels: Sequence[str]) -> dict[str, float]:
    """Returns the two metrics of KLUE-NER (Park et al. 2021) over all sentences, as fractions.

    `entity_macro_f1` is the mean over types of the F1 of entities. An entity begins with B: an I that follows no tag of
    its type is ignored, as in seqeval's strict mode with IOB2, which `score` counts. `character_macro_f1` is the mean
    of the F1 of all labels, also of "O"; that of a label that does not occur is 1. KLUE's code also counts [CLS] and
    [SEP] of each sentence as characters with the tag "O".

    >>> score_characters([["B-PS", "O", "I-PS"]], [["B-PS", "O", "O"]], ["O", "B-PS", "I-PS"])
    {'entity_macro_f1': 1.0, 'character_macro_f1': 0.5555555555555555}

    Args:
      predictions: BIO tags of the characters of each sentence, without spaces.
      references: the correct BIO tags.
      labels: all tags.
    Raises:
      UserError: as `score`.
    """
    _check_aligned(predictions, references)
    strict = (
        [[span for span in spans(row) if row[span[1]][0] == "B"] for row in rows] for rows in (predictions, references)
    )
    predicted, present, right = _counts(*strict)
    entity_f1 = [_ratio(2 * right[kind], predicted[kind] + present[kind]) for kind in predicted | present]
    characters = ([[(tag, i, i) for i, tag in enumerate(row)] for row in rows] for rows in (predictions, references))
    predicted, present, right = _counts(*characters)
    totals = {label: predicted[label] + present[label] for label in labels}
    label_f1 = [2 * right[label] / total if total else 1.0 for label, total in totals.items()]
    means = [sum(values) / max(len(values), 1) for values in (entity_f1, label_f1)]
    return dict(zip(("entity_macro_f1", "character_macro_f1"), means, strict=True))


def _counts(predictions: Iterable[Sequence[Span]], references: Iterable[Sequence[Span]]) -> list[Counter[str]]:
    """Returns the numbers of predicted, of correct and of correctly predicted spans of each type."""
    counts = [Counter[str]() for _ in range(3)]
    for ours, theirs in zip(predictions, references, strict=True):
        for counter, members in zip(counts, (ours, theirs, set(ours) & set(theirs)), strict=True):
            counter.update(kind for kind, _, _ in members)
    return counts


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
