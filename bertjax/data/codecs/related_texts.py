"""Reads and encodes rows of related texts for embeddings: pairs, triplets, several negatives, scores, or classes."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from bertjax.config import Constraint, Count
from bertjax.data.codecs.labeled_text import number_of
from bertjax.data.prepared import TRAIN, Encoded, Recipe, Survey
from bertjax.data.readers.lines import RowError, check_text
from bertjax.data.readers.tables import Row, TableConfig, key_of, value_of
from bertjax.data.rows.text_rows import is_too_long, text_fields
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError

_SEVERAL = Constraint("one or more different columns", lambda names: names and len(set(names)) == len(names))


@dataclasses.dataclass(frozen=True)
class QueriesConfig(TableConfig):
    """The rows and columns of queries to read. A column "a.b" is key "b" of the object in column "a".

    Attributes:
      text_columns: the columns of the query, of its positive, and of its negatives. One of these may have a list.
      score_column: the column of what a row states: the similarity of a pair, or the scores that a teacher gives the
        positive and each negative, a list; "" for none.
      seq_len: the maximum number of tokens of a text, including special tokens.
    """

    text_columns: Annotated[tuple[str, ...], _SEVERAL]
    score_column: str
    seq_len: int


@dataclasses.dataclass(frozen=True)
class RelatedTextsConfig(QueriesConfig):
    """The rows and columns to read.

    Attributes:
      text_columns: the columns of the query, of its positive, and of its negatives. One of these may have a list; or,
        with `label_column`, the column of the text.
      num_negatives: the maximum number of negatives of a row.
      label_column: the column of the class of a text, which is related to the texts of its class; "" for none.
      query_prompt: a text that precedes each query.
      document_prompt: a text that precedes each positive and negative.
    """

    num_negatives: Count
    label_column: str
    query_prompt: str
    document_prompt: str

    def __post_init__(self) -> None:
        super().__post_init__()
        least, what = (1, "one column with data.label_column") if self.label_column else (2, "two or more columns")
        ok = len(self.text_columns) >= least if least > 1 else len(self.text_columns) == 1
        self.check(ok, "text_columns", what, fix="name them, as in \"('query', 'positive')\"")
        self.check(not (self.label_column and self.score_column), "score_column", "'' with data.label_column")


class RelatedTexts(NamedTuple):
    """A row: a query, its positive, and any number of negatives; or the text of a class."""

    texts: Sequence[str]
    scores: Sequence[float]  # none, that of a pair, or those of the positive and the negatives
    label: str | None  # the class, if rows have one


@dataclasses.dataclass(frozen=True)
class RelatedTextsRecipe(Recipe[RelatedTexts]):
    """The recipe of related texts: one row for each text.

    Attributes:
      config: the rows to read.
      needs_scores: "" if the objective reads no score; "pair" for one a row; "teacher" for one a document.
      tokenizer: the tokenizer.
    """

    config: RelatedTextsConfig
    needs_scores: str
    tokenizer: Tokenizer

    def key(self) -> Any:
        """See `Recipe.key`."""
        return [key_of(self.config), self.needs_scores, self.tokenizer.key]

    def read(self) -> Iterator[tuple[str, RelatedTexts]]:
        """See `Recipe.read`. Raises UserError if `TableConfig.splits` does."""
        return self.config.splits(partial(read_row, config=self.config, needs_scores=self.needs_scores))

    def survey(self) -> Survey[RelatedTexts]:
        """See `Recipe.survey`."""
        return _Survey()

    def text(self, row: RelatedTexts) -> str:
        """See `Recipe.text`."""
        return "\t".join(row.texts)

    def encode(self, rows: Sequence[RelatedTexts]) -> Encoded:
        """See `Recipe.encode`.

        Beside those of `text_row`, the fields of a text are "place", its number in its row; "number", equal for equal
        texts or, with classes, for texts of a class; and "score", which is 0 where a row has none.
        """
        pieces = [piece for row in rows for piece in pieces_of(row.texts, self.config, self.tokenizer)]
        fields = text_fields(pieces, self.tokenizer, self.config.seq_len)
        truncated = sum(is_too_long(each, self.tokenizer, self.config.seq_len) for each in pieces)
        place = [place for row in rows for place in range(len(row.texts))]
        names = [text if row.label is None else f"\t{row.label}" for row in rows for text in row.texts]
        # The score of a row stands at its positive, those of a teacher at each document.
        scores = [each for row in rows for each in (0.0, *row.scores, *[0.0] * (len(row.texts) - 1 - len(row.scores)))]
        scalars: dict[str, np.ndarray] = {
            "place": np.array(place, np.int32),
            "number": np.array(list(map(_number, names)), np.int64),
            "score": np.array(scores, np.float32),
        }
        return Encoded({**fields, **scalars}, {"texts": len(pieces), "truncated": truncated})

    def restored(self, values: Any) -> RelatedTexts:
        """See `Recipe.restored`."""
        return RelatedTexts(*values)


def pieces_of(texts: Sequence[str], config: RelatedTextsConfig, tokenizer: Tokenizer) -> list[tuple[list[int]]]:
    """Returns the word pieces of each text, after its prompt."""
    prompts = (config.query_prompt, *[config.document_prompt] * (len(texts) - 1))
    prompted = [f"{prompt}{text}" for prompt, text in zip(prompts, texts, strict=True)]
    return [(pieces,) for pieces in tokenizer.encode_batch(prompted)]


def read_texts(row: Row, config: QueriesConfig) -> list[str]:
    """Returns the texts of a row: the query, its positive, and its negatives.

    Raises:
      RowError: if a column is missing, or a text is empty.
    """
    texts: list[str] = []
    for column in config.text_columns:
        value = value_of(row, column, "data.text_columns")
        is_list = isinstance(value, list) and len(texts) >= 2
        for text in value if is_list else [value]:
            if not isinstance(text, str) or not text.strip():
                got = "an empty text" if isinstance(text, str) else type(text).__name__
                raise RowError(row.where, f"{got} in column {column!r}", "a text; for negatives also a list of texts")
            check_text(text, row.where)
            texts.append(text)
    return texts


def read_row(row: Row, config: RelatedTextsConfig, needs_scores: str) -> RelatedTexts:
    """Returns the texts of a row.

    Raises:
      RowError: if `read_texts` or `read_scores` raises it, or there are too many negatives.
    """
    texts = read_texts(row, config)
    if len(texts) - 2 > config.num_negatives:
        fix = f"raise --config.data.num_negatives to {len(texts) - 2}, or delete some"
        expected = f"at most {config.num_negatives}, data.num_negatives"
        raise RowError(row.where, f"{len(texts) - 2} negatives", expected, fix)
    label = None
    if config.label_column:
        value = value_of(row, config.label_column, "data.label_column")
        label = str(value).strip()
        if value is None or not label:
            raise RowError(row.where, f"an empty label in column {config.label_column!r}", "a class")
    return RelatedTexts(texts, read_scores(row, config.score_column, needs_scores, len(texts) - 1), label)


def read_scores(row: Row, column: str, needs: str, documents: int) -> Sequence[float]:
    """Returns the scores of a row.

    Args:
      row: the row.
      column: the column of the scores.
      needs: see `RelatedTextsRecipe.needs_scores`.
      documents: the number of the positive and the negatives.
    Raises:
      RowError: if the column is missing, a value is not a finite number, or there are more or fewer scores.
    """
    if not needs:
        return ()
    value = value_of(row, column, "data.score_column")
    values, count = value if isinstance(value, list) else [value], 1 if needs == "pair" else documents
    if len(values) != count:
        expected = "one score" if needs == "pair" else f"{count}, of the positive and of each negative, in a list"
        raise RowError(row.where, f"{len(values)} scores in column {column!r}", expected)
    return [number_of(Row({column: each}, row.where), column, "data.score_column") for each in values]


def _number(name: str) -> int:
    """A number of 64 bits that identifies a text. Among a billion texts, two share one with a probability of 3 %."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


class _Survey(Survey[RelatedTexts]):
    """Counts the training rows by their number of texts, and checks that each class has two texts."""

    def __init__(self) -> None:
        self._texts, self._classes = Counter[int](), Counter[str]()

    def add(self, split: str, rows: Sequence[RelatedTexts]) -> None:
        """See `Survey.add`."""
        if split == TRAIN:
            self._texts.update(len(row.texts) for row in rows)
            self._classes.update(row.label for row in rows if row.label is not None)

    def facts(self) -> dict[str, Any]:
        """See `Survey.facts`. Raises UserError if no class has two texts."""
        alone = sorted(name for name, count in self._classes.items() if count < 2)
        if self._classes and len(alone) == len(self._classes):
            got, expected = f"{len(alone)} classes of one text each", "classes with two or more texts"
            fix = "check config.data.label_column"
            raise UserError("labels of the training rows", got=got, expected=expected, fix=fix)
        return {"texts": {str(count): number for count, number in sorted(self._texts.items())}, "alone": alone}
