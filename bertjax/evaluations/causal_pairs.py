"""Minimal pairs, scored from left to right by a model that has learned to predict both masked and next tokens."""

import dataclasses

from bertjax.contract import Evaluation, PredictionTask
from bertjax.errors import UserError
from bertjax.evaluations import minimal_pairs


@dataclasses.dataclass(frozen=True)
class Config(minimal_pairs.Config, prefix="causal_pairs"):
    """Minimal pairs that are scored from left to right, besides `minimal_pairs`, with the same keys."""


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are `causal_pairs/accuracy` and others.

    Raises:
      UserError: for a missing file, or a task without causal rows.
    """
    models = minimal_pairs.language_models(task, "causal_pairs")
    if len(models) < 2:
        expected = "minimal_pairs, unless masking.causal_share is above 0"
        raise UserError("config key evaluations", got="causal_pairs", expected=expected, fix="omit it")
    return minimal_pairs.of_model(config, models[1], task, on_bad_row, "causal_pairs")
