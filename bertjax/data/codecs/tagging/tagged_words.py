"""Reads sentences of tagged words (named entities, parts of speech), and encodes them for BERT.

A word's tag is predicted at its first word piece (BERT section 5.3), that of a character at the piece that covers it.
A sentence longer than a row is covered by overlapping windows. Each word is tagged in the window where it has the most
context on both sides.
"""

import dataclasses
import itertools
import logging
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertjax.config import always
from bertjax.data import splits
from bertjax.data.codecs.codec import (
    Columns,
    Encoded,
    ParsedCodec,
    Survey,
    TrainingCodec,
    TrainingRows,
    check_texts,
    limits_of,
)
from bertjax.data.codecs.tagging import column_files, tag_schemes, tagged_tables
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.tagging.sentences import Sentence, TextSentence, of_characters, words_of
from bertjax.data.codecs.tagging.tag_schemes import PLAIN, SCHEMES
from bertjax.data.codecs.tagging.tagged_rows import character_rows, sentence_rows
from bertjax.data.codecs.tagging.tagged_tables import TableFields
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, OnBadRow, RowError, check_text
from bertjax.data.readers.tables import Row
from bertjax.data.rows.stored import Fields, Numbering, Ragged, fields_of, ragged
from bertjax.data.splits import TRAIN, VALID, SplitConfig
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.words import CHARACTERS

_log = logging.getLogger(__name__)

