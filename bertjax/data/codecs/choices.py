"""Reads questions with several choices, one of them correct, and encodes them as rows of the text with each choice."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np

from bertjax.config import at_least
from bertjax.data.codecs.codec import Columns, Encoded, TrainingCodec, TrainingRows, limits_of, of_seq_len
from bertjax.data.readers.lines import RowError, check_text
from bertjax.data.readers.tables import Row, TableConfig, key_of, value_of
from bertjax.data.rows.buckets import Indices, Rows
from bertjax.data.rows.stored import Fields
from bertjax.data.rows.text_rows import is_too_long, text_fields
from bertjax.data.text.tokenizers import Tokenizer

_KEY = "data.{context_column,start_column,choice_columns}"


@dataclasses.dataclass(frozen=True)
class ChoicesConfig(TableConfig):
    """The rows and columns to read. A column "a.b" is key "b" of the JSON object in column "a".

    Attributes:
      context_column: the column of the text.
      start_column: the column of a text that is put before each choice; "" for none.
      choice_columns: one column per choice; or one column with all choices: a list of texts, a list of objects with
        "text" and "label", or an object with these two lists.
      label_column: the column of the correct choice: its label or, if choices have no labels, its number from 0.
      num_choices: the maximum number of choices of a training or validation row.
      seq_len: the maximum number of tokens of a text with one choice; the longer of the two is truncated. Default: 128,
        or the model's number of positions if it is smaller.
    """

    context_column: str
    start_column: str
    choice_columns: tuple[str, ...]
    label_column: str
    num_choices: Annotated[int, at_least(2)]
    seq_len: int


class Question(NamedTuple):
    """A text and its choices."""

    context: str
    choices: Mapping[str, str]  # by label, or by number from 0 if there are no labels
    label: str | None  # the label of the correct choice; None if unknown


@dataclasses.dataclass(frozen=True)
class ChoiceCodec(TrainingCodec[Question]):
    """Questions with several choices: one row for each choice.

    Attributes:
      config: the questions to read.
      tokenizer: the tokenizer.
    """

    kind = "ChoiceRecipe"
    has_tabs = True
    config: ChoicesConfig
    tokenizer: Tokenizer

    def key(self) -> Any:
        return [key_of(self.config), self.tokenizer.key]

    def splits(self) -> Iterator[tuple[str, Question]]:
        return self.config.splits(self.labeled)

    def labeled(self, row: Row) -> Question:
        """Returns the question in a row, with its label. Raises RowError for a malformed row."""
        question = self.parse_row(row)
        label = str(value_of(row, self.config.label_column, "data.label_column")).strip()
        if label not in question.choices or len(question.choices) > self.config.num_choices:
            got = f"{len(question.choices)} choices, and {label!r} in column {self.config.label_column!r}"
            expected = f"at most {self.config.num_choices} (data.num_choices), and one of {', '.join(question.choices)}"
            raise RowError(row.where, got, expected)
        return question._replace(label=label)

    @property
    def columns(self) -> Columns:
        config = self.config
        names = (config.context_column, config.start_column, *config.choice_columns)
        return Columns(_KEY, [name for name in names if name], config.header, config.separator)

    def parse_row(self, row: Row) -> Question:
        config = self.config
        columns = [value_of(row, column, "data.choice_columns") for column in config.choice_columns]
        start = value_of(row, config.start_column, "data.start_column") if config.start_column else ""
        context = value_of(row, config.context_column, "data.context_column")
        return _question(context, start, columns[0] if len(columns) == 1 else columns, row.where)

    def parse(self, texts: Sequence[str], where: str) -> Question:
        context, *choices = texts
        return _question(context, "", choices, where)

    def text(self, example: Question) -> str:
        return "\t".join([example.context, *example.choices.values()])

    def gold(self, example: Question) -> str | None:
        return example.label

    def encode(self, examples: Sequence[Question]) -> Encoded:
        """Returns the rows of each choice; `kept` is the number of truncated ones."""
        pairs = [self._pairs(example) for example in examples]
        fields = text_fields(itertools.chain.from_iterable(pairs), self.tokenizer, self.config.seq_len)
        truncated = [sum(is_too_long(pair, self.tokenizer, self.config.seq_len) for pair in rows) for rows in pairs]
        limits = limits_of(of_seq_len(self.config.seq_len), truncated=truncated)
        return Encoded(fields, np.array(list(map(len, pairs)), np.int32), limits, truncated)

    def _pairs(self, example: Question) -> list[tuple[list[int], list[int]]]:
        """Returns the word pieces of the text paired with those of each choice."""
        context, *choices = self.tokenizer.encode_batch([example.context, *example.choices.values()])
        return [(context, choice) for choice in choices]

    def training(self, examples: Sequence[Question]) -> TrainingRows:
        """Returns rows with "choice", the index of a row's choice, and "label", the index of the correct one."""
        encoded = self.encode(examples)
        choice = [number for example in examples for number in range(len(example.choices))]
        label = [list(row.choices).index(str(row.label)) for row in examples for _ in row.choices]
        scalars = {"choice": np.array(choice, np.int32), "label": np.array(label, np.int32)}
        counts = {"choices": len(choice), "truncated": sum(encoded.kept)}
        return TrainingRows({**encoded.fields, **scalars}, counts)

    def restored(self, values: Any) -> Question:
        return Question(*values)


