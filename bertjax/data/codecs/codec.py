"""The base class of codecs: a codec is one kind of row, from the file to the rows of a model.

A task states its kind of row once. From the codec follow training (`data.prepared` stores the encoded rows), validation
and prediction from lines, tables and Python objects. Codecs do not import JAX, because worker processes import them.

An example is what is read as one: a text with its label, a question with its context. It becomes one row of the model,
or several. R is the type of examples, a NamedTuple of values that JSON can represent.
"""

import abc
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int

from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, RowError, check_text, of_row
from bertjax.data.readers.tables import Row, TableConfig, key_of
from bertjax.data.rows.stored import Fields
from bertjax.data.rows.text_rows import is_too_long, text_fields
from bertjax.data.text.fit import Sample
from bertjax.data.text.tokenizers import EncoderTokenizer, Tokenizer

R = TypeVar("R", bound=tuple[Any, ...])
Limits = Mapping[str, str]
NO_LIMITS: Limits = MappingProxyType({})


class Encoded(NamedTuple):
    """Encoded examples.

    Attributes:
      fields: the fields of their rows, in order: a `Ragged` has an array for each row, a plain array a number.
      sizes: the number of rows of each example.
      limits: for each example what was done because it is longer than a limit, "truncated" or "split", and the limit.
      extras: for each example what its task needs besides the fields; empty for nothing.
    """

    fields: Fields
    sizes: Int[np.ndarray, " examples"]
    limits: Sequence[Limits]
    extras: Sequence[Any] = ()


class TrainingRows(NamedTuple):
    """Rows to train on.

    Attributes:
      fields: their fields, which include what is learned; empty if there are no rows.
      counts: numbers that are added up for the report, such as the number of truncated rows.
      names: for each int32 field that stands for names, such as classes, the names. Number n stands for name n - 1, and
        0 for no name.
      left_out: the number of examples without rows, by the config key of the limit that they exceed.
    """

    fields: Fields
    counts: Mapping[str, int]
    names: Mapping[str, Sequence[str]] = {}
    left_out: Mapping[str, int] = {}


class Survey(Generic[R]):
    """Collects facts about the examples while they are read. This class collects none."""

    def add(self, split: str, examples: Sequence[R]) -> None:
        """Adds examples of a split, in order. Raises UserError if the examples are inconsistent."""

    def facts(self) -> dict[str, Any]:
        """Returns JSON-serializable facts about all examples, such as the classes."""
        return {}


class Input(NamedTuple):
    """An example to predict on.

    Attributes:
      example: the example.
      columns: the values of the table's row that it was read from, by column; empty for other inputs.
    """

    example: Any
    columns: Mapping[str, Any] = MappingProxyType({})


class Columns(NamedTuple):
    """The columns of tables to predict on.

    Attributes:
      key: the config key that names them, for messages.
      names: their names; "" for a column that the config does not set.
      header: whether the first row of TSV and CSV files has the names.
      separator: the separator of the fields of CSV files; "" for a comma.
    """

    key: str
    names: Sequence[str]
    header: bool = True
    separator: str = ""


class Codec(abc.ABC, Generic[R]):
    """A kind of row to predict on."""

    @abc.abstractmethod
    def text(self, example: R) -> str:
        """Returns the text of an example without its label. Examples with the same text are duplicates."""

    def sample(self) -> Sample:
        """Returns an empty sample of texts for the tokenizer, if there is one. Translation has two vocabularies."""
        return Sample(getattr(self, "tokenizer", None))

    @abc.abstractmethod
    def encode(self, examples: Sequence[R]) -> Encoded:
        """Returns the rows of examples, without what is learned from them. Raises RowError for a bad example."""

    @abc.abstractmethod
    def lines(self, lines: Iterable[str], bad_rows: BadRows) -> Iterator[Input]:
        """Returns the inputs in lines of text.

        Args:
          lines: without line breaks. Lines with invalid UTF-8, as lone surrogates, or a NUL character are bad.
          bad_rows: the policy for bad inputs. The iterator continues after it raises RowError, or applies the policy.
        """

    @abc.abstractmethod
    def objects(self, values: Iterable[Any], bad_rows: BadRows, first: int = 1) -> Iterator[Input]:
        """Returns the inputs in Python objects, as `lines` does. Messages count them from `first` on."""

    @abc.abstractmethod
    def file(self, path: str, bad_rows: BadRows) -> Iterator[Input] | None:
        """Returns the inputs in a table, another file or a folder, as `lines` does; None for a file of lines."""


