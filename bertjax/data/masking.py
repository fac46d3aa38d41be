"""What a row of tokens asks the model to predict: masked tokens (BERT section 3.1), or the next one.

Matches `create_masked_lm_predictions` of google-research/bert, for a whole batch of rows at once.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64, UInt32

from bertjax.data import random
from bertjax.errors import UserError, choice


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How tokens are chosen and replaced; the rates of BERT's Table 8 are values here.

    Attributes:
      rate: fraction of a row's tokens, [CLS] and [SEP] counted, that are predicted (0.15).
      max_predictions: upper bound on predicted tokens in a row (20 at length 128, 80 at 512).
      mask_fraction: of the predicted tokens, the fraction replaced by [MASK] (0.8).
      random_fraction: the fraction replaced by a random token of the whole vocabulary (0.1).
      keep_fraction: the fraction left as it is (0.1); the three add up to 1.
      whole_word: choose whole words, never a part of one.
      mode: "dynamic" draws anew in each epoch, "static" repeats the first `dupe_factor` epochs' draws.
      dupe_factor: how many different draws static masking cycles through (10).
    """

    rate: float
    max_predictions: int
    mask_fraction: float
    random_fraction: float
    keep_fraction: float
    whole_word: bool
    mode: str
    dupe_factor: int

    def __post_init__(self) -> None:
        choice(self.mode, ("dynamic", "static"), "masking.mode")
        fractions = (self.mask_fraction, self.random_fraction, self.keep_fraction)
        if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
            raise UserError(
                "masking.{mask,random,keep}_fraction",
                got=fractions,
                expected="three fractions of the predicted tokens that add up to 1",
                fix="set all three, such as 0.8, 0.1 and 0.1",
            )
        if not 0 < self.rate <= 1:
            raise UserError(
                "masking.rate", got=self.rate, expected="above 0 and at most 1", fix="use 0.15, as BERT does"
            )
        if self.max_predictions < 1 or self.dupe_factor < 1:
            raise UserError(
                "masking.max_predictions and masking.dupe_factor",
                got=(self.max_predictions, self.dupe_factor),
                expected="at least 1 each",
                fix="use 20 and 10, as BERT does at length 128",
            )

    def epoch_of_draws(self, epoch: int) -> int:
        """The epoch whose pairs and masks epoch `epoch` uses."""
        return epoch % self.dupe_factor if self.mode == "static" else epoch


class Predictions(NamedTuple):
    """A batch's inputs, and what is to be predicted at which positions (in order; padded with weight 0)."""

    input_ids: Int[np.ndarray, "B S"]
    positions: Int[np.ndarray, "B P"]
    labels: Int[np.ndarray, "B P"]
    weights: Float32[np.ndarray, "B P"]


def mask_tokens(
    input_ids: Int[np.ndarray, "B S"],
    candidates: Bool[np.ndarray, "B S"],
    lengths: Int[np.ndarray, " B"],
    config: MaskingConfig,
    *,
    is_continuation: Bool[np.ndarray, " V"],
    mask_id: int,
    seed: int,
    epoch: int,
    rows: Int64[np.ndarray, " B"],
) -> Predictions:
    """Chooses the tokens to predict and hides them.

    Args:
      input_ids: token ids.
      candidates: True where a token may be predicted: neither [CLS], [SEP] nor padding.
      lengths: tokens in each row, [CLS] and [SEP] included: what `rate` is a fraction of.
      config: rates.
      is_continuation: for each id of the vocabulary, whether it continues a word ("##...").
      mask_id: the id of [MASK].
      seed: the run's seed.
      epoch: the epoch that draws.
      rows: each row's number in that epoch; a row's draws depend on nothing else.
    """
    size = input_ids.shape[1]
    words = random.bits(seed, random.Stream.MASKING, epoch, rows, 3 * size)
    order_words, fate_words, token_words = np.split(words, 3, axis=1)
    wanted = np.minimum(np.maximum(np.rint(lengths * config.rate), 1), config.max_predictions).astype(np.int64)
    starts = candidates & ~is_continuation[input_ids] if config.whole_word else candidates
    chosen = _choose(candidates, starts, order_words, wanted)

    fate = random.uniform(fate_words)
    hidden = chosen & (fate < config.mask_fraction)
    randomized = chosen & ~hidden & (fate < config.mask_fraction + config.random_fraction)
    masked = np.where(hidden, mask_id, input_ids)
    masked = np.where(randomized, random.below(token_words, len(is_continuation)), masked)

    count = chosen.sum(axis=1)
    positions = np.argsort(~chosen, axis=1, kind="stable")[:, : config.max_predictions]
    positions = _pad_columns(positions, config.max_predictions)
    real = np.arange(config.max_predictions) < count[:, None]
    positions = np.where(real, positions, 0)
    labels = np.where(real, np.take_along_axis(input_ids, positions, axis=1), 0)
    return Predictions(
        masked.astype(np.int32), positions.astype(np.int32), labels.astype(np.int32), real.astype(np.float32)
    )