AUTO = "auto"  # the scheme is detected from the tags
BIO = "BIO"
# The fields of a row's tags, each with their scheme.
_SCHEMES = {"labels": BIO, "as_written": PLAIN}
# The validation split depends only on the numbers of sentences, so that runs with different seeds are comparable.
_SPLIT_SEED = 0
_USUAL = TableFields()
_INPUTS = ("input_ids", "token_type_ids")
_LIKE_ENTITY = re.compile("[BI][-_]", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class SentencesConfig(SplitConfig):
    """The sentences to read; see `read_sentences` for their sources.

    Attributes:
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    on_bad_row: OnBadRow = always("stop")


class TagSurvey(Survey[Sentence]):
    """Collects facts about tags; see `facts`."""

    def __init__(self, detected_from: Collection[str]) -> None:
        """Initializes the survey.

        Args:
          detected_from: the splits from which the scheme is detected.
        """
        self._tables: dict[str, dict[str, dict[str, Any]]] = {kind: {TRAIN: {}, VALID: {}} for kind in (PLAIN, BIO)}
        self._counts = {TRAIN: 0, VALID: 0}
        self._detector = tag_schemes.Detector()
        self._detected_from = detected_from

    def add(self, split: str, examples: Sequence[Sentence]) -> None:
        self._counts[split] += len(examples)
        for sentence in examples:
            if split in self._detected_from:
                self._detector.add(sentence.tags)
            for kind, table in self._tables.items():
                for tag in in_scheme(sentence.tags, kind):
                    table[split].setdefault(tag, [0, sentence.where])[0] += 1

    def facts(self) -> dict[str, Any]:
        """Returns the facts about the tags.

        - "plain" and "BIO": for each split and tag, the number of words and the first sentence with the tag, in order
          of occurrence. "plain" has the tags as written, "BIO" the tags converted to BIO.
        - "sentences": the number of sentences of each split.
        - "scheme": the detected scheme.
        - "detected_from": the tags from which it was detected, sorted.
        """
        detected = {"scheme": self._detector.scheme, "detected_from": sorted(self._detector.tags)}
        return {**self._tables, "sentences": self._counts, **detected}


@dataclasses.dataclass(frozen=True)
class TaggedCodec(ParsedCodec[Sentence], TrainingCodec[Sentence]):
    """Sentences of tagged words: one row for each, or several for a long one. They do not depend on the tags' scheme.

    Inputs to predict on are texts, which are divided into words, or lists of words. With `tables.units`, words are
    characters.

    Attributes:
      config: the sentences to read.
      files: the columns of words and tags in files of columns.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row; longer sentences have several rows.
      tables: the columns of tables.
    """

    kind = "TaggedRows"
    version = 2  # tags were stored in sorted order
    splits_tabs = False
    config: SentencesConfig
    files: ColumnsConfig
    tokenizer: EncoderTokenizer
    seq_len: int
    tables: TableFields = _USUAL

    def key(self) -> Any:
        """Returns the description; the columns of tables are a part of it only if there is a table."""
        sources = {"data.source": self.config.source, "data.valid_source": self.config.valid_source}
        files = {key: tagged_tables.files_of(source, key) for key, source in sources.items() if source}
        digests = {key: tables.fingerprint(sources[key], key) for key in files}
        settings = dataclasses.asdict(dataclasses.replace(self.config, source="", valid_source=""))
        has_tables = any(map(tagged_tables.is_table, itertools.chain(*files.values())))
        fields = dataclasses.asdict(self.tables)
        if not self.has_characters:
            del fields["units"]  # rows that are older than the key stay valid
        more = [fields] if has_tables or self.has_characters else []
        return [digests, settings, dataclasses.asdict(self.files), self.tokenizer.key, self.seq_len, *more]

    @property
    def has_characters(self) -> bool:
        """Whether the units that are tagged are characters."""
        return self.tables.units == CHARACTERS

    def splits(self) -> Iterator[tuple[str, Sentence]]:
        return splits.read_splits(self.config, self._read, _SPLIT_SEED)

    def _read(self, source: str, key: str) -> Iterator[Sentence]:
        bad_rows = BadRows(self.config.on_bad_row)
        count = 0
        for sentence in read_sentences(source, key, self.files, bad_rows, self.tables):
            count += 1
            yield sentence
        _log.info("read %s: %d sentences%s", source, count, bad_rows.skipped("sentences with bad rows"))

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        fields = self.tables
        return Columns("data.text_field", [fields.text_field], fields.header, fields.separator)

    def parse(self, texts: Sequence[str], where: str) -> Sentence:
        check_texts(texts, where, (1,))
        (text,) = texts
        column_files.check_is_text(text, where)
        words = words_of(text, self.tables.units, split_punctuation=self.tables.split_punctuation)
        sentence = TextSentence(*self._in_units(Sentence(tuple(words), (), where)))
        sentence.text = text
        return sentence

    def parse_object(self, value: Any, where: str) -> Sentence:
        """Returns the sentence in a text, a list of words, or a dict like a table's row. Raises RowError for others."""
        if isinstance(value, Mapping):
            return self.parse_row(tables.Row(value, where))
        if isinstance(value, list):
            return self._in_units(Sentence(tagged_tables.words_in(value, where, self.tables.units), (), where))
        if not isinstance(value, str):
            raise RowError(where, f"an object of type {type(value).__name__}", "a text (str), or a list of words")
        check_text(value, where)
        return self.parse([value], where)

    def _in_units(self, sentence: Sentence) -> Sentence:
        return of_characters(sentence) if self.has_characters else sentence

    def parse_row(self, row: Row) -> Sentence:
        name = self.tables.text_field
        value = tables.value_of(row, name, "data.text_field")
        return self.parse_object(value, f"{row.where}, column {name!r}")

    def survey(self) -> Survey[Sentence]:
        """Returns a survey of the tags.

        The scheme is detected from training sentences, and from validation sentences if these have no source of their
        own or there are no training sentences.
        """
        return TagSurvey((TRAIN,) if self.config.source and self.config.valid_source else (TRAIN, VALID))

    def text(self, example: Sentence) -> str:
        separator = "" if self.has_characters else " "
        return example.text if isinstance(example, TextSentence) else separator.join(example.words)

    def gold(self, example: Sentence) -> tuple[str, ...]:
        """Returns the tags as written."""
        return example.tags

    def encode(self, examples: Sequence[Sentence]) -> Encoded:
        """Returns rows that together own each word once.

        `extras` are the positions of the first pieces of the words that each row of a sentence owns. Characters of one
        piece have the same position.
        """
        to_rows = character_rows if self.has_characters else sentence_rows
        windows = [to_rows(example.words, self.tokenizer, self.seq_len) for example in examples]
        fields = fields_of({name: row[name] for name in _INPUTS} for rows, _ in windows for row in rows)
        sizes = np.array([len(rows) for rows, _ in windows], np.int32)
        truncated = [is_truncated for _, is_truncated in windows]
        limits = limits_of(self.seq_len, truncated=truncated, split=sizes > 1)
        return Encoded(fields, sizes, limits, [[row["unit_starts"] for row in rows] for rows, _ in windows])

    def training(self, examples: Sequence[Sentence]) -> TrainingRows:
        """Returns rows with "labels", "as_written" and "label_weights".

        "labels" and "as_written" [S] int32 stand for the tags in BIO and as written, at the first piece of each word
        that the row owns; other pieces have no name. "label_weights" [S] float32 are 1 at these pieces, else 0.

        The counts are "long_sentences", "truncated", and "tags_that_change_inside_a_token": the number of characters
        with another tag than their token gives them, which no prediction can have.
        """
        fields, _, limits, first_pieces = self.encode(examples)
        lengths = cast(Ragged, fields["input_ids"]).lengths
        starts = ragged(list(itertools.chain.from_iterable(first_pieces)))
        of_words = starts.values + np.repeat(np.cumsum(lengths) - lengths, starts.lengths)
        positions, first = np.unique(of_words, return_index=True)  # a token has the tag of its first character

        def at_words(values: Any, dtype: type) -> Ragged:
            tokens = np.zeros(lengths.sum(), dtype)
            tokens[positions] = np.broadcast_to(values, of_words.shape)[first]
            return Ragged(tokens, lengths)

        names = {field: Numbering() for field in _SCHEMES}
        columns: dict[str, Ragged] = {}
        tags: dict[str, list[str]] = {}
        for field, scheme in _SCHEMES.items():
            tags[scheme] = [tag for example in examples for tag in in_scheme(example.tags, scheme)]
            columns[field] = at_words([names[field][tag] for tag in tags[scheme]], np.int32)
        columns["label_weights"] = at_words(1, np.float32)
        counts = {
            "long_sentences": sum(len(rows) > 1 for rows in first_pieces),
            "truncated": sum("truncated" in limit for limit in limits),
        }
        if self.has_characters:
            bio = tags[BIO]
            beginnings = first[np.searchsorted(positions, of_words)]  # of the token of each character
            predicted = [bio[n] if n == i else tag_schemes.continued(bio[n]) for i, n in enumerate(beginnings)]
            counts["tags_that_change_inside_a_token"] = sum(map(operator.ne, predicted, bio))
        return TrainingRows(
            {**fields, **columns}, counts, {field: list(numbering) for field, numbering in names.items()}
        )

    def restored(self, values: Any) -> Sentence:
        words, tags, where = values
        return Sentence(tuple(words), tuple(tags), where)


def read_sentences(
    source: str, key: str, columns: ColumnsConfig, bad_rows: BadRows, fields: TableFields = _USUAL
) -> Iterator[Sentence]:
    """Yields the sentences of tables and files of columns; see `tagged_tables.read` and `column_files.read`.

    Args:
      source: see `tagged_tables.files_of`.
      key: the config key of the source, for messages.
      columns: the columns of words and tags in files of columns.
      bad_rows: how to treat sentences with a bad row.
      fields: the columns of tables.
    Raises:
      UserError: if a row is bad, a sentence is too long, a file has no sentences, or the columns are wrong.
    """
    for file in tagged_tables.files_of(source, key):
        if tagged_tables.is_table(file):
            sentences = tagged_tables.read(file, key, fields, bad_rows)
            expected = "at least one sentence"
        else:
            sentences = column_files.read(Path(file), columns, bad_rows, fields.units)
            expected = "a word and its tag on each line, and a blank line after each sentence"
        if fields.units == CHARACTERS:
            sentences = bad_rows.sift(map(of_characters, sentences))
        first = next(sentences, None)
        if first is None:
            got = f"no sentences{bad_rows.skipped('sentences with bad rows')}"
            raise UserError(str(file), got=got, expected=expected, fix=f"remove the file from {key}, or restore it")
        yield first
        yield from sentences


def in_scheme(tags: Sequence[str], target: str) -> Sequence[str]:
    """Returns the tags of a sentence in BIO if `target` is `BIO` and all are chunk tags; otherwise unchanged."""
    return tag_schemes.to_bio(tags) if target == BIO and tag_schemes.are_chunk_tags(tags) else tags


def check_labels(labels: Sequence[str]) -> None:
    """Raises UserError unless there are at least two different tags."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        expected = "two or more different tags, from data.source, data.labels or a tagger in init_from"
        fix = "set --config.data.source=FILE, or --config.data.labels=\"('O', 'B-PER', 'I-PER')\""
        raise UserError("config key data.labels", got=", ".join(labels) or "no tags", expected=expected, fix=fix)


class Tags:
    """The tags of the sentences that are read.

    Attributes:
      scheme: the scheme of the tags in the files.
      target: the scheme in which they are learned: `BIO`, or `PLAIN` for the tags as written.
      tables: for each split and tag in `target`, the number of words and the first sentence with the tag.
    """

    def __init__(self, facts: Mapping[str, Any], scheme: str) -> None:
        """Initializes the tags.

        Args:
          facts: the facts of `TagSurvey`.
          scheme: the scheme of the tags in the files, or `AUTO`.
        Raises:
          UserError: if a tag is not in the scheme, or tags look like entity tags of an unknown scheme.
        """
        self.scheme = detected_scheme(facts) if scheme == AUTO else scheme
        self.target = PLAIN if self.scheme == PLAIN else BIO
        self.tables: Mapping[str, Mapping[str, Sequence[Any]]] = facts[self.target]
        self._facts = facts
        if self.scheme != PLAIN:
            _check_scheme(facts[PLAIN], self.scheme)

    def _names(self, scheme: str) -> list[str]:
        """Returns the sorted tags of the training sentences; for `BIO`, "O" and both B and I of each type."""
        names = sorted(self._facts[scheme][TRAIN])
        if scheme == PLAIN:
            return names
        types = sorted({tag[2:] for tag in names if tag != "O"})
        return ["O", *(f"{letter}-{kind}" for kind in types for letter in "BI")]

    def labels(self, published: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the tags to learn, in the order of `published` if both have the same tags.

        Raises:
          UserError: if there are fewer than two tags.
        """
        names = self._names(self.target)
        if len(names) < 2:
            got = f"{names[0]!r} at every word of {self._facts['sentences'][TRAIN]} sentences"
            fix = "check config.data.tag_column, or data.tags_field of tables, or add sentences with other tags"
            raise UserError("tags of the training sentences", got=got, expected="two or more tags", fix=fix)
        return published if set(published) == set(names) else tuple(names)

    def check(self, labels: Sequence[str]) -> None:
        """Logs a warning for validation tags that are not in `labels`.

        Raises:
          UserError: if a training tag is not in `labels`, or no validation tag but "O" is.
        """
        for tag, (_, where) in self.tables[TRAIN].items():
            if tag not in labels:
                expected = "one of " + ", ".join(labels)
                fix = "remove data.labels to use the tags of the training sentences, or correct the tag"
                raise _bad_tag(where, f"tag {tag!r}, which is not in data.labels", expected, fix)
        valid = self.tables[VALID]
        unknown = {tag: count for tag, (count, _) in sorted(valid.items()) if tag not in labels}
        if unknown and not valid.keys() & set(labels) - {"O"}:
            _, first = next(iter(valid.values()))
            got = f"the tags {', '.join(sorted(valid)):.200}"
            expected = "tags of the model: " + ", ".join(labels)
            fix = "check the file and config.data.tag_column, or data.tags_field of tables, or use the model's tags"
            raise UserError(f"{first} and the sentences that follow", got=got, expected=expected, fix=fix)
        if unknown:
            counts = ", ".join(f"{tag} at {count} words" for tag, count in unknown.items())
            _log.warning("validation tags that the model cannot predict: %s", counts)

    def learned(self, fields: Fields, names: Mapping[str, Sequence[str]], labels: Sequence[str]) -> Fields:
        """Returns prepared fields whose "labels" are indices in `labels`, which has all tags that occur.

        Args:
          fields: the fields of `TaggedCodec`.
          names: the tags that they stand for; see `PreparedRows.names`.
          labels: the tags to predict, in order.
        """
        field = "labels" if self.target == BIO or "as_written" not in fields else "as_written"
        # Rows of version 1 have no names, but indices in the sorted tags; plain ones have "labels" as written only.
        scheme = PLAIN if self._facts["scheme"] == PLAIN else _SCHEMES[field]
        numbered = ["", *names[field]] if names else self._names(scheme)
        index = {label: number for number, label in enumerate(labels)}
        indices = np.array([index.get(tag, 0) for tag in numbered], np.int32)
        weights = cast(Ragged, fields["label_weights"])
        numbers = cast(Ragged, fields[field])
        learned = numbers._replace(values=indices[numbers.values] * (weights.values != 0))
        return {**{name: fields[name] for name in _INPUTS}, "label_weights": weights, "labels": learned}


def detected_scheme(facts: Mapping[str, Any]) -> str:
    """Returns the detected scheme. Raises UserError if tags look like entity tags in an unknown form."""
    scheme: str = facts["scheme"]
    names = facts["detected_from"]
    if scheme == PLAIN and any(map(_LIKE_ENTITY.match, names)):
        unknown = [tag for tag in names if not tag_schemes.are_chunk_tags([tag])]
        got = f"entity tags in an unknown form: {', '.join(unknown[:5])}"
        fix = "correct data.tag_column or data.tags_field, convert the tags to BIO, or set --config.data.scheme=plain"
        if not unknown:
            got = "tags in BILOU, in rows that an earlier version prepared as plain tags"
            fix = "delete the folder of prepared rows, and run the same command again"
        expected = "O, and B, I, E, S, L and U with a hyphen and a type, such as B-PER; or no tags like B-, b- and B_"
        raise UserError("config key data.scheme=auto", got=got, expected=expected, fix=fix)
    _log.info("detected tag scheme %s from the tags %s", scheme, ", ".join(names))
    return scheme


def _check_scheme(tables: Mapping[str, Mapping[str, Sequence[Any]]], scheme: str) -> None:
    """Raises UserError if a sentence has an entity tag that the scheme does not have."""
    letters = list(SCHEMES[scheme])
    for tag, (_, where) in itertools.chain.from_iterable(table.items() for table in tables.values()):
        if tag != "O" and tag.partition("-")[0] not in letters:
            expected = f"tags of scheme {scheme}: O and " + ", ".join(f"{letter}-TYPE" for letter in letters)
            fix = "use the same scheme in all files, and set --config.data.scheme to it"
            raise _bad_tag(where, f"tag {tag!r}", expected, fix)


def _bad_tag(where: str, got: str, expected: str, fix: str) -> UserError:
    return UserError(f"{where}, the sentence that begins there", got=got, expected=expected, fix=fix)
