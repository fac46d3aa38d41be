"""Articles and their summaries as rows of batches, for models that write: a long side and a short one."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from jaxtyping import Int64

from bertjax.data.rows.buckets import Rows
from bertjax.data.rows.stored import Fields, Ragged
from bertjax.data.summarization.article_rows import encode
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError

Indices = Int64[np.ndarray, " n"]

# What PreSumm's models begin a summary with, end it with, and put between its sentences: words that BERT never learned.
START, END, BETWEEN = TARGET_TOKENS = ("[unused0]", "[unused1]", "[unused2]")


def target_ids(tokenizer: WordPiece) -> tuple[int, int, int]:
    """The ids of `TARGET_TOKENS`. Raises UserError for a vocabulary without them."""
    places = {token: tokenizer.vocab.index(token) for token in TARGET_TOKENS if token in tokenizer.vocab}
    missing = [token for token in TARGET_TOKENS if token not in places]
    if missing:
        raise UserError(
            "the vocabulary",
            got="no " + ", ".join(missing),
            expected="the tokens that summaries begin, end and are parted with",
            fix="take BERT's published vocabulary, or put these in the place of tokens that nobody needs",
        )
    return places[START], places[END], places[BETWEEN]


def target(summary: Sequence[str], tokenizer: WordPiece, words: str, limit: int) -> np.ndarray:
    """What is to be written, int32 [T]: the pieces of all sentences with `BETWEEN` among them, cut, and `END`.

    Args:
      summary: its sentences.
      tokenizer: of a vocabulary with `TARGET_TOKENS`.
      words: what becomes pieces, as in articles: see `ArticleRowsConfig.words`.
      limit: the longest T.
    """
    _, end, between = target_ids(tokenizer)
    ids: list[int] = []
    for sentence in encode(summary, tokenizer, words):
        ids += [between, *sentence] if ids else sentence
    return np.array([*ids[: limit - 1], end], np.int32)


def sentences(ids: Sequence[int], tokenizer: WordPiece) -> list[str]:
    """The sentences of a summary that was written: up to `END`, of words as the pieces spell them; none is empty."""
    _, end, between = target_ids(tokenizer)
    found: list[list[str]] = [[]]
    for token in ids:
        if token == end:
            break
        if token == between:
            found.append([])
        elif tokenizer.is_continuation[token] and found[-1]:
            found[-1][-1] += tokenizer.vocab[token].removeprefix("##")
        else:
            found[-1].append(tokenizer.vocab[token])
    return [" ".join(words) for words in found if words]


class SummaryRows:
    """Pairs of an article and a summary.

    Attributes:
      lengths: the lengths of the articles.
    """

    def __init__(self, fields: Fields, target_len: int) -> None:
        """Initializes the pairs.

        Args:
          fields: the fields of at least one pair: "labels", the summary, and those of the article, see `Rows`.
          target_len: the most tokens of a summary.
        """
        self._sources = Rows({name: field for name, field in fields.items() if name != "labels"})
        self._targets, self._target_len = cast(Ragged, fields["labels"]), target_len
        self.lengths = self._sources.lengths
        assert self._targets.lengths.max() <= target_len
        self._starts = np.cumsum(self._targets.lengths, dtype=np.int64) - self._targets.lengths

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The pairs of some indices, articles padded with zeros to `length`; an index of -1 stands for an empty row.

        Returns:
          what `Rows.padded` does of the articles; labels and target_segment_ids [B, T] int32, T being `target_len`, 1
          at tokens and 0 at padding.
        """
        places = np.arange(self._target_len)
        inside = places < np.where(indices < 0, 0, self._targets.lengths[indices])[:, None]
        labels = np.zeros(inside.shape, np.int32)
        labels[inside] = self._targets.values[(self._starts[indices][:, None] + places)[inside]]
        targets = {"labels": labels, "target_segment_ids": inside.astype(np.int32)}
        return {**self._sources.padded(indices, length), **targets}
