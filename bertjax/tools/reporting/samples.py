"""Reads the samples of a run, `samples.jsonl` in its folder, in the form that the page shows.

A line is an example or a matrix, with its "kind". `_KEYS` lists the other keys of each kind. Any example may have
"attention". Tokens are in BERT's notation, whatever the tokenizer: "##" before a piece that continues a word, [CLS] and
[SEP]. An array is an object with "shape" and "data": one byte per number, from "low" to "high", in base64.
"""

import base64
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.tools.reporting import summaries
from bertjax.tools.reporting.runs import read_lines

FILE = "samples.jsonl"
_KEYS = {
    "masks": ("words", "masks"),
    "label": ("text", "reference"),
    "tags": ("words", "tags", "reference"),
    "answer": ("question", "context", "answer", "start", "end", "reference"),
    "retrieval": ("text", "found", "reference"),
    "translation": ("source", "translation", "reference", "score"),
    "extract": ("id", "summary", "positions", "sentences", "scores", "refused", "oracle"),
    "summary": ("id", "summary", "reference", "article", "score"),
    "matrix": ("title", "caption", "values"),
}
_CONTINUES, _SPECIAL = "##", ("[CLS]", "[SEP]")
_BARS = 5  # of the most probable classes, beside those that are predicted or right
_TITLE = 60  # characters of an example's name


class Shown(NamedTuple):
    """The samples of a run.

    Attributes:
      checkpoint: the checkpoint that made the predictions.
      examples: the examples, in the form that the template of their kind reads.
      attention: for each example with attention, its `title`, and its words and weights by kind of attention.
      matrices: the matrices, with `title`, `caption` and `values`.
    """

    checkpoint: str
    examples: Sequence[Mapping[str, Any]]
    attention: Sequence[Mapping[str, Any]]
    matrices: Sequence[Mapping[str, Any]]


def read(folder: Path) -> Shown:
    """Reads the samples of a run; empty if it has none.

    Raises:
      UserError: if a line is malformed.
    """
    path = folder / FILE
    records = list(read_lines(path, names=("kind", "checkpoint"))) if path.exists() else []
    views = [view(record, f"{path}, line {number}") for number, record in enumerate(records, start=1)]
    examples = [record for record in views if record["kind"] != "matrix"]
    attention = [{"title": _title(record), "kinds": record["attention"]} for record in records if "attention" in record]
    checkpoint = records[0]["checkpoint"] if records else ""
    return Shown(checkpoint, examples, attention, [record for record in records if record["kind"] == "matrix"])


