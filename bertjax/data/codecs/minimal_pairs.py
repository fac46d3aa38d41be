"""Minimal pairs (Warstadt et al. 2020): reads pairs of sentences, and makes rows that score a sentence."""

import dataclasses
import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.codecs.codec import NO_LIMITS, Columns, Encoded, ParsedCodec, check_texts
from bertjax.data.readers import delimited, tables
from bertjax.data.readers.kinds import TABLES, kind_of
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, RowError, decode, read_lines
from bertjax.data.rows.stored import Row, fields_of
from bertjax.data.rows.text_rows import segmented, text_row
from bertjax.data.text.normalization import separate_punctuation
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

METHODS = ("original", "within_word_l2r")
# The columns of the good and the bad sentence, the phenomenon and the paradigm. The second are those of BLiMP's files.
_COLUMNS = (("good", "bad", "phenomenon", "paradigm"), ("sentence_good", "sentence_bad", "linguistics_term", "UID"))
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


Words = list[list[int]]  # the tokens of each word of a sentence


class Pair(NamedTuple):
    """A minimal pair."""

    groups: tuple[str, str]  # the phenomenon and the paradigm; "" for none
    good: Words
    bad: Words
    where: str  # "file:line"


class Sentence(NamedTuple):
    """A sentence to score."""

    text: str
    words: Words


@dataclasses.dataclass(frozen=True)
class SentenceCodec(ParsedCodec[Sentence]):
    """Sentences as rows whose predictions are the log-probabilities of their tokens.

    Attributes:
      tokenizer: the tokenizer.
      max_positions: the maximum number of tokens of a row, with [CLS] and [SEP].
      method: "original" masks one token at a time (Salazar et al. 2020). "within_word_l2r" also masks the later tokens
        of its word, which would give it away (Kauf and Ivanova 2023). Ignored for causal models.
      is_causal: whether the language model is causal, so that one row predicts all tokens.
      shift: the offset from a token to the position that predicts it.
      columns: the columns of tables to predict on.
    """

    splits_tabs = False
    tokenizer: EncoderTokenizer
    max_positions: int
    method: str
    is_causal: bool
    shift: int
    columns: Columns | None = None

    def parse(self, texts: Sequence[str], where: str) -> Sentence:
        check_texts(texts, where, (1,))
        (text,) = texts
        return Sentence(text, self.words(text, where))

    def text(self, example: Sentence) -> str:
        return example.text

    def encode(self, examples: Sequence[Sentence]) -> Encoded:
        """Returns the `rows` of the sentences, with "masked_labels" and "masked_positions"."""
        rows = [self.rows(example.words) for example in examples]
        sizes = np.array(list(map(len, rows)), np.int32)
        return Encoded(fields_of(itertools.chain.from_iterable(rows)), sizes, [NO_LIMITS] * len(rows))

    def words(self, text: str, where: str) -> Words:
        """Returns the tokens of a sentence by word. A word also ends at punctuation, as in BERT's tokenizer.

        Raises:
          RowError: if there is no token, or there are too many.
        """
        pieces = self.tokenizer.encode_with_offsets(text)
        words = Words()
        most = self.max_positions - self.tokenizer.template.num_special(1)
        if not 1 <= len(pieces.ids) <= most:
            expected = f"a sentence of 1 to {most} tokens, the positions of the model without [CLS] and [SEP]"
            raise RowError(where, f"{len(pieces.ids)} tokens", expected, "correct or delete the sentence")
        for token, start in zip(pieces.ids.tolist(), pieces.starts.tolist(), strict=True):
            before = text[max(start - 1, 0) : start]
            if words and self.tokenizer.is_continuation[token] and separate_punctuation(before) == before:
                words[-1].append(token)
            else:
                words.append([token])
        return words

    def rows(self, words: Words) -> list[Row]:
        """Returns the rows of a sentence: one per token, or a single one for causal models.

        Returns:
          rows of BERT's inputs, with the masked_labels and their masked_positions: scalars, or a pair of arrays in a
          causal model, whose positions are those of the tokens before (or after) the labels.
        """
        (row,) = segmented([text_row([list(itertools.chain(*words))], self.tokenizer)])
        tokens = row["input_ids"]
        first = len(self.tokenizer.template.start)
        if self.is_causal:
            positions = np.arange(first, first + sum(map(len, words)), dtype=np.int32)
            return [{**row, "masked_positions": positions + np.int32(self.shift), "masked_labels": tokens[positions]}]
        rows: list[Row] = []
        for word in words:
            stop = first + len(word)
            for place in range(first, stop):
                masked = tokens.copy()
                masked[place : stop if self.method == "within_word_l2r" else place + 1] = self.tokenizer.mask_id
                scalars = {"masked_positions": np.int32(place + self.shift), "masked_labels": tokens[place]}
                rows.append({**row, "input_ids": masked, **scalars})
            first = stop
        return rows


