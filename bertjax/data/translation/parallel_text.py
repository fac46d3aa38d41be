"""Texts with their translations: two files aligned by line, or a table with two columns."""

import dataclasses
import itertools
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.config import Constrained
from bertjax.data.readers import lines, tables
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, OnBadRow, RowError
from bertjax.data.readers.tables import Row, text_of
from bertjax.data.splits import check_split, is_held_out
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# Of each split: the config keys that name its two sides.
_KEYS = {
    "train": ("source", "target"),
    "valid": ("valid_source", "valid_target"),
    "test": ("test_source", "test_target"),
}


@dataclasses.dataclass(frozen=True)
class ParallelTextConfig(Constrained, prefix="data"):
    """Which pairs to read.

    Either both sides are paths and globs separated by commas, of files aligned by line, `.gz` or not: the first of
    `source` goes with the first of `target`, and so on, and each may come several times. Or `target` is empty, and
    `source` is a table with two columns (see `tables.read_rows`), such as `tfds:wmt14_translate/de-en:train`.

    Attributes:
      source, target: what to train on.
      valid_source, valid_target: held-out pairs; empty to hold out some of those to train on.
      test_source, test_target: pairs to test on; empty for none.
      source_column, target_column: of tables; empty for aligned files. A table to predict on needs the first alone.
      header, separator: of tables, see `tables.read_rows`.
      valid_fraction: which fraction of the different source texts is held out if `valid_source` is empty. With several
        prefixes no pair is trained on whose target is such a text either: it may be a held-out pair turned around.
      source_prefix, target_prefix: texts put before each text of a side, with the space that is to follow: none, one,
        or one for each of the names that the commas separate. So one model learns several pairs of languages. If there
        are several, each text to translate has to begin with one of them; no translation is scored with one. Different
        ones of the targets take some of the sources, or ("",) where the texts themselves tell. A run in `init_from`
        gives those that it had, where neither is set; ("",) is none beside that.
      on_bad_row: "stop" at a bad pair, or "skip" and count it.
    """

    source: str
    target: str
    valid_source: str
    valid_target: str
    test_source: str
    test_target: str
    source_column: str
    target_column: str
    header: bool
    separator: str
    valid_fraction: float
    source_prefix: tuple[str, ...]
    target_prefix: tuple[str, ...]
    on_bad_row: OnBadRow

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = (self.source_column, self.target_column)
        if columns[1] and columns[0] in ("", columns[1]):
            raise self._bad_columns()
        for source, target in (_KEYS["valid"], _KEYS["test"]):
            if getattr(self, target) and not getattr(self, source):
                raise UserError(
                    f"config key data.{source}",
                    got=f"nothing, beside data.{target}={getattr(self, target)}",
                    expected="what the targets are translations of",
                    fix=f"set --config.data.{source}=FILE, or empty data.{target}",
                )

    def _bad_columns(self) -> UserError:
        return UserError(
            "config keys data.{source_column,target_column}",
            got=f"{self.source_column!r} and {self.target_column!r}",
            expected="two different columns of a table, or none for files aligned by line",
            fix="set both, or neither",
        )

    def check_columns(self) -> None:
        """Raises UserError unless there are columns for both sides of a table, or none; one does to predict on."""
        if bool(self.source_column) != bool(self.target_column):
            raise self._bad_columns()

    def parted_source(self, text: str, where: str) -> tuple[str, str]:
        """Returns the prefix of a source text and the rest. If all texts have the same prefix, it may be left out.

        Raises:
          RowError: there are several prefixes, and the text begins with none of them; with `where` it stands.
        """
        return _parted(text, self.source_prefix, "data.source_prefix", where)

    def parted_target(self, text: str, where: str) -> tuple[str, str]:
        """Returns the prefix of a target text and the rest, as `parted_source`."""
        return _parted(text, self.target_prefix, "data.target_prefix", where)


class Pair(NamedTuple):
    """A text and its translation: stripped and not empty, but for their prefixes."""

    source: str
    target: str
    where: str  # "file:line" (or the like) of both, for messages


class _Part(NamedTuple):
    """One name between the commas of both sides, and what goes before its texts."""

    source: str
    target: str
    source_prefix: str
    target_prefix: str


