"""The embedded articles: docstrings of the standard library, each summarized by its own first line.

By PEP 257, a docstring starts with a summary line, followed by a blank line. The rest is the article. The article does
not contain the summary, so a model learns to select the closest sentences. Python 3.11 has about a thousand such
docstrings, most of them short. They serve as a demonstration; their metrics are not comparable to those of news.
"""

import functools
from typing import NamedTuple

from bertjax.data.readers import documentation
from bertjax.data.text import sentences

# Articles with fewer sentences leave no choice.
_MIN_SENTENCES = 3


class Summarized(NamedTuple):
    """A docstring with its summary."""

    name: str  # the file of its module, and its number among the docstrings of that file
    module: str
    sentences: tuple[str, ...]
    summary: str


@functools.cache
def docstrings() -> tuple[Summarized, ...]:
    """Returns the docstrings whose first line is prose, followed by a blank line and at least three sentences.

    The order is that of modules, then of the source. Duplicates are removed. No docstring contains its own summary.

    Raises:
      UserError: if this Python's standard library has no sources.
    """
    seen: dict[tuple[str, ...], Summarized] = {}
    for module, texts in documentation.docstrings():
        for number, text in enumerate(texts):
            summary, body = _parts(text)
            if summary and len(body) >= _MIN_SENTENCES and summary not in body:
                seen.setdefault(body, Summarized(f"{module}#{number}", module, body, summary))
    return tuple(seen.values())


def _parts(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns the prose of a docstring's first line ("" if no blank line follows), and the sentences of the rest."""
    first, _, rest = text.partition("\n")
    is_summary = rest and not rest.partition("\n")[0].strip()
    prose = documentation.paragraphs(first) if is_summary else []
    if not prose:
        return "", ()
    return prose[0], tuple(s for paragraph in documentation.paragraphs(rest) for s in sentences.split(paragraph))
