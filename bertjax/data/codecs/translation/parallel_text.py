"""Reads texts with their translations: two files aligned by line, or a table with two columns."""

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.config import Constrained, always
from bertjax.data.readers import lines, tables
from bertjax.data.readers.kinds import find_files
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, OnBadRow, RowError
from bertjax.data.readers.tables import Row, text_of, value_of
from bertjax.data.splits import check_split, is_held_out
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# For each split, the config keys of its two sides.
_KEYS = {
    "train": ("source", "target"),
    "valid": ("valid_source", "valid_target"),
    "test": ("test_source", "test_target"),
}


@dataclasses.dataclass(frozen=True)
class ParallelTextConfig(Constrained, prefix="data"):
    """The pairs to read.

    There are two forms. Either both sides are paths and globs separated by commas, of files aligned by line, `.gz` or
    not: the first name of `source` is aligned with the first of `target`, and so on. A name may occur several times.
    Or `target` is empty and `source` is a table with two columns (see `tables.read_rows`), such as
    `tfds:wmt14_translate/de-en:train`, or a translation memory (`.tmx`), whose columns are languages.

    Attributes:
      source, target: the training pairs.
      valid_source: the validation data; "" to split them off the training data.
      valid_target: the translations of `valid_source`, or several references, as in `test_target`.
      test_source: the test data; "" for none.
      test_target: the translations of `test_source`, or several references, as files aligned by line, such as
        `a.de,b.de`, or a column with lists of texts. The loss is that of the first.
      source_column, target_column: the columns of tables; "" for aligned files. Prediction needs only the first.
      header: whether the first row of a TSV or CSV table has the names of the columns; if not, they are "0", "1", ...
      separator: the separator of the fields of a line; "" to infer it from the file name.
      valid_fraction: the fraction that is split off if `valid_source` is empty. Equal texts, docstrings of one module,
        and both directions of a translation are in the same split.
      source_prefix: texts put before each source, including the following space: none, one, or one for each name
        between commas, which trains one model on several language pairs. With several, each text to translate must
        begin with one of them. Default: those of the run in `init_from`; ("",) for none.
      target_prefix: texts put before each target, as `source_prefix`; scored translations have no prefix. Different
        ones require `source_prefix`, which may be ("",) if the source texts show the target language.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    source: str = always("dates")
    target: str = always("")
    valid_source: str = always("")
    valid_target: str = always("")
    test_source: str = always("")
    test_target: str = always("")
    source_column: str = always("")
    target_column: str = always("")
    header: bool = always(True)
    separator: str = always("")
    valid_fraction: float = always(0.01)
    source_prefix: tuple[str, ...] = always(())
    target_prefix: tuple[str, ...] = always(())
    on_bad_row: OnBadRow = always("stop")

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = (self.source_column, self.target_column)
        if columns[1] and columns[0] in ("", columns[1]):
            raise self._bad_columns()
        for source, target in (_KEYS["valid"], _KEYS["test"]):
            ok = getattr(self, source) or not getattr(self, target)
            got = f"nothing, but data.{target}"
            fix = f"set --config.data.{source}=FILE, or set data.{target} to ''"
            got = f"{got}={getattr(self, target)}"
            self.check(ok, source, "the sources of the targets", got=got, fix=fix)

    def _bad_columns(self) -> UserError:
        return UserError(
            "config keys data.{source_column,target_column}",
            got=f"{self.source_column!r} and {self.target_column!r}",
            expected="two different columns of a table, or none for files aligned by line",
            fix="set both or neither",
        )

    def check_columns(self) -> None:
        """Raises UserError unless both columns are set or neither. Not called for prediction, which needs only one."""
        if bool(self.source_column) != bool(self.target_column):
            raise self._bad_columns()

    def split_source_prefix(self, text: str, where: str) -> tuple[str, str]:
        """Returns the prefix of a source text, and the rest. If all texts have the same prefix, it may be missing.

        Raises:
          RowError: if there are several prefixes and the text begins with none of them; `where` is its position.
        """
        return _split_prefix(text, self.source_prefix, "data.source_prefix", where)

    def split_target_prefix(self, text: str, where: str) -> tuple[str, str]:
        """Returns the prefix of a target text, and the rest; see `split_source_prefix`."""
        return _split_prefix(text, self.target_prefix, "data.target_prefix", where)


class Pair(NamedTuple):
    """A text and its translation. Both are stripped and not empty, except for their prefixes."""

    source: str
    target: str
    where: str  # the position of both for messages, such as "file:line"
    references: tuple[str, ...] = ()  # further translations, for scoring only, without prefixes


class _Part(NamedTuple):
    """A name between the commas of each side, the prefixes of its texts, and the names of further references."""

    source: str
    target: str
    source_prefix: str
    target_prefix: str
    references: tuple[str, ...] = ()


class ParallelText:
    """The pairs of one split. Each iteration reads them again."""

    def __init__(self, config: ParallelTextConfig, split: str, seed: int) -> None:
        """Checks the sources.

        Args:
          config: the pairs to read.
          split: "train", "valid" or "test".
          seed: the seed that selects validation pairs.
        Raises:
          UserError: if sources do not exist or do not fit together.
        """
        self._config = config
        self._split = split
        self._seed = seed
        self._is_divided = split != "test" and not config.valid_source
        if self._is_divided:
            check_split(config.valid_source, config.valid_fraction)
        self._keys = _KEYS["train" if self._is_divided else split]
        self._is_for_training = self._keys == _KEYS["train"]
        self._source, self._target = (getattr(config, key) for key in self._keys)
        self._check_sides()
        self._parts = self._make_parts()
        self._files = [] if config.source_column else self._aligned_files()

    def pairs(self) -> Iterator[Pair]:
        """Yields the pairs, in order.

        Raises:
          UserError: if a source cannot be read, aligned files have different numbers of lines (raised at the end of
            the shorter one), a pair is bad, or there are no pairs. In addition to the errors of `tables.read_rows`,
            lines that are too long or not UTF-8 and empty sides are bad.
        """
        bad_rows = BadRows(self._config.on_bad_row)
        count = total = 0
        for pair, part in self._all_pairs(bad_rows):
            total += 1
            if not self._is_divided or self._is_of_split(pair):
                count += 1
                source = part.source_prefix + pair.source
                target = part.target_prefix + pair.target
                yield pair._replace(source=source, target=target)
        if not count:
            among, rule = (f" among {total}", "; pairs with the same source share a split") if total else ("", "")
            raise UserError(
                f"config key data.{self._keys[0]}={self._source}",
                got=f"no pairs for the split {self._split}{among}{bad_rows.skipped('bad pairs')}",
                expected=f"at least one{rule}",
                fix="check the source, add pairs, or change data.valid_fraction; "
                "config.data.on_bad_row=stop reports the first bad pair",
            )
        _log.info("read %s of %s: %d pairs%s", self._split, self._source, count, bad_rows.skipped("bad pairs"))

    def _is_of_split(self, pair: Pair) -> bool:
        """Decides by the source text, so that all its translations are in one split."""
        held_out = partial(is_held_out, fraction=self._config.valid_fraction, seed=self._seed)
        is_valid = self._split == "valid"
        is_out = held_out(pair.source)
        if is_valid or is_out:
            return is_valid and is_out
        is_several = any(len({*prefixes}) > 1 for prefixes in (self._config.source_prefix, self._config.target_prefix))
        return not (is_several and held_out(pair.target))

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-serializable description of the pairs, independent of their folder and time."""
        sides = {key: getattr(self._config, key) for key in self._keys}
        read = ("source_column", "target_column", "header", "separator", "source_prefix", "target_prefix", "on_bad_row")
        return {
            "split": [self._split, self._config.valid_fraction, self._seed] if self._is_divided else [self._split],
            **{key: _fingerprint(side, f"data.{key}") for key, side in sides.items() if side},
            **{key: getattr(self._config, key) for key in read},
        }

    def _check_sides(self) -> None:
        """Raises UserError unless the source is a table, or there are two sides."""
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
                fix=f"set data.{self._keys[1]} or the columns to ''"
                if is_table
                else f"set data.{self._keys[1]}, or set the columns of the table (0 and 1 with data.header=False if "
                "its first row has no names)",
            )
        if self._source.startswith("tfds:") and not is_table:
            fix = "set data.source_column and data.target_column, for example to 'de' and 'en'"
            raise UserError(f"config key data.{self._keys[0]}", got=self._source, expected="two columns", fix=fix)

    def _make_parts(self) -> list[_Part]:
        sources = _split_names(self._source)
        targets = _split_names(self._target)
        references: tuple[str, ...] = ()
        if len(sources) == 1 and not self._is_for_training:
            targets, references = targets[:1], tuple(targets[1:])
        if not self._config.source_column and len(sources) != len(targets):
            raise UserError(
                f"config keys data.{self._keys[0]} and data.{self._keys[1]}",
                got=f"{len(sources)} and {len(targets)} names separated by commas",
                expected="the same number on both sides",
                fix="name the files of both sides in the same order",
            )
        targets = [""] * len(sources) if self._config.source_column else targets
        prefixes = [self._prefixes(key, len(sources)) for key in ("source_prefix", "target_prefix")]
        self._check_chosen()
        parts = itertools.starmap(_Part, zip(sources, targets, *prefixes, strict=True))
        return [part._replace(references=references) for part in parts]

    def _prefixes(self, key: str, number: int) -> tuple[str, ...]:
        prefixes: tuple[str, ...] = getattr(self._config, key)
        if len(prefixes) not in (0, 1, number):
            raise UserError(
                f"config key data.{key}",
                got=f"{len(prefixes)} prefixes for {number} source(s) in data.{self._keys[0]}",
                expected="no prefix, one for all sources, or one for each",
                fix="set one prefix per source, or ('',) for none",
            )
        return prefixes if len(prefixes) == number else (prefixes or ("",)) * number

    def _check_chosen(self) -> None:
        """Raises UserError if a source does not show which target prefix its translation has."""
        if len(set(self._config.target_prefix)) > 1 and not self._config.source_prefix:
            raise UserError(
                "config key data.target_prefix",
                got=f"{len(self._config.target_prefix)} prefixes, but no data.source_prefix",
                expected="sources from which the model can infer the prefix of the translation",
                fix="set data.source_prefix, with one prefix per source; or set it to ('',) if the sources differ "
                "already, for example in language",
            )

    def _aligned_files(self) -> list[tuple[tuple[Path, ...], _Part]]:
        """Returns the files of both sides, and those of further references, in aligned order."""
        pairs = []
        for part in self._parts:
            source, target = (f"data.{key}" for key in self._keys)
            targets = (part.target, *part.references)
            plain = "a text on each line, unless data.source_column and data.target_column name columns of a table"
            names = [(part.source, source), *((name, target) for name in targets)]
            sides = [find_files(name, key, (), plain) for name, key in names]
            if len({*map(len, sides)}) > 1:
                raise UserError(
                    f"config keys {source}={part.source} and {target}={','.join(targets)}",
                    got=" and ".join(str(len(side)) for side in sides) + " files",
                    expected="the same number on both sides",
                    fix="correct the globs, or name each file",
                )
            pairs += [(files, part) for files in zip(*sides, strict=True)]
        seen: set[tuple[Path, ...]] = set()
        for files, _ in pairs:
            if files in seen or len({*files[1:]}) < len(files) - 1:
                fix = "remove the repetition, or the glob that also matches it"
                what = f"config key data.{self._keys[0]}={self._source}"
                got = " with ".join(map(str, files))
                raise UserError(what, got=f"{got} twice", expected="each pair of files once", fix=fix)
            seen.add(files)
        return pairs

    def _all_pairs(self, bad_rows: BadRows) -> Iterator[tuple[Pair, _Part]]:
        """Yields the pairs, without prefixes."""
        config = self._config
        key = f"data.{self._keys[0]}"
        for files, part in self._files:
            for pair in bad_rows.sift(map(_aligned_pair, _aligned(files))):
                yield pair, part
        for part in self._parts if config.source_column else ():
            rows = tables.read_rows(part.source, key, config.header, config.separator, bad_rows)
            read = partial(_table_pair, config=config, several=not self._is_for_training)
            for pair in bad_rows.sift(map(read, rows)):
                yield pair, part


