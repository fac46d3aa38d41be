"""Replaced-token detection (Clark et al. 2020, ELECTRA): the discriminator, and tokens sampled from a generator.

Shapes: B batch, S length, P masked positions, V vocabulary, H hidden size.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.models.bert import Bert, BertConfig, BertInputs
from bertjax.models.layers import Dense
from bertjax.models.transformer import activate
from bertjax.models.transformer_config import dense, kernel_init

# The tables of embeddings that a discriminator may read as those of the generator plus changes (He et al. 2023).
DISENTANGLED = ("word_embeddings", "position_embeddings")


class ReplacedTokenHead(nn.Module):
    """Tells whether tokens are replaced: dense, activation, and a linear map to a logit, as in ELECTRA.

    Parameters: `transform`, `output` [H, 1].
    """

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "B S H"]) -> Float32[Array, "B S"]:
        """Returns the logit of each token."""
        config = self.config
        x = activate(config, dense(config, config.hidden_size, "transform")(hidden))
        return Dense(1, kernel_init(config), "float32", name="output")(x)[..., 0]


class BertForReplacedTokens(nn.Module):
    """BERT as a discriminator: the logit of each token, padding included, that a generator has replaced it.

    Parameters: `bert`, without a pooler; `discriminator`.
    """

    config: BertConfig

    def setup(self) -> None:
        """Makes the submodules."""
        self.bert = Bert(self.config)
        self.discriminator = ReplacedTokenHead(self.config)

    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S"]:
        """Returns the logit of each token."""
        output = self.bert(inputs, deterministic=deterministic, return_attention=False)
        return self.discriminator(output.hidden)


class Corrupted(NamedTuple):
    """Rows whose masked positions have tokens of a generator."""

    input_ids: Array  # [B, S] int32
    is_replaced: Array  # [B, S] bool: whether the token differs from the original one


def corrupt(
    input_ids: Int[Array, "B S"],
    positions: Int[Array, "B P"],
    labels: Int[Array, "B P"],
    weights: Float[Array, "B P"],
    sampled: Int[Array, "B P"],
) -> Corrupted:
    """Puts sampled tokens into rows. A sampled token that equals the original one counts as original.

    Args:
      input_ids: the rows, masked.
      positions: the masked positions.
      labels: the original tokens there.
      weights: 0 for unused positions.
      sampled: the tokens of the generator.
    """
    rows = jnp.arange(len(input_ids))[:, None]
    outside = input_ids.shape[1]
    places = jnp.where(weights > 0, positions, outside)  # unused positions are dropped
    ids = input_ids.at[rows, places].set(sampled, mode="drop")
    return Corrupted(ids, jnp.zeros(ids.shape, bool).at[rows, places].set(sampled != labels, mode="drop"))


def sample(
    logits: Float32[Array, "*n V"], uniforms: Float32[Array, "*n"], temperature: float = 1.0
) -> Int[Array, "*n"]:
    """Draws a token from each distribution, by inversion of its cumulative probabilities in float32.

    The random numbers are arguments, so that the tokens do not depend on how rows are divided over devices.

    Args:
      logits: the logits of all tokens.
      uniforms: a number for each distribution, uniform in [0, 1).
      temperature: the divisor of the logits.
    """
    cumulative = jnp.cumsum(jax.nn.softmax(logits / temperature), axis=-1)
    drawn = jnp.sum(cumulative <= uniforms[..., None] * cumulative[..., -1:], axis=-1)
    return jnp.minimum(drawn, logits.shape[-1] - 1)  # rounding


def with_changes(params: Mapping[str, Any]) -> dict[str, Any]:
    """Adds `changes` to the embeddings of `bert`, which get no gradient from the result (He et al. 2023, section 3.3).

    Without changes, the parameters stay the same.
    """
    if "changes" not in params:
        return dict(params)
    changes = params["changes"]["embeddings"]
    embeddings = params["bert"]["embeddings"]
    added = {name: jax.lax.stop_gradient(embeddings[name]) + change for name, change in changes.items()}
    bert = {**params["bert"], "embeddings": {**embeddings, **added}}
    return {name: bert if name == "bert" else tree for name, tree in params.items() if name != "changes"}
