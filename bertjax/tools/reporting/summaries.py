"""Pages of summaries: selected sentences in their articles, or generated summaries with the words that they copy."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.tools.reporting import libraries
from bertjax.words import without_punctuation

_KEYS = {
    "extract": ("id", "summary", "positions", "sentences", "scores", "refused"),
    "summary": ("id", "summary", "article", "score"),
    "translation": ("source", "translation", "score"),
}
_LONG = 60  # words
_REASONS = {
    "threshold": "skipped: its score is too low",
    "word_budget": "skipped: the summary would be too long",
    "block_ngrams": "skipped: repeats “{ngram}” of sentence {other}",
}


def page(records: Iterable[Mapping[str, Any]], kind: str) -> Iterator[str]:
    """Yields the parts of a self-contained HTML document.

    Args:
      records: those of which `kind_of` is `kind`. Of kind "extract", "positions" are the indices of the selected
        sentences, in the order of the summary. "scores" has a number from 0 to 1, or None, for each of "sentences".
        "refused" has the "position" and "reason" of each skipped sentence, and the n-gram that it repeats. The record
        of a bad input has only "error".
    Raises:
      UserError: if Jinja is not installed.
    """
    template = libraries.template(f"samples/{kind}.html")
    yield libraries.template("summaries.html").render(style=libraries.source("page.css"), kind=kind)
    for record in records:
        if "error" in record:
            content = libraries.template("samples/error.html").render(sample=record)
        else:
            content = template.render(sample=view(record) if kind == "extract" else written(record))
        yield f"<section>\n{content}\n</section>\n"
    yield "</body>\n</html>\n"


def kind_of(record: Mapping[str, Any]) -> str:
    """Returns the kind of a record of `--mode=predict` that a page shows in a section of its own; "" for others.

    "extract" is one of `bertsum_ext`, "summary" of `bertsum_abs`, and "translation" of an encoder-decoder if the source
    has more than 60 words.
    """
    kind = next((kind for kind, keys in _KEYS.items() if all(key in record for key in keys)), "")
    is_short = kind == "translation" and len(record["source"].split()) <= _LONG
    return "" if is_short else kind


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
    words = matched(record["summary"], record.get("reference", ()), record.get("gains", ()))
    return {**record, **words, "scored": scored}


def written(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record of a generated summary or translation with `matched` and the percentage of copied words."""
    texts = record["summary"] if "summary" in record else [record["translation"]]
    source = " ".join(record["article"]) if "article" in record else record["source"]
    reference = record.get("reference", ())
    references = [reference] if isinstance(reference, str) else reference
    shown = matched(texts, references, record.get("gains", ()), source)
    words = list(itertools.chain.from_iterable(sentence["words"] for sentence in shown["matched"]))
    share = 100 * sum(word["copied"] for word in words) / max(1, len(words))
    return {**record, **shown, "copied": share}


def matched(
    texts: Sequence[str], references: Sequence[str], gains: Sequence[float] = (), source: str = ""
) -> dict[str, Any]:
    """Returns "matched": the words of each text, with whether the references have each, and its gain or None.

    Words are "copied" if they are part of two or more words in a row that are also in a row in the source. Case and
    punctuation do not count.
    """
    vocabulary = {word for text in references for word in _compared(text)}
    pairs_of_source = set(itertools.pairwise(_compared(source)))
    parts = [_words(text, vocabulary, pairs_of_source) for text in texts]
    padded = [*gains, *[None] * len(parts)]
    return {"matched": [{"words": words, "gain": gain} for words, gain in zip(parts, padded, strict=False)]}


def _words(text: str, vocabulary: set[str], pairs_of_source: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Returns the words of a text with "matched" and "copied"; see `matched`."""
    compared = [(word, _compared(word)) for word in text.split()]
    is_pair = [pair in pairs_of_source for pair in itertools.pairwise(itertools.chain(*(part for _, part in compared)))]
    are_copied = iter([left or right for left, right in zip([False, *is_pair], [*is_pair, False], strict=True)])
    words = []
    for word, letters in compared:
        copied = [next(are_copied) for _ in letters]
        is_matched = bool(letters) and vocabulary.issuperset(letters)
        words.append({"text": word, "matched": is_matched, "copied": bool(copied) and all(copied)})
    return words


def _compared(text: str) -> list[str]:
    return without_punctuation(text.casefold(), joins=True)


def _reason(refused: Mapping[str, Any]) -> str:
    other = refused["blocked_by"]
    return _REASONS[refused["reason"]].format(ngram=refused["ngram"], other="" if other is None else other + 1)