def _split_prefix(text: str, prefixes: tuple[str, ...], key: str, where: str) -> tuple[str, str]:
    begins = [prefix for prefix in prefixes if f"{text} ".startswith(prefix)]  # stripping may have removed a space
    if begins:
        prefix = max(begins, key=len)
        return prefix, text[len(prefix) :]
    several = sorted(set(prefixes))
    if len(several) > 1:
        expected = f"a text that begins with a prefix of {key}: {', '.join(map(repr, several))}"
        raise RowError(where, f"{text[:40]!r}, a text without a prefix", expected, "put the prefix before the text")
    return (several[0] if several else ""), text


def _split_names(source: str) -> list[str]:
    return [source] if source.startswith("tfds:") else [name.strip() for name in source.split(",")]


def _fingerprint(source: str, key: str) -> list[Any]:
    """Returns the fingerprint of each name, because a file may occur twice."""
    return [tables.fingerprint(name, key) for name in _split_names(source)]


def _aligned(files: Sequence[Path]) -> Iterator[tuple[Line, ...]]:
    """Yields the lines of several files together. Raises UserError if one file ends before another."""
    sides = [lines.read_lines(path, MAX_LINE_BYTES) for path in files]
    for count, aligned in enumerate(itertools.zip_longest(*sides)):
        if None in aligned:
            extra = next(line for line in aligned if line is not None)
            lengths = (count + bool(line) + sum(1 for _ in side) for line, side in zip(aligned, sides, strict=True))
            totals = " and ".join(f"{length:,}" for length in lengths)
            raise UserError(
                " and ".join(map(str, files)),
                got=f"{totals} lines; the first without a partner is {extra.where}",
                expected="the same number of lines in all files, aligned line by line",
                fix="find where the files diverge, and correct them",
            )
        yield aligned


def _aligned_pair(sides: Sequence[Line]) -> Pair:
    texts = [lines.decode(line).strip() for line in sides]
    if not all(texts):
        empty = texts.index("")
        partner = sides[0 if empty else 1]
        expected = f"a text, the translation of {partner.where}"
        raise RowError(sides[empty].where, "a line without text", expected, "add the text or delete these lines")
    source, target, *references = texts
    return Pair(source, target, " and ".join(line.where for line in sides), tuple(references))


def _table_pair(row: Row, config: ParallelTextConfig, several: bool) -> Pair:
    key = "data.target_column"
    column = config.target_column
    source = text_of(row, config.source_column, "data.source_column")
    value = value_of(row, column, key)
    texts = value if several and isinstance(value, list) and value else [value]
    target, *references = (text_of(row._replace(values={column: text}), column, key).strip() for text in texts)
    return Pair(source.strip(), target, row.where, tuple(references))  # stripped like lines
