"""Summaries as a page: each article with its sentences shaded by their scores, and the chosen ones marked."""

import html
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError

_KEYS = ("id", "summary", "positions", "sentences", "scores", "refused")
_REASONS = {
    "threshold": "scores too low",
    "word_budget": "would be too many words",
    "block_ngrams": "repeats “{ngram}” of sentence {other}",
}
_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Summaries</title>
<style>
:root { --shade: 210, 120, 0 }
body { font: 1rem/1.6 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1.1rem; margin-top: 3rem; overflow-wrap: anywhere }
blockquote { margin: 1rem 0; padding-left: 1rem; border-left: .25rem solid rgb(var(--shade)) }
.sentence { background: rgba(var(--shade), var(--score)); border-radius: .2rem; padding: .1rem .15rem }
.chosen { outline: .12rem solid rgb(var(--shade)); outline-offset: -.06rem }
.refused { text-decoration: underline dotted }
.unscored { opacity: .6 }
sup { font-variant-numeric: tabular-nums }
ul { font-size: .9rem }
</style>
<h1>Summaries</h1>
<p>The stronger a sentence's shade, the higher its score. Those of the summary are framed and numbered; those passed
over are underlined. Pale ones were not scored.</p>
"""


def page(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the parts of an HTML document that needs nothing else.

    Args:
      records: of articles, as `--mode=predict` of `bertsum_ext` writes them: with the numbers of sentences from 0 in
        "positions", in the order of the summary; a score of 0 to 1 or None for each of "sentences"; and for each of
        those "refused" its "position", "reason", and what it repeats. Of bad inputs there is an "error" alone.
    Raises:
      UserError: records of something else.
    """
    records = iter(records)
    first = list(itertools.islice(records, 1))  # what is wrong is told before anything is written
    for record in first:
        _check(record)
    yield _HEAD
    for record in itertools.chain(first, records):
        if "error" in record:
            yield f"<section>\n<p>{html.escape(record['error'])}</p>\n</section>\n"
        else:
            yield article(record)
    yield "</html>\n"


def _check(record: Mapping[str, Any]) -> None:
    if "error" not in record and any(key not in record for key in _KEYS):
        raise UserError(
            "--format=html",
            got="records of " + ", ".join(record),
            expected="those of articles whose sentences are scored",
            fix="leave out --format, or set it to jsonl",
        )


def article(record: Mapping[str, Any]) -> str:
    """A part of a page: the summary, and the article's sentences with their scores; see `page`.

    Sentences whose numbers are in "oracle", if it is there, are of the class "oracle".
    """
    refused = {each["position"]: each for each in record["refused"]}
    sentences = [
        _sentence(number, sentence, score, record, refused)
        for number, (sentence, score) in enumerate(zip(record["sentences"], record["scores"], strict=True))
    ]
    parts = [
        f'<section>\n<h2 dir="auto">{html.escape(str(record["id"]))}</h2>',
        f'<blockquote dir="auto">{html.escape(" ".join(record["summary"]))}</blockquote>',
        '<p dir="auto">' + "\n".join(sentences) + "</p>",
    ]
    if refused:
        items = [f"<li>Sentence {number + 1} {html.escape(_reason(each))}.</li>" for number, each in refused.items()]
        parts.append("<ul>\n" + "\n".join(items) + "\n</ul>")
    if record.get("reference"):
        reference = html.escape(" ".join(record["reference"]))
        parts.append(f'<details><summary>Reference</summary><p dir="auto">{reference}</p></details>')
    return "\n".join(parts) + "\n</section>\n"


def _sentence(
    number: int,
    sentence: str,
    score: float | None,
    record: Mapping[str, Any],
    refused: Mapping[int, Mapping[str, Any]],
) -> str:
    kinds, mark, title = ["sentence"], "", f"sentence {number + 1}"
    chosen: Sequence[int] = record["positions"]
    if number in record.get("oracle", ()):
        kinds.append("oracle")
    title += ", not scored" if score is None else f", score {score:.3f}"
    if score is None:
        kinds.append("unscored")
    if number in chosen:
        kinds.append("chosen")
        mark = f"<sup>{list(chosen).index(number) + 1}</sup>"
    elif number in refused:
        kinds.append("refused")
        title += ", " + _reason(refused[number])
    return (
        f'<span class="{" ".join(kinds)}" style="--score: {0.6 * (score or 0):.3f}" title="{html.escape(title)}">'
        f"{html.escape(sentence)}{mark}</span>"
    )


def _reason(refused: Mapping[str, Any]) -> str:
    other = refused["blocked_by"]
    return _REASONS[refused["reason"]].format(ngram=refused["ngram"], other="" if other is None else other + 1)
