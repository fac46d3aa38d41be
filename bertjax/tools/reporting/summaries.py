"""Page of extractive summaries: articles with sentences shaded by score and the selected ones marked."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertjax.tools.reporting import libraries

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
    """Returns a record with "scored": its sentences with CSS classes, scores and decisions, for the template.

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
    return {**record, "scored": scored}


def _reason(refused: Mapping[str, Any]) -> str:
    other = refused["blocked_by"]
    return _REASONS[refused["reason"]].format(ngram=refused["ngram"], other="" if other is None else other + 1)
