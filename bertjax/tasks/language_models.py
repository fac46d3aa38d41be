"""Language models of tasks: the objectives of pretraining that make one, and how evaluations find it."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from bertjax.contract import PredictionTask
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig

LANGUAGE_MODELS = ("masked_lm", "causal_lm")


class LanguageModel(NamedTuple):
    """A way to predict tokens.

    Attributes:
      encoder: the encoder; a causal one has a direction.
      objective: "masked_lm" or "causal_lm".
      predict_at: where a masked token is predicted; see `MaskingConfig`.
    """

    encoder: HeadConfig
    objective: str
    predict_at: str = "same"

    @property
    def shift(self) -> int:
        """The offset from a token to the position that predicts it: 0, or 1 to a neighbor."""
        if self.objective == "masked_lm":
            return -1 if self.predict_at == "previous" else 0
        return 1 if self.encoder.direction == "right_to_left" else -1


def language_models(encoder: HeadConfig, objective: str, masking: MaskingConfig) -> tuple[LanguageModel, ...]:
    """Returns the ways in which a model has learned to predict tokens: with causal rows, also from left to right."""
    masked = LanguageModel(encoder, objective, masking.predict_at)
    if not any(masking.causal_shares):
        return (masked,)
    causal = left_to_right(encoder)
    return (causal,) if min(masking.causal_shares) == 1 else (masked, causal)


def left_to_right(encoder: HeadConfig) -> LanguageModel:
    """Returns the model that reads from left to right, whether it has learned to or not."""
    return LanguageModel(dataclasses.replace(encoder, direction="left_to_right"), "causal_lm")


@runtime_checkable
class LanguageModelTask(Protocol):
    """A task whose parameters are those of a `BertForMaskedLM`."""

    @property
    def language_models(self) -> Sequence[LanguageModel]:
        """The ways in which the model predicts tokens, that of its objective first."""

    @property
    def tokenizer(self) -> EncoderTokenizer:
        """Its tokenizer."""

    def predict_lengths(self) -> Sequence[int]:
        """Returns the lengths of rows to predict on, each of which is compiled once."""


def models_of(task: PredictionTask, evaluation: str) -> Sequence[LanguageModel]:
    """Returns the language models of a task. Raises UserError for an evaluation of a task without one."""
    if not isinstance(task, LanguageModelTask):
        got = f"{evaluation}, for a task without a language model"
        raise UserError("config key evaluations", got=got, expected="an evaluation of this task", fix="omit it")
    for model in task.language_models:
        check_template(model, task.tokenizer)
    return task.language_models


def check_template(model: LanguageModel, tokenizer: EncoderTokenizer) -> None:
    """Raises UserError if no special token is where the first token of a text, or in reverse the last, is predicted."""
    template = tokenizer.template
    if (model.shift < 0 and not template.start) or (model.shift > 0 and not template.end):
        got = "a tokenizer without a special token before texts" if model.shift < 0 else "one without an end token"
        expected = "one with it, because a causal model predicts the outermost token there"
        raise UserError("config key data.vocab_file", got=got, expected=expected, fix="choose another vocabulary")


def check_objective(objective: str | None, published: Published) -> str:
    """Returns the objective of the weights, or else the given one, or "masked_lm".

    Raises:
      UserError: if the weights were trained with another objective than the given one.
    """
    before = published.objective
    if before in LANGUAGE_MODELS and objective not in (None, before):
        raise UserError(
            "config key objective",
            got=objective,
            expected=f"{before}, which {published.path} was trained with",
            fix=f"set --config.objective={before}",
        )
    return before if before in LANGUAGE_MODELS else objective or LANGUAGE_MODELS[0]
