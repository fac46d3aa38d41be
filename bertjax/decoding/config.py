"""Settings of beam search and sampling, and the length limits of hypotheses."""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Int

from bertjax.config import Constrained, Constraint, Count, Size, above, always, at_least, each, one_of
from bertjax.errors import UserError

_WORDS = Constraint("one id or more, each at least 0", lambda word: word and min(word) >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig(Constrained, prefix="decoding"):
    """How hypotheses are generated. Greedy search is beam search with `num_beams=1`.

    Attributes:
      method: "beam_search"; "sampling", random hypotheses; or "forced", which scores given targets.
      num_beams: beams per row of a beam search.
      n_best: hypotheses returned per row: the best finished ones of a beam search, or independent samples.
      length_penalty: divisor of a finished hypothesis's log-probability: "none", 1; "gnmt", ((5 + length) / 6)^alpha;
        "length", length^alpha, as in transformers. See `length_penalties`. The score of a sample is its
        log-probability.
      alpha: exponent of the length penalty. 0 is no penalty; negative values prefer short hypotheses.
      count_eos: whether the length in the penalty includes the end token, as in transformers and PreSumm.
      max_length: maximum number of tokens of a hypothesis (T), the size of caches. Does not limit the source.
      max_ratio: a hypothesis has at most max_ratio x source + max_extra tokens, including the end token; source + 50
        in Vaswani et al. (2017).
      max_extra: see `max_ratio`.
      min_ratio, min_extra: a hypothesis has at least min_ratio x source + min_extra tokens, excluding the end token.
      block_ngrams: size n of n-grams that may not occur twice; 0 for no blocking. See `ngram_blocking`.
      first_id: the first token of every hypothesis, at log-probability 0, whatever other settings exclude; None for
        the model's choice. `forced_bos_token_id` of transformers. Default with `init_from`: that of the folder, or the
        only `data.target_prefix` if that is one token.
      force_eos: whether the last possible token of a beam search is the end token, at log-probability 0, even before
        the minimum length, as Marian's `forced_eos_token_id`. If False, hypotheses of the maximum length are truncated
        and compete without an end token.
      stopping: when a row of a beam search is done. "exact": no beam can still reach a better score than the `n_best`
        finished hypotheses (in transformers "never", with `num_beams` hypotheses). "hf", `early_stopping=False` of
        transformers 5: `num_beams` hypotheses are finished, and the best beam's score at its current length is no
        better than the worst of them. "hf_early", `early_stopping=True`: `num_beams` hypotheses are finished.
        "presumm": the best beam ends; beams that end continue past their end token. With `num_beams=1`, always at the
        first end token.
      temperature: divisor of the logits; 0 takes the likeliest token.
      top_k: draws come from the k likeliest tokens, before `top_p`; 0 for all.
      top_p: draws come from the smallest set of likeliest tokens with at least this total probability (Holtzman et al.
        2020); 1 for all.
      forbid_unk: whether hypotheses never contain the unknown token.
      bad_words: words that hypotheses never contain, each as a tuple of the ids of its tokens.
      renormalize: whether the log-probabilities of a beam search are normalized over the tokens that are allowed,
        `renormalize_logits` of transformers.
      sample_by_line: whether equal lines draw different samples, by their line numbers. If False, samples depend only
        on the seed and the text.

    Raises:
      UserError: if a value is out of range, or if two values contradict each other.
    """

    method: Annotated[str, one_of("beam_search", "sampling", "forced")] = always("beam_search")
    num_beams: Size = always(4)
    n_best: Size = 1
    length_penalty: Annotated[str, one_of("none", "gnmt", "length")] = always("gnmt")
    alpha: float = always(0.6)
    count_eos: bool = always(True)
    max_length: Size = always(1024)
    max_ratio: Annotated[float, at_least(0, below=math.inf)] = always(1.0)
    max_extra: int = always(50)
    min_ratio: Annotated[float, at_least(0, below=math.inf)] = 0.0
    min_extra: Count = 0
    block_ngrams: Count = 0
    first_id: Count | None = None
    force_eos: bool = False
    stopping: Annotated[str, one_of("exact", "hf", "hf_early", "presumm")] = always("exact")
    temperature: Annotated[float, at_least(0, below=math.inf)] = 1.0
    top_k: Count = 0
    top_p: Annotated[float, above(0, at_most=1)] = 1.0
    forbid_unk: bool = False
    bad_words: Annotated[tuple[tuple[int, ...], ...], each(_WORDS)] = ()
    renormalize: bool = False
    sample_by_line: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        grows = self.max_ratio > 0 or self.max_extra >= 1
        self.check(grows, "max_extra", "at least 1 with decoding.max_ratio=0")
        most = self.max_length if self.max_ratio else min(self.max_length, self.max_extra)
        has_room = self.min_extra < most
        self.check(has_room, "min_extra", f"less than the maximum of {most} tokens of a hypothesis")
        if self.method == "beam_search":
            self.check(self.n_best <= self.num_beams, "n_best", f"1 to num_beams={self.num_beams}")
            one = self.stopping != "presumm" or self.n_best == 1
            self.check(one, "n_best", "1 with decoding.stopping=presumm")
        self.check(self.method != "forced" or self.n_best == 1, "n_best", "1 with decoding.method=forced")
        self.check(math.isfinite(self.alpha), "alpha", "a finite number")


def length_limits(
    config: DecodingConfig, source_lengths: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Returns each row's minimum number of tokens, without the end token, and maximum number, with the end token.

    Ratios times lengths are rounded to the nearest integer. The maximum is at least 1, and the minimum is below it.
    """
    most = jnp.round(config.max_ratio * source_lengths).astype(jnp.int32) + config.max_extra
    most = jnp.clip(most, 1, config.max_length)
    least = jnp.round(config.min_ratio * source_lengths).astype(jnp.int32) + config.min_extra
    return jnp.minimum(least, most - 1), most


def check_first_id(config: DecodingConfig, pad_id: int, vocab_size: int) -> None:
    """Raises UserError if `first_id` is the padding, which hypotheses never contain, or not in the vocabulary."""
    first_id = config.first_id
    is_token = first_id is None or (first_id != pad_id and first_id < vocab_size)
    config.check(is_token, "first_id", f"the id of a token, below {vocab_size}, except padding ({pad_id})")


def check_special_ids(eos_id: int, pad_id: int) -> None:
    """Raises UserError if the end token is the padding: hypotheses end with one and never contain the other."""
    if eos_id == pad_id:
        got = f"id {eos_id}, which is also the padding"
        fix = "give the padding its own id"
        raise UserError("the vocabulary's end token", got=got, expected="two different ids", fix=fix)
