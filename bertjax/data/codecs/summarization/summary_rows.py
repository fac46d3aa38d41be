"""Batches of articles with their summaries for abstractive models."""

import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.data.codecs.summarization.article_rows import encode
from bertjax.data.rows.buckets import Indices, Rows
from bertjax.data.rows.stored import Fields
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError

# PreSumm's tokens for the start and end of a summary and between its sentences. BERT's pretraining does not use them.
START, END, BETWEEN = TARGET_TOKENS = ("[unused0]", "[unused1]", "[unused2]")


def target_ids(tokenizer: EncoderTokenizer) -> tuple[int, int, int]:
    """Returns the ids of `TARGET_TOKENS`. Raises UserError if the vocabulary lacks one."""
    ids = {token: tokenizer.vocab.index(token) for token in TARGET_TOKENS if token in tokenizer.vocab}
    missing = [token for token in TARGET_TOKENS if token not in ids]
    if missing:
        expected = "the tokens that mark the start, the end and the sentences of summaries"
        fix = "use BERT's published vocabulary, or replace unneeded tokens of this one by these"
        raise UserError("the vocabulary", got="no " + ", ".join(missing), expected=expected, fix=fix)
    return ids[START], ids[END], ids[BETWEEN]


def target(summary: Sequence[str], tokenizer: EncoderTokenizer, words: str) -> np.ndarray:
    """Returns the target sequence, int32 [T]: the sentences' pieces separated by `BETWEEN`, and `END`.

    Args:
      summary: the sentences of the summary.
      tokenizer: the tokenizer, with `TARGET_TOKENS` in its vocabulary.
      words: the kind of words; see `ArticleRowsConfig.words`.
    """
    _, end, between = target_ids(tokenizer)
    ids: list[int] = []
    for sentence in encode(summary, tokenizer, words):
        ids += [between, *sentence] if ids else sentence
    return np.array([*ids, end], np.int32)


def sentences(ids: Sequence[int], tokenizer: EncoderTokenizer) -> list[str]:
    """Returns the texts of the sentences of a generated summary up to `END`; none is empty."""
    _, end, between = target_ids(tokenizer)
    tokens = itertools.takewhile(lambda token: token != end, ids)
    groups = itertools.groupby(tokens, key=lambda token: token == between)
    return list(filter(None, (tokenizer.decode(list(group)) for is_between, group in groups if not is_between)))


class SummaryRows:
    """Pairs of an article and a summary.

    Attributes:
      lengths: the lengths of the articles.
    """

    def __init__(self, fields: Fields, target_len: int) -> None:
        """Initializes the pairs.

        Args:
          fields: the fields of at least one pair: "labels" has the summary; the others are the article's, see `Rows`.
          target_len: the maximum number of tokens of a summary.
        """
        self._sources = Rows({name: field for name, field in fields.items() if name != "labels"})
        self._targets = Rows({"input_ids": fields["labels"]})
        self._target_len = target_len
        self.lengths = self._sources.lengths
        assert self._targets.lengths.max() <= target_len

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns pairs by index, with articles padded with zeros to `length`. The index -1 is an empty row.

        Returns:
          the fields of `Rows.padded` for the articles; labels and target_segment_ids [B, T] int32, where T is
          `target_len`; target_segment_ids is 1 at tokens and 0 at padding.
        """
        batch = self._sources.padded(indices, length)
        targets = self._targets.padded(indices, self._target_len)
        return {**batch, "labels": targets["input_ids"], "target_segment_ids": targets["segment_ids"]}
