"""The error analysis of a page: tables of predictions and the examples of the highest loss.

It reads `predictions.jsonl`, whose lines are those of `samples` with "loss", "tokens" and "digest".
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64

from bertjax.tools.reporting import projection, samples
from bertjax.tools.reporting.error_counts import (
    BINS,
    ClassScores,
    calibration,
    class_scores,
    confusion,
    scores_of,
    set_scores,
    span_errors,
)
from bertjax.tools.reporting.runs import ROWS, read_lines, read_object
from bertjax.tools.reporting.tables import line, number, row, share, table

FILE = "predictions.jsonl"
WORST = 20  # examples on a page
_CLASSES = 30  # of a confusion matrix
_PARTS = 5  # of the examples, by length
_THRESHOLDS = tuple(n / 10 for n in range(1, 10))
_OFTEN = (1, 2, 5, 20)  # the fewest occurrences of tokens that a row of their table stands for
_RANKS = (1, 2, 4, 11)  # the first rank that a row of their table stands for

Records = Sequence[Mapping[str, Any]]
Table = dict[str, Any]


def read(folder: Path) -> dict[str, Any] | None:
    """Returns the error analysis of a run's predictions; None if it has none.

    Raises:
      UserError: if a line is malformed.
    """
    path = folder / FILE
    records = list(read_lines(path, names=("kind", "loss"))) if path.exists() else []
    rows = folder / ROWS
    training = read_object(rows) if rows.exists() else {}
    return {**analysis(records, str(path), training), "file": FILE} if records else None


def analysis(records: Records, where: str, training: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Returns the tables and the worst examples of predictions, which are in the order of descending loss.

    Args:
      records: the predictions.
      where: their file, for messages.
      training: the counts of the prepared rows, with which the examples are compared.
    """
    kind = records[0]["kind"]
    worst = [
        {"cells": [number(record["loss"]), {"sample": samples.view(record, f"{where}, line {place}"), "value": None}]}
        for place, record in enumerate(records[:WORST], start=1)
        if record["loss"] is not None
    ]
    analyses = (*_TABLES[kind](records), *_by_length(records), *_compared(records, training))
    numbered = [{**one, "id": f"errors-{place}"} for place, one in enumerate(one for one in analyses if one["rows"])]
    return {
        "kind": kind,
        "count": len(records),
        "tables": numbered,
        "projection": projection.of_records(records),
        "worst": table(("loss", "example"), worst),
    }


def is_right(record: Mapping[str, Any]) -> bool | None:
    """Returns whether a prediction is right; None for numbers and texts, which are more or less wrong."""
    reference = record.get("reference")
    match record["kind"]:
        case "label" if "label" in record or "labels" in record:
            prediction = record["labels"] if "labels" in record else record["label"]
            return bool(prediction == reference)
        case "tags":
            return bool(record["tags"] == reference)
        case "answer":
            return record["loss"] == 0
        case "retrieval":
            return record["rank"] == 1
    return None


def _labels(records: Records) -> Iterator[Table]:
    """Yields the tables of classes, of numbers, or of choices, which differ between examples."""
    if "labels" in records[0]:
        yield from _label_sets(records)
    elif "probabilities" not in records[0]:
        yield _numbers(records)
    else:
        classes = list(records[0]["probabilities"])
        if all(record["probabilities"].keys() == set(classes) for record in records):
            yield from _classes(classes, [record["reference"] for record in records], [r["label"] for r in records])
        best = [record["probabilities"][record["label"]] for record in records]
        yield _calibrated(best, [bool(is_right(record)) for record in records])


