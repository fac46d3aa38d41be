"""Multiple choice: a text and several choices, one of them right (Devlin et al. 2019, section 4.4).

Shapes: B questions, C choices, S tokens of a text with one choice.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import at_least, build_all
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, RowError, check_text
from bertjax.data.rows.buckets import Indices, Row, Rows, bucket_lengths, check_seq_len
from bertjax.data.rows.text_rows import text_row, truncate
from bertjax.data.splits import read_splits
from bertjax.data.text.given_vocabulary import VocabularyConfig
from bertjax.data.text.tokenizers import WordPiece
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, mask_logits
from bertjax.tasks import fine_tuning, inputs, pretrained
from bertjax.tasks.bert import INPUTS, BertTask, batch_specs, check_two_segments, model_configs, to_example
from bertjax.tasks.fine_tuning import FineTuningConfig, FineTuningData, FineTuningFacts, HeadConfig

_SPLIT_SEED = 0  # rows are held out by their numbers alone, so that runs with other seeds are scored on the same ones
_SEQ_LEN = 128  # the default
_COLUMNS = ("context_column", "start_column", "choice_columns", "label_column")
_KEY = "data.{context_column,start_column,choice_columns}"
FREE_AFTER_TRAINING = tuple(f"data.{key}" for key in (*_COLUMNS, "num_choices", "header", "separator", "seq_len"))

Config = FineTuningConfig


@dataclasses.dataclass(frozen=True)
class QuestionsConfig(tables.TableConfig):
    """The rows and columns to read. A column "a.b" is key "b" of the JSON object in column "a".

    Attributes:
      context_column: the column of the text.
      start_column: the column of a text put before each choice; "" for none.
      choice_columns: one column for each choice; or one column with all choices: a list of texts, a list of objects
        with "text" and "label", or an object with these two lists.
      label_column: the column of the right choice: its label or, if choices have no labels, its number from 0.
      num_choices: the most choices of a training or validation row.
      seq_len: the most tokens of a text with one choice; the longer of the two is truncated. Default: 128, or all
        positions of a model with fewer.
    """

    context_column: str
    start_column: str
    choice_columns: tuple[str, ...]
    label_column: str
    num_choices: Annotated[int, at_least(2)]
    seq_len: int


_DATA = (QuestionsConfig, VocabularyConfig)


class Question(NamedTuple):
    """A text and its choices."""

    context: str
    choices: Mapping[str, str]  # by label, or by number from 0 if there are no labels
    label: str | None  # of the right choice; None if unknown


def _question(row: tables.Row, config: QuestionsConfig) -> Question:
    """Reads a question, without the right label. Raises RowError for a malformed row."""
    columns = [_value(row, column, "data.choice_columns") for column in config.choice_columns]
    values = columns[0] if len(columns) == 1 else columns
    start = _value(row, config.start_column, "data.start_column") if config.start_column else ""
    context, choices = _value(row, config.context_column, "data.context_column"), _by_label(values)
    texts = [context, *choices.values()]
    if len(choices) < 2 or not all(isinstance(text, str) for text in (start, *texts)) or not all(map(str.strip, texts)):
        got = f"{context!r:.60}, {start!r:.60}, {values!r:.100}"
        raise RowError(row.where, got, "a text, a start, and two or more choices with distinct labels")
    check_text(" ".join([start, *choices, *texts]), row.where)
    choices = {label: f"{start} {text.strip()}".strip() for label, text in choices.items()}
    return Question(context.strip(), choices, None)


def _labeled(row: tables.Row, config: QuestionsConfig) -> Question:
    """Reads a question with its right label. Raises RowError for a malformed row."""
    question = _question(row, config)
    label = str(_value(row, config.label_column, "data.label_column")).strip()
    if label not in question.choices or len(question.choices) > config.num_choices:
        got = f"{len(question.choices)} choices, and {label!r} in column {config.label_column!r}"
        expected = f"at most {config.num_choices} (data.num_choices), and one of " + ", ".join(question.choices)
        raise RowError(row.where, got, expected)
    return question._replace(label=label)


def _value(row: tables.Row, column: str, key: str) -> Any:
    value: Any = row.values
    for name in column.split("."):
        if not isinstance(value, Mapping):
            raise RowError(row.where, f"{type(value).__name__} for column {column!r}", f"an object with key {name!r}")
        value = tables.value_of(tables.Row(value, row.where), name, key)
    return value


def _by_label(choices: Any) -> dict[str, Any]:
    """The choices by label, from a value as `choice_columns` describes; empty for any other value."""
    if isinstance(choices, Mapping) and all(isinstance(choices.get(key), list) for key in ("text", "label")):
        choices = [{"text": text, "label": label} for text, label in zip_longest(choices["text"], choices["label"])]
    if not isinstance(choices, list):
        return {}
    of_objects = [(each.get("label"), each.get("text")) for each in choices if isinstance(each, Mapping)]
    labeled = of_objects or enumerate(choices)
    found = {str(label).strip(): text for label, text in labeled if label is not None}
    return found if len(found) == len(choices) else {}


def _example(question: Question, tokenizer: WordPiece, seq_len: int) -> Example:
    """The example of a question, with one row per choice."""
    context, *choices = tokenizer.encode_batch([question.context, *question.choices.values()])
    return to_example([text_row(truncate([context, each], seq_len), tokenizer) for each in choices], question)


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines."""
    return pretrained.resolve(config, seq_len=_SEQ_LEN)


