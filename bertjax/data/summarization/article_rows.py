"""Articles as rows for BERT (Liu and Lapata 2019, section 3.1): a [CLS] before and a [SEP] after each sentence."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax.config import Constrained, one_of
from bertjax.data.rows.windows import Part, cover
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError

INPUTS = ("input_ids", "token_type_ids", "sentence_starts", "first_sentences")


@dataclasses.dataclass(frozen=True)
class ArticleRowsConfig(Constrained, prefix="data"):
    """How articles become rows.

    Attributes:
      seq_len: tokens of a row at most. Default: 512, or as many as the model has positions, if fewer.
      long_articles: "windows", as many rows as show all of an article, each sentence being scored where it has the
        most context; or "cut", one row of its first tokens, and no scores for what comes after, as the papers have it;
        or "cut_presumm", as its code has it: a sentence has a score, too, if nothing but its [CLS] is left, or if the
        [SEP] at the end has taken the place of that.
      window_overlap: tokens that neighboring windows share at most. Default: 128, or a quarter of `seq_len` if
        that is not more than 128.
      interval_segments: whether the token types of neighboring sentences differ (True, the papers), where it is not
        set as in what `init_from` has learned from.
      words: what becomes word pieces, where it is not set as in what `init_from` has learned from: "bert", words as
        BERT's tokenizer parts them; or "spaces", what is between spaces, lower-cased if the vocabulary is uncased and
        otherwise as it stands. PreSumm's models have seen the latter, of text that CoreNLP had tokenized: give them
        such text. BertSum's have seen the former.
    """

    seq_len: int
    long_articles: Annotated[str, one_of("windows", "cut", "cut_presumm")]
    window_overlap: int
    interval_segments: bool
    words: Annotated[str, one_of("bert", "spaces")]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_articles == "windows" and not 0 <= self.window_overlap < self.seq_len:
            raise UserError(
                "config key data.window_overlap",
                got=self.window_overlap,
                expected=f"at least 0, and less than data.seq_len={self.seq_len}",
                fix="use a quarter of data.seq_len",
            )


class ArticleRow(NamedTuple):
    """A row, and which sentences it shows.

    `inputs` holds, for S tokens: input_ids and token_type_ids [S] int32; sentence_starts [S] int32, 1 at the [CLS] of
    each sentence that is shown, else 0; first_sentences, int32, the number of the first of them.
    """

    inputs: dict[str, np.ndarray]
    shows: range
    owns: range  # those whose scores count; no other row of the article owns them
    is_cut: bool = False  # whether some of the article's tokens are in no row


def rows(
    sentences: Sequence[str], tokenizer: WordPiece, config: ArticleRowsConfig, inputs: Sequence[str] = INPUTS
) -> list[ArticleRow]:
    """The rows of an article, one at least. A sentence that normalizes to nothing becomes [UNK].

    Where an article is cut, so may be its last sentence; see `ArticleRowsConfig.long_articles`.

    Args:
      sentences: the sentences of the article.
      tokenizer: the tokenizer.
      config: how articles become rows.
      inputs: the fields of `ArticleRow.inputs` that the rows have.
    """
    found = _rows(sentences, tokenizer, config)
    return [row._replace(inputs={name: row.inputs[name] for name in inputs}) for row in found]


def _rows(sentences: Sequence[str], tokenizer: WordPiece, config: ArticleRowsConfig) -> list[ArticleRow]:
    limit = config.seq_len
    whole = [ids or [tokenizer.unk_id] for ids in encode(sentences, tokenizer, config.words)]
    pieces = [ids[: limit - 2] for ids in whole]
    sizes = [len(ids) + 2 for ids in pieces]
    if config.long_articles == "windows":
        return [_row(pieces, part, tokenizer, config) for part in cover(sizes, limit, config.window_overlap)]
    firsts = np.cumsum(sizes) - sizes
    last = limit - 3 if config.long_articles == "cut" else limit - 1  # with room for [CLS], a piece and [SEP]
    kept = int(np.searchsorted(firsts, last, side="right"))
    row = _row(pieces, Part(range(kept), range(kept)), tokenizer, config)
    return [row._replace(is_cut=sum(len(ids) + 2 for ids in whole) > limit)]


def with_labels(row: ArticleRow, labels: Sequence[int]) -> dict[str, np.ndarray]:
    """The inputs of a row together with what is to be learned.

    Args:
      row: of the article.
      labels: 1 for each sentence of it that belongs into its summary, else 0.
    Returns:
      `row.inputs`; labels and label_weights [S] float32: at the [CLS] of each sentence owned its label, and 1; else 0.
    """
    first, last = row.owns.start - row.shows.start, row.owns.stop - row.shows.start
    places = np.flatnonzero(row.inputs["sentence_starts"])[first:last]
    targets, weights = np.zeros((2, len(row.inputs["input_ids"])), np.float32)
    targets[places] = labels[row.owns.start : row.owns.stop]
    weights[places] = 1
    return {**row.inputs, "labels": targets, "label_weights": weights}


def merged(
    found: Sequence[ArticleRow], scores: Sequence[Float[np.ndarray, " _"]], count: int
) -> Float[np.ndarray, " {count}"]:
    """The scores of an article's sentences, each from the row that owns it; -inf for those that no row shows.

    Args:
      found: its rows.
      scores: for each, those of the sentences that it shows, and what there is after them.
      count: sentences of the article.
    """
    whole = np.full(count, -np.inf)
    for row, values in zip(found, scores, strict=True):
        shift = row.shows.start
        whole[row.owns.start : row.owns.stop] = values[row.owns.start - shift : row.owns.stop - shift]
    return whole


def encode(sentences: Sequence[str], tokenizer: WordPiece, words: str) -> list[list[int]]:
    """The pieces of each sentence; see `ArticleRowsConfig.words`."""
    if words == "bert":
        return tokenizer.encode_batch(sentences)
    return [tokenizer.encode_words(between_spaces(sentence, tokenizer.lowercase)) for sentence in sentences]


def between_spaces(sentence: str, lowercase: bool) -> list[str]:
    """The words of a sentence, of which nothing is parted and no accent stripped."""
    return (sentence.lower() if lowercase else sentence).split()


def _row(pieces: Sequence[list[int]], part: Part, tokenizer: WordPiece, config: ArticleRowsConfig) -> ArticleRow:
    shown = pieces[part.covers.start : part.covers.stop]
    ids = [id_ for sentence in shown for id_ in (tokenizer.cls_id, *sentence, tokenizer.sep_id)]
    if len(ids) > config.seq_len:
        ids[config.seq_len - 1 :] = [tokenizer.sep_id]
    input_ids = np.array(ids, np.int32)
    sizes = np.array([len(sentence) + 2 for sentence in shown])
    starts = np.zeros_like(input_ids)
    starts[np.cumsum(sizes) - sizes] = 1
    types = (np.cumsum(starts) - 1) % 2 if config.interval_segments else np.zeros_like(starts)
    inputs = {"input_ids": input_ids, "token_type_ids": types.astype(np.int32), "sentence_starts": starts}
    inputs["first_sentences"] = np.array(part.covers.start, np.int32)
    return ArticleRow(inputs, part.covers, part.owns)
