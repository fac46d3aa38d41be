"""What text classification and regression read: one text or two, with a label or a number."""

import dataclasses
import json
import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from bertjax.data import splits
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row, TableConfig, text_of, value_of
from bertjax.errors import UserError

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LabeledTextConfig(TableConfig):
    """Which rows to read, and what of them.

    Attributes:
      text_columns: the column of the text, or the two of a pair.
      label_column: the column of the label or number; empty if there is none.
    """

    text_columns: tuple[str, ...]
    label_column: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_columns(self.text_columns)
        columns = (*self.text_columns, self.label_column)
        if len(set(columns)) < len(columns):
            raise UserError(
                "config keys data.{text_columns,label_column}",
                got=f"{self.text_columns} and {self.label_column!r}",
                expected="different columns",
                fix="correct the one that is not meant",
            )


class LabeledText(NamedTuple):
    """A row: its texts are stripped and not empty."""

    first: str
    second: str | None  # of a pair
    label: str | float | None  # a class by its name, or a number; None without a label column
    where: str  # "file:line" (or the like), for messages


def read_splits(config: LabeledTextConfig, numeric: bool, seed: int) -> tuple[list[LabeledText], list[LabeledText]]:
    """Returns the training rows, none without a source of them, and the held-out rows.

    Args:
      config: which.
      numeric: whether labels are numbers to predict, not names of classes.
      seed: what draws the held-out rows, if they have no source; a row's fate follows from it and its number alone.
    Raises:
      UserError: as `read`; no label column; or no row on one side.
    """
    if not config.label_column:
        fix = "set --config.data.label_column to the column of the label"
        raise UserError("config key data.label_column", got="''", expected="a column: training needs labels", fix=fix)
    return splits.read_splits(config, lambda source, key: read(config, source, key, numeric), seed)


def read(config: LabeledTextConfig, source: str, key: str, numeric: bool) -> list[LabeledText]:
    """Returns the rows of one source, in order.

    Args:
      config: what to read of them.
      source: the source.
      key: the config key that named it, for messages.
      numeric: whether labels are numbers to predict, not names of classes.
    Raises:
      UserError: as `TableConfig.read`. Bad are rows without one of the columns or with an empty text or label, and
        numbers that are none or not finite.
    """
    return config.read(source, key, partial(_labeled, config=config, numeric=numeric))


def label_names(rows: Sequence[LabeledText], known: Sequence[str]) -> tuple[str, ...]:
    """Returns the classes of training rows: as numbers in order if all of them are, otherwise by code point.

    Args:
      rows: which.
      known: classes in the order that their source gives them, which is then kept; none if it gives none.
    Raises:
      UserError: fewer than two classes.

    >>> label_names([LabeledText("text", None, label, "a.tsv:1") for label in ("10", "9", "9")], ())
    ('9', '10')
    """
    names = sorted({str(row.label) for row in rows})
    if len(names) < 2:
        raise UserError(
            f"labels of the training rows, from {rows[0].where} on",
            got=f"{names[0]!r} in each of {len(rows)} rows",
            expected="two or more",
            fix="check that config.data.label_column is the one meant, or add rows of other classes",
        )
    if set(names) <= set(known):
        return tuple(name for name in known if name in names)
    numbers = [_number(name) for name in names]
    if any(number is None for number in numbers):
        return tuple(names)
    return tuple(name for _, name in sorted(zip(numbers, names, strict=True)))


def with_default_names(rows: Sequence[LabeledText], names: Sequence[str]) -> list[LabeledText]:
    """Returns the rows with labels 0, 1, ... replaced by LABEL_0, LABEL_1, ... if these are the names of the classes.

    transformers names classes so that nobody has named; files have their numbers.

    >>> with_default_names([LabeledText("text", None, "1", "a.tsv:1")], ("LABEL_0", "LABEL_1"))[0].label
    'LABEL_1'
    """
    if tuple(names) != tuple(f"LABEL_{number}" for number in range(len(names))):
        return list(rows)
    by_number = {str(number): name for number, name in enumerate(names)}
    return [row._replace(label=by_number.get(str(row.label), row.label)) for row in rows]


def check_labels(rows: Sequence[LabeledText], names: Sequence[str]) -> None:
    """Raises UserError if a row has a label that is not among `names`, the classes of the model."""
    known = set(names)
    for row in rows:
        if row.label not in known:
            found = ", ".join(sorted({str(row.label) for row in rows}))
            raise UserError(
                row.where,
                got=f"label {row.label!r}, in rows of the classes {found:.200}",
                expected=f"one of {', '.join(names)}, the model's classes",
                fix="correct the row, or add its class to the training rows, or to config.data.labels if that is set; "
                "a trained model has the classes that it has",
            )


def texts_of_line(line: str, where: str, columns: Sequence[str]) -> list[str]:
    """Returns the text in a line to predict on, or the two texts of a pair, which a tab separates.

    Args:
      line: without its end.
      where: it stands, for messages.
      columns: `data.text_columns`: the line has as many texts.
    Raises:
      RowError: another number of texts, or an empty one.
    """
    texts, is_pair = split_pair(line, where), len(columns) == 2
    if len(texts) != len(columns):
        got = f"{len(texts)} separated by tabs"
        expected = "two texts with a tab between them" if is_pair else "one text, without a tab"
        fix = "put a tab between the texts" if is_pair else "put a space for the tab"
        fix += f", set --config.data.text_columns to {len(texts)} names instead of {len(columns)}"
        raise RowError(where, got, expected, fix)
    return texts


def split_pair(line: str, where: str) -> list[str]:
    """Returns the text in a line, or the two texts that a tab separates. Raises RowError for more, or an empty one."""
    texts, expected = [text.strip() for text in line.split("\t")], "one text, or two with a tab between them"
    if len(texts) > 2:
        fix = "put spaces for the tabs within texts"
        raise RowError(where, f"{len(texts)} separated by tabs", expected, fix)
    if not all(texts):
        raise RowError(where, "an empty text", expected, "complete or delete the line")
    return texts


def check_text_columns(columns: Sequence[str]) -> None:
    """Raises UserError unless there is one column of texts, or two."""
    if len(columns) not in (1, 2):
        raise UserError(
            "config key data.text_columns",
            got=columns,
            expected="one column, or the two of a pair",
            fix="for example ('sentence',) or ('sentence1', 'sentence2')",
        )


def _labeled(row: Row, config: LabeledTextConfig, numeric: bool) -> LabeledText:
    texts = [text_of(row, column, "data.text_columns") for column in config.text_columns]
    label = (_target if numeric else _class)(row, config.label_column) if config.label_column else None
    return LabeledText(texts[0], texts[1] if len(texts) == 2 else None, label, row.where)


def _class(row: Row, column: str) -> str:
    value = value_of(row, column, "data.label_column")
    name = json.dumps(value) if isinstance(value, int) else value  # of JSON lines: 1 and true as they stand there
    if not isinstance(name, str):
        raise RowError(row.where, f"{type(value).__name__} in column {column!r}", "the name or number of a class")
    if not (name := name.strip()):
        raise RowError(row.where, f"an empty label in column {column!r}", "the name or number of a class")
    return name


def _target(row: Row, column: str) -> float:
    value = value_of(row, column, "data.label_column")
    number = _number(value)
    if number is None:
        raise RowError(row.where, f"{value!r} in column {column!r}", "a finite number")
    return number


def _number(value: object) -> float | None:
    """Returns the finite number that a value is or spells."""
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
