"""Reads and encodes rows for text classification and regression: one or two texts with a label or a number."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32

from bertjax.config import Constraint, always
from bertjax.data.codecs.codec import Encoded, Survey, TableCodec, TrainingRows, check_texts, encoded_texts
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row, TableConfig, key_of, value_of
from bertjax.data.rows.stored import Numbering, Ragged
from bertjax.data.splits import TRAIN, VALID
from bertjax.errors import UserError
from bertjax.words import composed

Label = str | float | Sequence[str]  # the name of a class, a number, or the names of the classes of a row
LABEL_KEY = "data.label_column"
_SHOWN_DECIMALS = 5
_CLASS = "the name or number of a class"
TextColumns = Annotated[
    tuple[str, ...],
    Constraint(
        "one column as in ('sentence',), or two as in ('sentence1', 'sentence2')",
        lambda columns: len(columns) in (1, 2),
    ),
]


@dataclasses.dataclass(frozen=True)
class LabeledTextConfig(TableConfig):
    """The rows and columns to read.

    Attributes:
      text_columns: the column of the text, or the two columns of a pair.
      label_column: the column of the label or number; empty if there is none.
    """

    text_columns: TextColumns = always(("sentence",))
    label_column: str = always("label")

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = (*self.text_columns, self.label_column)
        got = f"{self.text_columns} and {self.label_column!r}"
        are_different = len(set(columns)) == len(columns)
        fix = "correct the repeated column"
        self.check(are_different, "{text_columns,label_column}", "different columns", got=got, fix=fix)


class LabeledText(NamedTuple):
    """A row of a table. Its texts are not empty."""

    first: str
    second: str | None  # None if the row is not a pair
    label: Label | None  # None without a label column
    where: str  # its position for messages, such as "file:line"

    @property
    def classes(self) -> Sequence[str]:
        """The names of its classes; none if the label is a number."""
        if isinstance(self.label, str):
            return (self.label,)
        return self.label if isinstance(self.label, Sequence) else ()


@dataclasses.dataclass(frozen=True)
class LabeledTextCodec(TableCodec[LabeledText]):
    """Texts or pairs of texts with a class or a number: one row for each.

    Attributes:
      unread_keys: keys of `config` that only other kinds of labels read.
      config: the rows to read. Those of training need a label column.
      seq_len: the maximum number of tokens of a row; longer texts are truncated.
      is_numeric: whether labels are numbers to predict instead of names of classes.
      takes_pairs: whether a Python object may be a pair although `config` names one column, as for published weights,
        which no training rows tell apart.
    """

    kind = "LabeledRows"
    version = 2  # names of classes were stored in sorted order
    example = LabeledText
    column_key = "data.text_columns"
    unread_keys: ClassVar[tuple[str, ...]] = ("label_separator",)
    config: LabeledTextConfig
    seq_len: int
    is_numeric: bool
    takes_pairs: bool = False

    def key(self) -> Any:
        rows = {key: value for key, value in key_of(self.config).items() if key not in self.unread_keys}
        return [rows, self.is_numeric, self.tokenizer.key, self.seq_len]

    def splits(self) -> Iterator[tuple[str, LabeledText]]:
        if not self.config.label_column:
            fix = "set --config.data.label_column to the column of the label"
            expected = "a column, because training needs labels"
            raise UserError("config key data.label_column", got="''", expected=expected, fix=fix)
        return super().splits()

    def labeled(self, row: Row) -> LabeledText:
        label = self.label(row, self.config.label_column) if self.config.label_column else None
        return self.parse_row(row)._replace(label=label)

    def label(self, row: Row, column: str) -> Label:
        """Returns the label in a column of a row. Raises RowError for a bad one."""
        return number_of(row, column, LABEL_KEY) if self.is_numeric else _class(row, column)

    @property
    def has_tabs(self) -> bool:  # type: ignore[override]
        """Whether examples are pairs."""
        return len(self.config.text_columns) == 2

    @property
    def column_names(self) -> Sequence[str]:
        return self.config.text_columns

    def parse(self, texts: Sequence[str], where: str) -> LabeledText:
        count = len(self.config.text_columns)
        fix = f"set --config.data.text_columns to {len(texts)} names instead of {count}"
        check_texts(texts, where, (count,), fix)
        return LabeledText(texts[0], texts[1] if count == 2 else None, None, where)

    def parse_object(self, value: Any, where: str) -> LabeledText:
        if self.takes_pairs and isinstance(value, tuple | list) and len(value) == 2:
            config = dataclasses.replace(self.config, text_columns=("first", "second"), label_column="")
            return dataclasses.replace(self, config=config, takes_pairs=False).parse_object(value, where)
        return super().parse_object(value, where)

    def survey(self) -> Survey[LabeledText]:
        """Returns a survey of the classes; there are none if labels are numbers."""
        return LabelSurvey()

    def text(self, example: LabeledText) -> str:
        return example.first if example.second is None else f"{example.first}\t{example.second}"

    def gold(self, example: LabeledText) -> Label | None:
        return example.label

    def encode(self, examples: Sequence[LabeledText]) -> Encoded:
        firsts = self.tokenizer.encode_batch([example.first for example in examples])
        seconds = iter(self.tokenizer.encode_batch([row.second for row in examples if row.second is not None]))
        segments = [
            (first,) if example.second is None else (first, next(seconds))
            for example, first in zip(examples, firsts, strict=True)
        ]
        return encoded_texts([[pieces] for pieces in segments], self.tokenizer, self.seq_len)

    def training(self, examples: Sequence[LabeledText]) -> TrainingRows:
        """Returns rows whose "labels" are numbers to predict, or stand for names of classes."""
        fields, *_, truncated = self.encode(examples)
        counts = {"truncated": sum(truncated)}
        if self.is_numeric:
            return TrainingRows({**fields, "labels": np.array([row.label for row in examples], np.float32)}, counts)
        number = Numbering()
        numbers = np.array([number[name] for row in examples for name in row.classes], np.int32)
        return TrainingRows({**fields, "labels": self.field(numbers, examples)}, counts, {"labels": list(number)})

    def field(self, numbers: Int32[np.ndarray, " n"], examples: Sequence[LabeledText]) -> Ragged | np.ndarray:
        """Returns the field of the classes of examples, from the numbers of all their classes in order."""
        return numbers


class LabelSurvey(Survey[LabeledText]):
    """Counts the rows of each class in "train" and "valid", and keeps the position of the first row of each class.

    Args:
      classes: those that are counted even if no row has them.
    """

    def __init__(self, classes: Sequence[str] = ()) -> None:
        self._counts = {split: Counter(dict.fromkeys(classes, 0)) for split in (TRAIN, VALID)}
        self._first: dict[str, dict[str, str]] = {split: {} for split in self._counts}

    def add(self, split: str, rows: Sequence[LabeledText]) -> None:
        labels = [(name, row.where) for row in rows for name in row.classes]
        self._counts[split].update(name for name, _ in labels)
        first = self._first[split]
        for name, where in labels:
            if name not in first:
                first[name] = where

    def facts(self) -> dict[str, Any]:
        """Returns the classes, sorted: as numbers if all are numbers, otherwise by code point."""
        classes = {split: {name: counts[name] for name in ordered(counts)} for split, counts in self._counts.items()}
        return {"classes": classes, "first": self._first}


def ordered(names: Collection[str]) -> list[str]:
    """Returns sorted class names: as numbers if all of them are numbers, otherwise by code point.

    >>> ordered({"10", "9"})
    ['9', '10']
    """
    numbers = {name: finite_number(name) for name in names}
    if None in numbers.values():
        return sorted(names)
    return sorted(names, key=lambda name: (numbers[name], name))


def label_names(facts: Mapping[str, Any], source_classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the classes of training rows.

    Args:
      facts: the facts of `LabelSurvey`.
      source_classes: the classes in the order of their source, which is kept; empty if the source has none.
    Raises:
      UserError: if all rows have the same classes.
    """
    counts = facts["classes"][TRAIN]
    num_rows = facts.get("rows", {}).get(TRAIN) or sum(counts.values())  # only rows with several classes are counted
    if all(count in (0, num_rows) for count in counts.values()):
        labels = [name for name, count in counts.items() if count]
        places = [f", from {facts['first'][TRAIN][name]} on" for name in labels]
        raise UserError(
            "".join(["labels of the training rows", *places[:1]]),
            got=f"{' and '.join(f'the label {name!r}' for name in labels) or 'no label'} in all {num_rows} rows",
            expected="rows with different labels",
            fix="check config.data.label_column, or add rows of other classes",
        )
    names = source_classes if counts.keys() <= set(source_classes) else counts
    return tuple(name for name in names if name in counts)