def _classes(names: Sequence[str], gold: Sequence[str], predicted: Sequence[str]) -> Iterator[Table]:
    """Yields the scores of classes, and their confusion matrix or, for many classes, the most frequent confusions."""
    index = {name: place for place, name in enumerate(names)}
    counts = confusion([index[name] for name in gold], [index[name] for name in predicted], len(names))
    yield _scored(names, class_scores(counts), counts.sum(axis=1), counts.sum(axis=0))
    if len(names) <= _CLASSES:
        note = "Rows: the class of the data. Columns: the predicted class."
        yield table(("class", *names), _matrix(names, counts), title="Confusion matrix", note=note)
        return
    pairs = Counter(pair for pair in zip(gold, predicted, strict=True) if pair[0] != pair[1]).most_common(_CLASSES)
    rows = [row((first, second, f"{count:,}"), (None, None, count)) for (first, second), count in pairs]
    yield table(("class of the data", "predicted", "examples"), rows, title="Most frequent confusions")


def _scored(names: Sequence[str], scores: ClassScores, gold: np.ndarray, predicted: np.ndarray) -> Table:
    """Returns the scores of classes, with their numbers in the data and among the predictions."""
    rows = [
        line(name, *map(number, map(float, values)), number(int(n)), number(int(m)))
        for name, *values, n, m in zip(names, *scores, gold, predicted, strict=True)
    ]
    return table(("class", "precision", "recall", "F1", "in the data", "predicted"), rows, title="Classes")


