"""Reads the embedded corpus: CPython's own English documentation, from the sources of its standard library.

The corpus is about two megabytes of prose in two parts: the language reference that `help()` shows
(`pydoc_data/topics.py`, one document per topic) and the docstrings of the standard library (one document per module).
Sources are parsed, never imported. The text depends on the Python version, so reported metrics name the version.
"""

import ast
import hashlib
import platform
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.errors import UserError

_TOPICS = "pydoc_data/topics.py"
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

# A paragraph is prose if it has at least this many words, this fraction of plain words, and this fraction of letters
# among its visible characters. The values were chosen by reading paragraphs near the thresholds.
_MIN_WORDS = 3
_MIN_PLAIN_WORDS = 0.65
_MIN_LETTERS = 0.75

_RULE = re.compile(r"([=\-~^*#+\"_|.`])\1{2,}")
_TABLE = re.compile(r"[|+].*[|+]|[=\-]{2,}( +[=\-]{2,})+")
_ITEM = re.compile(r"[*+\-•] +\S|\(?\d{1,2}[.)] +\S|[:@]\w+.*?:\s|[\w.*]+(\([^)]*\))? +-- ")
_PLAIN_WORD = re.compile(r"[^\W\d_]+(['’\-/][^\W\d_]+)*")
_WORD_EDGES = "\"'“”‘’`*()[]{}<>,.;:!?…"


def documents() -> Iterator[tuple[str, list[str]]]:
    """Yields (where, paragraphs): first the topics, then the modules, both sorted by name.

    A document may have no paragraphs. Each paragraph is one line of prose: wrapped lines are joined; doctests,
    literal blocks, code, grammar, tables and headings are omitted.

    Raises:
      UserError: if this Python's standard library has no sources.
    """
    for name, text in _topics():
        yield f"{_TOPICS}:{name}", paragraphs(text)
    for name, texts in docstrings():
        yield name, [paragraph for text in texts for paragraph in paragraphs(text)]


def docstrings() -> Iterator[tuple[str, list[str]]]:
    """Yields (file, docstrings) for each module of the standard library. Docstrings are dedented, in source order.

    Tests, installed packages and files that do not parse are skipped.

    Raises:
      UserError: if this Python's standard library has no sources.
    """
    for name, path in _sources():
        module = _parse(path.read_bytes())
        if module is not None:
            yield name, _docstrings(module)


def fingerprint() -> dict[str, Any]:
    """Returns what identifies the corpus: the Python version, and the SHA-256 of all sources.

    Raises:
      UserError: if this Python's standard library has no sources.
    """
    digest = hashlib.sha256()
    for name, path in _sources():
        digest.update(f"{name}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return {"kind": "documentation", "python": platform.python_version(), "sha256": digest.hexdigest()}


def paragraphs(text: str) -> list[str]:
    """Returns the prose of a dedented docstring or help topic, one line per paragraph.

    >>> paragraphs("Return the\\nsum::\\n\\n    total = sum([1, 2])\\n\\n>>> sum([3])\\n3")
    ['Return the sum:']
    """
    prose: list[str] = []
    lines: list[str] = []  # the lines of the current paragraph
    literal_above: int | None = None  # lines indented more than this belong to a literal block
    skipping = False  # in a doctest or a table, until the next blank line
    for line in [*text.expandtabs().splitlines(), ""]:
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if not content:
            skipping = False
            _flush(lines, prose)
            continue
        if skipping or (literal_above is not None and indent > literal_above):
            continue
        literal_above = None
        if _RULE.fullmatch(content):
            del lines[-1:]  # the heading that the rule underlines
        elif content.startswith(">>>") or _TABLE.fullmatch(content):
            skipping = True
        else:
            if lines and (_ITEM.match(content) or _leaves_item(lines, indent)):
                _flush(lines, prose)
            lines.append(line.rstrip())
            if content.endswith("::"):
                literal_above = _indent(lines[0])
                _flush(lines, prose)
    return prose


def _flush(lines: list[str], prose: list[str]) -> None:
    """Adds the paragraph in `lines` to `prose` if it is prose, and clears `lines`."""
    paragraph = ""
    for line in (" ".join(line.split()) for line in lines):
        # A word wrapped at its hyphen ("quote-" "delimited") is joined without a space.
        hyphenated = re.search(r"\w-$", paragraph) and line[0].isalpha()
        paragraph += line if not paragraph or hyphenated else f" {line}"
    if paragraph.endswith("::"):
        paragraph = paragraph[:-1].replace(" :", "")
    if _is_prose(paragraph) and _parse(textwrap.dedent("\n".join(lines))) is None:
        prose.append(paragraph)
    lines.clear()


def _leaves_item(lines: list[str], indent: int) -> bool:
    """Returns whether a line at `indent` ends an item: an indented bullet, or a term with its text."""
    first = _indent(lines[0])
    last = _indent(lines[-1])
    return indent <= first < last or (indent < first and _ITEM.match(lines[0].strip()) is not None)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_prose(paragraph: str) -> bool:
    words = paragraph.split()
    if len(words) < _MIN_WORDS or "::=" in paragraph:
        return False
    plain = sum(_PLAIN_WORD.fullmatch(word.strip(_WORD_EDGES)) is not None for word in words)
    letters = sum(character.isalpha() for word in words for character in word)
    visible = sum(map(len, words))
    return plain >= _MIN_PLAIN_WORDS * len(words) and letters >= _MIN_LETTERS * visible


def _library() -> Path:
    """Returns the folder of the standard library's sources."""
    library = Path(sysconfig.get_paths()["stdlib"])
    if not (library / _TOPICS).is_file():
        raise UserError(
            "config key data.source=documentation",
            got=f"a Python whose standard library, {library}, has no {_TOPICS}",
            expected="the sources of the standard library, as CPython installs them",
            fix="use a Python whose standard library has sources, or set config.data.source to your own files",
        )
    return library


def _sources() -> Iterator[tuple[str, Path]]:
    """Yields the sources, sorted: (path relative to the library, path)."""
    library = _library()
    relative = sorted(path.relative_to(library).as_posix() for path in library.rglob("*.py"))
    for name in relative:
        if _SKIPPED_FOLDERS.isdisjoint(name.split("/")):
            yield name, library / name


def _topics() -> Iterator[tuple[str, str]]:
    """Yields (topic, text), sorted, from the assignment `topics = {...}`."""
    module = _parse((_library() / _TOPICS).read_bytes())
    assert module is not None, "pydoc_data/topics.py does not parse"
    assignments = (node for node in module.body if isinstance(node, ast.Assign))
    yield from sorted(ast.literal_eval(next(assignments).value).items())


def _docstrings(module: ast.Module) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(module) if isinstance(node, documented)]
    # ast.walk goes level by level. The module comes first and has no line.
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def _parse(source: str | bytes) -> ast.Module | None:
    """Returns the syntax tree, or None if `source` is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old sources, and prose parsed as code
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