class ParallelText:
    """The pairs of one split, read anew each time."""

    def __init__(self, config: ParallelTextConfig, split: str, seed: int) -> None:
        """Args: which pairs; "train", "valid" or "test"; what draws those held out.

        Raises:
          UserError: sources that do not fit together, or that are not there.
        """
        self._config, self._split, self._seed = config, split, seed
        self._is_divided = split != "test" and not config.valid_source
        if self._is_divided:
            check_split(config.valid_source, config.valid_fraction)
        self._keys = _KEYS["train" if self._is_divided else split]
        self._source, self._target = (getattr(config, key) for key in self._keys)
        self._check_sides()
        self._parts = self._make_parts()
        self._files = [] if config.source_column else self._aligned_files()

    def pairs(self) -> Iterator[Pair]:
        """Yields the pairs, in order.

        Raises:
          UserError: a source that cannot be read; files of different numbers of lines, at the end of the shorter
            one; a bad pair; or no pair at all. Bad are, besides those of `tables.read_rows`, lines that are too
            long or not UTF-8, and sides that are empty.
        """
        bad_rows = BadRows(self._config.on_bad_row)
        count = 0
        for pair, part in self._all_pairs(bad_rows):
            if not self._is_divided or self._is_of_split(pair):
                count += 1
                yield Pair(part.source_prefix + pair.source, part.target_prefix + pair.target, pair.where)
        if not count:
            raise UserError(
                f"config key data.{self._keys[0]}={self._source}",
                got=f"no pairs for the split {self._split} ({bad_rows.count} bad ones left out)",
                expected="at least one",
                fix="check that the source is the one meant, give more pairs, or change data.valid_fraction; "
                "config.data.on_bad_row=stop tells of the first bad pair",
            )
        _log.info("read %s of %s: %d pairs, %d bad ones left out", self._split, self._source, count, bad_rows.count)

    def _is_of_split(self, pair: Pair) -> bool:
        """Decides by the source: all its translations are on one side, so that no held-out source is trained on."""
        held_out = partial(is_held_out, fraction=self._config.valid_fraction, seed=self._seed)
        is_valid, is_out = self._split == "valid", held_out(pair.source)
        if is_valid or is_out:
            return is_valid and is_out
        is_several = any(len({*prefixes}) > 1 for prefixes in (self._config.source_prefix, self._config.target_prefix))
        return not (is_several and held_out(pair.target))

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-able description of what is read, which tells nothing of its place and time."""
        sides = {key: getattr(self._config, key) for key in self._keys}
        read = ("source_column", "target_column", "header", "separator", "source_prefix", "target_prefix", "on_bad_row")
        return {
            "split": [self._split, self._config.valid_fraction, self._seed] if self._is_divided else [self._split],
            **{key: _fingerprint(side, f"data.{key}") for key, side in sides.items() if side},
            **{key: getattr(self._config, key) for key in read},
        }

    def _check_sides(self) -> None:
        """Raises UserError unless there is a table, or two sides."""
        self._config.check_columns()
        is_table = bool(self._config.source_column)
        names = " and ".join(f"data.{key}" for key in self._keys)
        if not self._source:
            fix = f"set --config.data.{self._keys[0]}=FILE"
            raise UserError(f"config key data.{self._keys[0]}", got="nothing", expected="pairs to read", fix=fix)
        if is_table == bool(self._target):
            raise UserError(
                f"config keys {names}",
                got=f"{self._source!r} and {self._target!r}, with the columns {self._config.source_column!r} and "
                f"{self._config.target_column!r}",
                expected="a table with data.source_column and data.target_column, or two files aligned by line",
                fix=f"empty data.{self._keys[1]} or the columns"
                if is_table
                else f"set data.{self._keys[1]}, or name the columns of the table: 0 and 1, with data.header=False, "
                "where its first row does not",
            )
        if self._source.startswith("tfds:") and not is_table:
            fix = "set data.source_column and data.target_column, for example to 'de' and 'en'"
            raise UserError(f"config key data.{self._keys[0]}", got=self._source, expected="its columns", fix=fix)

    def _make_parts(self) -> list[_Part]:
        sources, targets = _split_names(self._source), _split_names(self._target)
        if not self._config.source_column and len(sources) != len(targets):
            raise UserError(
                f"config keys data.{self._keys[0]} and data.{self._keys[1]}",
                got=f"{len(sources)} and {len(targets)} names separated by commas",
                expected="as many on both sides",
                fix="name the files of both sides in the same order",
            )
        targets = [""] * len(sources) if self._config.source_column else targets
        prefixes = [self._prefixes(key, len(sources)) for key in ("source_prefix", "target_prefix")]
        self._check_chosen()
        return [_Part(*values) for values in zip(sources, targets, *prefixes, strict=True)]

    def _prefixes(self, key: str, number: int) -> tuple[str, ...]:
        prefixes: tuple[str, ...] = getattr(self._config, key)
        if len(prefixes) not in (0, 1, number):
            raise UserError(
                f"config key data.{key}",
                got=f"{len(prefixes)} texts for {number} names in data.{self._keys[0]}",
                expected="none, one for all, or one for each name",
                fix="give as many as there are names, ('',) for none",
            )
        return prefixes if len(prefixes) == number else (prefixes or ("",)) * number

    def _check_chosen(self) -> None:
        """Raises UserError if nothing that is said of the sources tells which prefix a translation is to have."""
        if len(set(self._config.target_prefix)) > 1 and not self._config.source_prefix:
            raise UserError(
                "config key data.target_prefix",
                got=f"{len(self._config.target_prefix)} texts, and no data.source_prefix",
                expected="sources that say which of them their translation begins with",
                fix="set data.source_prefix too, with a text for each; or to ('',) where the sources differ anyway, as "
                "those of different languages do",
            )

    def _aligned_files(self) -> list[tuple[Path, Path, _Part]]:
        """The files of both sides that go together."""
        found = []
        for part in self._parts:
            sides = [lines.find_files(name, f"data.{key}") for key, name in zip(self._keys, part[:2], strict=True)]
            if len(sides[0]) != len(sides[1]):
                raise UserError(
                    f"config keys data.{self._keys[0]}={part.source} and data.{self._keys[1]}={part.target}",
                    got=f"{len(sides[0])} and {len(sides[1])} files",
                    expected="as many on both sides",
                    fix="correct the globs, or name the files one by one",
                )
            found += [(source, target, part) for source, target in zip(*sides, strict=True)]
        seen: set[tuple[Path, Path]] = set()
        for source, target, _ in found:
            if (source, target) in seen:
                fix = "remove the repetition, or the glob that also matches it"
                what = f"config key data.{self._keys[0]}={self._source}"
                raise UserError(what, got=f"{source} with {target} twice", expected="each pair of files once", fix=fix)
            seen.add((source, target))
        return found

    def _all_pairs(self, bad_rows: BadRows) -> Iterator[tuple[Pair, _Part]]:
        """Yields the pairs without their prefixes."""
        config, key = self._config, f"data.{self._keys[0]}"
        for source, target, part in self._files:
            for pair in bad_rows.sift(map(_aligned_pair, _aligned(source, target))):
                yield pair, part
        for part in self._parts if config.source_column else ():
            rows = tables.read_rows(part.source, key, config.header, config.separator, bad_rows)
            for pair in bad_rows.sift(map(partial(_table_pair, config=config), rows)):
                yield pair, part


def pair_of_line(line: str, where: str) -> Pair:
    """Returns the source and the target in a line, between which a tab stands. Raises RowError for another line."""
    texts = [text.strip() for text in line.split("\t")]
    if len(texts) != 2 or not all(texts):
        fix = "write SOURCE, a tab, TARGET; or leave out decoding.method=forced to translate"
        raise RowError(where, line[:80], "a text and its target, with a tab between them", fix)
    return Pair(texts[0], texts[1], where)


def _parted(text: str, prefixes: tuple[str, ...], key: str, where: str) -> tuple[str, str]:
    begins = [prefix for prefix in prefixes if f"{text} ".startswith(prefix)]  # a text may have lost the last space
    if begins:
        prefix = max(begins, key=len)
        return prefix, text[len(prefix) :]
    several = sorted(set(prefixes))
    if len(several) > 1:
        expected = f"one that begins with a prefix of {key}: {', '.join(map(repr, several))}"
        raise RowError(where, f"{text[:40]!r}, a text without a prefix", expected, "put the prefix before the text")
    return (several[0] if several else ""), text


def _split_names(source: str) -> list[str]:
    return [source] if source.startswith("tfds:") else [name.strip() for name in source.split(",")]


def _fingerprint(source: str, key: str) -> list[Any]:
    """Of the names one by one, as a file may come twice."""
    return [tables.fingerprint(name, key) for name in _split_names(source)]


def _aligned(source: Path, target: Path) -> Iterator[tuple[Line, Line]]:
    """Yields the lines of two files; raises UserError at the end of one, if it is not that of the other."""
    sides = [lines.read_lines(path, MAX_LINE_BYTES) for path in (source, target)]
    for count, (one, other) in enumerate(itertools.zip_longest(*sides)):
        if one is None or other is None:
            extra = other if one is None else one
            longer = count + 1 + sum(1 for _ in sides[one is None])
            numbers = (count, longer) if one is None else (longer, count)
            raise UserError(
                f"{source} and {target}",
                got=f"{numbers[0]:,} and {numbers[1]:,} lines; the first without a partner is {extra.where}",
                expected="as many lines in both, each the translation of the other's",
                fix="find where they part, and correct the files",
            )
        yield one, other


def _aligned_pair(sides: tuple[Line, Line]) -> Pair:
    one, other = sides
    texts = [lines.decode(line).strip() for line in sides]
    if not all(texts):
        empty, partner = (other, one) if texts[0] else (one, other)
        expected = f"a text, the translation of {partner.where}"
        raise RowError(empty.where, "a line without text", expected, "complete or delete both lines")
    return Pair(texts[0], texts[1], f"{one.where} and {other.where}")


def _table_pair(row: Row, config: ParallelTextConfig) -> Pair:
    texts = [text_of(row, getattr(config, key), f"data.{key}") for key in ("source_column", "target_column")]
    return Pair(texts[0], texts[1], row.where)
