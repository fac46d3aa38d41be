"""Minimal pairs, scored from left to right by a model that also has other evaluations."""

import dataclasses

from bertjax.contract import Evaluation, PredictionTask
from bertjax.evaluations import minimal_pairs
from bertjax.tasks.language_models import left_to_right, models_of


@dataclasses.dataclass(frozen=True)
class Config(minimal_pairs.Config, prefix="causal_pairs"):
    """Minimal pairs that are scored from left to right, besides `minimal_pairs`, with the same keys."""


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are `causal_pairs/accuracy` and others.

    A model without causal rows has not learned to predict from the tokens on the left alone.

    Raises:
      UserError: for a missing file, or a task without a language model.
    """
    encoder = models_of(task, "causal_pairs")[0].encoder
    return minimal_pairs.of_model(config, left_to_right(encoder), task, on_bad_row, "causal_pairs")