def check_hidden(facts: Mapping[str, Any], model_classes: Sequence[str]) -> None:
    """Raises UserError if -1 is a class together with 0, 1, 2, ... In the test rows of GLUE, it marks hidden labels.

    Args:
      facts: the facts of `LabelSurvey`.
      model_classes: the classes of the model in `init_from`, which may include -1.
    """
    counts = facts["classes"][TRAIN]
    others = [name for name in counts if name != "-1"]
    if "-1" not in counts or "-1" in model_classes or others == ["1"] or not all(map(str.isdecimal, others)):
        return
    raise UserError(
        facts["first"][TRAIN]["-1"],
        got=f"the label -1 in {counts['-1']:,} of {sum(counts.values()):,} rows",
        expected="classes; test files of GLUE mark hidden labels by -1",
        fix=f'delete these rows or, if -1 is a class, set --config.data.labels="{tuple(counts)}"',
    )


def check_decimals(facts: Mapping[str, Any], model_classes: Sequence[str]) -> None:
    """Raises UserError if the classes are numbers with fractions, which are scores rather than names of classes.

    Args:
      facts: the facts of `LabelSurvey`.
      model_classes: the classes of the model in `init_from`, which may be such numbers.
    """
    counts = facts["classes"][TRAIN]
    numbers = {name: finite_number(name) for name in counts}
    decimals = [name for name, number in numbers.items() if number is not None and number % 1]
    if None in numbers.values() or not decimals or counts.keys() <= set(model_classes):
        return
    raise UserError(
        facts["first"][TRAIN][decimals[0]],
        got=f"{len(counts):,} different numbers as labels, such as {', '.join(decimals[:_SHOWN_DECIMALS])}",
        expected="names or whole numbers of classes",
        fix="set --config.objective=regression to predict numbers or, if these are classes, set --config.data.labels "
        "to all of them",
    )


