"""What a run shows of itself, `samples.jsonl` in its folder, as the page lays it out.

A line is an example or a picture, with its "kind"; what else each kind has is in `_KEYS`. Arrays are objects of their
"shape" and of "data": a byte for each number, from "low" to "high", in base64. Any example may have "attention".
"""

import base64
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.reporting import summaries
from bertjax.reporting.runs import read_lines

FILE = "samples.jsonl"
_KEYS = {
    "masks": ("words", "masks"),
    "label": ("text", "reference"),
    "tags": ("words", "tags", "reference"),
    "answer": ("question", "context", "answer", "start", "end", "reference"),
    "translation": ("source", "translation", "reference", "score"),
    "extract": ("id", "summary", "positions", "sentences", "scores", "refused", "oracle"),
    "summary": ("id", "summary", "reference", "article", "score"),
    "matrix": ("title", "caption", "values"),
}
_CONTINUES, _SPECIAL = "##", ("[CLS]", "[SEP]")
_TITLE = 60  # characters of an example's name


class Shown(NamedTuple):
    """What there is to show.

    Attributes:
      checkpoint: which of the run's it was made with.
      examples: for the template of each one's kind.
      attention: of examples: `title`, and by kind of attention the words with their weights.
      matrices: `title`, `caption`, `values`.
    """

    checkpoint: str
    examples: Sequence[Mapping[str, Any]]
    attention: Sequence[Mapping[str, Any]]
    matrices: Sequence[Mapping[str, Any]]


def read(folder: Path) -> Shown:
    """Reads what a run shows; nothing if it has no such file.

    Raises:
      UserError: a line that was not written by a run.
    """
    path = folder / FILE
    records = list(read_lines(path, names=("kind", "checkpoint"))) if path.exists() else []
    for number, record in enumerate(records, start=1):
        _check(record, f"{path}, line {number}")
    examples = [_VIEWS[record["kind"]](record) for record in records if record["kind"] != "matrix"]
    attention = [{"title": _title(record), "kinds": record["attention"]} for record in records if "attention" in record]
    checkpoint = records[0]["checkpoint"] if records else ""
    return Shown(checkpoint, examples, attention, [record for record in records if record["kind"] == "matrix"])


def _check(record: Mapping[str, Any], where: str) -> None:
    """Raises UserError for a record that cannot be shown."""
    kind, fix = record["kind"], "delete the file, and --mode=report makes it again"
    if kind not in _KEYS:
        raise UserError(where, got=f"kind {kind!r}", expected="one of " + ", ".join(_KEYS), fix=fix)
    missing = [key for key in _KEYS[kind] if key not in record]
    if missing:
        raise UserError(where, got=f"no {missing[0]!r}", expected="a sample of kind " + kind, fix=fix)
    arrays = [record["values"]] if kind == "matrix" else [k["weights"] for k in record.get("attention", {}).values()]
    for array in arrays:
        size = 1
        for length in array["shape"]:
            size *= length
        if len(base64.b64decode(array["data"])) != size:
            raise UserError(where, got="an array cut in half", expected=f"{size} numbers", fix=fix)


def _title(record: Mapping[str, Any]) -> str:
    """The name of an example in a list."""
    text = record.get("source") or record.get("text") or record.get("question")
    words = record.get("words") or record.get("sentences") or record.get("article") or ()
    text = text or _joined(word for word in words if word not in _SPECIAL)
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def _joined(pieces: Iterable[str]) -> str:
    """Word pieces as text."""
    return " ".join(pieces).replace(f" {_CONTINUES}", "")


def _masks(record: Mapping[str, Any]) -> dict[str, Any]:
    """Words with the predictions at masks; pieces of a word stand together."""
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
    told = ""
    if probability is not None and is_next is not None:
        told = f"Next sentence: probability {probability:.2f}, label {'yes' if is_next else 'no'}."
    return {**record, "words": words, "masks": list(masks.values()), "is_next": told}


def _mask(mask: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A mask with the best token and the label without the mark of a continued word."""
    best, label = (token.removeprefix(_CONTINUES) for token in (mask["tokens"][0], mask["label"]))
    is_right = mask["tokens"][0] == mask["label"]
    seen = words[mask["position"]]
    return {**mask, "best": best, "right": label, "is_right": is_right, "seen": seen, "hover": _likeliest(mask)}


def _likeliest(mask: Mapping[str, Any]) -> str:
    pairs = zip(mask["tokens"], mask["probabilities"], strict=True)
    return ", ".join(f"{token} {100 * probability:.0f} %" for token, probability in pairs)


def _label(record: Mapping[str, Any]) -> dict[str, Any]:
    """Probabilities as bars, the likeliest first."""
    each = sorted(record.get("probabilities", {}).items(), key=lambda pair: -pair[1])
    return {**record, "bars": [{"label": label, "percent": round(100 * p, 1)} for label, p in each]}


def _tags(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "tagged": list(zip(record["words"], record["tags"], record["reference"], strict=True))}


def _answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """The context in parts: what was chosen, what is right."""
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
    "translation": dict,
    "extract": summaries.view,
    "summary": dict,
}


def as_script(value: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
