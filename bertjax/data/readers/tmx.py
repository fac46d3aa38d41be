"""Reads translation memories (TMX 1.1 to 1.4b): a row of texts by language for each translation unit.

The parser is expat. It opens no other file: a DTD that the file names is not read, and a file that declares entities is
refused, so that no entity can expand.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from bertjax.data.readers import lines
from bertjax.data.readers.lines import RowError
from bertjax.errors import UserError

_CHUNK_BYTES = 2**16
# Elements in a segment whose content is markup of the original document. The text of other elements, such as <hi>, is
# part of the segment.
_CODES = ("bpt", "ept", "it", "ph", "ut")
_LANGUAGE = ("xml:lang", "lang")  # TMX 1.1 has the latter


class Languages(Mapping[str, str]):
    """The texts of a translation unit by language.

    A language is found in any case, and by its first subtags: "en" finds "en-US". An equal code comes first.
    """

    def __init__(self, texts: Mapping[str, str], where: str) -> None:
        self._texts = texts
        self._where = where

    def __getitem__(self, name: str) -> str:
        """Returns the text of a language. Raises RowError if several languages of the unit have the name."""
        codes = {code: _normalized(code) for code in self._texts}
        wanted = _normalized(name)
        matches = [code for code, normalized in codes.items() if normalized == wanted]
        matches = matches or [code for code, normalized in codes.items() if normalized.startswith(f"{wanted}-")]
        if not matches:
            raise KeyError(name)
        if len(matches) > 1:
            got = f"the languages {' and '.join(map(repr, matches))}"
            raise RowError(
                self._where, got, f"one text of the language {name!r}", "name one of them, or correct the unit"
            )
        return self._texts[matches[0]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class _Unit(NamedTuple):
    texts: list[tuple[str | None, str]]  # the language and the text of each variant
    where: str


def read_units(path: Path, limit: int) -> Iterator[tuple[Languages, str]]:
    """Returns an iterator over the texts of the translation units of a file, and their positions, "file:line".

    Args:
      path: the file, `.gz` or not, in UTF-8, UTF-16 or the encoding that its XML declaration names.
      limit: the maximum number of bytes between the ends of units, which are in memory.
    Raises:
      UserError: if the file cannot be read, is not valid XML, is no TMX, or declares entities.
      RowError: if a unit has no language or a language twice; the iterator can then continue.
    """
    return map(_checked, _units(path, limit))


def _checked(unit: _Unit) -> tuple[Languages, str]:
    texts: dict[str, str] = {}
    for language, text in unit.texts:
        if not language:
            raise RowError(unit.where, "a <tuv> without xml:lang", "the language of each text", "add it")
        if language in texts:
            got = f"two <tuv> of the language {language!r}"
            expected = "one text of each language"
            raise RowError(unit.where, got, expected, "delete one of them, or divide the unit")
        texts[language] = text
    return Languages(texts, unit.where), unit.where


def _units(path: Path, limit: int) -> Iterator[_Unit]:
    with lines.open_file(path, is_utf8=False) as stream:
        parser = _Parser(path)
        size = 0
        while chunk := stream.read(_CHUNK_BYTES):
            units = parser.feed(chunk)
            size = 0 if units else size + len(chunk)
            if size > limit:
                got = f"more than {limit:,} bytes without the end of a translation unit"
                raise UserError(str(path), got=got, expected="a TMX file of <tu> elements", fix="correct the file")
            yield from units
        yield from parser.feed(b"")


class _Parser:
    """Parses a file in chunks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_tmx = False
        self._done: list[_Unit] = []
        self._unit = _Unit([], "")
        self._language: str | None = None
        self._text: list[str] | None = None  # of the open segment
        self._codes = 0  # the number of open elements of _CODES
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._parser.EntityDeclHandler = self._refuse_entity
        self._parser.SkippedEntityHandler = self._refuse_entity

    def feed(self, chunk: bytes) -> list[_Unit]:
        """Returns the units that end in a chunk; b"" is the end of the file."""
        self._done = []
        try:
            self._parser.Parse(chunk, not chunk)
        except UserError:
            raise
        except (expat.ExpatError, ValueError, LookupError) as error:  # the last two for encodings
            raise self._error(f"invalid XML ({error})", "correct the file, or copy it again") from None
        return self._done

    def _where(self) -> str:
        return f"{self._path}:{self._parser.CurrentLineNumber}"

    def _error(self, got: str, fix: str) -> UserError:
        return UserError(self._where(), got=got, expected="a TMX file", fix=fix)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._is_tmx and name != "tmx":
            raise self._error(f"XML with the root <{name}>", "convert it to TMX or to a table")
        self._is_tmx = True
        if name == "tu":
            self._unit = _Unit([], self._where())
        elif name == "tuv":
            self._language = next(filter(None, map(attributes.get, _LANGUAGE)), None)
            self._unit.texts.append((self._language, ""))
        elif name == "seg":
            self._text = []
        self._codes += name in _CODES

    def _end(self, name: str) -> None:
        self._codes -= name in _CODES
        if name == "tu":
            self._done.append(self._unit)
        elif name == "seg":
            if self._unit.texts and self._text is not None:
                self._unit.texts[-1] = (self._language, "".join(self._text))
            self._text = None

    def _data(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise self._error(f"the entity {name!r}", "replace entities by their text")


def _normalized(code: str) -> str:
    return code.lower().replace("_", "-")
