"""Prediction targets of token rows: masked tokens (BERT section 3.1), or the next token.

Equal to `create_masked_lm_predictions` of google-research/bert, for a whole batch of instances at once. Spans are
those of SpanBERT (Joshi et al. 2020, section 3.1).
"""

import dataclasses
import itertools
import math
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, Int64, UInt32

from bertjax.config import Constrained, Count, Size, above, always, at_least, one_of
from bertjax.data import random
from bertjax.data.pretraining.stages import check_stages, number

Epochs = TypeVar("Epochs", int, np.ndarray)

# The lengths of spans have a geometric distribution with this parameter, truncated (SpanBERT).
_SPAN_P = 0.2


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Constrained, prefix="masking"):
    """The selection and replacement of tokens. The rates of BERT's Table 8 are values of these keys.

    Attributes:
      rate: the fraction of an instance's tokens, including [CLS] and [SEP], that are predicted.
      final_rate: the rate of the last update, to which `rate` changes linearly (Ankner et al. 2024: 0.3 to 0.15); 0 for
        a constant rate. Only in dynamic masking.
      valid_rate: the rate of evaluations; 0 for the rate of the last update. Losses at different rates do not compare.
      max_predictions: the maximum number of predicted tokens in an instance, at least the highest rate of its length.
        Default: that rate of `data.seq_len`, rounded up (BERT's 20 at length 128, 77 at 512).
      mask_fraction: the fraction of predicted tokens replaced by [MASK].
      random_fraction: the fraction of predicted tokens replaced by a random token of the whole vocabulary.
      keep_fraction: the fraction of predicted tokens left unchanged. The three fractions add up to 1.
      whole_word: whether only whole words are selected.
      max_span: the maximum length of a span of consecutive words (tokens if not `whole_word`) that are selected and
        replaced together, geometric with p = 0.2; 0 to select each word by itself. SpanBERT: 10, with `whole_word`.
      mode: "dynamic" draws again in each epoch; "static" repeats the draws of the first `dupe_factor` epochs.
      dupe_factor: the number of different draws in static masking.
      distribution: "constant", the same rate for all instances; or "uniform": each row of training draws a rate u in
        (0, 1], and an instance of n candidates hides u n of them, rounded up. Evaluations are constant.
      rate_floor: with "uniform", the lowest rate, for stability. Above 0, a weighted loss is not a bound.
      loss_weight: the weight of a hidden token: "none", 1; or "inverse_rate", n / k where k of n candidates are hidden.
        The mean over all candidates is then an upper bound of the negative log-likelihood, that of models that predict
        tokens in any order (Hoogeboom et al. 2022), or of masked diffusion (Sahoo et al. 2024, MDLM).
      predict_at: where a hidden token is predicted: "same", its own position; or "previous", the one before it, as in
        causal rows (Charpentier and Samuel 2024, GPT-BERT).
      causal_share: the share of the rows of an update that are causal: every token predicts the next one, and attends
        to those before it. GPT-BERT: 1/16.
      causal_stages: other shares before it: pairs of a fraction of all updates and a share, such as ((0.5, 1.0),).
      causal_mean: how the losses of hidden tokens and of causal rows are added: "by_share", their means times the
        shares of rows (GPT-BERT); or "pooled", one mean over all predictions.
    """

    rate: Annotated[float, above(0, at_most=1)] = always(0.15)
    max_predictions: Size | None = always(None)
    mask_fraction: Annotated[float, at_least(0)] = always(0.8)
    random_fraction: Annotated[float, at_least(0)] = always(0.1)
    keep_fraction: Annotated[float, at_least(0)] = always(0.1)
    whole_word: bool = always(False)
    mode: Annotated[str, one_of("dynamic", "static")] = always("dynamic")
    dupe_factor: Size = always(10)
    final_rate: Annotated[float, at_least(0, at_most=1)] = 0.0
    valid_rate: Annotated[float, at_least(0, at_most=1)] = 0.0
    max_span: Count = 0
    distribution: Annotated[str, one_of("constant", "uniform")] = "constant"
    rate_floor: Annotated[float, at_least(0, below=1)] = 0.0
    loss_weight: Annotated[str, one_of("none", "inverse_rate")] = "none"
    predict_at: Annotated[str, one_of("same", "previous")] = "same"
    causal_share: Annotated[float, at_least(0, at_most=1)] = 0.0
    causal_stages: tuple[tuple[float, float], ...] = ()
    causal_mean: Annotated[str, one_of("by_share", "pooled")] = "by_share"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_noise()
        fractions = (self.mask_fraction, self.random_fraction, self.keep_fraction)
        expected = "three fractions of the predicted tokens that add up to 1"
        fix = "set all, such as 0.8, 0.1 and 0.1"
        adds_up = abs(sum(fractions) - 1) <= 1e-6
        self.check(adds_up, "{mask,random,keep}_fraction", expected, got=fractions, fix=fix)
        got = f"{self.final_rate} with masking.mode=static, which repeats its masks"
        fix = "set --config.masking.mode=dynamic, or omit masking.final_rate"
        is_allowed = not self.final_rate or self.mode != "static"
        self.check(is_allowed, "final_rate", "masking.mode=dynamic if the rate changes", got=got, fix=fix)

    def _check_noise(self) -> None:
        """Raises UserError if keys contradict the distribution of rates."""
        check_stages(self, "causal_stages", "a share from 0 to 1", lambda share: 0 <= number(share, -1.0) <= 1)
        if self.distribution == "uniform":
            is_free = self.mode == "dynamic" and not self.max_predictions and not self.final_rate
            expected = "masking.mode=dynamic, without max_predictions and final_rate, if rates are uniform"
            self.check(is_free, "distribution", expected, fix="omit them, or set masking.distribution=constant")
        else:
            self.check(not self.rate_floor, "rate_floor", "0 with masking.distribution=constant")
        if self.loss_weight == "inverse_rate":
            hides_any = self.mask_fraction == 1 and not self.whole_word and not self.max_span
            expected = "distribution=uniform, fractions 1, 0 and 0 of [MASK], random and kept tokens, and neither"
            expected += " whole_word nor max_span: the weighted loss is a bound only if any tokens may be hidden"
            is_bound = self.distribution == "uniform" and hides_any
            self.check(is_bound, "loss_weight", expected, fix="set them, or masking.loss_weight=none")

    @property
    def highest_rate(self) -> float:
        """The highest rate of all updates."""
        return max(self.rate, self.final_rate)

    @property
    def causal_shares(self) -> tuple[float, ...]:
        """The shares of causal rows of all stages."""
        return (*(share for _, share in self.causal_stages), self.causal_share)

    @property
    def is_mixed(self) -> bool:
        """Whether the number of predictions differs between the rows of an update."""
        return self.distribution == "uniform" or any(self.causal_shares)

    @property
    def is_bound(self) -> bool:
        """Whether the mean weighted loss of updates is an upper bound of the negative log-likelihood."""
        return self.loss_weight == "inverse_rate" and not self.rate_floor

    @property
    def valid(self) -> "MaskingConfig":
        """The settings of evaluations: a constant rate, and no causal rows."""
        last = self.at(1.0)
        return dataclasses.replace(
            last,
            rate=self.valid_rate or last.rate,
            valid_rate=0.0,
            distribution="constant",
            rate_floor=0.0,
            loss_weight="none",
            causal_share=0.0,
        )

    def at(self, progress: float) -> "MaskingConfig":
        """Returns the same settings with the constant rate and the share of causal rows of an update.

        Args:
          progress: 0 for the first update, 1 for the last.
        """
        rate = (1 - progress) * self.rate + progress * self.final_rate if self.final_rate else self.rate
        ends = itertools.accumulate((fraction for fraction, _ in self.causal_stages), initial=0.0)
        stage = sum(end <= progress for end in ends) - 1
        share = self.causal_shares[stage]
        return dataclasses.replace(self, rate=rate, final_rate=0.0, causal_share=share, causal_stages=())

    def epoch_of_draws(self, epoch: Epochs) -> Epochs:
        """Returns the epoch whose pairs and masks epoch `epoch` uses."""
        return epoch % self.dupe_factor if self.mode == "static" else epoch

    def num_predictions(self, lengths: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the number of tokens to predict at the highest rate in instances of the given lengths."""
        return np.clip(np.rint(lengths * self.highest_rate), 1, self.max_predictions).astype(np.int64)

    def most_predictions(self, length: int) -> int:
        """Returns the maximum number of predicted tokens in an instance of at most `length` tokens."""
        if self.distribution == "uniform":
            return length
        return self.max_predictions or math.ceil(length * self.highest_rate)

    def check_room(self, seq_len: int) -> None:
        """Raises UserError if `max_predictions` cuts the highest rate of an instance of `seq_len` tokens."""
        needed = round(self.highest_rate * seq_len)
        expected = f"at least {needed}, a fraction {self.highest_rate} of {seq_len} tokens, or no value"
        fix = "omit it, so that it follows the masking rate"
        self.check(self.most_predictions(seq_len) >= needed, "max_predictions", expected, fix=fix)


class Predictions(NamedTuple):
    """Instances with their prediction targets, in order of position. Unused targets have weight 0."""

    input_ids: Int[np.ndarray, "n S"]
    positions: Int[np.ndarray, "n P"]
    labels: Int[np.ndarray, "n P"]
    weights: Float32[np.ndarray, "n P"]


class Draw(NamedTuple):
    """What the random numbers of an instance depend on. No two instances of an epoch start at the same token."""

    seed: int
    epoch: int | Int64[np.ndarray, " n"]
    documents: Int64[np.ndarray, " n"]
    starts: Int64[np.ndarray, " n"]  # tokens before the instance in its document

    def words(self, stream: random.Stream, count: int) -> UInt32[np.ndarray, "n {count}"]:
        """Returns random words for each instance. A shorter draw is a prefix of a longer one."""
        return random.bits(self.seed, stream, self.epoch, self.documents, count, self.starts)


def mask_tokens(
    input_ids: Int[np.ndarray, "n S"],
    candidates: Bool[np.ndarray, "n S"],
    lengths: Int[np.ndarray, " n"],
    config: MaskingConfig,
    *,
    is_continuation: Bool[np.ndarray, " V"],
    mask_id: int,
    draw: Draw,
    rates: Float64[np.ndarray, " n"] | None = None,
) -> Predictions:
    """Selects the tokens to predict and masks them.

    Args:
      input_ids: token ids. The amount of padding does not affect the result.
      candidates: True for tokens that may be predicted: all but [CLS], [SEP] and padding.
      lengths: the number of tokens in each instance, including [CLS] and [SEP]; `rate` is a fraction of it.
      config: the rates.
      is_continuation: for each id of the vocabulary, whether it continues a word ("##...").
      mask_id: the id of [MASK].
      draw: what the random numbers of each instance depend on.
      rates: the share of its candidates that each instance hides, rounded up; None for the constant rate.
    """
    order_words = draw.words(random.Stream.MASKING, input_ids.shape[1])
    num_candidates = candidates.sum(axis=1)
    counts = np.minimum(config.num_predictions(lengths), num_candidates)
    if rates is not None:
        counts = np.ceil(rates * num_candidates).astype(np.int64)
    spans = None
    if config.whole_word or config.max_span:
        begins = _begins(input_ids, candidates, config, is_continuation)
        span_words = draw.words(random.Stream.SPANS, input_ids.shape[1]) if config.max_span else order_words
        span_lengths = _span_lengths(span_words, max(config.max_span, 1))
        spans = _choose_spans(candidates, begins, order_words, span_lengths, counts)
        candidates = spans > 0
        counts = candidates.sum(axis=1)
    most = config.most_predictions(input_ids.shape[1])
    positions = _first_by(order_words, candidates, counts, most)
    is_real = np.arange(most) < counts[:, None]

    labels = np.where(is_real, np.take_along_axis(input_ids, positions, axis=1), 0)
    words = draw.words(random.Stream.REPLACEMENT, 2 * most)
    fate = random.uniform(words[:, 0::2])
    token = random.below(words[:, 1::2], len(is_continuation))
    if spans is not None and config.max_span:
        fate = _of_first(fate, np.take_along_axis(spans, positions, axis=1))
    replaced = np.where(fate < config.mask_fraction + config.random_fraction, token, labels)
    replaced = np.where(fate < config.mask_fraction, mask_id, replaced)
    masked = input_ids.astype(np.int32)
    rows = np.broadcast_to(np.arange(len(masked))[:, None], positions.shape)
    masked[rows[is_real], positions[is_real]] = replaced[is_real]
    weights = is_real.astype(np.float32)
    if config.loss_weight == "inverse_rate":
        weights *= (num_candidates / np.maximum(counts, 1)).astype(np.float32)[:, None]
    if config.predict_at == "previous":
        positions = np.where(is_real, positions - 1, 0)
    return Predictions(masked, positions.astype(np.int32), labels.astype(np.int32), weights)


def predict_neighbors(input_ids: Int[np.ndarray, "n S"], lengths: Int[np.ndarray, " n"], direction: str) -> Predictions:
    """Returns the targets of causal language modeling: every position predicts the next token, or the previous one.

    The input is not masked; P = S - 1. With direction "left_to_right" this is "LTR & No NSP" of BERT's Table 5.
    """
    batch, size = input_ids.shape
    if direction == "left_to_right":
        positions = np.arange(size - 1)
        neighbors = np.arange(1, size)
        real = neighbors < lengths[:, None]
    else:
        positions = np.arange(1, size)
        neighbors = np.arange(size - 1)
        real = positions < lengths[:, None]
    return Predictions(
        input_ids.astype(np.int32),
        np.broadcast_to(positions, (batch, size - 1)).astype(np.int32),
        np.where(real, input_ids[:, neighbors], 0).astype(np.int32),
        real.astype(np.float32),
    )


def either(condition: Bool[np.ndarray, " n"], first: Predictions, second: Predictions) -> Predictions:
    """Returns the instances of `first` where the condition holds, and those of `second` elsewhere."""
    most = max(first.labels.shape[1], second.labels.shape[1])

    def padded(predictions: Predictions) -> list[np.ndarray]:
        input_ids, *targets = predictions
        return [input_ids, *(np.pad(field, ((0, 0), (0, most - field.shape[1]))) for field in targets)]

    both = zip(padded(first), padded(second), strict=True)
    return Predictions(*(np.where(condition[:, None], *fields) for fields in both))


def _first_by(
    keys: UInt32[np.ndarray, "n S"], candidates: Bool[np.ndarray, "n S"], counts: Int64[np.ndarray, " n"], most: int
) -> Int64[np.ndarray, "n {most}"]:
    """Returns the positions of the `counts` candidates with the smallest keys, in ascending order, padded with 0."""
    size = keys.shape[1]
    # Key and position are combined in one integer: sorting values is several times faster than sorting indices.
    keyed = keys.astype(np.int64) << 16 | np.arange(size)
    keyed = np.sort(np.where(candidates, keyed, np.iinfo(np.int64).max), axis=1)[:, :most]
    is_real = np.arange(keyed.shape[1]) < counts[:, None]
    positions = np.sort(np.where(is_real, keyed & 0xFFFF, size), axis=1)
    return np.pad(np.where(is_real, positions, 0), ((0, 0), (0, most - positions.shape[1])))


def _begins(
    input_ids: Int[np.ndarray, "n S"],
    candidates: Bool[np.ndarray, "n S"],
    config: MaskingConfig,
    is_continuation: Bool[np.ndarray, " V"],
) -> Bool[np.ndarray, "n S"]:
    """Returns where words begin. A word is its first token and the candidates up to the next word.

    As in google-research/bert, a continuation piece at the beginning of an instance is a word of its own, and one after
    [SEP] belongs to the word before it. With spans, which do not cross [SEP], the latter is a word of its own too.
    """
    if not config.whole_word:
        return candidates
    if config.max_span:
        first = candidates & ~np.pad(candidates, ((0, 0), (1, 0)))[:, :-1]  # of each segment
    else:
        first = np.cumsum(candidates, axis=1) == 1
    return candidates & (first | ~is_continuation[input_ids])


def _span_lengths(words: UInt32[np.ndarray, "n S"], longest: int) -> Int64[np.ndarray, "n S"]:
    """Returns the length, from 1 to `longest`, that each random word draws."""
    chances = _SPAN_P * (1 - _SPAN_P) ** np.arange(longest)
    limits = np.cumsum(chances)[:-1] / chances.sum()
    return 1 + np.searchsorted(limits, random.uniform(words), side="right")


def _choose_spans(
    candidates: Bool[np.ndarray, "n S"],
    begins: Bool[np.ndarray, "n S"],
    order_words: UInt32[np.ndarray, "n S"],
    lengths: Int64[np.ndarray, "n S"],
    counts: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, "n S"]:
    """Selects spans of words in random order until `counts` tokens are selected.

    A span ends before its length is reached at the end of its segment, before a selected word, and before a word that
    would exceed `counts`. A span without any word is skipped.

    Args:
      candidates: tokens that may be selected. Segments are separated by other tokens.
      begins: the first token of each word.
      order_words: the order of spans is that of these keys of their first tokens.
      lengths: the number of words of a span that begins at each token.
      counts: the maximum number of selected tokens.
    Returns:
      The number of each token's span, from 1 on; 0 for tokens that are not selected.
    """
    word = np.cumsum(begins, axis=1) - 1
    order = np.argsort(np.where(begins, order_words.astype(np.int64), 1 << 32), axis=1, kind="stable")
    steps = np.arange(lengths.max(initial=1))
    room = ((0, 0), (0, len(steps)))  # a span may reach beyond the last word
    sizes = np.pad(_word_sizes(word, candidates), room)
    is_first = begins & ~np.pad(candidates, ((0, 0), (1, 0)))[:, :-1]
    segments, spans = np.zeros_like(sizes), np.zeros_like(sizes)  # by number of the word
    segments[np.nonzero(begins)[0], word[begins]] = np.cumsum(is_first, axis=1)[begins]
    taken = np.zeros(len(word), np.int64)
    active = np.arange(len(word))
    for column in range(int(begins.sum(axis=1).max(initial=0))):
        active = active[taken[active] < counts[active]]
        if not len(active):
            break
        begin = order[active, column]
        rows = active[:, None]
        words = word[active, begin][:, None] + steps
        size = sizes[rows, words]
        fits = begins[active, begin][:, None] & (steps < lengths[active, begin][:, None]) & (spans[rows, words] == 0)
        fits &= segments[rows, words] == segments[rows, words[:, :1]]
        fits &= taken[rows] + np.cumsum(size, axis=1) <= counts[rows]
        fits = np.logical_and.accumulate(fits, axis=1)
        taken[active] += np.where(fits, size, 0).sum(axis=1)
        row, step = np.nonzero(fits)
        spans[active[row], words[row, step]] = column + 1
    return np.where(candidates, np.take_along_axis(spans, np.maximum(word, 0), axis=1), 0)


def _of_first(values: Float64[np.ndarray, "n P"], spans: Int64[np.ndarray, "n P"]) -> Float64[np.ndarray, "n P"]:
    """Returns for each predicted token the value of the first one in its span."""
    is_first = np.diff(spans, axis=1, prepend=0) != 0
    first = np.maximum.accumulate(np.where(is_first, np.arange(spans.shape[1]), 0), axis=1)
    return np.take_along_axis(values, first, axis=1)


def _word_sizes(word: Int[np.ndarray, "n S"], candidates: Bool[np.ndarray, "n S"]) -> Int[np.ndarray, "n S"]:
    """Returns the number of tokens in each word, indexed by the word's number in its instance."""
    batch, size = word.shape
    flat = (np.arange(batch)[:, None] * size + word)[candidates]
    return np.bincount(flat, minlength=batch * size).reshape(batch, size)
