"""Page of extractive summaries: articles with sentences shaded by score and the selected ones marked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.tools.reporting import libraries
from bertjax.words import without_punctuation

_KEYS = ("id", "summary", "positions", "sentences", "scores", "refused")
_REASONS = {
    "threshold": "skipped: its score is too low",
    "word_budget": "skipped: the summary would be too long",
    "block_ngrams": "skipped: repeats “{ngram}” of sentence {other}",
}


def page(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the parts of a self-contained HTML document.

    Args:
      records: those of which `are_summaries` is true. "positions" are the indices of the selected
        sentences, in the order of the summary. "scores" has a number from 0 to 1, or None, for each of "sentences".
        "refused" has the "position" and "reason" of each skipped sentence, and the n-gram that it repeats. The record
        of a bad input has only "error".
    Raises:
      UserError: if Jinja is not installed.
    """
    template = libraries.template("samples/extract.html")
    yield libraries.template("summaries.html").render(style=libraries.source("page.css"))
    for record in records:
        sample = record if "error" in record else view(record)
        yield f"<section>\n{template.render(sample=sample)}\n</section>\n"
    yield "</body>\n</html>\n"


def are_summaries(record: Mapping[str, Any]) -> bool:
    """Returns whether a record is one that `--mode=predict` of `bertsum_ext` writes."""
    return all(key in record for key in _KEYS)


def view(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with `matched` and "scored": its sentences with CSS classes, scores and decisions.

    Sentences whose indices are in "oracle" have the class "oracle".
    """
    refused = {refusal["position"]: refusal for refusal in record["refused"]}
    places = {position: place for place, position in enumerate(record["positions"], 1)}
    scored = []
    for number, (text, score) in enumerate(zip(record["sentences"], record["scores"], strict=True)):
        flags = {
            "sentence": True,
            "oracle": number in record.get("oracle", ()),
            "unscored": score is None,
            "chosen": number in places,
            "refused": number in refused,
        }
        decision = f"in the summary, place {places[number]}" if number in places else ""
        if number in refused:
            decision = _reason(refused[number])
        kinds = [kind for kind, applies in flags.items() if applies]
        scored.append({"text": text, "score": score, "kinds": kinds, "place": places.get(number), "decision": decision})
    return {**record, **of_record(record), "scored": scored}


def of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sentences of a summary as `matched` does."""
    return matched(record["summary"], record.get("reference", ()), record.get("gains", ()))


def matched(texts: Sequence[str], references: Sequence[str], gains: Sequence[float] = ()) -> dict[str, Any]:
    """Returns "matched": the words of each text, with whether the references have each, and its gain or None.

    Case and punctuation do not count.
    """
    vocabulary = {word for text in references for word in _compared(text)}
    pairs = [[(word, _compared(word)) for word in text.split()] for text in texts]
    parts = [
        [{"text": word, "matched": bool(letters) and vocabulary.issuperset(letters)} for word, letters in of_text]
        for of_text in pairs
    ]
    padded = [*gains, *[None] * len(parts)]
    return {"matched": [{"words": words, "gain": gain} for words, gain in zip(parts, padded, strict=False)]}


def _compared(text: str) -> list[str]:
    return without_punctuation(text.casefold(), joins=True)


def _reason(refused: Mapping[str, Any]) -> str:
    other = refused["blocked_by"]
    return _REASONS[refused["reason"]].format(ngram=refused["ngram"], other="" if other is None else other + 1)
