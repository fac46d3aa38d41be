"""Reads sentences of tagged words (named entities, parts of speech), and encodes them for BERT.

A word's tag is predicted at its first word piece (BERT section 5.3). A sentence longer than a row is covered by
overlapping windows. Each word is tagged in the window where it has the most context on both sides.
"""

import dataclasses
import itertools
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertjax.data import splits
from bertjax.data.codecs.tagging import column_files, tag_schemes, tagged_tables
from bertjax.data.codecs.tagging.column_files import Columns
from bertjax.data.codecs.tagging.sentences import Sentence
from bertjax.data.codecs.tagging.tag_schemes import PLAIN, SCHEMES
from bertjax.data.codecs.tagging.tagged_tables import TableFields
from bertjax.data.prepared import TRAIN, VALID, Encoded, Recipe, Survey
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, OnBadRow
from bertjax.data.rows.stored import Fields, Numbering, Ragged, fields_of
from bertjax.data.rows.text_rows import unit_rows
from bertjax.data.splits import SplitConfig
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

BIO = "BIO"
# The validation split depends only on the numbers of sentences, so that runs with different seeds are comparable.
_SPLIT_SEED = 0
_USUAL = TableFields()
_LIKE_ENTITY = re.compile("[BI][-_]", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class SentencesConfig(SplitConfig):
    """The sentences to read; see `read_sentences` for their sources.

    Attributes:
      on_bad_row: "stop" to raise an error at a malformed row, "skip" to skip and count its sentence.
    """

    on_bad_row: OnBadRow


class TagSurvey(Survey[Sentence]):
    """Collects facts about tags; see `facts`."""

    def __init__(self, detected_from: Collection[str]) -> None:
        """Initializes the survey.

        Args:
          detected_from: the splits from which the scheme is detected.
        """
        self._tables: dict[str, dict[str, dict[str, Any]]] = {kind: {TRAIN: {}, VALID: {}} for kind in (PLAIN, BIO)}
        self._count, self._detector = {TRAIN: 0, VALID: 0}, tag_schemes.Detector()
        self._detected_from = detected_from

    def add(self, split: str, rows: Sequence[Sentence]) -> None:
        """See `Survey.add`."""
        self._count[split] += len(rows)
        for sentence in rows:
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
        scheme, tags = self._detector.scheme, sorted(self._detector.tags)
        return {**self._tables, "sentences": self._count, "scheme": scheme, "detected_from": tags}


@dataclasses.dataclass(frozen=True)
class TaggedRows(Recipe[Sentence]):
    """The recipe of tagged sentences. It does not depend on the scheme of the tags.

    Attributes:
      config: the sentences to read.
      columns: the columns of words and tags in files of columns.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row; longer sentences have several rows.
      fields: the columns of tables.
    """

    config: SentencesConfig
    columns: Columns
    tokenizer: Tokenizer
    seq_len: int
    fields: TableFields = _USUAL

    def key(self) -> Any:
        """See `Recipe.key`. The columns of tables are a part of it only if there is a table."""
        sources = {"data.source": self.config.source, "data.valid_source": self.config.valid_source}
        files = {key: tagged_tables.files_of(source, key) for key, source in sources.items() if source}
        digests = {key: tables.fingerprint(sources[key], key) for key in files}
        settings = dataclasses.asdict(dataclasses.replace(self.config, source="", valid_source=""))
        has_tables = any(map(tagged_tables.is_table, itertools.chain(*files.values())))
        fields = [dataclasses.asdict(self.fields)] if has_tables else []
        return [digests, settings, dataclasses.asdict(self.columns), self.tokenizer.key, self.seq_len, *fields]

    def read(self) -> Iterator[tuple[str, Sentence]]:
        """See `Recipe.read`.

        Raises:
          UserError: if `read_sentences` or `splits.read_splits` raises it.
        """
        return splits.read_splits(self.config, partial(_read, self.config, self.columns, self.fields), _SPLIT_SEED)

    def survey(self) -> Survey[Sentence]:
        """See `Recipe.survey`. The scheme is detected from training sentences, and from validation sentences if these
        have no source of their own or there are no training sentences.
        """
        return TagSurvey((TRAIN,) if self.config.source and self.config.valid_source else (TRAIN, VALID))

    def text(self, row: Sentence) -> str:
        """See `Recipe.text`."""
        return " ".join(row.words)

    def encode(self, rows: Sequence[Sentence]) -> Encoded:
        """See `Recipe.encode`.

        "labels" and "as_written" [S] int32 stand for the tags in BIO and as written, at the first piece of each word
        that the row owns; other pieces have no name. "label_weights" [S] float32 are 1 at these pieces, else 0.
        """
        found = [sentence_rows(row.words, self.tokenizer, self.seq_len) for row in rows]
        windows = [of_sentence for of_sentence, _ in found]
        fields = fields_of(row for of_sentence in windows for row in of_sentence)
        ids, starts = cast(Ragged, fields["input_ids"]), cast(Ragged, fields.pop("unit_starts"))
        del fields["unit_lengths"]
        positions = starts.values + np.repeat(np.cumsum(ids.lengths) - ids.lengths, starts.lengths)
        names = {name: Numbering() for name in ("labels", "as_written")}
        for (name, number), scheme in zip(names.items(), (BIO, PLAIN), strict=True):
            labels = np.zeros(len(ids.values), np.int32)
            labels[positions] = [number[tag] for row in rows for tag in in_scheme(row.tags, scheme)]
            fields[name] = Ragged(labels, ids.lengths)
        weights = np.zeros(len(ids.values), np.float32)
        weights[positions] = 1
        fields["label_weights"] = Ragged(weights, ids.lengths)
        long_sentences = sum(len(of_sentence) > 1 for of_sentence in windows)
        counts = {"long_sentences": long_sentences, "truncated": sum(is_cut for _, is_cut in found)}
        return Encoded(fields, counts, {name: list(number) for name, number in names.items()})

    def named(self, facts: Mapping[str, Any]) -> Mapping[str, tuple[str, Sequence[str]]]:
        """See `Recipe.named`.

        The names become indices in `tag_names`. If the tags are plain, "labels" are the tags as written. If they are
        entity tags, "as_written" is also kept, for a config with scheme "plain".
        """
        sources = {BIO: "labels", PLAIN: "as_written"}
        return {name: (sources[scheme], tag_names(facts, scheme)) for name, scheme in _stored(facts).items()}

    def restored(self, values: Any) -> Sentence:
        """See `Recipe.restored`."""
        words, tags, where = values
        return Sentence(tuple(words), tuple(tags), where)


def _read(config: SentencesConfig, columns: Columns, fields: TableFields, source: str, key: str) -> Iterator[Sentence]:
    bad_rows, count = BadRows(config.on_bad_row), 0
    for sentence in read_sentences(source, key, columns, bad_rows, fields):
        count += 1
        yield sentence
    _log.info("read %s: %d sentences%s", source, count, bad_rows.skipped("sentences with bad rows"))


def read_sentences(
    source: str, key: str, columns: Columns, bad_rows: BadRows, fields: TableFields = _USUAL
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
        if is_table := tagged_tables.is_table(file):
            found = tagged_tables.read(file, key, fields, bad_rows)
        else:
            found = column_files.read(Path(file), columns, bad_rows)
        is_empty = True
        for sentence in found:
            is_empty = False
            yield sentence
        if is_empty:
            words = "a word and its tag on each line, and a blank line after each sentence"
            raise UserError(
                str(file),
                got=f"no sentences{bad_rows.skipped('sentences with bad rows')}",
                expected="at least one sentence" if is_table else words,
                fix=f"remove the file from {key}, or restore it",
            )


def sentence_rows(words: Sequence[str], tokenizer: Tokenizer, seq_len: int) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Returns the rows that together own each word of a sentence once, and whether a word was truncated.

    It is one row if the sentence fits. See `unit_rows`.

    A word that normalizes to nothing is [UNK].

    Args:
      words: the words of a sentence, at least one.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row.
    Raises:
      UserError: if `seq_len` has no room for a word.
    """
    if seq_len < 3:
        raise UserError(
            "config key data.seq_len", got=seq_len, expected="at least 3: [CLS], a piece, [SEP]", fix="use 128"
        )
    pieces = [ids or [tokenizer.unk_id] for ids in tokenizer.encode_parts(words)]
    return unit_rows([pieces], tokenizer, seq_len)


def in_scheme(tags: Sequence[str], target: str) -> Sequence[str]:
    """Returns the tags of a sentence in BIO if `target` is `BIO` and all are chunk tags; otherwise unchanged."""
    return tag_schemes.to_bio(tags) if target == BIO and tag_schemes.are_chunk_tags(tags) else tags


def tag_names(facts: Mapping[str, Any], target: str) -> list[str]:
    """Returns the sorted tags of the training sentences; for `BIO`, "O" and both B and I of each type.

    Args:
      facts: the facts of `TagSurvey`.
      target: `BIO`, or `PLAIN` for the tags as written.
    """
    names = sorted(facts[target][TRAIN])
    if target == PLAIN:
        return names
    types = sorted({tag[2:] for tag in names if tag != "O"})
    return ["O", *(f"{letter}-{kind}" for kind in types for letter in "BI")]


def label_names(facts: Mapping[str, Any], target: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the `tag_names`, in the order of `known` if both have the same tags.

    Raises:
      UserError: if there are fewer than two tags.
    """
    names = tag_names(facts, target)
    if len(names) < 2:
        raise UserError(
            "tags of the training sentences",
            got=f"{names[0]!r} at every word of {facts['sentences'][TRAIN]} sentences",
            expected="two or more tags",
            fix="check config.data.tag_column, or data.tags_field of tables, or add sentences with other tags",
        )
    return known if set(known) == set(names) else tuple(names)


def with_labels(fields: Fields, facts: Mapping[str, Any], target: str, labels: Sequence[str]) -> Fields:
    """Returns prepared fields whose "labels" are indices in `labels`, which has all tags that occur.

    Args:
      fields: the fields of `TaggedRows`.
      facts: the facts of `TagSurvey`.
      target: `BIO`, or `PLAIN` for the tags as written.
      labels: the tags to predict, in order.
    """
    stored = _stored(facts)
    name = next((name for name, scheme in stored.items() if scheme == target), "labels")
    kept = {name: field for name, field in fields.items() if name not in stored}
    numbers, weights = cast(Ragged, fields[name]), cast(Ragged, fields["label_weights"])
    index = {label: number for number, label in enumerate(labels)}
    indices = np.array([index.get(tag, 0) for tag in tag_names(facts, stored[name])], np.int32)
    if (indices != np.arange(len(indices))).any():
        numbers = numbers._replace(values=indices[numbers.values] * (weights.values != 0))
    return {**kept, "labels": numbers}


def _stored(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the scheme of each stored field of tags."""
    return {"labels": PLAIN} if facts["scheme"] == PLAIN else {"labels": BIO, "as_written": PLAIN}


def check_labels(labels: Sequence[str]) -> None:
    """Raises UserError unless there are at least two different tags."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(
            "config key data.labels",
            got=f"{', '.join(labels) or 'no tags'}",
            expected="two or more different tags, from data.source, data.labels or a tagger in init_from",
            fix="set --config.data.source=FILE, or --config.data.labels=\"('O', 'B-PER', 'I-PER')\"",
        )


def detected_scheme(facts: Mapping[str, Any]) -> str:
    """Returns the detected scheme. Raises UserError if tags look like entity tags in an unknown form."""
    found: str = facts["scheme"]
    names = facts["detected_from"]
    strange = [tag for tag in names if not tag_schemes.are_chunk_tags([tag])]
    if found == PLAIN and any(map(_LIKE_ENTITY.match, names)):
        got = f"entity tags in an unknown form: {', '.join(strange[:5])}"
        fix = "correct data.tag_column or data.tags_field, convert the tags to BIO, or set --config.data.scheme=plain"
        if not strange:
            got = "tags in BILOU, in rows that an earlier version prepared as plain tags"
            fix = "delete the folder of prepared rows, and run the same command again"
        expected = "O, and B, I, E, S, L and U with a hyphen and a type, such as B-PER; or no tags like B-, b- and B_"
        raise UserError("config key data.scheme=auto", got=got, expected=expected, fix=fix)
    _log.info("detected tag scheme %s from the tags %s", found, ", ".join(names))
    return found


def check_scheme(facts: Mapping[str, Any], scheme: str) -> None:
    """Raises UserError if a sentence has an entity tag that the scheme does not have."""
    if scheme == PLAIN:
        return
    letters = list(SCHEMES[scheme])
    for table in facts[PLAIN].values():
        for tag, (_, where) in table.items():
            if tag != "O" and tag.partition("-")[0] not in letters:
                raise UserError(
                    f"{where}, the sentence that begins there",
                    got=f"tag {tag!r}",
                    expected=f"tags of scheme {scheme}: O and " + ", ".join(f"{letter}-TYPE" for letter in letters),
                    fix="use the same scheme in all files, and set --config.data.scheme to it",
                )


def check_tags(facts: Mapping[str, Any], target: str, labels: Sequence[str]) -> None:
    """Raises UserError if a training sentence has a tag that is not in `labels`."""
    for tag, (_, where) in facts[target][TRAIN].items():
        if tag not in labels:
            raise UserError(
                f"{where}, the sentence that begins there",
                got=f"tag {tag!r}, which is not in data.labels",
                expected="one of " + ", ".join(labels),
                fix="remove data.labels to use the tags of the training sentences, or correct the tag",
            )


def check_held_out(facts: Mapping[str, Any], target: str, labels: Sequence[str]) -> None:
    """Logs a warning for validation tags that are not in `labels`. Raises UserError if only O is in `labels`."""
    tags = facts[target][VALID]
    unknown = {tag: count for tag, (count, _) in sorted(tags.items()) if tag not in labels}
    if unknown and not tags.keys() & set(labels) - {"O"}:
        _, first = next(iter(tags.values()))
        raise UserError(
            f"{first} and the sentences that follow",
            got=f"the tags {', '.join(sorted(tags)):.200}",
            expected="tags of the model: " + ", ".join(labels),
            fix="check the file and config.data.tag_column, or data.tags_field of tables, or use the model's tags",
        )
    if unknown:
        counts = ", ".join(f"{tag} at {count} words" for tag, count in unknown.items())
        _log.warning("validation tags that the model cannot predict: %s", counts)
