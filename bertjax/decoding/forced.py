"""The score of a target that is given, from the logits of one teacher-forced pass: no loop is needed."""

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
    """Returns each row's target as its one hypothesis, with the score that beam search gives it.

    An end token that the search forces costs nothing there, and what the model says here.

    Args:
      logits: of the token to follow at each place, as the model gives them for start token and target shifted by one.
      ids: the targets, with their end tokens if they have one.
      lengths: how many of the ids are the target; at least 1.
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
