"""Multiple choice: a text and several choices, one of which is right (Devlin et al. 2019, section 4.4).

Shapes: B questions, C choices, S tokens of a text with one choice.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Flat
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.choices import ChoiceCodec, Choices, ChoicesConfig
from bertjax.data.rows.choice_rows import ChoiceRows
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, mask_logits
from bertjax.scoring.probabilities import softmax
from bertjax.tasks import bert, completion, fine_tuning

FREE_AFTER_TRAINING = tuple(
    f"data.{key}"
    for key in (
        *("context_column", "start_column", "choice_columns", "label_column"),
        *("num_choices", "header", "separator", "seq_len"),
    )
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fine_tuning.DataConfig):
    """The keys of `data`."""

    rows: Flat[ChoicesConfig]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads."""

    model: fine_tuning.ClassifierConfig
    data: DataConfig

    def codec(self, tokenizer: EncoderTokenizer) -> ChoiceCodec:
        return ChoiceCodec(self.data.rows, tokenizer)


resolve = functools.partial(completion.bert, seq_len=128)
open_vocabulary = bert.open_vocabulary
example_config = fine_tuning.example_config


class Data(fine_tuning.FineTuningData[Config, Choices]):
    """Texts with choices."""

    @functools.cached_property
    def rows(self) -> ChoiceRows:
        return ChoiceRows(self.fields(), self._config.data.num_choices)

    def baselines(self) -> Mapping[str, float]:
        """Returns the expected accuracy of a random choice."""
        return {"valid/chance_accuracy": float(np.mean([1 / len(example.rows) for example in self.valid]))}


class Task(fine_tuning.FineTuningTask[Config]):
    """Chooses one of several texts. The source of an example is an `inputs.Source` of a `Choices`."""

    architecture = "BertForMultipleChoice"
    loss_name = "choice"
    heads = ("classifier",)
    example_dtypes = MappingProxyType({"labels": np.int32})

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForSequenceClassification:
        return BertForSequenceClassification(encoder, 1, config.model.classifier_dropout, config.model.lstm_size)

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self._config.data.num_choices,)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Returns the cross-entropy over the choices of each question."""
        labels = batch["labels"]
        rows = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in bert.INPUTS}
        logits = self.predictions(self.apply(params, rows, rng), batch).logits
        metrics = fine_tuning.metrics(batch, is_best(logits, labels), batch["weights"])
        return {self.loss_name: jnp.sum(cross_entropy(logits, labels) * batch["weights"])}, metrics

    def predictions(self, output: jax.Array, batch: Batch) -> bert.Predictions:
        is_choice = (batch["segment_ids"] != 0).any(axis=-1)
        logits = mask_logits(output.reshape(is_choice.shape), is_choice)
        return bert.Predictions(logits, batch["weights"], "classification")

    def score_names(self) -> Sequence[str]:
        return ("accuracy", "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the accuracy and the mean loss of the questions."""
        pairs = [(_probabilities(*result), result[0].source.item.label) for result in results]
        right = [max(choices, key=choices.__getitem__) == label for choices, label in pairs]
        losses = [-np.log(choices[label]) for choices, label in pairs]
        return {"accuracy": float(np.mean(right)), "loss": float(np.mean(losses))}

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the logit of each row, [B]."""
        return {"logits": self.apply(params, batch, None)[:, 0]}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the label and text of the most probable choice, and the probabilities of all choices by label."""
        choices = _probabilities(example, outputs)
        label = max(choices, key=choices.__getitem__)
        probabilities = {name: round(probability, 6) for name, probability in choices.items()}
        return {"label": label, "choice": example.source.item.choices[label], "probabilities": probabilities}

    def record_fields(self) -> Sequence[str]:
        return ("label", "choice", "probabilities")  # rows may have different choices

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        context, choices, right = example.source.item
        probabilities = _probabilities(example, outputs)
        texts = {choices[label]: probability for label, probability in probabilities.items()}
        record = {"kind": "label", "text": context, "second": "", "reference": choices[right]}
        record["loss"] = -float(np.log(probabilities[right]))
        return {**record, "label": max(texts, key=texts.__getitem__), "probabilities": texts}


def _probabilities(example: Example, outputs: Sequence[Output]) -> dict[str, float]:
    """Returns the probabilities of the choices, by label."""
    probabilities = softmax(np.array([output["logits"] for output in outputs], np.float64))
    return dict(zip(example.source.item.choices, probabilities.tolist(), strict=True))
