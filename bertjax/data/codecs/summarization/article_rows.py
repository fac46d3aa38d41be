"""Converts articles to rows for BERT (Liu and Lapata 2019, section 3.1): each sentence is [CLS] ... [SEP]."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax.config import Constrained, one_of
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.rows.windows import Part, cover
from bertjax.data.text.tokenizers import Tokenizer

INPUTS = ("input_ids", "token_type_ids", "sentence_starts", "first_sentences")  # of training
_SHORTEST = 2  # the minimum tokens of a sentence: a piece and a special token
_ROOMS = tuple(32 << i for i in range(10))  # few: rows of 512 tokens rarely have more than 32 sentences


@dataclasses.dataclass(frozen=True)
class ArticleRowsConfig(Constrained, prefix="data"):
    """The conversion of articles to rows.

    Attributes:
      seq_len: the maximum number of tokens of a row. Default: 512, or the model's number of positions if it is smaller.
      long_articles: "windows" for as many rows as the article needs, with each sentence scored where it has the most
        context; "cut" for one row of the first tokens, without scores for the rest, as in the papers; "cut_presumm" to
        cut as PreSumm's code does: a sentence also has a score if only its [CLS] is left, or if the final [SEP]
        replaces its [CLS].
      window_overlap: the maximum number of tokens that neighboring windows share. Default: 128, or a quarter of
        `seq_len` if it is smaller.
      interval_segments: whether the token types of neighboring sentences alternate (True in the papers). Default: the
        setting that `init_from` was trained with.
      words: the words that are split into word pieces: "bert" for the words of BERT's tokenizer; "spaces" for words
        separated by spaces, lower-cased if the vocabulary is uncased and otherwise unchanged. PreSumm's models were
        trained with "spaces" on text tokenized by CoreNLP, so give them such text; BertSum's were trained with "bert".
        Default: the setting that `init_from` was trained with.
    """

    seq_len: int
    long_articles: Annotated[str, one_of("windows", "cut", "cut_presumm")]
    window_overlap: int
    interval_segments: bool
    words: Annotated[str, one_of("bert", "spaces")]

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.long_articles != "windows" or 0 <= self.window_overlap < self.seq_len
        expected = f"at least 0 and less than data.seq_len={self.seq_len}"
        self.check(ok, "window_overlap", expected, fix="use a quarter of data.seq_len")


class ArticleRow(NamedTuple):
    """A row and the sentences that it contains.

    `inputs` has, for S tokens: input_ids and token_type_ids [S] int32; sentence_starts [S] int32, 1 at the [CLS] of
    each sentence and 0 elsewhere; first_sentences int32, the number of the row's first sentence in the article. Also,
    for one of `sentence_lengths` E: cls_positions [E] int32, the position of the [CLS] of each sentence, then 0.
    """

    inputs: dict[str, np.ndarray]
    shows: range  # the sentences in the row
    owns: range  # the sentences whose scores come from this row; no other row of the article owns them
    is_cut: bool = False  # whether some tokens of the article, or of a sentence in the row, are in no row


def rows(
    sentences: Sequence[str], tokenizer: Tokenizer, config: ArticleRowsConfig, inputs: Sequence[str] = INPUTS
) -> list[ArticleRow]:
    """Returns the rows of an article, at least one. A sentence that normalizes to nothing is [UNK].

    If the article is cut, its last sentence may be truncated; see `ArticleRowsConfig.long_articles`.

    Args:
      sentences: the sentences of the article.
      tokenizer: the tokenizer.
      config: the conversion settings.
      inputs: the fields of `ArticleRow.inputs` to keep.
    """
    found = _rows(sentences, tokenizer, config)
    return [row._replace(inputs={name: row.inputs[name] for name in inputs}) for row in found]


def _rows(sentences: Sequence[str], tokenizer: Tokenizer, config: ArticleRowsConfig) -> list[ArticleRow]:
    limit, specials = config.seq_len, tokenizer.template.num_special(1)
    whole = [ids or [tokenizer.unk_id] for ids in encode(sentences, tokenizer, config.words)]
    pieces = [ids[: limit - specials] for ids in whole]
    sizes = [len(ids) + specials for ids in pieces]
    if config.long_articles == "windows":
        is_cut = [len(ids) > limit - specials for ids in whole]
        return [
            _row(pieces, part, tokenizer, config)._replace(is_cut=any(is_cut[part.covers.start : part.covers.stop]))
            for part in cover(sizes, limit, config.window_overlap)
        ]
    firsts = np.cumsum(sizes) - sizes
    last = limit - 1 - specials * (config.long_articles == "cut")  # "cut" leaves room for [CLS], a piece and [SEP]
    kept = int(np.searchsorted(firsts, last, side="right"))
    row = _row(pieces, Part(range(kept), range(kept)), tokenizer, config)
    return [row._replace(is_cut=sum(len(ids) + specials for ids in whole) > limit)]


def sentence_lengths(seq_len: int) -> tuple[int, ...]:
    """Returns the lengths to which the sentences of a row of up to `seq_len` tokens are padded.

    >>> sentence_lengths(40), sentence_lengths(512)
    ((20,), (32, 64, 128, 256))
    """
    return bucket_lengths(-(-seq_len // _SHORTEST), _ROOMS)


def with_labels(row: ArticleRow, labels: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns the inputs of a row with the labels of its sentences.

    Args:
      row: the row of an article.
      labels: for each sentence of the article, 1 if it belongs to the summary, else 0.
    Returns:
      `row.inputs`; labels and label_weights [S] float32: the label and 1 at the [CLS] of each owned sentence, else 0.
    """
    first, last = row.owns.start - row.shows.start, row.owns.stop - row.shows.start
    positions = np.flatnonzero(row.inputs["sentence_starts"])[first:last]
    targets, weights = np.zeros((2, len(row.inputs["input_ids"])), np.float32)
    targets[positions] = labels[row.owns.start : row.owns.stop]
    weights[positions] = 1
    return {**row.inputs, "labels": targets, "label_weights": weights}