def check_source(source: str, key: str) -> None:
    """Raises UserError if config key `key` names no files."""
    if not source:
        fix = f"set --config.{key}=blimp.jsonl"
        raise UserError(f"config key {key}", got="no files", expected="files of minimal pairs", fix=fix)
    tables.find_files(source, key)


def read(
    source: str, key: str, codec: SentenceCodec, per_paradigm: int, on_bad_row: str, columns: Sequence[str] = ()
) -> list[Pair]:
    """Reads minimal pairs. Logs the number of those whose sentences have the same tokens.

    Files are tables, or lines of two sentences separated by a tab; see docs/reference/inputs.md.

    Args:
      source: the files; see `lines.find_files`.
      key: the config key of the source, for messages.
      codec: divides the sentences into words.
      per_paradigm: the number of pairs of each paradigm, from the first on; 0 for all.
      on_bad_row: see `BadRows`.
      columns: the columns of the good and the bad sentence in a table; empty for those of BLiMP.
    Raises:
      UserError: if there is no pair, or for a bad row, with file and line: without two sentences, or with one that
        `SentenceCodec.words` refuses.
    """
    column_sets = [(*columns, "phenomenon", "paradigm")] if columns else _COLUMNS
    check_source(source, key)
    bad_rows = BadRows(on_bad_row)
    counts = Counter[tuple[str, str]]()
    pairs = []
    for path in tables.find_files(source, key):
        for pair in bad_rows.sift(map(partial(_pair, column_sets, codec), _rows(path, key, column_sets, bad_rows))):
            counts[pair.groups] += 1
            if not per_paradigm or counts[pair.groups] <= per_paradigm:
                pairs.append(pair)
    if not pairs:
        expected = "pairs of sentences, in columns or separated by a tab"
        got = f"no rows{bad_rows.skipped()}"
        raise UserError(f"config key {key}={source}", got=got, expected=expected, fix="name other files")
    _log.info("read %s: %d of %d pairs%s", source, len(pairs), counts.total(), bad_rows.skipped())
    if equal := [pair.where for pair in pairs if pair.good == pair.bad]:  # BLiMP has a few
        _log.warning("%d pairs are ties: their sentences have the same tokens, first in %s", len(equal), equal[0])
    return pairs


def _rows(path: Path, key: str, column_sets: Sequence[Sequence[str]], bad_rows: BadRows) -> Iterator[tables.Row]:
    """The rows of a table; those of a file of lines have the columns of the sentences."""
    kind = kind_of(path, key, TABLES, "a good and a bad sentence per line, separated by a tab")
    if kind and (kind != ".tsv" or any(set(names[:2]) <= set(delimited.first_fields(path)) for names in column_sets)):
        return tables.read_file(path, True, bad_rows)
    lines = (line for line in read_lines(path, MAX_LINE_BYTES) if not line.is_blank)

    def row(line: Line) -> tables.Row:
        texts = decode(line).split("\t")
        if len(texts) != 2:
            got = "one sentence" if len(texts) == 1 else f"{len(texts)} sentences"
            expected = "a good and a bad sentence, separated by a tab"
            raise RowError(line.where, got, expected, "correct the line")
        return tables.Row(dict(zip(column_sets[0], texts, strict=False)), line.where)

    return map(row, lines)


def _pair(column_sets: Sequence[Sequence[str]], codec: SentenceCodec, row: tables.Row) -> Pair:
    """The pair of a row, by the first of the known sets of columns that the row has."""
    names = next((names for names in column_sets if set(names[:2]) <= row.values.keys()), None)
    if names is None:
        got = f"the columns {', '.join(row.values)}"
        expected = f"the columns {' and '.join(column_sets[0][:2])}"
        raise RowError(row.where, got, expected, "rename the columns, or name them in data.pair_columns")
    good, bad = (tables.text_of(row, name, "data.pair_columns") for name in names[:2])
    phenomenon, paradigm = (_NOT_IN_NAMES.sub("_", str(row.values.get(name) or "")) for name in names[2:])
    first, second = (codec.words(text, row.where) for text in (good, bad))
    return Pair((phenomenon, paradigm), first, second, row.where)