def _matrix(names: Sequence[str], counts: Int64[np.ndarray, "C C"]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a confusion matrix. The shade of a cell is its share of the row."""
    for name, of_class in zip(names, counts.tolist(), strict=True):
        total = max(1, sum(of_class))
        yield line(name, *(number(count, shade=round(count / total, 3)) for count in of_class))


def _calibrated(probabilities: Sequence[float], are_right: Sequence[bool]) -> Table:
    result = calibration(probabilities, are_right)
    names = [f"{place / BINS:.2f} to {(place + 1) / BINS:.2f}" for place in range(BINS)]
    rows = [
        line(names[place], number(int(count)), share(confidence, 1), share(accuracy, 1), key=place)
        for place, (count, confidence, accuracy) in enumerate(zip(*result[:3], strict=True))
        if count
    ]
    note = f"Expected calibration error: {100 * result.error:.1f} % ({BINS} bins)."
    header = ("probability", "predictions", "mean probability", "right")
    return table(header, rows, title="Calibration", note=note)


def _label_sets(records: Records) -> Iterator[Table]:
    """Yields the scores of each class, and its F1 by threshold."""
    names = list(records[0]["probabilities"])
    gold = np.array([[name in record["reference"] for name in names] for record in records])
    chosen = np.array([[name in record["labels"] for name in names] for record in records])
    yield _scored(names, set_scores(gold, chosen), gold.sum(axis=0), chosen.sum(axis=0))
    probabilities = np.array([[record["probabilities"][name] for name in names] for record in records])
    curves = np.array([set_scores(gold, probabilities >= threshold).f1 for threshold in _THRESHOLDS]).T
    rows = [
        line(name, *(number(value, shade=round(value, 3)) for value in curve))
        for name, curve in zip(names, curves.tolist(), strict=True)
    ]
    yield table(("class", *map(str, _THRESHOLDS)), rows, title="F1 by threshold")


def _numbers(records: Records) -> Table:
    """Returns the mean of the predictions, and of their distance, by the value in the data."""
    gold = np.array([record["reference"] for record in records], np.float64)
    predicted = np.array([record["score"] for record in records], np.float64)
    distances = abs(predicted - gold)
    rows = [
        line(
            f"{gold[part].min():.3g} to {gold[part].max():.3g}",
            number(len(part)),
            *(number(float(values[part].mean())) for values in (gold, predicted, distances)),
            key=float(gold[part].min()),
        )
        for part in _parts(gold)
    ]
    header = ("value in the data", "examples", "mean", "mean prediction", "mean distance")
    return table(header, rows, title="Numbers")


def _tags(records: Records) -> Iterator[Table]:
    """Yields the scores of entities by type and the kinds of their errors; without entities, those of tags."""
    if "spans" not in records[0]:
        gold = list(itertools.chain.from_iterable(record["reference"] for record in records))
        predicted = list(itertools.chain.from_iterable(record["tags"] for record in records))
        yield from _classes(sorted({*gold, *predicted}), gold, predicted)
        return
    counts: dict[str, Counter[str]] = {}
    for record in records:
        for kind, error in span_errors(record["reference_spans"], record["spans"]):
            counts.setdefault(kind, Counter())[error] += 1
    rows = []
    for kind, of_kind in sorted(counts.items()):
        right = np.array(of_kind["right"])
        gold_count = sum(of_kind[name] for name in ("right", "type", "boundary", "missed"))
        scores = scores_of(right, np.array(of_kind["predicted"]), np.array(gold_count))
        errors = [number(of_kind[name]) for name in ("type", "boundary", "missed", "false")]
        totals = number(gold_count), number(of_kind["predicted"])
        rows.append(line(kind, *map(number, map(float, scores)), *totals, *errors))
    note = (
        "Of the entities of the data: those with the right characters and a wrong type, those that another prediction "
        "overlaps, and those that none does. False: predictions that overlap no entity."
    )
    header = ("type", "precision", "recall", "F1", "in the data", "predicted", "wrong type", "boundary")
    yield table((*header, "missed", "false"), rows, title="Entities", note=note)


def _answers(records: Records) -> Iterator[Table]:
    """Yields how the answers agree with those of the data, with the mean score against no answer."""
    groups: dict[str, list[float]] = {}
    for record in records:
        nulls = [] if record["null_score"] is None else [record["null_score"]]
        groups.setdefault(_agreement(record), []).extend(nulls)
    sizes = Counter(map(_agreement, records))
    means = {name: float(np.mean(scores)) if scores else None for name, scores in groups.items()}
    rows = [
        line(name, number(size), share(size, len(records)), number(means[name], 2))
        for name, size in sizes.most_common()
    ]
    note = "Null score: the score of no answer minus that of the best answer."
    yield table(("answer", "questions", "share", "mean null score"), rows, title="Answers", note=note)


def _agreement(record: Mapping[str, Any]) -> str:
    has_gold = any(record["reference"])
    if not record["answer"]:
        return "none, and there is one" if has_gold else "none, as in the data"
    if not has_gold:
        return "one, and there is none"
    if record["loss"] == 0:
        return "right"
    return "overlaps the right one" if record["loss"] < 1 else "wrong"


def _rankings(records: Records) -> Iterator[Table]:
    """Yields the rank of the first relevant text."""
    ranks = np.array([record["rank"] for record in records])
    sizes = {text: int(np.sum((ranks >= low) & (ranks < high))) for text, low, high in _bands(_RANKS)}
    sizes["not ranked"] = int(np.sum(ranks == 0))
    rows = [
        line(text, number(size), share(size, len(records)), key=place)
        for place, (text, size) in enumerate(sizes.items())
    ]
    yield table(("rank of the first relevant text", "queries", "share"), rows, title="Ranks")


def _texts(records: Records) -> Iterator[Table]:
    """Yields the distribution of the scores of texts, which are 100 minus their loss."""
    scores = np.array([100 - record["loss"] for record in records if record["loss"] is not None])
    counts = np.histogram(scores, bins=10, range=(0, 100))[0]
    rows = [
        line(f"{10 * place} to {10 * place + 10}", number(n), share(n, len(scores)), key=place)
        for place, n in enumerate(counts.tolist())
    ]
    metric = "chrF" if records[0]["kind"] == "translation" else "ROUGE-Lsum"
    yield table((metric, "texts", "share"), rows if len(scores) else [], title=f"{metric} by text")


def _masks(records: Records) -> Iterator[Table]:
    """Yields the loss of masked tokens by how often they are masked, and by position."""
    masks = [mask for record in records for mask in record["masks"]]
    often = Counter(mask["label"] for mask in masks)
    times = np.array([often[mask["label"]] for mask in masks])
    losses = np.array([mask["loss"] for mask in masks])
    are_right = np.array([mask["tokens"][0] == mask["label"] for mask in masks])
    parts = [(text, np.flatnonzero((times >= low) & (times < high))) for text, low, high in _bands(_OFTEN)]
    yield _losses("Masked tokens by frequency", "occurrences of the token", parts, losses, are_right)
    positions = np.array([mask["position"] for mask in masks])
    parts = [(f"{positions[part].min()} to {positions[part].max()}", part) for part in _parts(positions)]
    yield _losses("Masked tokens by position", "position", parts, losses, are_right)


def _bands(firsts: Sequence[int]) -> Iterator[tuple[str, int, float]]:
    """Yields the name, the first number and the end of each band of whole numbers. The last band has no end."""
    for low, high in itertools.pairwise(firsts):
        yield str(low) if high == low + 1 else f"{low} to {high - 1}", low, high
    yield f"{firsts[-1]} or more", firsts[-1], np.inf


def _losses(
    title: str, name: str, parts: Sequence[tuple[str, np.ndarray]], losses: np.ndarray, are_right: np.ndarray
) -> Table:
    """Returns the mean loss and the share of right predictions of each part of the examples."""
    has_right = bool(len(are_right))
    rows = []
    for place, (text, part) in enumerate((text, part) for text, part in parts if len(part)):
        right = [share(float(are_right[part].mean()), 1)] if has_right else []
        rows.append(line(text, number(len(part)), number(float(losses[part].mean())), *right, key=place))
    return table((name, "examples", "mean loss", *["right"] * has_right), rows, title=title)


def _by_length(records: Records) -> list[Table]:
    """Returns the table of the loss by length in tokens; none if lengths are equal or unknown."""
    scored = [record for record in records if record["loss"] is not None and "tokens" in record]
    lengths = np.array([record["tokens"] for record in scored])
    parts = [(f"{lengths[part].min()} to {lengths[part].max()}", part) for part in _parts(lengths)]
    losses = np.array([record["loss"] for record in scored])
    right = [is_right(record) for record in scored]
    are_right = np.array([] if None in right else right, bool)
    return [_losses("Length", "tokens", parts, losses, are_right)] if len(parts) > 1 else []


def _compared(records: Records, training: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the classes and the lengths of the rows of training beside those of validation."""
    classes = training.get("classes", {})
    if classes.get("train"):
        names = dict.fromkeys((*classes["train"], *classes.get("valid", ())))
        counts = [Counter(classes.get(split, {})) for split in ("train", "valid")]
        rows = [(name, *(of_split[name] for of_split in counts)) for name in names]
        yield _beside("Classes of the rows", "class", rows)
    lengths = training.get("lengths", {})
    tokens = [n for record in records if "tokens" in record for n in record.get("row_tokens", (record["tokens"],))]
    if lengths and tokens:
        ends = sorted(map(int, lengths))
        longer = [max(tokens)] if max(tokens) > ends[-1] else []
        rows = [
            (f"{low + 1} to {high}", lengths.get(str(high), 0), sum(low < length <= high for length in tokens))
            for low, high in itertools.pairwise((0, *ends, *longer))
        ]
        yield _beside("Lengths of the rows", "tokens", rows)


def _beside(title: str, name: str, counts: Sequence[tuple[str, int, int]]) -> Table:
    """Returns a table of the numbers of rows of training and validation, and their shares."""
    train, valid = (max(1, sum(column)) for column in list(zip(*counts, strict=True))[1:])
    rows = [
        line(text, number(n), share(n, train), number(m), share(m, valid), key=place)
        for place, (text, n, m) in enumerate(counts)
    ]
    return table((name, "training", "share", "validation", "share"), rows, title=title)


def _parts(values: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of about equal parts of values, in ascending order. Equal values are in one part."""
    if not len(values):
        return []
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _PARTS + 1)[1:], method="inverted_cdf"))
    places = np.searchsorted(edges, values)
    return [part for number_of_part in range(len(edges)) if len(part := np.flatnonzero(places == number_of_part))]


_TABLES: dict[str, Callable[[Records], Iterator[Table]]] = {
    "label": _labels,
    "tags": _tags,
    "answer": _answers,
    "retrieval": _rankings,
    "translation": _texts,
    "extract": _texts,
    "summary": _texts,
    "masks": _masks,
}