def predict_neighbors(input_ids: Int[np.ndarray, "B S"], lengths: Int[np.ndarray, " B"], direction: str) -> Predictions:
    """Causal language modeling: every position predicts the token after it (or before, right to left).

    The input is not masked; P = S - 1. BERT's Table 5, "LTR & No NSP".
    """
    batch, size = input_ids.shape
    if direction == "left_to_right":
        positions, neighbors = np.arange(size - 1), np.arange(1, size)
        real = neighbors < lengths[:, None]
    else:
        positions, neighbors = np.arange(1, size), np.arange(size - 1)
        real = positions < lengths[:, None]
    return Predictions(
        input_ids.astype(np.int32),
        np.broadcast_to(positions, (batch, size - 1)).astype(np.int32),
        np.where(real, input_ids[:, neighbors], 0).astype(np.int32),
        real.astype(np.float32),
    )


def _choose(
    candidates: Bool[np.ndarray, "B S"],
    starts: Bool[np.ndarray, "B S"],
    order_words: UInt32[np.ndarray, "B S"],
    wanted: Int64[np.ndarray, " B"],
) -> Bool[np.ndarray, "B S"]:
    """Takes words in random order until `wanted` tokens are chosen; one that would overflow is skipped.

    A word is a start and the candidates up to the next start; as in google-research/bert, a row that
    begins with a continuation piece has it as a word of its own, and a piece after [SEP] joins the word
    before it.
    """
    first = np.cumsum(candidates, axis=1) == 1
    word = np.cumsum(candidates & (starts | first), axis=1) - 1
    keys = order_words.astype(np.int64)
    # Each token sorts by the key of its word's first token; those that may not be chosen sort last.
    start_position = np.maximum.accumulate(np.where(candidates & (starts | first), np.arange(keys.shape[1]), 0), axis=1)
    keys = np.where(candidates, np.take_along_axis(keys, start_position, axis=1), 1 << 32)
    order = np.argsort(keys, axis=1, kind="stable")

    candidates_in_order = np.take_along_axis(candidates, order, axis=1)
    word_in_order = np.take_along_axis(word, order, axis=1)
    sizes = _word_sizes(word, candidates)
    size_in_order = np.take_along_axis(sizes, np.maximum(word_in_order, 0), axis=1)
    begins = candidates_in_order & (np.diff(word_in_order, axis=1, prepend=-2) != 0)

    taken = np.zeros(len(keys), np.int64)
    accept = np.zeros(len(keys), bool)
    chosen_in_order = np.zeros_like(candidates)
    for column in range(int(candidates.sum(axis=1).max(initial=0))):
        begin = begins[:, column]
        fits = taken + size_in_order[:, column] <= wanted
        accept = np.where(begin, fits, accept)
        taken += np.where(begin & fits, size_in_order[:, column], 0)
        chosen_in_order[:, column] = accept & candidates_in_order[:, column]
    chosen = np.zeros_like(candidates)
    np.put_along_axis(chosen, order, chosen_in_order, axis=1)
    return chosen


def _word_sizes(word: Int[np.ndarray, "B S"], candidates: Bool[np.ndarray, "B S"]) -> Int[np.ndarray, "B S"]:
    """Tokens in each word, by the word's number in its row."""
    batch, size = word.shape
    flat = (np.arange(batch)[:, None] * size + word)[candidates]
    return np.bincount(flat, minlength=batch * size).reshape(batch, size)


def _pad_columns(array: Int[np.ndarray, "B p"], columns: int) -> Int[np.ndarray, "B {columns}"]:
    return np.pad(array, ((0, 0), (0, columns - array.shape[1])))
