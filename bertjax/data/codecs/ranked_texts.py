"""Reads rows of a query with texts to rank, and encodes each text together with the query."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from bertjax.data.codecs.related_texts import QueriesConfig, RelatedTexts, read_scores, read_texts
from bertjax.data.prepared import Encoded, Recipe
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row, key_of
from bertjax.data.rows.text_rows import text_fields
from bertjax.data.text.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class RankedTextsRecipe(Recipe[RelatedTexts]):
    """The recipe of texts to rank: one row for each text with its query.

    Attributes:
      config: the rows to read.
      compares: whether the objective compares the texts of a row. Each row then needs a negative, as it does if rows
        have no scores.
      is_probability: whether scores must be from 0 to 1.
      tokenizer: the tokenizer.
    """

    config: QueriesConfig
    compares: bool
    is_probability: bool
    tokenizer: Tokenizer

    def key(self) -> Any:
        """See `Recipe.key`."""
        return [key_of(self.config), self.compares, self.is_probability, self.tokenizer.key]

    def read(self) -> Iterator[tuple[str, RelatedTexts]]:
        """See `Recipe.read`. Raises UserError if `TableConfig.splits` does."""
        return self.config.splits(partial(_read, recipe=self))

    def text(self, row: RelatedTexts) -> str:
        """See `Recipe.text`."""
        return "\t".join(row.texts)

    def encode(self, rows: Sequence[RelatedTexts]) -> Encoded:
        """See `Recipe.encode`.

        Beside those of `text_row`, the fields are "choice", the number of a text in its row; "label", which is 0, the
        number of the positive; and "scores".
        """
        found = [pairs_of(row.texts, self.tokenizer, self.config.seq_len) for row in rows]
        pairs = [pair for of_row, _ in found for pair in of_row]
        choice = np.concatenate([np.arange(len(row.scores), dtype=np.int32) for row in rows])
        scores = np.array([score for row in rows for score in row.scores], np.float32)
        fields = text_fields(pairs, self.tokenizer, self.config.seq_len)
        counts = {"pairs": len(pairs), "truncated": sum(truncated for _, truncated in found)}
        return Encoded({**fields, "choice": choice, "label": np.zeros_like(choice), "scores": scores}, counts)

    def restored(self, values: Any) -> RelatedTexts:
        """See `Recipe.restored`."""
        return RelatedTexts(*values)


def pairs_of(
    texts: Sequence[str], tokenizer: Tokenizer, seq_len: int, where: str = ""
) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Returns the word pieces of a query with those of each text, and how many texts are truncated.

    Only texts are truncated, so that all pairs of a query have the whole query.

    Args:
      texts: the query and the texts.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a pair, including special tokens.
      where: the location of the texts, for messages.
    Raises:
      RowError: if the query leaves no room for a text.
    """
    query, *rest = tokenizer.encode_batch(texts)
    room = seq_len - tokenizer.template.num_special(2) - len(query)
    if room < 1:
        expected = f"at most {len(query) + room - 1}, so that data.seq_len={seq_len} has room for a text"
        raise RowError(where, f"a query of {len(query)} tokens", expected, "raise --config.data.seq_len, or shorten it")
    return [(query, text[:room]) for text in rest], sum(len(text) > room for text in rest)


def _read(row: Row, recipe: RankedTextsRecipe) -> RelatedTexts:
    """The texts of a row with a score for each. Without a column of scores, the positive has 1 and negatives have 0."""
    config, where = recipe.config, row.where
    texts = read_texts(row, config)
    pairs_of(texts[:1], recipe.tokenizer, config.seq_len, where)
    if len(texts) < 3 and (recipe.compares or not config.score_column):
        raise RowError(where, "a row without negatives", "one negative or more", "add one or delete the row")
    if not config.score_column:
        if texts[1] in texts[2:]:
            raise RowError(where, "a negative that is equal to the positive", "other texts", "delete it")
        return RelatedTexts(texts, [1.0, *[0.0] * (len(texts) - 2)], None)
    scores = read_scores(row, config.score_column, "teacher", len(texts) - 1)
    if recipe.is_probability and not all(0 <= score <= 1 for score in scores):
        got = f"{scores} in column {config.score_column!r}"
        raise RowError(where, got, "numbers from 0 to 1, with objective=binary")
    return RelatedTexts(texts, scores, None)