def merge_scores(
    found: Sequence[ArticleRow], scores: Sequence[Float[np.ndarray, " _"]], count: int
) -> Float[np.ndarray, " {count}"]:
    """Returns the scores of an article's sentences, each from the row that owns it; -inf if no row contains it.

    Args:
      found: the rows of the article.
      scores: for each row, the scores of its sentences, optionally followed by padding.
      count: the number of sentences of the article.
    """
    whole = np.full(count, -np.inf)
    for row, values in zip(found, scores, strict=True):
        shift = row.shows.start
        whole[row.owns.start : row.owns.stop] = values[row.owns.start - shift : row.owns.stop - shift]
    return whole


def encode(sentences: Sequence[str], tokenizer: Tokenizer, words: str) -> list[list[int]]:
    """Returns the word pieces of each sentence; see `ArticleRowsConfig.words`."""
    if words == "bert":
        return tokenizer.encode_batch(sentences)
    return [tokenizer.encode_spaced(sentence) for sentence in sentences]


def _row(pieces: Sequence[list[int]], part: Part, tokenizer: Tokenizer, config: ArticleRowsConfig) -> ArticleRow:
    template = tokenizer.template
    shown = [template.row([sentence])[0] for sentence in pieces[part.covers.start : part.covers.stop]]
    ids = list(itertools.chain.from_iterable(shown))
    if len(ids) > config.seq_len:
        ids[config.seq_len - len(template.end) :] = template.end
    input_ids, sizes = np.array(ids, np.int32), np.array(list(map(len, shown)))
    starts = np.zeros_like(input_ids)
    starts[np.cumsum(sizes) - sizes] = 1
    types = (np.cumsum(starts) - 1) % 2 if config.interval_segments else np.zeros_like(starts)
    inputs = {"input_ids": input_ids, "token_type_ids": types.astype(np.int32), "sentence_starts": starts}
    inputs["first_sentences"] = np.array(part.covers.start, np.int32)
    room = next(length for length in sentence_lengths(config.seq_len) if length >= len(shown))
    inputs["cls_positions"] = np.pad(np.flatnonzero(starts), (0, room - len(shown))).astype(np.int32)
    return ArticleRow(inputs, part.covers, part.owns)
