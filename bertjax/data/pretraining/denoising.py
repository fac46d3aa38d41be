"""Denoising by an encoder-decoder: texts with hidden spans as sources, and what is predicted of them as targets.

"infilling" is BART's (Lewis et al. 2020, section 2.2), and "span_corruption" T5's (Raffel et al. 2020, section 3.1.4).
Both hide a fixed share of the tokens of each text, here for a whole batch at once.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64, UInt32

from bertjax.config import Constrained, above, always, at_least
from bertjax.data import random
from bertjax.data.pretraining.masking import Draw
from bertjax.data.rows.layout import positions_in_groups
from bertjax.data.text.templates import Template
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabularies import Added
from bertjax.errors import UserError

SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))  # T5's


@dataclasses.dataclass(frozen=True)
class NoiseConfig(Constrained, prefix="noise"):
    """The hidden spans of a text.

    Attributes:
      rate: the share of the tokens of a text that are hidden, at least one token (BART: 0.3, T5: 0.15).
      mean_span: the mean number of tokens of a span (3).
      permute_sentences: whether the sentences of a source are in random order (BART); only with `objective=infilling`.
    """

    rate: Annotated[float, above(0, below=1)] = always(0.3)
    mean_span: Annotated[float, at_least(1, below=math.inf)] = always(3.0)
    permute_sentences: bool = always(False)

    def num_hidden(self, lengths: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the number of hidden tokens of texts of the given lengths."""
        return np.clip(np.rint(self.rate * lengths), 1, lengths).astype(np.int64)

    def num_spans(self, lengths: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the number of spans in T5: at most that of hidden and of kept tokens, and at least one."""
        counts = self.num_hidden(lengths)
        most = np.maximum(np.minimum(counts, lengths - counts), 1)
        return np.clip(np.rint(counts / self.mean_span), 1, most).astype(np.int64)


class Texts(NamedTuple):
    """Texts, one after another."""

    tokens: Int32[np.ndarray, " tokens"]
    lengths: Int64[np.ndarray, " n"]  # the number of tokens of each text
    sentences: Int64[np.ndarray, " tokens"]  # increasing numbers of the tokens' sentences; no two texts share one


class Noised(NamedTuple):
    """Sources and targets without special tokens, one after another."""

    sources: Int32[np.ndarray, " s"]
    source_lengths: Int64[np.ndarray, " n"]
    targets: Int32[np.ndarray, " t"]
    target_lengths: Int64[np.ndarray, " n"]
    is_hidden: Bool[np.ndarray, " t"]  # whether the source hides the token; False for sentinels


def infill(texts: Texts, config: NoiseConfig, masks: Int32[np.ndarray, "1"], draw: Draw) -> Noised:
    """Replaces each span, which may be empty, by one mask. Targets are the texts.

    The lengths of the spans of a text have a Poisson distribution, given their sum: they are multinomial. Their number
    is rounded at random, so that their mean is exact. Spans do not overlap. fairseq instead draws spans until their sum
    is reached and truncates the last, and replaces overlapping spans by fewer tokens.
    """
    counts = config.num_hidden(texts.lengths)
    words = draw.words(random.Stream.SPANS, 1 + int(counts.max(initial=0)))
    exact = counts / config.mean_span
    spans = np.maximum(np.floor(exact + random.uniform(words[:, 0])), 1).astype(np.int64)
    widths = _sizes(random.below(words[:, 1:], spans[:, None]), counts, spans)
    # The kept tokens and the spans are in random order.
    items = texts.lengths - counts + spans
    places = _chosen(draw.words(random.Stream.MASKING, int(items.max(initial=1))), items, spans)
    is_span = places[_real(items, places.shape[1])]
    all_widths = np.ones(len(is_span), np.int64)
    all_widths[is_span] = widths
    order = _permuted(texts, draw) if config.permute_sentences else np.arange(len(texts.tokens))
    first = np.minimum(np.cumsum(all_widths) - all_widths, len(order) - 1)  # an empty span may be last
    sources = np.where(is_span, masks[0], texts.tokens[order][first])
    is_hidden = np.empty(len(order), bool)
    is_hidden[order] = np.repeat(is_span, all_widths)
    return Noised(sources, items, texts.tokens, texts.lengths, is_hidden)


def corrupt_spans(texts: Texts, config: NoiseConfig, sentinels: Int32[np.ndarray, " k"], draw: Draw) -> Noised:
    """Replaces each span by another sentinel. Targets are the spans, each after its sentinel.

    As in `random_spans_noise_mask` of T5, kept and hidden tokens are each divided at random into as many segments, none
    of them empty, which alternate; a kept one is first. The end token, which follows, is the final sentinel.
    """
    counts = config.num_hidden(texts.lengths)
    spans = config.num_spans(texts.lengths)
    hidden = _segments(draw.words(random.Stream.SPANS, int(counts.max(initial=1))), counts, spans)
    kept = texts.lengths - counts
    kept_sizes = _segments(draw.words(random.Stream.MASKING, int(kept.max(initial=1))), kept, spans)
    ends = np.cumsum(np.stack([kept_sizes, hidden], axis=1))
    is_hidden = np.repeat(np.arange(len(ends)) % 2 == 1, np.diff(ends, prepend=0))
    starts = ends[::2]  # the first token of each span
    is_first = np.zeros(len(is_hidden), bool)
    is_first[starts] = True
    of_spans = sentinels[positions_in_groups(spans)]
    marked = texts.tokens.copy()
    marked[starts] = of_spans
    times = is_hidden.astype(np.int64) + is_first  # a sentinel takes the place of the first copy
    targets = np.repeat(texts.tokens, times)
    places = np.cumsum(times)[starts] - 2
    targets[places] = of_spans
    is_token = np.ones(len(targets), bool)
    is_token[places] = False
    return Noised(marked[~is_hidden | is_first], kept + spans, targets, counts + spans, is_token)


class Objective(NamedTuple):
    """An objective of denoising.

    Attributes:
      hide: makes sources and targets of texts, with the ids that stand for spans.
      most: returns the maximum lengths of source and target of texts of the given lengths.
      marks: the tokens that stand for spans; empty for the mask token.
    """

    hide: Callable[[Texts, NoiseConfig, Int32[np.ndarray, " k"], Draw], Noised]
    most: Callable[[Int64[np.ndarray, " n"], NoiseConfig], tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]]
    marks: tuple[str, ...] = ()

    def widths(self, seq_len: int, num_special: int, config: NoiseConfig) -> tuple[int, int]:
        """Returns the maximum lengths of source and target, of texts that fit in rows of `seq_len` tokens."""
        source, target = self.most(np.arange(1, seq_len - num_special + 1), config)
        return num_special + int(source.max()), num_special + int(target.max())

    def tokenizer(self, tokenizer: EncoderTokenizer, *, is_published: bool) -> EncoderTokenizer:
        """Returns a tokenizer with the sentinels; unless it is published, also with the template of encoder-decoders.

        Raises:
          UserError: if the tokenizer of published weights, which have no rows for sentinels, lacks them.
        """
        if not is_published:
            tokenizer = tokenizer.with_template(Template.of_marian(tokenizer.sep_id))
        missing = [mark for mark in self.marks if mark not in tokenizer.vocab]
        if missing and is_published:
            expected = f"{missing[0]}, and all other sentinels of span_corruption"
            fix = "set --config.objective=infilling, or omit init_from"
            raise UserError("the vocabulary of init_from", got="no such token", expected=expected, fix=fix)
        size = tokenizer.vocab_size
        added = [Added(mark, size + number, normalized=False) for number, mark in enumerate(missing)]
        return tokenizer.with_added(added) if added else tokenizer

    def ids(self, tokenizer: EncoderTokenizer) -> Int32[np.ndarray, " k"]:
        """Returns the ids that stand for spans."""
        ids = {token: number for number, token in enumerate(tokenizer.vocab)}
        return np.array([ids[mark] for mark in self.marks] or [tokenizer.mask_id], np.int32)


def _most_infilled(
    lengths: Int64[np.ndarray, " n"], config: NoiseConfig
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    counts = config.num_hidden(lengths)
    return lengths - counts + np.ceil(counts / config.mean_span).astype(np.int64), lengths


def _most_corrupted(
    lengths: Int64[np.ndarray, " n"], config: NoiseConfig
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    counts = config.num_hidden(lengths)
    spans = config.num_spans(lengths)
    return lengths - counts + spans, counts + spans


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        "infilling": Objective(infill, _most_infilled),
        "span_corruption": Objective(corrupt_spans, _most_corrupted, SENTINELS),
    }
)


def _permuted(texts: Texts, draw: Draw) -> Int64[np.ndarray, " tokens"]:
    """Returns the positions of the tokens, in a random order of the sentences of each text."""
    text = np.repeat(np.arange(len(texts.lengths)), texts.lengths)
    firsts = texts.sentences[np.cumsum(texts.lengths) - texts.lengths]
    numbers = texts.sentences - firsts[text]
    words = draw.words(random.Stream.SENTENCES, 1 + int(numbers.max(initial=0)))
    return np.lexsort((np.arange(len(text)), words[text, numbers], text))


def _segments(
    words: UInt32[np.ndarray, "n W"], counts: Int64[np.ndarray, " n"], segments: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " total"]:
    """Returns the sizes of all segments of `counts` items divided at random, none of them empty if there are items."""
    is_last = _chosen(words, np.maximum(counts - 1, 0), segments - 1)
    return _sizes(np.cumsum(is_last, axis=1) - is_last, counts, segments)


def _sizes(
    owners: Int64[np.ndarray, "n W"], counts: Int64[np.ndarray, " n"], groups: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " total"]:
    """Returns the sizes of all groups, row after row. Of each row, the first `counts` items have an owner."""
    firsts = np.cumsum(groups) - groups
    return np.bincount((firsts[:, None] + owners)[_real(counts, owners.shape[1])], minlength=groups.sum())


def _chosen(
    words: UInt32[np.ndarray, "n W"], places: Int64[np.ndarray, " n"], counts: Int64[np.ndarray, " n"]
) -> Bool[np.ndarray, "n W"]:
    """Returns which of the first `places` of each row are chosen at random, `counts` of them."""
    size = words.shape[1]
    keys = np.where(_real(places, size), words.astype(np.int64) << 16 | np.arange(size), np.iinfo(np.int64).max)
    ordered = np.pad(np.sort(keys, axis=1), ((0, 0), (1, 0)), constant_values=-1)
    return keys <= np.take_along_axis(ordered, counts[:, None], axis=1)


def _real(counts: Int64[np.ndarray, " n"], size: int) -> Bool[np.ndarray, "n {size}"]:
    """Returns rows in which the first `counts` places are True."""
    return np.arange(size) < counts[:, None]
