"""Reads sentences of tagged words (named entities, parts of speech) from files of columns, and encodes them for BERT.

A word's tag is predicted at its first word piece (BERT section 5.3). A sentence longer than a row is covered by
overlapping windows. Each word is tagged in the window where it has the most context on both sides.
"""

import dataclasses
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bertjax.config import Constrained
from bertjax.data import splits
from bertjax.data.fine_tuning import tag_schemes
from bertjax.data.fine_tuning.tag_schemes import PLAIN, SCHEMES
from bertjax.data.prepared import TRAIN, VALID, Encoded, Recipe, Survey
from bertjax.data.readers import lines
from bertjax.data.readers.kinds import find_files
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, OnBadRow, RowError, decode, read_lines
from bertjax.data.rows.stored import Fields, Numbering, Ragged, fields_of
from bertjax.data.rows.text_rows import unit_rows
from bertjax.data.splits import SplitConfig
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

BIO = "BIO"
# The validation split depends only on the numbers of sentences, so that runs with different seeds are comparable.
_SPLIT_SEED = 0
MAX_WORDS = 1 << 16  # per sentence; a longer one means that the file has no blank lines

_DOCUMENT_START = b"-DOCSTART-"
_CONLLU_COLUMNS = 10
_COMMENT = b"# "  # comments may contain tabs
_CONLLU_NAMES = (".conllu", ".conllu.gz")
# Rows of CoNLL-U that are not words: a comment, a token of several words (8-9), an omitted word (8.1).
_NO_WORD = re.compile(rb"#|\d+[-.]\d+\s")
_LIKE_ENTITY = re.compile("[BI][-_]", re.IGNORECASE)
_CONLLU_ROW = re.compile(rf"\d+([-.]\d+)?(\t[^\t]*){{{_CONLLU_COLUMNS - 1}}}")


@dataclasses.dataclass(frozen=True)
class SentencesConfig(SplitConfig):
    """The sentences to read; see `read_sentences` for their sources.

    Attributes:
      on_bad_row: "stop" to raise an error at a malformed row, "skip" to skip and count its sentence.
    """

    on_bad_row: OnBadRow


@dataclasses.dataclass(frozen=True)
class Columns(Constrained, prefix="data"):
    """The columns of words and tags, counted from 0, or from the end as -1, -2, ...

    Attributes:
      word_column: the column of words: 0 in CoNLL-2003, 1 in CoNLL-U.
      tag_column: the column of tags: -1 in CoNLL-2003 (entities), 3 in CoNLL-U (universal parts of speech).
    """

    word_column: int
    tag_column: int


