"""Sentences of tagged words, for named entities and parts of speech: files of columns in, rows for BERT out.

A word's tag is predicted at its first word piece (BERT section 5.3). A sentence longer than a row is covered by
overlapping windows, so that every word gets a tag, and gets it where the most context is on both sides.
"""

import dataclasses
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bertjax.data import splits
from bertjax.data.fine_tuning import tag_schemes
from bertjax.data.fine_tuning.tag_schemes import PLAIN, SCHEMES
from bertjax.data.prepared import TRAIN, VALID, Encoded, Recipe, Survey
from bertjax.data.readers import lines
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, OnBadRow, RowError, decode, find_files, read_lines
from bertjax.data.rows.stored import Fields, Numbering, Ragged, fields_of
from bertjax.data.rows.text_rows import unit_rows
from bertjax.data.splits import SplitConfig
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

BIO = "BIO"
# Sentences are held out by their numbers alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0
MAX_WORDS = 1 << 16  # of a sentence: a longer one is a file without blank lines

_DOCUMENT_START = b"-DOCSTART-"
_CONLLU_COLUMNS = 10
_COMMENT = b"# "  # whatever it may have in tabs
_CONLLU_NAMES = (".conllu", ".conllu.gz")
# What is no word in CoNLL-U: a comment, a token of several words (8-9), a word that was left out (8.1).
_NO_WORD = re.compile(rb"#|\d+[-.]\d+\s")
_CONLLU_ROW = re.compile(rf"\d+([-.]\d+)?(\t[^\t]*){{{_CONLLU_COLUMNS - 1}}}")


@dataclasses.dataclass(frozen=True)
class SentencesConfig(SplitConfig):
    """Which sentences to read; see `read_sentences` for their sources.

    Attributes:
      on_bad_row: "stop" at a malformed row, or "skip" its sentence and count it.
    """

    on_bad_row: OnBadRow


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where words and tags stand in a row, counted from 0, or from the end as -1, -2, ...

    Attributes:
      word_column: where words stand: 0 in CoNLL-2003, 1 in CoNLL-U.
      tag_column: where tags stand: -1 in CoNLL-2003 (entities), 3 in CoNLL-U (universal parts of speech).
    """

    word_column: int
    tag_column: int


class Sentence(NamedTuple):
    """Words, each with a tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str  # "file:line" of the first word


class TagSurvey(Survey[Sentence]):
    """Facts about tags; see `facts`."""

    def __init__(self, detected_from: Collection[str]) -> None:
        """Initializes the survey.

        Args:
          detected_from: the splits that the scheme is detected from.
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

        - "plain" and "BIO": for each split, the number of words of each tag and the first sentence with it, in order of
          occurrence; of the tags as written, and of the same in BIO.
        - "sentences": the number of sentences of each split.
        - "scheme": the scheme that is detected.
        - "detected_from": the tags that count for it, sorted.
        """
        scheme, tags = self._detector.scheme, sorted(self._detector.tags)
        return {**self._tables, "sentences": self._count, "scheme": scheme, "detected_from": tags}


class _Format(NamedTuple):
    tabs: bool  # columns are separated by a tab each; else by runs of blanks
    conllu: bool


