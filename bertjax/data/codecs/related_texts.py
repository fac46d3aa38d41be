"""Reads and encodes rows of related texts for embeddings: pairs, triplets, several negatives, scores, or classes."""

import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from bertjax.config import Constraint, Count, always
from bertjax.data.codecs.codec import Encoded, Survey, TableCodec, TrainingRows, check_texts, encoded_texts
from bertjax.data.codecs.labeled_text import number_of
from bertjax.data.readers.lines import RowError, check_text
from bertjax.data.readers.tables import Row, TableConfig, key_of, label_of, value_of
from bertjax.data.splits import TRAIN
from bertjax.errors import UserError
from bertjax.words import composed

_SEVERAL = Constraint("one or more different columns", lambda names: names and len(set(names)) == len(names))


@dataclasses.dataclass(frozen=True)
class QueriesConfig(TableConfig):
    """The rows and columns of queries to read. A column "a.b" is key "b" of the object in column "a".

    Attributes:
      text_columns: the columns of the query, of its positive, and of its negatives. One of these may have a list.
      score_column: the column of the similarity of a pair, or of a list of scores, one for the positive and each
        negative; "" for none.
      seq_len: the maximum number of tokens of a text.
      query_prompt: a text that precedes each query. Default: that of `init_from`, or "".
    """

    text_columns: Annotated[tuple[str, ...], _SEVERAL] = always(("query", "positive"))
    score_column: str = always("")
    seq_len: int = always(None)
    query_prompt: str = always(None)


@dataclasses.dataclass(frozen=True)
class RelatedTextsConfig(QueriesConfig):
    """The rows and columns to read.

    Attributes:
      text_columns: the columns of the query, of its positive, and of its negatives, one of which may have a list; with
        `label_column`, that of the text.
      num_negatives: the maximum number of negatives of a row.
      label_column: the column of the class in a table of labeled texts, where texts of one class are related; "" for
        other tables.
      document_prompt: a text that precedes each positive and negative.
    """

    num_negatives: Count = always(8)
    label_column: str = always("")
    document_prompt: str = always(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.text_columns)
        expected = "one column with data.label_column" if self.label_column else "two or more columns"
        ok = count == 1 if self.label_column else count > 1
        self.check(ok, "text_columns", expected, fix="name them, as in \"('query', 'positive')\"")
        self.check(not (self.label_column and self.score_column), "score_column", "'' with data.label_column")


class RelatedTexts(NamedTuple):
    """A row: a query, its positive, and any number of negatives; or the text of a class."""

    texts: Sequence[str]
    scores: Sequence[float]  # none, that of a pair, or those of the positive and the negatives
    label: str | None  # the class, if rows have one


@dataclasses.dataclass(frozen=True)
class QueriesCodec(TableCodec[RelatedTexts]):
    """Queries with related texts. Inputs to predict on have the texts of the first columns.

    Attributes:
      num_inputs: the number of texts of an input.
    """

    example = RelatedTexts
    column_key = "data.text_columns"
    num_inputs: ClassVar[int]
    config: QueriesConfig

    def read_texts(self, row: Row) -> list[str]:
        """Returns the texts of a row. Raises RowError if a column is missing, or a text is empty."""
        texts: list[str] = []
        for column in self.config.text_columns:
            value = value_of(row, column, "data.text_columns")
            is_list = isinstance(value, list) and len(texts) >= 2
            for text in value if is_list else [value]:
                if not isinstance(text, str) or not text.strip():
                    got = f"{'an empty text' if isinstance(text, str) else type(text).__name__} in column {column!r}"
                    raise RowError(row.where, got, "a text; for negatives also a list of texts")
                check_text(text, row.where)
                texts.append(text)
        return texts

    def read_scores(self, row: Row, count: int, expected: str) -> list[float]:
        """Returns `count` scores of a row. Raises RowError for another number than `expected`, or a bad score."""
        column = self.config.score_column
        value = value_of(row, column, "data.score_column")
        values = value if isinstance(value, list) else [value]
        if len(values) != count:
            raise RowError(row.where, f"{len(values)} scores in column {column!r}", expected)
        return [number_of(Row({column: score}, row.where), column, "data.score_column") for score in values]

    def read_teacher(self, row: Row, count: int) -> list[float]:
        """Returns the scores of the `count` documents of a row, as `read_scores` does."""
        return self.read_scores(row, count, f"{count}, of the positive and of each negative, in a list")

    @property
    def column_names(self) -> Sequence[str]:
        return self.config.text_columns[: self.num_inputs]

    def parse(self, texts: Sequence[str], where: str) -> RelatedTexts:
        check_texts(texts, where, (self.num_inputs,))
        return RelatedTexts(texts, (), None)

    def text(self, example: RelatedTexts) -> str:
        return "\t".join(example.texts)


