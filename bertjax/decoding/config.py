"""What a search and a sampler are told, and how long their hypotheses may get."""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Int

from bertjax.config import Constrained, Count, Size, above, at_least, one_of
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig(Constrained, prefix="decoding"):
    """How targets are found. Greedy search is a beam of one; Vaswani et al. (2017) have at most source + 50 tokens.

    Attributes:
      method: "beam_search"; "sampling", drawn at random; or "forced", where targets are given, and only scored.
      num_beams: hypotheses that are followed at once by a beam search.
      n_best: how many of those that finished are returned; or how many are drawn, independent of each other.
      length_penalty: what a finished hypothesis's log-probability is divided by: "none", nothing; "gnmt",
        ((5 + length) / 6)^alpha; "length", length^alpha, as transformers. See `length_penalties`. A sample's score is
        its log-probability.
      alpha: the length penalty's exponent; 0 is no penalty, below 0 prefers the short.
      count_eos: whether the end token counts as part of the length in the penalty. It does in transformers and PreSumm.
      max_length: the most tokens of a hypothesis, whatever its source: T, what caches are made for. It does not bound
        the source.
      max_ratio, max_extra: a hypothesis has at most max_ratio x source + max_extra tokens, the end token counted.
      min_ratio, min_extra: a hypothesis has at least min_ratio x source + min_extra, the end token not counted.
      block_ngrams: no n tokens in a row come twice; 0 for no such rule. See `ngram_blocking`.
      force_eos: a beam search's last possible token is the end token, at no cost, as `forced_eos_token_id` of
        transformers, which Marian has, even if that is before the least length. Otherwise hypotheses are cut there, and
        compete as they are.
      stopping: when a row of a beam search is done:
        "exact": when none of its beams can get a better score than the `n_best` that finished, whatever they go on
          with. What transformers calls "never", apart from `n_best` there being the beams.
        "hf": as `generate(early_stopping=False)` of transformers 5: when `num_beams` finished, and the best beam's
          score at its present length is no better than the worst of them.
        "hf_early": as its `early_stopping=True`: when `num_beams` finished.
        "presumm": as PreSumm: when the best beam ends. There beams that end go on as well, past their end token.
        A beam of one is done at its first end token under each.
      temperature: what logits are divided by before sampling; 0 takes the likeliest token.
      top_k: only the k likeliest tokens are drawn from; 0 for all.
      top_p: only the fewest likeliest tokens that have this probability together (Holtzman et al. 2020); 1 for all.
        Of the `top_k` ones if both are given, as in transformers.
      forbid_unk: whether the token of unknown characters is never written.
      sample_by_line: whether equal lines draw different samples, by their places. Otherwise samples follow from the
        seed and the text of their line alone.

    Raises:
      UserError: a value out of range, or two that contradict each other.
    """

    method: Annotated[str, one_of("beam_search", "sampling", "forced")]
    num_beams: Size
    n_best: Size = 1
    length_penalty: Annotated[str, one_of("none", "gnmt", "length")]
    alpha: float
    count_eos: bool
    max_length: Size
    max_ratio: Annotated[float, at_least(0, below=math.inf)]
    max_extra: int
    min_ratio: Annotated[float, at_least(0, below=math.inf)] = 0.0
    min_extra: Count = 0
    block_ngrams: Count = 0
    force_eos: bool = False
    stopping: Annotated[str, one_of("exact", "hf", "hf_early", "presumm")]
    temperature: Annotated[float, at_least(0, below=math.inf)] = 1.0
    top_k: Count = 0
    top_p: Annotated[float, above(0, at_most=1)] = 1.0
    forbid_unk: bool = False
    sample_by_line: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        grows = self.max_ratio > 0 or self.max_extra >= 1
        self.check(grows, "max_extra", "at least 1 where max_ratio is 0")
        most = self.max_length if self.max_ratio else min(self.max_length, self.max_extra)
        has_room = self.min_extra < most
        self.check(has_room, "min_extra", f"less than the {most} tokens that a hypothesis has at most")
        if self.method == "beam_search":
            self.check(self.n_best <= self.num_beams, "n_best", f"1 to num_beams={self.num_beams}")
            one = self.stopping != "presumm" or self.n_best == 1
            self.check(one, "n_best", "1 with decoding.stopping=presumm")
        self.check(self.method != "forced" or self.n_best == 1, "n_best", "1 with decoding.method=forced")
        self.check(math.isfinite(self.alpha), "alpha", "a finite number")


def length_limits(
    config: DecodingConfig, source_lengths: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Returns the least tokens before the end token, and the most tokens with it, of each row.

    Ratios are rounded to the nearest. The most is at least 1, and the least leaves room for an end token.
    """
    most = jnp.round(config.max_ratio * source_lengths).astype(jnp.int32) + config.max_extra
    most = jnp.clip(most, 1, config.max_length)
    least = jnp.round(config.min_ratio * source_lengths).astype(jnp.int32) + config.min_extra
    return jnp.minimum(least, most - 1), most


def check_special_ids(eos_id: int, pad_id: int) -> None:
    """Raises UserError if the end token, which ends a hypothesis, is the padding, which is never in one."""
    if eos_id == pad_id:
        raise UserError(
            "the vocabulary's end token",
            got=f"id {eos_id}, which is the padding too",
            expected="two ids",
            fix="give padding an id of its own",
        )
