"""Morphemes of Korean text, by the library kiwipiepy, which the extra `korean` installs."""

import functools
import importlib.metadata
import itertools
import logging
import re
from typing import TYPE_CHECKING

from bertjax.errors import UserError
from bertjax.progress import log_once

if TYPE_CHECKING:
    from kiwipiepy import Kiwi

HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]")


def split_morphemes(text: str) -> list[str]:
    """Splits each word of a text at the boundaries of its morphemes. All visible characters are kept.

    A contraction of several morphemes in one syllable is one part, so the parts are substrings of the text. Words
    without Hangul are returned whole, except for punctuation.

    Raises:
      UserError: if kiwipiepy is not installed.
    """
    if not HANGUL.search(text):
        return text.split()
    bounds = {0, len(text)}
    covered = 0  # the end of the morphemes so far, since those of a contraction overlap
    for token in analyzer().tokenize(text):
        if token.start >= covered:
            bounds.add(token.start)
        covered = max(covered, token.start + token.len)
    parts = (text[start:stop].split() for start, stop in itertools.pairwise(sorted(bounds)))
    return list(itertools.chain.from_iterable(parts))


def analyzer_version() -> str:
    """Returns the name and version of the analyzer, such as "kiwipiepy 0.24.1". Raises UserError if missing."""
    try:
        return f"kiwipiepy {importlib.metadata.version('kiwipiepy')}"
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "Korean text",
            got="no package kiwipiepy",
            expected="the package, which splits Korean text into morphemes and sentences",
            fix="pip install -e '.[korean]'",
        ) from None


def check_version(version: str) -> None:
    """Warns if the installed analyzer is not the `version` with which a vocabulary was trained."""
    if version != analyzer_version():
        log_once(
            f"the vocabulary was trained with {version}, and {analyzer_version()} may split words differently: "
            f"pip install {version.replace(' ', '==')}",
            logging.WARNING,
        )


@functools.cache
def analyzer() -> "Kiwi":
    """Returns the morphological analyzer: 450 MB of memory, three seconds to load. Raises UserError if missing."""
    analyzer_version()
    from kiwipiepy import Kiwi

    return Kiwi(num_workers=1)