class ParsedCodec(Codec[R]):
    """A kind of row whose inputs are one text or several each: a line, a Python object or a row of a table.

    Attributes:
      splits_tabs: whether tabs in a line separate texts.
      has_tabs: whether a `.tsv` file without the columns is a file of such lines.
      columns: the columns of tables to predict on; None to read no tables.
    """

    splits_tabs: bool = True
    has_tabs: bool = False
    columns: Columns | None = None

    @abc.abstractmethod
    def parse(self, texts: Sequence[str], where: str) -> R:
        """Returns the example of the texts of an input at `where`. Raises RowError for bad texts."""

    def parse_object(self, value: Any, where: str) -> R:
        """Returns the example of a Python object: a text, a tuple or list of texts, or a dict like a table's row.

        Raises:
          RowError: for another object.
        """
        if isinstance(value, Mapping) and self.columns:
            return self.parse_row(Row(value, where))
        return self._checked([value] if isinstance(value, str) else value, where)

    def parse_row(self, row: Row) -> R:
        """Returns the example of a table's row. Default: that of the texts in its columns."""
        assert self.columns
        return self.parse([tables.text_of(row, name, self.columns.key) for name in self.columns.names], row.where)

    def _checked(self, texts: Any, where: str) -> R:
        if not (isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts)):
            values = texts if isinstance(texts, list | tuple) else ()
            wrong = next((value for value in values if not isinstance(value, str)), None)
            got = f"an object of type {type(texts).__name__}" + (f" with {wrong!r:.40}" if values else "")
            expected = "a text (str), or a tuple of texts"
            raise RowError(where, got, expected, "convert it to a str or a tuple of str")
        for text in texts:
            check_text(text, where)
        return self.parse(texts, where)

    def lines(self, lines: Iterable[str], bad_rows: BadRows) -> Iterator[Input]:

        def parsed(number: int, line: str) -> Input:
            return Input(self._checked(line.split("\t") if self.splits_tabs else [line], f"input line {number}"))

        return itertools.starmap(parsed, enumerate(lines, start=1))

    def objects(self, values: Iterable[Any], bad_rows: BadRows, first: int = 1) -> Iterator[Input]:

        def parsed(number: int, value: Any) -> Input:
            return Input(self.parse_object(value, f"input {number}"))

        return itertools.starmap(parsed, enumerate(values, start=first))

    def file(self, path: str, bad_rows: BadRows) -> Iterator[Input] | None:
        if not self.columns:
            return None
        key, names, header, separator = self.columns
        rows = tables.read_input(path, key, names, header, separator, bad_rows, tabs=self.has_tabs)

        def parsed(row: Row) -> Input:
            with of_row(row.values):
                return Input(self.parse_row(row), row.values)

        return None if rows is None else map(parsed, rows)


class TrainingCodec(Codec[R]):
    """A kind of row to train and to predict on. Workers receive a copy.

    Attributes:
      kind: the name of the kind in the digests of prepared rows. It stays when the class is renamed.
      version: raised when equal examples are prepared to other bytes.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1

    def __init_subclass__(cls) -> None:
        """Raises TypeError for a subclass with the kind of another: its rows would be taken for those of the other."""
        super().__init_subclass__()
        if hasattr(cls, "kind") and "kind" not in vars(cls):
            raise TypeError(f"{cls.__name__} needs a `kind` of its own: {cls.kind!r} is that of the class it extends")
        cls.version = vars(cls).get("version", 1)

    @abc.abstractmethod
    def key(self) -> Any:
        """Returns a JSON-serializable description of everything that examples and rows depend on."""

    @abc.abstractmethod
    def splits(self) -> Iterator[tuple[str, R]]:
        """Yields each example with its split, such as "train" or "valid". Those of a split have the sources' order.

        Raises:
          UserError: if an example or a source is bad.
        """

    def survey(self) -> Survey[R]:
        """Returns a new survey of the examples."""
        return Survey()

    @abc.abstractmethod
    def gold(self, example: R) -> Any:
        """Returns what should be predicted for an example, such as its class; None if it is unknown."""

    @abc.abstractmethod
    def training(self, examples: Sequence[R]) -> TrainingRows:
        """Returns the rows of examples with what is learned from them."""

    def scored(self, example: R) -> R:
        """Returns the example to store for an example of a split other than "train". Default: the example itself."""
        return example

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Checks prepared rows; see `PreparedRows.report`. Raises UserError if they are useless for training."""

    @abc.abstractmethod
    def restored(self, values: Any) -> R:
        """Returns the example that `json.dumps` wrote."""


