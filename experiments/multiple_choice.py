"""Multiple choice: a text and several choices, one of which is right (Devlin et al. 2019, section 4.4).

Shapes: B questions, C choices, S tokens of a text with one choice.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import build_all
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.fine_tuning.choices import ChoiceRecipe, ChoiceRows, ChoicesConfig, Question, read_question, rows_of
from bertjax.data.prepared import PreparationConfig
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.buckets import bucket_lengths, check_seq_len
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import VocabularyConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, mask_logits
from bertjax.tasks import fine_tuning, inputs, pretrained
from bertjax.tasks.bert import INPUTS, BertTask, batch_specs, check_two_segments, model_configs, to_example
from bertjax.tasks.fine_tuning import FineTuningConfig, FineTuningData, FineTuningFacts, HeadConfig

_SEQ_LEN = 128  # the default
_COLUMNS = ("context_column", "start_column", "choice_columns", "label_column")
_KEY = "data.{context_column,start_column,choice_columns}"
FREE_AFTER_TRAINING = tuple(f"data.{key}" for key in (*_COLUMNS, "num_choices", "header", "separator", "seq_len"))

Config = FineTuningConfig


_DATA = (ChoicesConfig, VocabularyConfig, PreparationConfig)


def _example(question: Question, tokenizer: Tokenizer, seq_len: int) -> Example:
    """The example of a question, with one row per choice."""
    return to_example(rows_of(question, tokenizer, seq_len), question)


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines."""
    return pretrained.resolve(config, seq_len=_SEQ_LEN)


read_facts, stand_in_facts = fine_tuning.read_facts, fine_tuning.stand_in_facts


class ChoiceData(FineTuningData[Config, Question]):
    """See `bertjax.contract.Data`."""

    def __init__(self, config: Config, folder: Path) -> None:
        """See `Trainable.build_data`."""
        self._questions, *_ = build_all(_DATA, config.data, "data")
        super().__init__(config, folder, self._questions.seq_len, packing=False)

    @functools.cached_property
    def recipe(self) -> ChoiceRecipe:
        """See `FineTuningData.recipe`."""
        return ChoiceRecipe(self._questions, self.tokenizer)

    @functools.cached_property
    def _rows(self) -> ChoiceRows:
        return ChoiceRows(self.fields(), self._questions.num_choices)

    @functools.cached_property
    def _held_out(self) -> list[Example]:
        return [_example(question, self.tokenizer, self._seq_len) for question in self.read.valid()]

    def held_out(self) -> Iterator[Example]:
        """See `Data.held_out`; one row per choice."""
        return iter(self._held_out)

    def baselines(self) -> Mapping[str, float]:
        """The expected accuracy of a random choice."""
        return {"valid/chance_accuracy": float(np.mean([1 / len(each.rows) for each in self._held_out]))}


build_data = ChoiceData


class MultipleChoice(BertTask[Config]):
    """See `bertjax.contract.Task`."""

    architecture = "BertForMultipleChoice"

    def __init__(self, config: Config, facts: FineTuningFacts) -> None:
        """See `Experiment.build_task`."""
        self._questions, *_ = build_all(_DATA, config.data, "data")
        bert, head = model_configs(config, HeadConfig, facts.tokenizer.vocab)
        check_seq_len(self._questions.seq_len, bert.max_positions)
        check_two_segments(bert)
        model = BertForSequenceClassification(bert, 1, head.classifier_dropout, head.lstm_size)
        super().__init__(config, facts.tokenizer, bert, model, self._questions.seq_len)

    def reinitialized_modules(self, folder: Path) -> Sequence[str]:
        """The classifier, unless the folder's model was trained for multiple choice."""
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

    def _example(self, row: tables.Row, config: ChoicesConfig) -> Example:
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