def with_default_name(name: str, labels: Sequence[str]) -> str:
    """Returns the class of the model that a file names: LABEL_0 for "0", and so on, if its classes have these names.

    These are the default names of transformers; files have the numbers. The class of a model may have another Unicode
    normalization form than the name.

    >>> with_default_name("1", ("LABEL_0", "LABEL_1"))
    'LABEL_1'
    """
    has_default_names = all(label == f"LABEL_{number}" for number, label in enumerate(labels))
    if has_default_names and f"LABEL_{name}" in labels:
        return f"LABEL_{name}"
    return name if name in labels else next((label for label in labels if composed(label) == composed(name)), name)


def check_labels(facts: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Raises UserError if a row has a label that is not in `labels`, the classes of the model.

    Args:
      facts: the facts of `LabelSurvey`.
      labels: the classes.
    """
    for split, first in facts["first"].items():
        for name, where in first.items():
            if with_default_name(name, labels) not in labels:
                raise UserError(
                    where,
                    got=f"label {name!r}, in rows of the classes {', '.join(facts['classes'][split])!s:.200}",
                    expected=f"one of {', '.join(labels)}, the model's classes",
                    fix="correct the row, or add its class to the training rows or to config.data.labels if that is "
                    "set; the classes of a trained model cannot change",
                )


def _class(row: Row, column: str) -> str:
    value = value_of(row, column, LABEL_KEY)
    if isinstance(value, list):
        fix = "set --config.objective=multi_label if rows have several classes"
        raise RowError(row.where, f"a list in column {column!r}", _CLASS, fix)
    return class_name(value, row.where, column)


def class_name(value: object, where: str, column: str) -> str:
    """Returns the name of a class from a value of a column. Raises RowError if it is no name or number of a class."""
    name = json.dumps(value) if isinstance(value, int) else value  # in JSON lines 1 and true keep their spelling
    if isinstance(value, float):
        fix = f"write {value:.0f} instead, or " if value.is_integer() else ""
        fix += "set --config.objective=regression to predict numbers"
        raise RowError(where, f"{value} in column {column!r}", f"{_CLASS}, which has no fraction", fix)
    if not isinstance(name, str):
        got = "no label" if value is None else type(value).__name__
        raise RowError(where, f"{got} in column {column!r}", _CLASS)
    if not (name := composed(name.strip())):
        raise RowError(where, f"an empty label in column {column!r}", _CLASS)
    return name


def number_of(row: Row, column: str, key: str) -> float:
    """Returns the number of the column that config key `key` names. Raises RowError unless it is finite."""
    value = value_of(row, column, key)
    number = finite_number(value)
    if number is None:
        raise RowError(row.where, f"{value!r} in column {column!r}", "a finite number")
    return number


def finite_number(value: object) -> float | None:
    """Returns the finite number that a value is or spells; None for other values."""
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