@dataclasses.dataclass(frozen=True)
class TableCodec(ParsedCodec[R], TrainingCodec[R]):
    """A kind of row that is read from tables.

    Attributes:
      example: the type of examples.
      column_key: the config key that names the columns to predict on, for messages.
      config: the rows to read.
      tokenizer: the tokenizer.
    """

    example: ClassVar[Any]
    column_key: ClassVar[str]
    config: TableConfig
    tokenizer: EncoderTokenizer

    def key(self) -> Any:
        return [key_of(self.config), self.tokenizer.key]

    def splits(self) -> Iterator[tuple[str, R]]:
        return self.config.splits(self.labeled)

    @abc.abstractmethod
    def labeled(self, row: Row) -> R:
        """Returns the example of a row to train on or to validate. Raises RowError for a malformed row."""

    @property
    @abc.abstractmethod
    def column_names(self) -> Sequence[str]:
        """The columns to predict on."""

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        return Columns(self.column_key, self.column_names, self.config.header, self.config.separator)

    def restored(self, values: Any) -> R:
        return self.example(*values)


def encoded_texts(examples: Sequence[Sequence[Sequence[Sequence[int]]]], tokenizer: Tokenizer, seq_len: int) -> Encoded:
    """Returns rows of one or two texts each, truncated to `seq_len` tokens.

    Args:
      examples: for each example, for each of its rows, the word pieces of its texts.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row.
    Returns:
      The rows; `extras` are the number of truncated rows of each example.
    """
    fields = text_fields(itertools.chain.from_iterable(examples), tokenizer, seq_len)
    truncated = [sum(is_too_long(row, tokenizer, seq_len) for row in rows) for rows in examples]
    sizes = np.array(list(map(len, examples)), np.int32)
    return Encoded(fields, sizes, limits_of(seq_len, truncated=truncated), truncated)


def check_texts(texts: Sequence[str], where: str, numbers: Sequence[int], fix: str = "") -> None:
    """Raises RowError for an empty text, or if the number of texts is not in `numbers`.

    Args:
      texts: the texts of a line, a row or a Python object.
      where: its location.
      numbers: the allowed numbers of texts.
      fix: a further way to correct the number.
    """
    if len(texts) not in numbers:
        expected = f"{' or '.join(map(_counted, numbers))}, with tabs between the texts of a line"
        fix = "replace tabs within texts by spaces, or add the missing text" + (f", or {fix}" if fix else "")
        raise RowError(where, _counted(len(texts)), expected, fix)
    if not all(map(str.strip, texts)):
        raise RowError(where, "an empty text", "a text", "add the text or delete the line")


def _counted(number: int) -> str:
    return "one text" if number == 1 else f"{number} texts"


def limits_of(seq_len: int, *, truncated: Iterable[Any], split: Iterable[Any] = ()) -> list[Limits]:
    """Returns `Encoded.limits` of examples whose only limit is the length of a row.

    >>> limits_of(8, truncated=[False, True])
    [mappingproxy({}), {'truncated': 'data.seq_len=8 tokens'}]

    Args:
      seq_len: the maximum number of tokens of a row.
      truncated: whether each example is truncated.
      split: whether each example is split into several rows; empty if none is.
    """
    truncated = list(truncated)
    pairs = zip(truncated, list(split) or [False] * len(truncated), strict=True)
    flags = [{"truncated": is_truncated, "split": is_split} for is_truncated, is_split in pairs]
    limit = of_seq_len(seq_len)
    return [{name: limit for name, flag in of_example.items() if flag} or NO_LIMITS for of_example in flags]


def of_seq_len(seq_len: int) -> str:
    """Returns the name of the limit of a row."""
    return f"data.seq_len={seq_len} tokens"
