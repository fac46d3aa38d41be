"""Language models of tasks: the objectives of pretraining that make one, and how evaluations find it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig

LANGUAGE_MODELS = ("masked_lm", "causal_lm")


class LanguageModel(NamedTuple):
    """The encoder and the objective of a language model: "masked_lm" or "causal_lm"."""

    encoder: HeadConfig
    objective: str


@runtime_checkable
class LanguageModelTask(Protocol):
    """A task whose parameters are those of a `BertForMaskedLM`."""

    @property
    def language_model(self) -> LanguageModel:
        """The language model."""

    @property
    def tokenizer(self) -> EncoderTokenizer:
        """Its tokenizer."""

    def predict_lengths(self) -> Sequence[int]:
        """Returns the lengths of rows to predict on, each of which is compiled once."""


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