class Sentence(NamedTuple):
    """A sentence of words, each with a tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str  # "file:line" of the first word


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


class _Format(NamedTuple):
    tabs: bool  # whether single tabs separate columns; otherwise runs of blanks
    conllu: bool


@dataclasses.dataclass(frozen=True)
class TaggedRows(Recipe[Sentence]):
    """The recipe of tagged sentences. It does not depend on the scheme of the tags.

    Attributes:
      config: the sentences to read.
      columns: the columns of words and tags.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row; longer sentences have several rows.
    """

    config: SentencesConfig
    columns: Columns
    tokenizer: Tokenizer
    seq_len: int

    def key(self) -> Any:
        """See `Recipe.key`."""
        sources = {"data.source": self.config.source, "data.valid_source": self.config.valid_source}
        files = {key: _find_files(source, key) for key, source in sources.items() if source}
        digests = {key: [lines.fingerprint(path) for path in paths] for key, paths in files.items()}
        settings = dataclasses.asdict(dataclasses.replace(self.config, source="", valid_source=""))
        return [digests, settings, dataclasses.asdict(self.columns), self.tokenizer.key, self.seq_len]

    def read(self) -> Iterator[tuple[str, Sentence]]:
        """See `Recipe.read`.

        Raises:
          UserError: if `read_sentences` or `splits.read_splits` raises it.
        """
        return splits.read_splits(self.config, partial(_read, self.config, self.columns), _SPLIT_SEED)

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
        windows = [sentence_rows(row.words, self.tokenizer, self.seq_len) for row in rows]
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
        counts = {"long_sentences": sum(len(of_sentence) > 1 for of_sentence in windows)}
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


def _read(config: SentencesConfig, columns: Columns, source: str, key: str) -> Iterator[Sentence]:
    bad_rows, count = BadRows(config.on_bad_row), 0
    for sentence in read_sentences(source, key, columns, bad_rows):
        count += 1
        yield sentence
    _log.info("read %s: %d sentences%s", source, count, bad_rows.skipped("sentences with bad rows"))


def read_sentences(source: str, key: str, columns: Columns, bad_rows: BadRows) -> Iterator[Sentence]:
    """Yields the sentences of files with one word and its tag per line, and a blank line after each sentence.

    Single tabs separate columns if the file has any tab; otherwise runs of blanks do. Lines with -DOCSTART- are
    skipped. A file named .conllu(.gz), or with rows of ten columns, is CoNLL-U: lines that begin with "#" are comments,
    and rows with an id such as 8-9 or 8.1 are skipped.

    Args:
      source: paths or globs, separated by commas.
      key: the config key of the source, for messages.
      columns: the columns of words and tags.
      bad_rows: how to treat sentences with a bad row: too few columns, an empty word or tag, or a line that is too
        long or not UTF-8.
    Raises:
      UserError: if a row is bad, a sentence has more than `MAX_WORDS` words, a file has no sentences, or its word
        column has ids.
    """
    for path in _find_files(source, key):
        is_empty = True
        layout = _format(path)
        parse = partial(_sentence, columns=columns, layout=layout)
        for sentence in bad_rows.sift(map(parse, _groups(path, layout))):
            if is_empty:  # the first sentence shows whether the word column has words
                _check_words(sentence, columns, layout)
            is_empty = False
            yield sentence
        if is_empty:
            raise UserError(
                str(path),
                got=f"no sentences{bad_rows.skipped('sentences with bad rows')}",
                expected="a word and its tag on each line, and a blank line after each sentence",
                fix=f"remove the file from {key}, or restore it",
            )


def _find_files(source: str, key: str) -> list[Path]:
    return find_files(source, key, (".tsv",), "a word and its tag on each line")


def _groups(path: Path, layout: _Format) -> Iterator[list[Line]]:
    """Yields the rows of each sentence."""
    group: list[Line] = []
    for line in read_lines(path, MAX_LINE_BYTES):
        if line.is_blank or line.content.startswith(_DOCUMENT_START):
            if group:
                yield group
            group = []
        elif not (layout.conllu and _NO_WORD.match(line.content)):
            group.append(line)
            _check_length(group)
    if group:
        yield group


def _sentence(group: list[Line], columns: Columns, layout: _Format) -> Sentence:
    words, tags = zip(*(_word_and_tag(line, columns, layout) for line in group), strict=True)
    return Sentence(words, tags, group[0].where)


def _format(path: Path) -> _Format:
    is_named = path.name.endswith(_CONLLU_NAMES)
    for line in read_lines(path, MAX_LINE_BYTES):
        if (tabs := line.content.count(b"\t")) and not line.content.startswith(_COMMENT):
            return _Format(tabs=True, conllu=is_named or tabs + 1 == _CONLLU_COLUMNS)
    return _Format(tabs=False, conllu=is_named)


def _word_and_tag(line: Line, columns: Columns, layout: _Format) -> tuple[str, str]:
    """Returns the word and the tag of a row. Strips blanks around them, but no other spaces (U+00A0, U+3000)."""
    text = decode(line)
    cells = [cell.strip(" ") for cell in text.split("\t")] if layout.tabs else re.split(" +", text.strip(" "))
    count = len(cells)
    indices = columns.word_column, columns.tag_column
    named = f"word_column {indices[0]} and tag_column {indices[1]}"
    separated = "a tab (the file has some)" if layout.tabs else "blanks (the file has no tab)"
    if not all(-count <= index < count for index in indices) or len({index % count for index in indices}) < 2:
        got = f"a row of {count} column{'s' if count > 1 else ''}, {' | '.join(cells)!r:.100}"
        fix = "correct the row, set config.data.word_column and config.data.tag_column to other columns"
        raise RowError(line.where, got, f"columns separated by {separated}, including {named}", fix)
    word, tag = (cells[index] for index in indices)
    if not (word and tag):
        got = f"an empty {'tag' if word else 'word'} in {' | '.join(cells)!r:.100}"
        raise RowError(line.where, got, f"a word and a tag, {named}")
    return word, tag


def _check_words(sentence: Sentence, columns: Columns, layout: _Format) -> None:
    """Raises UserError if the words are the ids 1, 2, 3, ... Outside CoNLL-U a single "1" may be a word."""
    count = len(sentence.words)
    if (layout.conllu or count > 1) and sentence.words == tuple(map(str, range(1, count + 1))):
        raise UserError(
            sentence.where,
            got=f"the ids 1, 2, ... of the words, in column {columns.word_column}"
            + (" of a file in CoNLL-U" if layout.conllu else ""),
            expected="words in the column config.data.word_column (counted from 0)",
            fix="use --config=configs/tagging.py:conllu for CoNLL-U files, or set --config.data.word_column=1 and "
            "--config.data.tag_column=3, or other columns",
        )


def check_is_text(line: str, where: str) -> None:
    """Raises UserError if a line of input for prediction is a row of CoNLL-U; `where` is its position."""
    if _CONLLU_ROW.fullmatch(line):
        raise UserError(
            where,
            got="a row of a CoNLL-U file",
            expected="one sentence per line, with words separated by spaces",
            fix="write the words of each sentence (the second column) on one line",
        )


def _check_length(group: list[Line]) -> None:
    if len(group) > MAX_WORDS:
        raise UserError(
            group[0].where,
            got=f"a sentence of more than {MAX_WORDS:,} words",
            expected="a blank line after each sentence",
            fix="separate the sentences by blank lines",
        )


def sentence_rows(words: Sequence[str], tokenizer: Tokenizer, seq_len: int) -> list[dict[str, np.ndarray]]:
    """Returns the rows that together own each word of a sentence once; one row if the sentence fits. See `unit_rows`.

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
    return list(unit_rows([pieces], tokenizer, seq_len))


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
            fix="check config.data.tag_column, or add sentences with other tags",
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
    strange = [tag for tag in names if tag[:2] not in ("O", "B-", "I-", "E-", "S-")]
    if found == PLAIN and strange and any(map(_LIKE_ENTITY.match, names)):
        raise UserError(
            "config key data.scheme=auto",
            got=f"entity tags in an unknown form: {', '.join(strange[:5])}",
            expected="O, and B, I, E and S with a hyphen and a type, such as B-PER; or no tags like B-, b- and B_",
            fix="correct data.tag_column, convert the tags to BIO, or set --config.data.scheme=plain",
        )
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
            fix="check the file and config.data.tag_column, or use the model's tags",
        )
    if unknown:
        counts = ", ".join(f"{tag} at {count} words" for tag, count in unknown.items())
        _log.warning("validation tags that the model cannot predict: %s", counts)
