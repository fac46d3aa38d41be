"""Prediction targets of token rows: masked tokens (BERT section 3.1), or the next token.

Equal to `create_masked_lm_predictions` of google-research/bert, for a whole batch of instances at once.
"""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64, UInt32

from bertjax.config import Constrained, Size, above, at_least, one_of
from bertjax.data import random
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Constrained, prefix="masking"):
    """The selection and replacement of tokens. The rates of BERT's Table 8 are values of these keys.

    Attributes:
      rate: the fraction of an instance's tokens, including [CLS] and [SEP], that are predicted (0.15).
      max_predictions: the maximum number of predicted tokens in an instance (20 at length 128, 77 at 512).
      mask_fraction: the fraction of predicted tokens replaced by [MASK] (0.8).
      random_fraction: the fraction of predicted tokens replaced by a random token of the whole vocabulary (0.1).
      keep_fraction: the fraction of predicted tokens left unchanged (0.1). The three fractions add up to 1.
      whole_word: whether only whole words are selected.
      mode: "dynamic" draws again in each epoch; "static" repeats the draws of the first `dupe_factor` epochs.
      dupe_factor: the number of different draws in static masking (10).
    """

    rate: Annotated[float, above(0, at_most=1)]
    max_predictions: Size
    mask_fraction: Annotated[float, at_least(0)]
    random_fraction: Annotated[float, at_least(0)]
    keep_fraction: Annotated[float, at_least(0)]
    whole_word: bool
    mode: Annotated[str, one_of("dynamic", "static")]
    dupe_factor: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        fractions = (self.mask_fraction, self.random_fraction, self.keep_fraction)
        if abs(sum(fractions) - 1) > 1e-6:
            raise UserError(
                "config keys masking.{mask,random,keep}_fraction",
                got=fractions,
                expected="three fractions of the predicted tokens that add up to 1",
                fix="set all three, for example 0.8, 0.1 and 0.1",
            )

    def epoch_of_draws(self, epoch: int) -> int:
        """Returns the epoch whose pairs and masks epoch `epoch` uses."""
        return epoch % self.dupe_factor if self.mode == "static" else epoch

    def num_predictions(self, lengths: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the number of tokens to predict in instances of the given lengths."""
        return np.clip(np.rint(lengths * self.rate), 1, self.max_predictions).astype(np.int64)


class Predictions(NamedTuple):
    """Instances with their prediction targets, in order of position. Unused targets have weight 0."""

    input_ids: Int[np.ndarray, "n S"]
    positions: Int[np.ndarray, "n P"]
    labels: Int[np.ndarray, "n P"]
    weights: Float32[np.ndarray, "n P"]


class Draw(NamedTuple):
    """What the random numbers of an instance depend on. No two instances of an epoch start at the same token."""

    seed: int
    epoch: int
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
    """
    order_words = draw.words(random.Stream.MASKING, input_ids.shape[1])
    counts = np.minimum(config.num_predictions(lengths), candidates.sum(axis=1))
    if config.whole_word:
        starts = candidates & ~is_continuation[input_ids]
        candidates = _choose_words(candidates, starts, order_words, counts)
        counts = candidates.sum(axis=1)
    positions = _first_by(order_words, candidates, counts, config.max_predictions)
    is_real = np.arange(config.max_predictions) < counts[:, None]

    labels = np.where(is_real, np.take_along_axis(input_ids, positions, axis=1), 0)
    words = draw.words(random.Stream.REPLACEMENT, 2 * config.max_predictions)
    fate, token = random.uniform(words[:, 0::2]), random.below(words[:, 1::2], len(is_continuation))
    replaced = np.where(fate < config.mask_fraction + config.random_fraction, token, labels)
    replaced = np.where(fate < config.mask_fraction, mask_id, replaced)
    masked = input_ids.astype(np.int32)
    rows = np.broadcast_to(np.arange(len(masked))[:, None], positions.shape)
    masked[rows[is_real], positions[is_real]] = replaced[is_real]
    return Predictions(masked, positions.astype(np.int32), labels.astype(np.int32), is_real.astype(np.float32))


def predict_neighbors(input_ids: Int[np.ndarray, "n S"], lengths: Int[np.ndarray, " n"], direction: str) -> Predictions:
    """Returns the targets of causal language modeling: every position predicts the next token, or the previous one.

    The input is not masked; P = S - 1. With direction "left_to_right" this is "LTR & No NSP" of BERT's Table 5.
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


def _choose_words(
    candidates: Bool[np.ndarray, "n S"],
    starts: Bool[np.ndarray, "n S"],
    order_words: UInt32[np.ndarray, "n S"],
    counts: Int64[np.ndarray, " n"],
) -> Bool[np.ndarray, "n S"]:
    """Selects words in random order until `counts` tokens are selected. Words that would exceed it are skipped.

    A word is a start and the candidates up to the next start. As in google-research/bert, a continuation piece at the
    beginning of an instance is a word of its own, and a continuation piece after [SEP] belongs to the word before it.
    """
    first = np.cumsum(candidates, axis=1) == 1
    begins = candidates & (starts | first)
    word = np.cumsum(begins, axis=1) - 1
    # The order of words is that of the keys of their first tokens.
    keys = np.where(begins, order_words.astype(np.int64), 1 << 32)
    order = np.argsort(keys, axis=1, kind="stable")
    sizes = _word_sizes(word, candidates)
    sizes_in_order = np.take_along_axis(sizes, np.maximum(np.take_along_axis(word, order, axis=1), 0), axis=1)

    taken = np.zeros(len(keys), np.int64)
    accepted = np.zeros_like(candidates)  # by number of the word
    rows = np.arange(len(keys))
    for column in range(int(begins.sum(axis=1).max(initial=0))):
        begin = order[:, column]
        fits = begins[rows, begin] & (taken + sizes_in_order[:, column] <= counts)
        taken += np.where(fits, sizes_in_order[:, column], 0)
        accepted[rows[fits], word[rows, begin][fits]] = True
        if (taken == counts).all():
            break
    return candidates & np.take_along_axis(accepted, np.maximum(word, 0), axis=1)


def _word_sizes(word: Int[np.ndarray, "n S"], candidates: Bool[np.ndarray, "n S"]) -> Int[np.ndarray, "n S"]:
    """Returns the number of tokens in each word, indexed by the word's number in its instance."""
    batch, size = word.shape
    flat = (np.arange(batch)[:, None] * size + word)[candidates]
    return np.bincount(flat, minlength=batch * size).reshape(batch, size)