@dataclasses.dataclass(frozen=True)
class TaggedRows(Recipe[Sentence]):
    """Tagged sentences as rows, for whichever scheme their tags are read in.

    Attributes:
      config: the sentences to read.
      columns: the columns of words and tags.
      tokenizer: the tokenizer.
      seq_len: the most tokens of a row; longer sentences take several rows.
    """

    config: SentencesConfig
    columns: Columns
    tokenizer: WordPiece
    seq_len: int

    def key(self) -> Any:
        """See `Recipe.key`."""
        sources = {"data.source": self.config.source, "data.valid_source": self.config.valid_source}
        files = {key: find_files(source, key) for key, source in sources.items() if source}
        digests = {key: [lines.fingerprint(path) for path in paths] for key, paths in files.items()}
        settings = dataclasses.asdict(dataclasses.replace(self.config, source="", valid_source=""))
        return [digests, settings, dataclasses.asdict(self.columns), self.tokenizer.key, self.seq_len]

    def read(self) -> Iterator[tuple[str, Sentence]]:
        """See `Recipe.read`.

        Raises:
          UserError: as `read_sentences` and `splits.read_splits`.
        """
        return splits.read_splits(self.config, partial(_read, self.config, self.columns), _SPLIT_SEED)

    def survey(self) -> Survey[Sentence]:
        """See `Recipe.survey`. Validation sentences of their own source do not count for the scheme, unless alone."""
        return TagSurvey((TRAIN,) if self.config.source and self.config.valid_source else (TRAIN, VALID))

    def text(self, row: Sentence) -> str:
        """See `Recipe.text`."""
        return " ".join(row.words)

    def encode(self, rows: Sequence[Sentence]) -> Encoded:
        """See `Recipe.encode`.

        "labels" and "as_written" [S] int32 are the tags in BIO and as written, at the first piece of each word that the
        row owns, else no name. "label_weights" [S] float32 are 1 at these pieces, else 0.
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

        The names become places in `tag_names`, and "labels" of plain tags are those as written. Entity tags have
        "as_written" too, for a config that calls them plain.
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
    _log.info("read %s: %d sentences, %d with bad rows left out", source, count, bad_rows.count)


def read_sentences(source: str, key: str, columns: Columns, bad_rows: BadRows) -> Iterator[Sentence]:
    """Yields the sentences of files with a word and its tag on a line, and a blank line after each sentence.

    Columns are separated by a tab each if the file has any tab, else by runs of blanks. Lines of -DOCSTART- are
    left out. A file named .conllu(.gz), or whose rows have ten columns, is CoNLL-U: there lines that begin with
    "#" are comments, and rows with an id such as 8-9 or 8.1 are left out.

    Args:
      source: paths or globs, separated by commas.
      key: the config key that names them, for messages.
      columns: where words and tags stand.
      bad_rows: what to do with a sentence that has a bad row: too few columns, an empty word or tag, a line that
        is too long or not UTF-8.
    Raises:
      UserError: a bad row; a sentence of more than `MAX_WORDS` words; a file without sentences; or one whose word
        column has ids.
    """
    for path in find_files(source, key):
        is_empty = True
        layout = _format(path)
        parse = partial(_sentence, columns=columns, layout=layout)
        for sentence in bad_rows.sift(map(parse, _groups(path, layout))):
            if is_empty:  # the first sentence shows what the columns are
                _check_words(sentence, columns, layout)
            is_empty = False
            yield sentence
        if is_empty:
            raise UserError(
                str(path),
                got=f"no sentences ({bad_rows.count} with bad rows left out)",
                expected="a word and its tag on each line, and a blank line after each sentence",
                fix=f"leave the file out of {key}, or restore it",
            )


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
    """The word and the tag of a row. Blanks around them are no part of them; other spaces (U+00A0, U+3000) are."""
    text = decode(line)
    cells = [cell.strip(" ") for cell in text.split("\t")] if layout.tabs else re.split(" +", text.strip(" "))
    count = len(cells)
    places = columns.word_column, columns.tag_column
    named = f"word_column {places[0]} and tag_column {places[1]}"
    separated = "a tab (the file has some)" if layout.tabs else "blanks (the file has no tab)"
    if not all(-count <= place < count for place in places) or len({place % count for place in places}) < 2:
        got = f"a row of {count} column{'s' if count > 1 else ''}, {' | '.join(cells)!r:.100}"
        fix = "correct the row, set config.data.word_column and config.data.tag_column to the columns meant"
        raise RowError(line.where, got, f"columns separated by {separated}, two of them {named}", fix)
    word, tag = (cells[place] for place in places)
    if not (word and tag):
        got = f"an empty {'tag' if word else 'word'} in {' | '.join(cells)!r:.100}"
        raise RowError(line.where, got, f"a word and a tag, {named}")
    return word, tag


def _check_words(sentence: Sentence, columns: Columns, layout: _Format) -> None:
    """Raises UserError if the words are the ids 1, 2, 3, ...; outside CoNLL-U a single "1" may be a word."""
    count = len(sentence.words)
    if (layout.conllu or count > 1) and sentence.words == tuple(map(str, range(1, count + 1))):
        raise UserError(
            sentence.where,
            got=f"the ids 1, 2, ... of the words, in column {columns.word_column}"
            + (" of a file in CoNLL-U" if layout.conllu else ""),
            expected="words in the column that config.data.word_column names (columns count from 0)",
            fix="use --config=configs/tagging.py:conllu for CoNLL-U files, or set --config.data.word_column=1 and "
            "--config.data.tag_column=3 or the columns meant",
        )


def check_is_text(line: str, where: str) -> None:
    """Raises UserError if a line of text to predict on is a row of CoNLL-U; `where` names the line."""
    if _CONLLU_ROW.fullmatch(line):
        raise UserError(
            where,
            got="a row of a CoNLL-U file",
            expected="a sentence in each line, its words separated by spaces",
            fix="write the words of each sentence (the second column) to a line",
        )


def _check_length(group: list[Line]) -> None:
    if len(group) > MAX_WORDS:
        raise UserError(
            group[0].where,
            got=f"a sentence of more than {MAX_WORDS:,} words",
            expected="a blank line after each sentence",
            fix="separate the sentences with blank lines",
        )


def sentence_rows(words: Sequence[str], tokenizer: WordPiece, seq_len: int) -> list[dict[str, np.ndarray]]:
    """The rows that together own each word of a sentence once; one row if the sentence fits. See `unit_rows`.

    A word that normalizes to nothing becomes [UNK].

    Args:
      words: those of a sentence, one or more.
      tokenizer: splits words into pieces.
      seq_len: tokens of a row at most.
    Raises:
      UserError: `seq_len` leaves no room for a word.
    """
    if seq_len < 3:
        raise UserError(
            "config key data.seq_len", got=seq_len, expected="at least 3: [CLS], a piece, [SEP]", fix="use 128"
        )
    pieces = [ids or [tokenizer.unk_id] for ids in tokenizer.encode_batch(words)]
    return list(unit_rows([pieces], tokenizer, seq_len))


def in_scheme(tags: Sequence[str], target: str) -> Sequence[str]:
    """Returns the tags of a sentence in BIO if `target` is `BIO` and all are chunk tags; otherwise as written."""
    return tag_schemes.to_bio(tags) if target == BIO and tag_schemes.are_chunk_tags(tags) else tags


def tag_names(facts: Mapping[str, Any], target: str) -> list[str]:
    """Returns the tags of the training sentences, sorted; of BIO, both B and I of each type.

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
    """Returns the `tag_names`, in the order of `known` if they are the same tags.

    Raises:
      UserError: for fewer than two tags.
    """
    names = tag_names(facts, target)
    if len(names) < 2:
        raise UserError(
            "tags of the training sentences",
            got=f"{names[0]!r} at every word of {facts['sentences'][TRAIN]} sentences",
            expected="two or more",
            fix="check that config.data.tag_column is the one meant, or add sentences with other tags",
        )
    return known if set(known) == set(names) else tuple(names)


