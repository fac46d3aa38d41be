"""Reads and encodes rows for multi-label classification: one or two texts with the names of any number of classes."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Int32

from bertjax.config import Constraint
from bertjax.data.codecs import labeled_text
from bertjax.data.codecs.codec import Survey, TrainingRows
from bertjax.data.codecs.labeled_text import LABEL_KEY, LabeledText, LabeledTextCodec, LabeledTextConfig, LabelSurvey
from bertjax.data.readers.lines import RowError, check_text
from bertjax.data.readers.tables import Row, value_of
from bertjax.data.rows.stored import Ragged

_FLAGS = {"true": True, "false": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSetsConfig(LabeledTextConfig):
    """The rows and columns to read. `label_column` may name several columns, separated by commas.

    Attributes:
      label_separator: with objective=multi_label, the separator of the classes in a column of text.
    """

    label_separator: Annotated[str, Constraint("a text, such as ','", bool)] = ","

    @property
    def flags(self) -> tuple[str, ...]:
        return flags_of(self.label_column)

    def check_columns(self) -> None:
        """Raises UserError for a column that is named twice, or has no name."""
        columns = (*self.text_columns, *self.flags)
        got = f"{self.text_columns} and {self.label_column!r}"
        ok = all(columns) and len(set(columns)) == len(columns)
        fix = "correct the repeated or empty name"
        self.check(not self.flags or ok, "{text_columns,label_column}", "different columns", got=got, fix=fix)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raises UserError unless the columns of 0 and 1 are those of the classes."""
        classes = {labeled_text.with_default_name(name, labels) for name in self.flags}
        expected = f"a column for each of {', '.join(labels)!s:.200}, the classes"
        fix = "name these columns, without others; the classes of a trained model cannot change"
        self.check(not self.flags or classes == set(labels), "label_column", expected, fix=fix)


def flags_of(label_column: str) -> tuple[str, ...]:
    """Returns the columns of 0 and 1, which are also the names of the classes; () for one column of lists.

    >>> flags_of("toxic,insult"), flags_of("labels")
    (('toxic', 'insult'), ())
    """
    names = tuple(name.strip() for name in label_column.split(","))
    return names if len(names) > 1 else ()


@dataclasses.dataclass(frozen=True)
class LabelSetCodec(LabeledTextCodec):
    """Texts or pairs of texts with any number of classes: one row for each."""

    kind = "LabelSetRows"
    version = 2  # as LabeledRows
    unread_keys = ()
    config: LabelSetsConfig

    def label(self, row: Row, column: str) -> tuple[str, ...]:
        """Returns the classes of a row, from columns of 0 and 1 or from one column. Raises RowError for a bad value."""
        if flags := self.config.flags:
            return tuple(name for name in flags if _flag(row, name))
        value = value_of(row, column, LABEL_KEY)
        values = _parts(value, row.where, column, self.config.label_separator) if isinstance(value, str) else value
        if not isinstance(values, list):
            got = "no label" if value is None else type(value).__name__
            raise RowError(row.where, f"{got} in column {column!r}", "a list of classes, empty for no class")
        names = tuple(labeled_text.class_name(element, row.where, column) for element in values)
        for name in names:
            check_text(name, row.where)
        if len(set(names)) < len(names):
            (name, _), *_ = Counter(names).most_common()
            raise RowError(row.where, f"class {name!r} twice in column {column!r}", "each class once")
        return names

    def survey(self) -> Survey[LabeledText]:
        """Returns a survey of the classes. Columns of 0 and 1 are classes even if all of their rows are 0."""
        return LabelSetSurvey(self.config.flags)

    def training(self, examples: Sequence[LabeledText]) -> TrainingRows:
        """Returns rows whose "labels" are the numbers of the classes of each."""
        rows = super().training(examples)
        without_labels = sum(not example.classes for example in examples)
        return rows._replace(counts={**rows.counts, "without_labels": without_labels})

    def field(self, numbers: Int32[np.ndarray, " n"], examples: Sequence[LabeledText]) -> Ragged:
        return Ragged(numbers, np.array([len(example.classes) for example in examples], np.int32))


class LabelSetSurvey(LabelSurvey):
    """Also counts the rows of each split, which may have several classes or none."""

    def __init__(self, classes: Sequence[str] = ()) -> None:
        super().__init__(classes)
        self._rows = Counter[str]()

    def add(self, split: str, rows: Sequence[LabeledText]) -> None:
        super().add(split, rows)
        self._rows[split] += len(rows)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "rows": dict(self._rows)}


def indicators(labels: Ragged, places: Int32[np.ndarray, " n"], num_classes: int) -> Bool[np.ndarray, "rows C"]:
    """Returns whether each row has each class.

    >>> labels = Ragged(np.array([0, 1, 1]), np.array([2, 0, 1]))
    >>> indicators(labels, np.array([2, 0], np.int32), 3).astype(int).tolist()
    [[1, 0, 1], [0, 0, 0], [1, 0, 0]]

    Args:
      labels: the numbers of the classes of each row.
      places: the place of the class with each number.
      num_classes: the number of places.
    """
    has_class = np.zeros((len(labels.lengths), num_classes), bool)
    has_class[np.repeat(np.arange(len(has_class)), labels.lengths), places[labels.values]] = True
    return has_class


def _flag(row: Row, column: str) -> bool:
    value = value_of(row, column, LABEL_KEY)
    flag = _FLAGS.get(str(value).strip().lower(), labeled_text.finite_number(value))
    if flag not in (0, 1):
        raise RowError(row.where, f"{value!r} in column {column!r}", "0, 1, true or false")
    return bool(flag)


def _parts(text: str, where: str, column: str, separator: str) -> list[Any]:
    """Returns the classes in a text: a JSON list, or names with separators between them."""
    text = text.strip()
    if not text.startswith("["):
        return text.split(separator) if text else []
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        expected = f'a JSON list, such as ["a", "b"], or classes separated by {separator!r}'
        raise RowError(where, f"{text!r:.80} in column {column!r}, not valid JSON", expected) from error
