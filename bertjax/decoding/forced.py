"""Scores of given targets, from the logits of one teacher-forced pass."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.decoding.config import DecodingConfig
from bertjax.decoding.hypotheses import Hypotheses
from bertjax.decoding.length_penalties import length_penalty


def score_targets(
    logits: Float[Array, "B T V"],
    ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    config: DecodingConfig,
    eos_id: int,
) -> Hypotheses:
    """Returns each row's target as its only hypothesis, with the score that beam search gives it.

    One difference: tokens forced by `force_eos` and `first_id` have log-probability 0 in beam search, and the model's
    here. Targets need not begin with `first_id`.

    Args:
      logits: the logits of each target token: the model's output for the start token and the target shifted by one.
      ids: the targets, including end tokens if present.
      lengths: the number of tokens of each target; at least 1.
      config: the settings of the score.
      eos_id: the end token.
    """
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    log_probabilities = picked - jax.nn.logsumexp(logits, axis=-1)
    is_real = jnp.arange(ids.shape[-1]) < lengths[:, None]
    total = jnp.sum(log_probabilities, axis=-1, where=is_real)
    ends = jnp.take_along_axis(ids, lengths[:, None] - 1, axis=-1)[:, 0] == eos_id
    counted = lengths - ends * (not config.count_eos)
    scores = total / length_penalty(config, counted)
    return Hypotheses(ids[:, None], lengths[:, None], total[:, None], scores[:, None])