class ChoiceRows:
    """Questions as rows [B, C, S]; see `buckets.Padded`.

    Attributes:
      lengths: the length of the longest row of each question.
    """

    def __init__(self, fields: Fields, num_choices: int) -> None:
        """Initializes the rows.

        Args:
          fields: the fields of the rows of all choices; see `ChoiceCodec.training`.
          num_choices: C, the maximum number of choices of a question.
        """
        choice, labels = cast(np.ndarray, fields["choice"]), cast(np.ndarray, fields["label"])
        self._rows = Rows({name: field for name, field in fields.items() if name not in ("choice", "label")})
        self._starts = np.flatnonzero(choice == 0)
        self._counts = np.diff(self._starts, append=len(choice))
        self._labels = labels[self._starts]
        self._choices = np.arange(num_choices)
        self.lengths = np.maximum.reduceat(self._rows.lengths, self._starts)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """See `buckets.Padded`. `labels` [B] are the indices of the correct choices. Scalars of rows are [B, C]."""
        is_choice = (self._choices < self._counts[indices][:, None]) & (indices >= 0)[:, None]
        numbers = np.where(is_choice, self._starts[indices][:, None] + self._choices, -1)
        rows = self._rows.padded(numbers.ravel(), length)
        del rows["weights"]
        batch = {name: field.reshape(*is_choice.shape, *field.shape[1:]) for name, field in rows.items()}
        return {**batch, "labels": self._labels[indices], "weights": (indices >= 0).astype(np.float32)}


def _question(context: Any, start: Any, values: Any, where: str) -> Question:
    """Returns a question without its label. Raises RowError unless it has a text and two or more choices."""
    choices = _by_label(values)
    texts = [context, *choices.values()]
    if len(choices) < 2 or not all(isinstance(text, str) for text in (start, *texts)) or not all(map(str.strip, texts)):
        got = f"{context!r:.60}, {start!r:.60}, {values!r:.100}"
        raise RowError(where, got, "a text, a start, and two or more choices with distinct labels")
    check_text(" ".join([start, *choices, *texts]), where)
    choices = {label: f"{start} {text}" if start else text for label, text in choices.items()}
    return Question(context, choices, None)


def _by_label(choices: Any) -> dict[str, Any]:
    """Returns the choices by label from a value of the column that `choice_columns` names; empty for other values."""
    if isinstance(choices, Mapping) and all(isinstance(choices.get(key), list) for key in ("text", "label")):
        pairs = itertools.zip_longest(choices["text"], choices["label"])
        choices = [{"text": text, "label": label} for text, label in pairs]
    if not isinstance(choices, list):
        return {}
    objects = [(choice.get("label"), choice.get("text")) for choice in choices if isinstance(choice, Mapping)]
    labeled = objects or enumerate(choices)
    texts = {str(label).strip(): text for label, text in labeled if label is not None}
    return texts if len(texts) == len(choices) else {}