def with_labels(fields: Fields, facts: Mapping[str, Any], target: str, labels: Sequence[str]) -> Fields:
    """Returns prepared fields with "labels" as places in `labels`, which has all tags that occur.

    Args:
      fields: the fields of `TaggedRows`.
      facts: the facts of `TagSurvey`.
      target: whether tags are learned in `BIO` or as written, `PLAIN`.
      labels: the tags to learn, in order.
    """
    stored = _stored(facts)
    name = next((name for name, scheme in stored.items() if scheme == target), "labels")
    kept = {name: field for name, field in fields.items() if name not in stored}
    numbers, weights = cast(Ragged, fields[name]), cast(Ragged, fields["label_weights"])
    number = {label: place for place, label in enumerate(labels)}
    places = np.array([number.get(tag, 0) for tag in tag_names(facts, stored[name])], np.int32)
    if (places != np.arange(len(places))).any():
        numbers = numbers._replace(values=places[numbers.values] * (weights.values != 0))
    return {**kept, "labels": numbers}


def _stored(facts: Mapping[str, Any]) -> dict[str, str]:
    """The fields of tags, with the scheme that each is in."""
    return {"labels": PLAIN} if facts["scheme"] == PLAIN else {"labels": BIO, "as_written": PLAIN}


def check_labels(labels: Sequence[str]) -> None:
    """Raises UserError unless there are tags to tell apart."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(
            "config key data.labels",
            got=f"{', '.join(labels) or 'no tags'}",
            expected="two or more different tags: of data.source to train on, or of a tagger in init_from",
            fix="set --config.data.source=FILE, or --config.data.labels=\"('O', 'B-PER', 'I-PER')\"",
        )


def recognized(facts: Mapping[str, Any]) -> str:
    """Returns the scheme that was detected. Raises UserError if only some of the tags look like entity tags."""
    found: str = facts["scheme"]
    names = facts["detected_from"]
    strange = [tag for tag in names if tag[:2] not in ("O", "B-", "I-", "E-", "S-")]
    if found == PLAIN and strange and any(tag[:2] in ("B-", "I-") for tag in names):
        raise UserError(
            "config key data.scheme=auto",
            got=f"tags of entities, and among them {', '.join(strange[:5])}",
            expected="O, and B, I, E and S with a hyphen and a type; or no B- and I- at all",
            fix="correct data.tag_column, convert the tags to BIO, or set --config.data.scheme=plain",
        )
    _log.info("the tags are recognized as scheme %s: %s", found, ", ".join(names))
    return found


def check_scheme(facts: Mapping[str, Any], scheme: str) -> None:
    """Raises UserError if a sentence has an entity tag that is not of the scheme."""
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
                    fix="write all files in one scheme, and set --config.data.scheme if it is another",
                )


def check_tags(facts: Mapping[str, Any], target: str, labels: Sequence[str]) -> None:
    """Raises UserError if a training sentence has a tag that is not to be learned."""
    for tag, (_, where) in facts[target][TRAIN].items():
        if tag not in labels:
            raise UserError(
                f"{where}, the sentence that begins there",
                got=f"tag {tag!r}, which data.labels does not have",
                expected="one of " + ", ".join(labels),
                fix="leave data.labels out for the tags of the training sentences, or correct the tag",
            )


def check_held_out(facts: Mapping[str, Any], target: str, labels: Sequence[str]) -> None:
    """Warns of validation tags that are not learned. Raises UserError if all of them, except O, are not learned."""
    tags = facts[target][VALID]
    unknown = {tag: count for tag, (count, _) in sorted(tags.items()) if tag not in labels}
    if unknown and not tags.keys() & set(labels) - {"O"}:
        _, first = next(iter(tags.values()))
        raise UserError(
            f"{first} and the sentences that follow",
            got=f"the tags {', '.join(sorted(tags)):.200}",
            expected="tags that the model has: " + ", ".join(labels),
            fix="check that the file and config.data.tag_column are those meant, or write the tags as the model does",
        )
    if unknown:
        counts = ", ".join(f"{tag} at {count} words" for tag, count in unknown.items())
        _log.warning("held-out tags that are not learned, so never predicted: %s", counts)