read_facts, stand_in_facts = fine_tuning.read_facts, fine_tuning.stand_in_facts


class ChoiceRows:
    """Questions as rows [B, C, S]; see `buckets.Padded`."""

    def __init__(self, rows: Rows, questions: Sequence[Example], num_choices: int) -> None:
        """Initializes the rows.

        Args:
          rows: the rows of all choices of all questions, in order.
          questions: the questions, with labels.
          num_choices: C, the most choices of a question.
        """
        self._rows = rows
        self._counts = np.array([len(each.rows) for each in questions])
        self._starts = np.cumsum(self._counts) - self._counts
        self._labels = np.array([list(each.source.choices).index(each.source.label) for each in questions], np.int32)
        self._choices = np.arange(num_choices)
        self.lengths = np.maximum.reduceat(self._rows.lengths, self._starts)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """See `buckets.Padded`; `labels` [B] are the indices of the right choices."""
        is_choice = (self._choices < self._counts[indices][:, None]) & (indices >= 0)[:, None]
        places = np.where(is_choice, self._starts[indices][:, None] + self._choices, -1)
        rows = self._rows.padded(places.ravel(), length)
        batch = {name: rows[name].reshape(*is_choice.shape, length) for name in INPUTS}
        return {**batch, "labels": self._labels[indices], "weights": (indices >= 0).astype(np.float32)}


class ChoiceData(FineTuningData[Config]):
    """See `bertjax.contract.Data`."""

    def __init__(self, config: Config, folder: Path) -> None:
        """See `Trainable.build_data`."""
        self._questions, _ = build_all(_DATA, config.data, "data")
        super().__init__(config, folder, self._questions.seq_len, packing=False)

    @functools.cached_property
    def _splits(self) -> tuple[Sequence[Example], Sequence[Example]]:
        """The training and the validation questions."""
        make = functools.partial(_labeled, config=self._questions)
        splits = read_splits(self._questions, lambda source, key: self._questions.read(source, key, make), _SPLIT_SEED)
        train, valid = ([_example(each, self.tokenizer, self._seq_len) for each in split] for split in splits)
        return train, valid

    def encoded(self) -> Iterator[Row]:
        """See `FineTuningData.encoded`; one row per choice."""
        return (row for question in self._splits[0] for row in question.rows)

    @functools.cached_property
    def _rows(self) -> ChoiceRows:
        return ChoiceRows(Rows(self.encoded()), self._splits[0], self._questions.num_choices)

    def held_out(self) -> Iterator[Example]:
        """See `Data.held_out`; one row per choice."""
        return iter(self._splits[1])

    def baselines(self) -> Mapping[str, float]:
        """The expected accuracy of guessing."""
        return {"valid/chance_accuracy": float(np.mean([1 / len(each.rows) for each in self._splits[1]]))}


build_data = ChoiceData