def view(record: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Returns a record in the form that the template of its kind reads. Raises UserError if it is malformed."""
    _check(record, where)
    return _VIEWS[record["kind"]](record)


def _check(record: Mapping[str, Any], where: str) -> None:
    """Raises UserError for a malformed record."""
    kind, fix = record["kind"], "delete the file and run --mode=report, which writes it again"
    if kind not in _KEYS:
        raise UserError(where, got=f"kind {kind!r}", expected="one of " + ", ".join(_KEYS), fix=fix)
    missing = [key for key in _KEYS[kind] if key not in record]
    if missing:
        raise UserError(
            where, got=f"a sample of kind {kind!r} without {missing[0]!r}", expected="all keys of the kind", fix=fix
        )
    arrays = [record["values"]] if kind == "matrix" else [k["weights"] for k in record.get("attention", {}).values()]
    for array in arrays:
        size = 1
        for length in array["shape"]:
            size *= length
        if len(base64.b64decode(array["data"])) != size:
            raise UserError(where, got="a truncated array", expected=f"{size} numbers", fix=fix)


def _title(record: Mapping[str, Any]) -> str:
    """Returns the title of an example: the beginning of its text."""
    text = record.get("source") or record.get("text") or record.get("question")
    words = record.get("words") or record.get("sentences") or record.get("article") or ()
    text = text or _joined(word for word in words if word not in _SPECIAL)
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def _joined(pieces: Iterable[str]) -> str:
    """Joins word pieces to text."""
    return " ".join(pieces).replace(f" {_CONTINUES}", "")


def _masks(record: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the words with the predictions at masks. Pieces of a word are shown without a space."""
    masks = {mask["position"]: _mask(mask, record["words"]) for mask in record["masks"]}
    words = [
        {
            "text": word.removeprefix(_CONTINUES),
            # A random word may replace a piece.
            "glued": (masks[place]["label"] if place in masks else word).startswith(_CONTINUES),
            "special": word in _SPECIAL,
            "mask": masks.get(place),
        }
        for place, word in enumerate(record["words"])
    ]
    probability, is_next = record.get("is_next_probability"), record.get("is_next")
    next_sentence = ""
    if probability is not None and is_next is not None:
        next_sentence = f"Next sentence: probability {probability:.2f}, label {'yes' if is_next else 'no'}."
    return {**record, "words": words, "masks": list(masks.values()), "is_next": next_sentence}


def _mask(mask: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Adds the most probable token and the label of a mask, without the prefix of continuation pieces."""
    best, label = (token.removeprefix(_CONTINUES) for token in (mask["tokens"][0], mask["label"]))
    is_right = mask["tokens"][0] == mask["label"]
    seen = words[mask["position"]]
    return {**mask, "best": best, "right": label, "is_right": is_right, "seen": seen, "hover": _likeliest(mask)}


def _likeliest(mask: Mapping[str, Any]) -> str:
    pairs = zip(mask["tokens"], mask["probabilities"], strict=True)
    return ", ".join(f"{token} {100 * probability:.0f} %" for token, probability in pairs)


def _label(record: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the largest probabilities as bars, in descending order. A multi-label record has lists of labels."""
    ranked = sorted(record.get("probabilities", {}).items(), key=lambda pair: -pair[1])
    predicted, right = record.get("labels", [record.get("label")]), record["reference"]
    sets = {"predicted": set(predicted), "right": set(right if isinstance(right, list) else [right])}
    marks = [{name: label in members for name, members in sets.items()} for label, _ in ranked]
    bars = [
        {"label": label, "percent": round(100 * p, 1), **mark}
        for place, ((label, p), mark) in enumerate(zip(ranked, marks, strict=True))
        if place < _BARS or any(mark.values())
    ]
    return {**record, "bars": bars}


def _tags(record: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the words with their tags or, for entities, the text in parts with predicted and correct types."""
    if "spans" not in record:
        return {**record, "tagged": list(zip(record["words"], record["tags"], record["reference"], strict=True))}
    spans = {"predicted": record["spans"], "right": record["reference_spans"]}
    bounds = {edge for of_kind in spans.values() for _, first, last in of_kind for edge in (first, last + 1)}
    edges = sorted({0, len(record["words"]), *bounds})
    starts = [0, *record["start"][1:], len(record["text"])]
    parts = []
    for start, end in itertools.pairwise(edges):
        kinds = {
            name: next((kind for kind, first, last in of_kind if first <= start and end <= last + 1), "")
            for name, of_kind in spans.items()
        }
        text = record["text"][starts[start] : starts[end]]
        parts.append({"text": text.rstrip(), "space": text[len(text.rstrip()) :], **kinds})
    return {**record, "parts": parts}


def _answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the context in parts, with the predicted and the correct answer marked."""
    context, spans = record["context"], list(_spans(record))
    edges = sorted({0, len(context), *(edge for _, start, end in spans for edge in (start, end))})
    parts = []
    for start, end in itertools.pairwise(edges):
        covering = {name for name, low, high in spans if low <= start and end <= high}
        parts.append({"text": context[start:end], "chosen": "chosen" in covering, "right": "right" in covering})
    return {**record, "parts": parts}


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    if record["start"] is not None:
        yield "chosen", record["start"], record["end"]
    for text, start in zip(record["reference"], record.get("reference_starts", ()), strict=False):
        if start is not None:
            yield "right", start, start + len(text)


_VIEWS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "masks": _masks,
    "label": _label,
    "tags": _tags,
    "answer": _answer,
    "retrieval": dict,
    "translation": summaries.written,
    "extract": summaries.view,
    "summary": summaries.written,
    "matrix": dict,
}


def as_script(value: Any) -> str:
    """Returns JSON for a script element. It contains no "<", which could end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
