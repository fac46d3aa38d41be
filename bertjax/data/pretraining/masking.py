"""What a row of tokens asks the model to predict: masked tokens (BERT section 3.1), or the next one.

Matches `create_masked_lm_predictions` of google-research/bert, for a whole batch of instances at once.
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
    """How tokens are chosen and replaced; the rates of BERT's Table 8 are values here.

    Attributes:
      rate: fraction of an instance's tokens, [CLS] and [SEP] counted, that are predicted (0.15).
      max_predictions: upper bound on predicted tokens in an instance (20 at length 128, 77 at 512).
      mask_fraction: of the predicted tokens, the fraction replaced by [MASK] (0.8).
      random_fraction: of the predicted tokens, the fraction replaced by a random one of the whole vocabulary (0.1).
      keep_fraction: of the predicted tokens, the fraction left as it is (0.1). The three fractions of them add up to 1.
      whole_word: choose whole words, never a part of one.
      mode: "dynamic" draws anew in each epoch, "static" repeats the first `dupe_factor` epochs' draws.
      dupe_factor: how many different draws static masking cycles through (10).
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
                fix="set all three, such as 0.8, 0.1 and 0.1",
            )

    def epoch_of_draws(self, epoch: int) -> int:
        """The epoch whose pairs and masks epoch `epoch` uses."""
        return epoch % self.dupe_factor if self.mode == "static" else epoch

    def wanted(self, lengths: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """How many tokens are to be predicted in instances of so many tokens."""
        return np.clip(np.rint(lengths * self.rate), 1, self.max_predictions).astype(np.int64)


class Predictions(NamedTuple):
    """Instances, and what is to be predicted at which positions (in order; weight 0 where there is no more)."""

    input_ids: Int[np.ndarray, "n S"]
    positions: Int[np.ndarray, "n P"]
    labels: Int[np.ndarray, "n P"]
    weights: Float32[np.ndarray, "n P"]


class Draw(NamedTuple):
    """What tells the draws of instances apart: where their text begins, which no two share in an epoch."""

    seed: int
    epoch: int
    documents: Int64[np.ndarray, " n"]
    starts: Int64[np.ndarray, " n"]  # tokens before, in the document

    def words(self, stream: random.Stream, count: int) -> UInt32[np.ndarray, "n {count}"]:
        """Random words for each instance; fewer are the first of more."""
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
    """Chooses the tokens to predict and hides them.

    Args:
      input_ids: token ids; padding to any length changes nothing.
      candidates: True where a token may be predicted: neither [CLS], [SEP] nor padding.
      lengths: tokens in each instance, [CLS] and [SEP] included: what `rate` is a fraction of.
      config: rates.
      is_continuation: for each id of the vocabulary, whether it continues a word ("##...").
      mask_id: the id of [MASK].
      draw: what tells an instance's draws from others'; they depend on nothing else.
    """
    order_words = draw.words(random.Stream.MASKING, input_ids.shape[1])
    wanted = np.minimum(config.wanted(lengths), candidates.sum(axis=1))
    if config.whole_word:
        starts = candidates & ~is_continuation[input_ids]
        candidates = _choose_words(candidates, starts, order_words, wanted)
        wanted = candidates.sum(axis=1)
    positions = _first_by(order_words, candidates, wanted, config.max_predictions)
    is_real = np.arange(config.max_predictions) < wanted[:, None]

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


def _first_by(
    keys: UInt32[np.ndarray, "n S"], candidates: Bool[np.ndarray, "n S"], wanted: Int64[np.ndarray, " n"], most: int
) -> Int64[np.ndarray, "n {most}"]:
    """The positions of the `wanted` candidates with the least keys, ascending, then 0."""
    size = keys.shape[1]
    # Key and position in one integer: a plain sort is several times faster than one of indices.
    keyed = keys.astype(np.int64) << 16 | np.arange(size)
    keyed = np.sort(np.where(candidates, keyed, np.iinfo(np.int64).max), axis=1)[:, :most]
    is_real = np.arange(keyed.shape[1]) < wanted[:, None]
    positions = np.sort(np.where(is_real, keyed & 0xFFFF, size), axis=1)
    return np.pad(np.where(is_real, positions, 0), ((0, 0), (0, most - positions.shape[1])))


def _choose_words(
    candidates: Bool[np.ndarray, "n S"],
    starts: Bool[np.ndarray, "n S"],
    order_words: UInt32[np.ndarray, "n S"],
    wanted: Int64[np.ndarray, " n"],
) -> Bool[np.ndarray, "n S"]:
    """Takes words in random order until `wanted` tokens are chosen; one that would overflow is skipped.

    A word is a start and the candidates up to the next start; as in google-research/bert, an instance that
    begins with a continuation piece has it as a word of its own, and a piece after [SEP] joins the word
    before it.
    """
    first = np.cumsum(candidates, axis=1) == 1
    begins = candidates & (starts | first)
    word = np.cumsum(begins, axis=1) - 1
    # Words are put in the order of the keys of their first tokens.
    keys = np.where(begins, order_words.astype(np.int64), 1 << 32)
    order = np.argsort(keys, axis=1, kind="stable")
    sizes = _word_sizes(word, candidates)
    sizes_in_order = np.take_along_axis(sizes, np.maximum(np.take_along_axis(word, order, axis=1), 0), axis=1)

    taken = np.zeros(len(keys), np.int64)
    accepted = np.zeros_like(candidates)  # by the word's number
    rows = np.arange(len(keys))
    for column in range(int(begins.sum(axis=1).max(initial=0))):
        place = order[:, column]
        fits = begins[rows, place] & (taken + sizes_in_order[:, column] <= wanted)
        taken += np.where(fits, sizes_in_order[:, column], 0)
        accepted[rows[fits], word[rows, place][fits]] = True
        if (taken == wanted).all():
            break
    return candidates & np.take_along_axis(accepted, np.maximum(word, 0), axis=1)


def _word_sizes(word: Int[np.ndarray, "n S"], candidates: Bool[np.ndarray, "n S"]) -> Int[np.ndarray, "n S"]:
    """Tokens in each word, by the word's number in its instance."""
    batch, size = word.shape
    flat = (np.arange(batch)[:, None] * size + word)[candidates]
    return np.bincount(flat, minlength=batch * size).reshape(batch, size)
