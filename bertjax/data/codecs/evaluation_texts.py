"""Reads texts that evaluate vectors: test collections, tables of pairs of texts, and tables of labeled texts."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from bertjax.config import Constrained, Constraint, always
from bertjax.data.readers import beir, tables
from bertjax.data.readers.beir import Collection
from bertjax.data.readers.lines import BadRows, OnBadRow, RowError
from bertjax.data.readers.tables import Row
from bertjax.words import composed

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PAIR = Constraint("two different columns", lambda names: len(names) == len(set(names)) == 2)


@dataclasses.dataclass(frozen=True)
class SourcesConfig(Constrained, prefix="data"):
    """The texts to evaluate, or to mine negatives from.

    A source is a folder in BEIR's form; or a table of pairs, a query and a relevant document; or with `label_column` a
    table of labeled texts.

    Attributes:
      source: for `--mode=mine`, the queries with their positives; for labeled texts, those that the probe is trained
        on, or "".
      valid_source: a source to evaluate, scored as "valid/...".
      test_source: a source to evaluate, scored as "test/...".
      corpus: for `--mode=mine`, a folder in BEIR's form with further documents to choose from; or "".
      qrels: the judgments of a folder, such as "test" for `qrels/test.tsv`. Default: "test"; for `--mode=mine` "train",
        so that no test judgment becomes a training row unnoticed.
      text_columns: the columns of a table of pairs.
      label_column: the column of the class in a table of labeled texts, where texts of one class are related; "" for
        other tables.
      text_field: the column of the text in tables.
      header: whether the first row of a TSV or CSV table has the names of the columns; if not, they are "0", "1", ...
      separator: the separator of the fields of a line; "" to infer it from the file name.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    source: str = always("")
    valid_source: str = always("")
    test_source: str = always("")
    corpus: str = always("")
    qrels: str = always("")
    text_columns: Annotated[tuple[str, ...], _PAIR] = always(("query", "positive"))
    label_column: str = always("")
    text_field: str = always("text")
    header: bool = always(True)
    separator: str = always("")
    on_bad_row: OnBadRow = always("stop")


class Labeled(NamedTuple):
    """Labeled texts by split: "test" and, for a linear probe, "train".

    Attributes:
      texts: the texts of each split.
      labels: the class of each text, in the same order.
    """

    texts: dict[str, list[str]]
    labels: dict[str, list[str]]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of texts of each split."""
        return {split: len(texts) for split, texts in self.texts.items()}

    def numbered(self) -> Iterator[tuple[str, int, str]]:
        """Yields the split of each text, its number in the split, and the text."""
        return ((split, number, text) for split, texts in self.texts.items() for number, text in enumerate(texts))


class Sources:
    """The sources to evaluate or to mine.

    To evaluate, these are `valid_source` and, for labeled texts, the training texts of `source`. Evaluation passes
    `test_source` as `valid_source` too. To mine, `valid_source` is empty: these are `source` and `corpus`, and equal
    texts of both become one document.

    Raises:
      UserError: if no source is set, or a file is missing.
    """

    def __init__(self, config: SourcesConfig) -> None:
        self._config = config
        got = "no source"
        fix = "set --config.data.test_source=FOLDER; for --mode=mine, --config.data.source"
        config.check(config.valid_source or config.source, "test_source", "a folder or a file", got=got, fix=fix)
        self._key = "valid_source" if config.valid_source else "source"
        second_key = "corpus"
        if config.valid_source:
            second_key = "source" if config.label_column else ""
        self._second_key = second_key if second_key and getattr(config, second_key) else ""
        self._qrels = config.qrels or ("test" if config.valid_source else "train")
        self._keys = [key for key in (self._key, self._second_key) if key]
        # Finding the files raises UserError for missing ones now, before any text is read.
        for key in self._keys:
            source = getattr(config, key)
            if self._is_folder(key):
                self._folder(key).files()
            elif not source.startswith("tfds:"):
                tables.find_files(source, f"data.{key}")

    def fingerprint(self) -> list[Any]:
        """Returns a JSON-serializable description of the content of the files and of how they are read."""
        settings = ("text_columns", "label_column", "text_field", "header", "separator", "on_bad_row")
        files = [self._folder(key).fingerprint() if self._is_folder(key) else self._of_table(key) for key in self._keys]
        return [{"qrels": self._qrels, **{key: getattr(self._config, key) for key in settings}}, files]

    def _is_folder(self, key: str) -> bool:
        return key == "corpus" or Path(getattr(self._config, key)).is_dir()

    def _of_table(self, key: str) -> list[Any]:
        return tables.fingerprint(getattr(self._config, key), f"data.{key}")

    def _folder(self, key: str) -> beir.Folder:
        config = self._config
        qrels = "" if key == "corpus" else self._qrels
        return beir.Folder(getattr(config, key), f"data.{key}", qrels, config.on_bad_row)

    def read(self) -> Collection | Labeled:
        """Reads and checks all rows.

        Returns:
          `Labeled` if `label_column` is set, otherwise a `Collection`.
        Raises:
          UserError: for a bad row unless `on_bad_row` is "skip", if a source has no rows or no relevant document, or
            if all texts of a split have one class.
        """
        if self._config.label_column:
            return self._labeled()
        if self._key == "valid_source" and self._is_folder(self._key):
            return self._folder(self._key).read()
        corpus_texts = (text for _, text in self._folder("corpus").documents()) if self._second_key else ()
        if not self._is_folder(self._key):
            return beir.of_pairs(self._rows(self._key, self._pair), corpus_texts)
        # The ids of two folders may clash, and one text may have different ids. So texts replace the ids.
        source = self._folder(self._key).read()
        texts = dict(source.texts())
        pairs = (
            (source.queries[query_id], texts[document_id])
            for query_id, grades in source.relevant.items()
            for document_id, grade in grades.items()
            if grade > 0
        )
        return beir.of_pairs(pairs, [*texts.values(), *corpus_texts])

    def _rows(self, key: str, make: Callable[[Row], T]) -> Iterator[T]:
        config = self._config
        source = getattr(self._config, key)
        bad_rows = BadRows(config.on_bad_row)
        count = 0
        rows = tables.read_rows(source, f"data.{key}", config.header, config.separator, bad_rows)
        for row in bad_rows.sift(map(make, rows)):
            count += 1
            yield row
        config.check(count, key, "at least one row", got=f"no rows{bad_rows.skipped()}", fix="name another file")
        _log.info("read %s: %d rows%s", source, count, bad_rows.skipped())

    def _pair(self, row: Row) -> tuple[str, str]:
        query, document = (tables.text_of(row, name, "data.text_columns") for name in self._config.text_columns)
        if composed(query) == composed(document):
            raise RowError(row.where, "the same text in both columns", "a query and another text")
        return query, document

    def _labeled(self) -> Labeled:
        keys = {"test": self._key}
        if self._second_key == "source":
            keys["train"] = "source"
        rows = {split: list(self._rows(key, self._labeled_text)) for split, key in keys.items()}
        texts = {split: [text for text, _ in split_rows] for split, split_rows in rows.items()}
        labels = {split: [label for _, label in split_rows] for split, split_rows in rows.items()}
        for split, names in labels.items():
            got = f"one class, {names[0]!r}"
            fix = "check config.data.label_column"
            self._config.check(len(set(names)) > 1, keys[split], "two or more classes", got=got, fix=fix)
        return Labeled(texts, labels)

    def _labeled_text(self, row: Row) -> tuple[str, str]:
        label = tables.label_of(row, self._config.label_column, "data.label_column")
        return tables.text_of(row, self._config.text_field, "data.text_field"), label
