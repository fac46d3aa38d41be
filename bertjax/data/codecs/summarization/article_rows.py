"""Converts articles to rows for BERT (Liu and Lapata 2019, section 3.1): each sentence is [CLS] ... [SEP]."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax.config import Constrained, always, one_of
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.rows.stored import Ragged
from bertjax.data.rows.windows import Part, cover
from bertjax.data.text.tokenizers import EncoderTokenizer

_SHORTEST = 2  # the minimum tokens of a sentence: a piece and a special token
_COUNTS = tuple(32 << i for i in range(10))  # few: rows of 512 tokens rarely have more than 32 sentences


@dataclasses.dataclass(frozen=True)
class ArticleRowsConfig(Constrained, prefix="data"):
    """The conversion of articles to rows.

    Attributes:
      seq_len: the maximum number of tokens of a row. Default: 512, or the model's positions if fewer.
      long_articles: "windows": as many rows as the article needs, with each sentence scored where it has the most
        context; "cut": one row of the first tokens, without scores for the rest, as in the papers; "cut_presumm": as
        PreSumm's code, which also scores a sentence of which only [CLS] is left, or whose [CLS] the final [SEP]
        replaces.
      window_overlap: the maximum number of tokens that neighboring windows share. Default: 128, or a quarter of
        `seq_len` if it is smaller.
      interval_segments: whether the token types of neighboring sentences alternate (True in the papers). Default: the
        setting that `init_from` was trained with.
      words: the words that are split into word pieces: "bert" for those of BERT's tokenizer, as BertSum; "spaces" for
        words between spaces, lower-cased if the vocabulary is uncased, as PreSumm, whose models need text tokenized by
        CoreNLP. Default: the setting that `init_from` was trained with.
    """

    seq_len: int = always(None)
    long_articles: Annotated[str, one_of("windows", "cut", "cut_presumm")] = always("windows")
    window_overlap: int = always(None)
    interval_segments: bool = always(None)
    words: Annotated[str, one_of("bert", "spaces")] = always(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.long_articles != "windows" or 0 <= self.window_overlap < self.seq_len
        expected = f"at least 0 and less than data.seq_len={self.seq_len}"
        self.check(ok, "window_overlap", expected, fix="use a quarter of data.seq_len")


class ArticleRow(NamedTuple):
    """A row and the sentences that it contains.

    `inputs` has, for S tokens: input_ids and token_type_ids [S] int32; sentence_starts [S] int32, 1 at the [CLS] of
    each sentence and 0 elsewhere; first_sentences int32, the number of the row's first sentence in the article. Also,
    for one of `sentence_counts` E: cls_positions [E] int32, the position of the [CLS] of each sentence, then 0.
    """

    inputs: dict[str, np.ndarray]
    part: Part  # the sentences in the row, and those that it owns
    is_cut: bool = False  # whether some tokens of the article, or of a sentence in the row, are in no row


def rows(sentences: Sequence[str], tokenizer: EncoderTokenizer, config: ArticleRowsConfig) -> list[ArticleRow]:
    """Returns the rows of an article, at least one. A sentence that normalizes to nothing is [UNK].

    If the article is cut, its last sentence may be truncated; see `ArticleRowsConfig.long_articles`.

    Args:
      sentences: the sentences of the article.
      tokenizer: the tokenizer.
      config: the conversion settings.
    """
    limit = config.seq_len
    specials = tokenizer.template.num_special(1)
    encoded = [ids or [tokenizer.unk_id] for ids in encode(sentences, tokenizer, config.words)]
    pieces = [ids[: limit - specials] for ids in encoded]
    sizes = [len(ids) + specials for ids in pieces]
    if config.long_articles == "windows":
        is_cut = [len(ids) > limit - specials for ids in encoded]
        return [
            _row(pieces, part, tokenizer, config)._replace(is_cut=any(is_cut[part.covers.start : part.covers.stop]))
            for part in cover(sizes, limit, config.window_overlap)
        ]
    firsts = np.cumsum(sizes) - sizes
    last = limit - 1 - specials * (config.long_articles == "cut")  # "cut" leaves room for [CLS], a piece and [SEP]
    count = int(np.searchsorted(firsts, last, side="right"))
    row = _row(pieces, Part(range(count), range(count)), tokenizer, config)
    return [row._replace(is_cut=sum(len(ids) + specials for ids in encoded) > limit)]


def sentence_counts(seq_len: int) -> tuple[int, ...]:
    """Returns the numbers of sentences to which rows of up to `seq_len` tokens are padded.

    >>> sentence_counts(40), sentence_counts(512)
    ((20,), (32, 64, 128, 256))
    """
    return bucket_lengths(-(-seq_len // _SHORTEST), _COUNTS)


def sentence_labels(starts: Ragged, rows: Iterable[tuple[Part, Sequence[int]]]) -> dict[str, Ragged]:
    """Returns labels and label_weights of rows: the label and 1 at the [CLS] of each owned sentence, else 0; float32.

    Args:
      starts: the sentence_starts of the rows.
      rows: for each row, its sentences and the labels of all sentences of its article, 1 for those of the summary.
    """
    of_sentences = [
        (labels[number], 1) if number in part.owns else (0, 0) for part, labels in rows for number in part.covers
    ]
    of_tokens = np.zeros((2, len(starts.values)), np.float32)
    of_tokens[:, starts.values == 1] = np.transpose(of_sentences)
    targets, weights = of_tokens
    return {"labels": starts._replace(values=targets), "label_weights": starts._replace(values=weights)}


def merge_scores(
    parts: Sequence[Part], scores: Sequence[Float[np.ndarray, " _"]], count: int
) -> Float[np.ndarray, " {count}"]:
    """Returns the scores of an article's sentences, each from the row that owns it; -inf if no row contains it.

    Args:
      parts: the sentences of each row of the article.
      scores: for each row, the scores of its sentences, optionally followed by padding.
      count: the number of sentences of the article.
    """
    merged = np.full(count, -np.inf)
    for (covers, owns), values in zip(parts, scores, strict=True):
        merged[owns.start : owns.stop] = values[owns.start - covers.start : owns.stop - covers.start]
    return merged


def encode(sentences: Sequence[str], tokenizer: EncoderTokenizer, words: str) -> list[list[int]]:
    """Returns the word pieces of each sentence; see `ArticleRowsConfig.words`."""
    if words == "bert":
        return tokenizer.encode_batch(sentences)
    return [tokenizer.encode_spaced(sentence) for sentence in sentences]


def _row(pieces: Sequence[list[int]], part: Part, tokenizer: EncoderTokenizer, config: ArticleRowsConfig) -> ArticleRow:
    template = tokenizer.template
    sentences = [template.row([sentence])[0] for sentence in pieces[part.covers.start : part.covers.stop]]
    ids = list(itertools.chain.from_iterable(sentences))
    if len(ids) > config.seq_len:
        ids[config.seq_len - len(template.end) :] = template.end
    input_ids = np.array(ids, np.int32)
    sizes = np.array(list(map(len, sentences)))
    starts = np.zeros_like(input_ids)
    starts[np.cumsum(sizes) - sizes] = 1
    types = (np.cumsum(starts) - 1) % 2 if config.interval_segments else np.zeros_like(starts)
    padded_count = next(count for count in sentence_counts(config.seq_len) if count >= len(sentences))
    inputs = {
        "input_ids": input_ids,
        "token_type_ids": types.astype(np.int32),
        "sentence_starts": starts,
        "first_sentences": np.array(part.covers.start, np.int32),
        "cls_positions": np.pad(np.flatnonzero(starts), (0, padded_count - len(sentences))).astype(np.int32),
    }
    return ArticleRow(inputs, part)
