"""The embedded articles: docstrings of the standard library, each summarized by its own first line.

PEP 257 has it that a docstring begins with a line that sums it up, and that a blank line follows. The rest is the
article. The summary is not a part of it, so a model learns which sentences come closest. Python 3.11 has about a
thousand, most of them short: a demonstration, whose figures say nothing about news.
"""

import functools
from typing import NamedTuple

from bertjax.data.readers import documentation
from bertjax.data.text import sentences

# Fewer leave nothing to choose from.
_MIN_SENTENCES = 3


class Summarized(NamedTuple):
    """A docstring."""

    name: str  # its module's file, and its number among the docstrings there
    module: str
    sentences: tuple[str, ...]
    summary: str


@functools.cache
def docstrings() -> tuple[Summarized, ...]:
    """Returns the docstrings whose first line is prose and stands alone, and whose rest has three sentences or more.

    In the order of modules, and in them as in the source. The same text comes once, and none has its summary in it.

    Raises:
      UserError: this Python's standard library has no sources.
    """
    seen: dict[tuple[str, ...], Summarized] = {}
    for module, texts in documentation.docstrings():
        for number, text in enumerate(texts):
            summary, body = _parts(text)
            if summary and len(body) >= _MIN_SENTENCES and summary not in body:
                seen.setdefault(body, Summarized(f"{module}#{number}", module, body, summary))
    return tuple(seen.values())


def _parts(text: str) -> tuple[str, tuple[str, ...]]:
    """The prose of a docstring's first line, "" if it does not stand alone, and the sentences of the others."""
    first, _, rest = text.partition("\n")
    is_summary = rest and not rest.partition("\n")[0].strip()
    prose = documentation.paragraphs(first) if is_summary else []
    if not prose:
        return "", ()
    return prose[0], tuple(s for paragraph in documentation.paragraphs(rest) for s in sentences.split(paragraph))
