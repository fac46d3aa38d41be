"""Multiple choice: a text and several choices, one of which is right (Devlin et al. 2019, section 4.4).

Shapes: B questions, C choices, S tokens of a text with one choice.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import part
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.choices import ChoiceRecipe, ChoiceRows, ChoicesConfig, Question, pairs_of, read_question
from bertjax.data.readers import tables
from bertjax.data.rows.text_rows import is_too_long, text_row
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, mask_logits
from bertjax.tasks import bert, completion, fine_tuning, inputs

_COLUMNS = ("context_column", "start_column", "choice_columns", "label_column")
_KEY = "data.{context_column,start_column,choice_columns}"
FREE_AFTER_TRAINING = tuple(f"data.{key}" for key in (*_COLUMNS, "num_choices", "header", "separator", "seq_len"))


@dataclasses.dataclass(frozen=True)
class DataConfig(ChoicesConfig, fine_tuning.DataConfig):
    """The keys of `data`."""


@dataclasses.dataclass(frozen=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads."""

    model: fine_tuning.ClassifierConfig
    data: DataConfig


resolve = functools.partial(completion.bert, seq_len=128)
open_vocabulary, example_config = bert.open_vocabulary, fine_tuning.example_config


def _example(question: Question, tokenizer: Tokenizer, seq_len: int) -> Example:
    """The example of a question, with one row per choice."""
    pairs = pairs_of(question, tokenizer)
    is_cut = any(is_too_long(pair, tokenizer, seq_len) for pair in pairs)
    rows = [text_row(pair, tokenizer, seq_len) for pair in pairs]
    return bert.to_example(rows, question, inputs.limited(bert.of_seq_len(seq_len), truncated=is_cut))


class Data(fine_tuning.FineTuningData[Config, Question]):
    """See `bertjax.contract.Data`."""

    @functools.cached_property
    def recipe(self) -> ChoiceRecipe:
        """See `FineTuningData.recipe`."""
        return ChoiceRecipe(part(ChoicesConfig, self._config.data), self.vocabulary)

    @functools.cached_property
    def rows(self) -> ChoiceRows:
        """See `FineTuningData.rows`."""
        return ChoiceRows(self.fields(), self._config.data.num_choices)

    def example(self, row: Question) -> Example:
        """See `FineTuningData.example`; one row per choice."""
        return _example(row, self.vocabulary, self._config.data.seq_len)

    def baselines(self) -> Mapping[str, float]:
        """The expected accuracy of a random choice."""
        return {"valid/chance_accuracy": float(np.mean([1 / len(each.rows) for each in self.valid]))}


class Task(fine_tuning.FineTuningTask[Config]):
    """See `bertjax.contract.TrainingTask`."""

    architecture = "BertForMultipleChoice"
    term = "choice"
    heads = ("classifier",)
    of_examples = MappingProxyType({"labels": np.int32})

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForSequenceClassification:
        """See `FineTuningTask.with_head`."""
        return BertForSequenceClassification(encoder, 1, config.model.classifier_dropout, config.model.lstm_size)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """See `FineTuningTask.example_shape`."""
        return (self._config.data.num_choices,)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy over the choices of each question; see `TrainingTask.loss`."""
        tokens = batch["segment_ids"] != 0
        labels, weights = batch["labels"], batch["weights"]
        rows = {name: batch[name].reshape(-1, tokens.shape[-1]) for name in bert.INPUTS}
        logits = mask_logits(self.apply(params, rows, rng).reshape(tokens.shape[:2]), tokens.any(axis=-1))
        metrics = fine_tuning.metrics(batch, is_best(logits, labels), weights)
        return {self.term: jnp.sum(cross_entropy(logits, labels) * weights)}, metrics

    def score_names(self) -> Sequence[str]:
        """The accuracy and the mean loss of the questions."""
        return ("accuracy", "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`."""
        found = [(_probabilities(each, outputs), each.source.label) for each, outputs in results]
        right = [max(each, key=each.__getitem__) == label for each, label in found]
        losses = [-np.log(each[label]) for each, label in found]
        return {"accuracy": float(np.mean(right)), "loss": float(np.mean(losses))}

    def example(self, texts: Sequence[str], where: str) -> Example:
        """See `BertPredictionTask.example`; of a text and its choices."""
        context, *choices = texts
        data = self._config.data
        plain = dataclasses.replace(data, context_column="context", start_column="", choice_columns=("choices",))
        return self._example(tables.Row({"context": context, "choices": choices}, where), plain)

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """An example for each row of a table, read as in training but without labels."""
        data = self._config.data
        columns = (data.context_column, data.start_column, *data.choice_columns)
        named = [name for name in columns if name]

        def make(row: tables.Row) -> Example:
            return self._example(row, data)

        return inputs.of_rows(path, _KEY, named, make, data, tabs=True)

    def _example(self, row: tables.Row, config: DataConfig) -> Example:
        return _example(read_question(row, config), self._tokenizer, self._seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logit of each row, [B]."""
        return {"logits": self.apply(params, batch, None)[:, 0]}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The label and text of the most probable choice, and the probabilities of all choices by label."""
        found = _probabilities(example, outputs)
        label = max(found, key=found.__getitem__)
        probabilities = {name: round(each, 6) for name, each in found.items()}
        return {"label": label, "choice": example.source.choices[label], "probabilities": probabilities}

    def record_fields(self) -> Sequence[str]:
        """See `PredictionTask.record_fields`."""
        return ("label", "choice", "probabilities")  # rows may have different choices

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        context, choices, right = example.source
        found = {choices[label]: each for label, each in _probabilities(example, outputs).items()}
        shown = {"kind": "label", "text": context, "second": "", "reference": choices[right]}
        return {**shown, "label": max(found, key=found.__getitem__), "probabilities": found}


def _probabilities(example: Example, outputs: Sequence[Output]) -> dict[str, float]:
    """The probabilities of the choices, by label."""
    logits = np.array([output["logits"] for output in outputs], np.float64)
    exponentials = np.exp(logits - logits.max())
    return dict(zip(example.source.choices, (exponentials / exponentials.sum()).tolist(), strict=True))
