"""Rows of a query with texts to rank, each text together with the query."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data.codecs.codec import Encoded, TrainingRows, encoded_texts, limits_of
from bertjax.data.codecs.related_texts import QueriesCodec, RelatedTexts
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row, key_of
from bertjax.words import composed


@dataclasses.dataclass(frozen=True)
class RankedTextsCodec(QueriesCodec):
    """Queries with texts to rank: one row for each text with its query. Inputs to predict on are pairs.

    Only texts are truncated, so that all rows of a query have the whole query.

    Attributes:
      compares: whether the objective compares the texts of a row. Each row then needs a negative, as it does if rows
        have no scores.
      is_probability: whether scores must be from 0 to 1.
    """

    kind = "RankedTextsRecipe"
    num_inputs = 2
    has_tabs = True
    compares: bool
    is_probability: bool

    def key(self) -> Any:
        return [key_of(self.config), self.compares, self.is_probability, self.tokenizer.key]

    def labeled(self, row: Row) -> RelatedTexts:
        """Returns the texts of a row with the scores that it states, or 1 for the positive and 0 for negatives."""
        column = self.config.score_column
        texts = self.read_texts(row)
        self._check_room(texts[0], row.where)
        if len(texts) < 3 and (self.compares or not column):
            raise RowError(row.where, "a row without negatives", "one negative or more", "add one or delete the row")
        if not column:
            if composed(texts[1]) in map(composed, texts[2:]):
                raise RowError(row.where, "a negative that is equal to the positive", "other texts", "delete it")
            return RelatedTexts(texts, [1.0, *[0.0] * (len(texts) - 2)], None)
        scores = self.read_teacher(row, len(texts) - 1)
        if self.is_probability and not all(0 <= score <= 1 for score in scores):
            raise RowError(row.where, f"{scores} in column {column!r}", "numbers from 0 to 1, with objective=binary")
        return RelatedTexts(texts, scores, None)

    def parse(self, texts: Sequence[str], where: str) -> RelatedTexts:
        example = super().parse(texts, where)
        self._check_room(example.texts[0], where)
        return example

    def _check_room(self, query: str, where: str) -> None:
        """Raises RowError if a query leaves no room for a text."""
        (ids,) = self.tokenizer.encode_batch([self.config.query_prompt + query])
        most = self._room(()) - 1
        if len(ids) > most:
            expected = f"at most {most}, so that data.seq_len={self.config.seq_len} has room for a text"
            fix = "raise --config.data.seq_len, or shorten it"
            raise RowError(where, f"a query of {len(ids)} tokens", expected, fix)

    def _room(self, query: Sequence[int]) -> int:
        """Returns the number of tokens of a text that a row with the query has room for."""
        return self.config.seq_len - self.tokenizer.template.num_special(2) - len(query)

    def gold(self, example: RelatedTexts) -> Sequence[float] | None:
        return example.scores or None

    def encode(self, examples: Sequence[RelatedTexts]) -> Encoded:
        """Returns the rows of all texts; `extras` are the number of truncated texts of each example."""
        prompted = ([self.config.query_prompt + query, *texts] for (query, *texts), *_ in examples)
        pieces = list(map(self.tokenizer.encode_batch, prompted))
        cut = self.tokenizer.template.truncated
        pairs = [[(query, cut(text, self._room(query))) for text in texts] for query, *texts in pieces]
        truncated = [sum(len(text) > self._room(query) for text in texts) for query, *texts in pieces]
        limits = limits_of(self.config.seq_len, truncated=truncated)
        return encoded_texts(pairs, self.tokenizer, self.config.seq_len)._replace(limits=limits, extras=truncated)

    def training(self, examples: Sequence[RelatedTexts]) -> TrainingRows:
        """Returns rows with "choice", the number of a text; "label", 0 for that of the positive; and "scores"."""
        fields, *_, truncated = self.encode(examples)
        choice = np.concatenate([np.arange(len(example.scores), dtype=np.int32) for example in examples])
        scores = np.array([score for example in examples for score in example.scores], np.float32)
        counts = {"pairs": len(choice), "truncated": sum(truncated)}
        return TrainingRows({**fields, "choice": choice, "label": np.zeros_like(choice), "scores": scores}, counts)