class MultipleChoice(BertTask[Config]):
    """See `bertjax.contract.Task`."""

    architecture = "BertForMultipleChoice"

    def __init__(self, config: Config, facts: FineTuningFacts) -> None:
        """See `Experiment.build_task`."""
        self._questions, _ = build_all(_DATA, config.data, "data")
        bert, head = model_configs(config, HeadConfig, facts.tokenizer.vocab)
        check_seq_len(self._questions.seq_len, bert.max_positions)
        check_two_segments(bert)
        model = BertForSequenceClassification(bert, 1, head.classifier_dropout, head.lstm_size)
        super().__init__(config, facts.tokenizer, bert, model, self._questions.seq_len)

    def modules_afresh(self, folder: Path) -> Sequence[str]:
        """The classifier, if the folder has one of another task."""
        return () if pretrained.describe(folder).task == "multiple_choice" else ("classifier",)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        size, choices = self._config.batch_size, self._questions.num_choices
        shapes = [(size, choices, length) for length in bucket_lengths(self._questions.seq_len)]
        return batch_specs(shapes, {}, {"labels": np.int32})

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The number of questions."""
        return {"choice": jnp.maximum(jnp.sum(batch["weights"]), 1.0)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy over the choices of each question; see `Task.loss`."""
        tokens, labels, weights = batch["segment_ids"] != 0, batch["labels"], batch["weights"]
        rows = {name: batch[name].reshape(-1, tokens.shape[-1]) for name in INPUTS}
        logits = mask_logits(self.apply(params, rows, rng).reshape(tokens.shape[:2]), tokens.any(axis=-1))
        metrics = {
            "tokens": (jnp.sum(tokens, dtype=jnp.float32), jnp.ones(())),
            "accuracy": (jnp.sum(is_best(logits, labels) * weights), jnp.sum(weights)),
        }
        return {"choice": jnp.sum(cross_entropy(logits, labels) * weights)}, metrics

    def score_names(self) -> Sequence[str]:
        """The accuracy and the mean loss of the questions."""
        return ("accuracy", "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`."""
        found = [(each.source.label, _probabilities(each, outputs)) for each, outputs in results]
        right = [label == max(each, key=each.__getitem__) for label, each in found]
        losses = [-np.log(each[label]) for label, each in found]
        return {"accuracy": float(np.mean(right)), "loss": float(np.mean(losses))}

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """An example for each line: a text and its choices, separated by tabs."""

        def make(line: Sequence[str], where: str) -> Example:
            context, *choices = line[0].split("\t")
            return self._example(tables.Row({"context": context, "choices": choices}, where), plain)

        plain = dataclasses.replace(
            self._questions, context_column="context", start_column="", choice_columns=("choices",)
        )
        return inputs.of_lines(lines, make, self._questions.on_bad_row)

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """An example for each row of a table, read as in training but without labels; see `Task.examples_of`."""
        config, bad_rows = self._questions, BadRows(self._questions.on_bad_row)
        columns = (config.context_column, config.start_column, *config.choice_columns)
        first = [name.split(".")[0] for name in columns if name]
        rows = tables.read_input(path, _KEY, first, config.header, bad_rows)
        return None if rows is None else inputs.examples(rows, lambda row: self._example(row, config), bad_rows)

    def _example(self, row: tables.Row, config: QuestionsConfig) -> Example:
        return _example(_question(row, config), self._tokenizer, self._seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logit of each row, [B]."""
        return {"logits": self.apply(params, batch, None)[:, 0]}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The label and text of the likeliest choice, and the probabilities of all choices by label."""
        found = _probabilities(example, outputs)
        label = max(found, key=found.__getitem__)
        probabilities = {name: round(each, 6) for name, each in found.items()}
        return {"label": label, "choice": example.source.choices[label], "probabilities": probabilities}

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        context, choices, right = example.source
        found = {choices[label]: each for label, each in _probabilities(example, outputs).items()}
        shown = {"kind": "label", "text": context, "second": "", "reference": choices[right]}
        return {**shown, "label": max(found, key=found.__getitem__), "probabilities": found}


build_task = MultipleChoice


def _probabilities(example: Example, outputs: Sequence[Output]) -> dict[str, float]:
    """The probabilities of the choices, by label."""
    logits = np.array([output["logits"] for output in outputs], np.float64)
    exponentials = np.exp(logits - logits.max())
    return dict(zip(example.source.choices, (exponentials / exponentials.sum()).tolist(), strict=True))