@dataclasses.dataclass(frozen=True)
class RelatedTextsCodec(QueriesCodec):
    """Related texts: one row for each text. Inputs to predict on are single texts, after the prompt of queries.

    Attributes:
      config: the rows to read.
      scores: the scores that a row states; see `embedding_losses.Objective`.
      score_range: the smallest and the largest score; None for any.
    """

    kind = "RelatedTextsRecipe"
    num_inputs = 1
    config: RelatedTextsConfig
    scores: str
    score_range: tuple[float, float] | None

    def with_prompt(self, prompt: str) -> "RelatedTextsCodec":
        """Returns the codec with another prompt of queries."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, query_prompt=prompt))

    def key(self) -> Any:
        limits = [] if self.score_range is None else [self.score_range]
        return [key_of(self.config), self.scores, *limits, self.tokenizer.key]

    def labeled(self, row: Row) -> RelatedTexts:
        texts = self.read_texts(row)
        if len(texts) - 2 > self.config.num_negatives:
            fix = f"raise --config.data.num_negatives to {len(texts) - 2}, or delete some"
            expected = f"at most {self.config.num_negatives}, data.num_negatives"
            raise RowError(row.where, f"{len(texts) - 2} negatives", expected, fix)
        column = self.config.label_column
        label = label_of(row, column, "data.label_column") if column else None
        if self.scores == "teacher":
            return RelatedTexts(texts, self.read_teacher(row, len(texts) - 1), label)
        scores = self.read_scores(row, 1, "one score") if self.scores else []
        if self.score_range:
            low, high = self.score_range
            if not all(low <= score <= high for score in scores):
                got = f"{scores[0]:g} in column {self.config.score_column!r}"
                expected = f"a number from {low:g} to {high:g}, as a cosine has"
                raise RowError(row.where, got, expected, "scale the scores, or use --config.objective=cosent")
        return RelatedTexts(texts, scores, label)

    def survey(self) -> Survey[RelatedTexts]:
        return _Survey()

    def gold(self, example: RelatedTexts) -> Any:
        """Returns the scores, the class, or the positive; None for a text to predict on."""
        return example.scores or example.label or next(iter(example.texts[1:]), None)

    def encode(self, examples: Sequence[RelatedTexts]) -> Encoded:
        pieces = [self.tokenizer.encode_batch(self._prompted(*example.texts)) for example in examples]
        rows = [[(ids,) for ids in texts] for texts in pieces]
        return encoded_texts(rows, self.tokenizer, self.config.seq_len)

    def _prompted(self, query: str, *documents: str) -> list[str]:
        return [self.config.query_prompt + query, *(self.config.document_prompt + text for text in documents)]

    def training(self, examples: Sequence[RelatedTexts]) -> TrainingRows:
        """Returns rows with "place", "number" and "score".

        "place" is the number of a text in its example; "number" is equal for equal texts or, with classes, for texts of
        a class; and "score" is 0 where a row states none.
        """
        fields, *_, truncated = self.encode(examples)
        place = [place for example in examples for place in range(len(example.texts))]
        names = [text if label is None else f"\t{label}" for texts, _, label in examples for text in texts]
        # The score of a row stands at its positive, those of a teacher at each document.
        scores = [(0.0, *scores, *[0.0] * (len(texts) - 1 - len(scores))) for texts, scores, _ in examples]
        scalars: dict[str, np.ndarray] = {
            "place": np.array(place, np.int32),
            "number": np.array(list(map(_number, names)), np.int64),
            "score": np.array(list(itertools.chain.from_iterable(scores)), np.float32),
        }
        return TrainingRows({**fields, **scalars}, {"texts": len(place), "truncated": sum(truncated)})


def _number(name: str) -> int:
    """A number of 64 bits that identifies a text. Among a billion texts, two share one with a probability of 3 %."""
    content = composed(name).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)


class _Survey(Survey[RelatedTexts]):
    """Counts the training rows by their number of texts, and checks that each class has two texts."""

    def __init__(self) -> None:
        self._texts = Counter[int]()
        self._classes = Counter[str]()

    def add(self, split: str, examples: Sequence[RelatedTexts]) -> None:
        if split == TRAIN:
            self._texts.update(len(example.texts) for example in examples)
            self._classes.update(example.label for example in examples if example.label is not None)

    def facts(self) -> dict[str, Any]:
        """Raises UserError if no class has two texts."""
        alone = sorted(name for name, count in self._classes.items() if count < 2)
        if self._classes and len(alone) == len(self._classes):
            got = f"{len(alone)} classes of one text each"
            fix = "check config.data.label_column"
            raise UserError("labels of the training rows", got=got, expected="classes with two or more texts", fix=fix)
        return {"texts": {str(count): number for count, number in sorted(self._texts.items())}, "alone": alone}
