"""Reads questions with several choices, one of them correct, and encodes them as rows of the text with each choice."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from bertjax.config import always, at_least
from bertjax.data.codecs.codec import Encoded, TableCodec, TrainingRows, encoded_texts
from bertjax.data.readers.lines import RowError, check_text
from bertjax.data.readers.tables import Row, TableConfig, value_of
from bertjax.words import composed


@dataclasses.dataclass(frozen=True)
class ChoicesConfig(TableConfig):
    """The rows and columns to read. A column "a.b" is key "b" of the JSON object in column "a".

    Attributes:
      context_column: the column of the text.
      start_column: the column of a text that is put before each choice; "" for none.
      choice_columns: one column per choice, or one with all choices; see docs/reference/inputs.md.
      label_column: the column of the correct choice: its label or, without labels, its number from 0.
      num_choices: the maximum number of choices of a training or validation row.
      seq_len: the maximum number of tokens of a text with one choice, the longer of which is truncated. Default: 128,
        or the model's positions if fewer.
    """

    context_column: str = always("sent1")
    start_column: str = always("sent2")
    choice_columns: tuple[str, ...] = always(("ending0", "ending1", "ending2", "ending3"))
    label_column: str = always("label")
    num_choices: Annotated[int, at_least(2)] = always(4)
    seq_len: int = always(None)


class Choices(NamedTuple):
    """A text and its choices."""

    context: str
    choices: Mapping[str, str]  # by label, or by number from 0 if there are no labels
    label: str | None  # the label of the correct choice; None if unknown


@dataclasses.dataclass(frozen=True)
class ChoiceCodec(TableCodec[Choices]):
    """Questions with several choices: one row for each choice."""

    kind = "ChoiceRecipe"
    example = Choices
    column_key = "data.{context_column,start_column,choice_columns}"
    has_tabs = True
    config: ChoicesConfig

    def labeled(self, row: Row) -> Choices:
        example = self.parse_row(row)
        label = composed(str(value_of(row, self.config.label_column, "data.label_column")).strip())
        if label not in example.choices or len(example.choices) > self.config.num_choices:
            got = f"{len(example.choices)} choices, and {label!r} in column {self.config.label_column!r}"
            expected = f"at most {self.config.num_choices} (data.num_choices), and one of {', '.join(example.choices)}"
            raise RowError(row.where, got, expected)
        return example._replace(label=label)

    @property
    def column_names(self) -> Sequence[str]:
        names = (self.config.context_column, self.config.start_column, *self.config.choice_columns)
        return [name for name in names if name]

    def parse_row(self, row: Row) -> Choices:
        config = self.config
        columns = [value_of(row, column, "data.choice_columns") for column in config.choice_columns]
        start = value_of(row, config.start_column, "data.start_column") if config.start_column else ""
        context = value_of(row, config.context_column, "data.context_column")
        return _choices(context, start, columns[0] if len(columns) == 1 else columns, row.where)

    def parse(self, texts: Sequence[str], where: str) -> Choices:
        context, *choices = texts
        return _choices(context, "", choices, where)

    def text(self, example: Choices) -> str:
        return "\t".join([example.context, *example.choices.values()])

    def gold(self, example: Choices) -> str | None:
        return example.label

    def encode(self, examples: Sequence[Choices]) -> Encoded:
        pieces = [self.tokenizer.encode_batch([context, *choices.values()]) for context, choices, _ in examples]
        pairs = [[(context, choice) for choice in choices] for context, *choices in pieces]
        return encoded_texts(pairs, self.tokenizer, self.config.seq_len)

    def training(self, examples: Sequence[Choices]) -> TrainingRows:
        """Returns rows with "choice", the index of a row's choice, and "label", the index of the correct one."""
        encoded = self.encode(examples)
        choice = [number for example in examples for number in range(len(example.choices))]
        label = [list(row.choices).index(str(row.label)) for row in examples for _ in row.choices]
        scalars = {"choice": np.array(choice, np.int32), "label": np.array(label, np.int32)}
        counts = {"choices": len(choice), "truncated": sum(encoded.extras)}
        return TrainingRows({**encoded.fields, **scalars}, counts)


def _choices(context: Any, start: Any, values: Any, where: str) -> Choices:
    """Returns the choices without their label. Raises RowError unless it has a text and two or more choices."""
    choices = _by_label(values)
    texts = [context, *choices.values()]
    if len(choices) < 2 or not all(isinstance(text, str) for text in (start, *texts)) or not all(map(str.strip, texts)):
        got = f"{context!r:.60}, {start!r:.60}, {values!r:.100}"
        raise RowError(where, got, "a text, a start, and two or more choices with distinct labels")
    check_text(" ".join([start, *choices, *texts]), where)
    choices = {label: f"{start} {text}" if start else text for label, text in choices.items()}
    return Choices(context, choices, None)


def _by_label(choices: Any) -> dict[str, Any]:
    """Returns the choices by label from a value of the column that `choice_columns` names; empty for other values."""
    if isinstance(choices, Mapping) and all(isinstance(choices.get(key), list) for key in ("text", "label")):
        pairs = itertools.zip_longest(choices["text"], choices["label"])
        choices = [{"text": text, "label": label} for text, label in pairs]
    if not isinstance(choices, list):
        return {}
    objects = [(choice.get("label"), choice.get("text")) for choice in choices if isinstance(choice, Mapping)]
    labeled = objects or enumerate(choices)
    texts = {composed(str(label).strip()): text for label, text in labeled if label is not None}
    return texts if len(texts) == len(choices) else {}
