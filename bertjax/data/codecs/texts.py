"""Texts and pairs of texts without labels, to predict on: as a whole, after a prompt, with masks, or as units."""

import dataclasses
import itertools
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from bertjax.data import random
from bertjax.data.codecs.codec import NO_LIMITS, Columns, Encoded, ParsedCodec, check_texts, encoded_texts, limits_of
from bertjax.data.readers import tables
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row
from bertjax.data.rows.stored import Fields, Ragged, fields_of
from bertjax.data.rows.text_rows import text_fields, unit_rows
from bertjax.data.text.tokenizers import EncoderTokenizer

_REPEATED = re.compile(r"\[MASK\]\*(\d{1,6})")


class Texts(NamedTuple):
    """One text, or a pair."""

    texts: tuple[str, ...]
    where: str = ""  # its position, for messages


@dataclasses.dataclass(frozen=True)
class TextCodec(ParsedCodec[Texts]):
    """Texts and pairs: one row for each, truncated.

    Attributes:
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row.
      columns: the columns of tables.
      has_tabs: see `Codec`.
    """

    tokenizer: EncoderTokenizer
    seq_len: int
    columns: Columns
    has_tabs: bool = True

    def parse(self, texts: Sequence[str], where: str) -> Texts:
        check_texts(texts, where, (1, 2))
        return Texts(tuple(texts), where)

    def text(self, example: Texts) -> str:
        return "\t".join(example.texts)

    def encode(self, examples: Sequence[Texts]) -> Encoded:
        rows = [[self.tokenizer.encode_batch(example.texts)] for example in examples]
        return encoded_texts(rows, self.tokenizer, self.seq_len)._replace(extras=())


@dataclasses.dataclass(frozen=True)
class PromptedTextCodec(TextCodec):
    """Texts and pairs after a prompt, each with one vector.

    Attributes:
      prompt: a text that precedes each text, or the first of each pair.
      includes_prompt: whether the tokens of the prompt are pooled; if not, [CLS] is not pooled either, as in
        sentence-transformers.
    """

    prompt: str = ""
    includes_prompt: bool = True

    def encode(self, examples: Sequence[Texts]) -> Encoded:
        """Returns rows with "pooled" [S], 1 at every token that is pooled, unless all are; `extras` are `Units`."""
        prompted = [Texts((self.prompt + first, *second)) for (first, *second), _ in examples]
        encoded = super().encode(prompted)
        units = [Units(["\t".join(example.texts)], None) for example in examples]
        if self.includes_prompt:
            return encoded._replace(extras=units)
        (pieces,) = self.tokenizer.encode_batch([self.prompt])
        first = len(self.tokenizer.template.start) + len(pieces) if self.prompt else 0
        lengths = cast(Ragged, encoded.fields["input_ids"]).lengths
        pooled = np.concatenate([(np.arange(length) >= first).astype(np.int32) for length in lengths])
        return encoded._replace(fields={**encoded.fields, "pooled": Ragged(pooled, lengths)}, extras=units)


class Units(NamedTuple):
    """The units of an example that have a vector.

    Attributes:
      texts: the pieces, the words or the text.
      second: for a pair, the number of the first unit of its second text; None for one text or one vector.
    """

    texts: list[str]
    second: int | None


@dataclasses.dataclass(frozen=True)
class UnitCodec(TextCodec):
    """Texts and pairs with a vector for each piece or word. Rows that together own each unit once; see `unit_rows`.

    Attributes:
      is_of_words: whether units are words, separated by white space, instead of pieces.
      takes_first: whether the vector of a word is that of its first piece instead of the mean of all.
    """

    is_of_words: bool = True
    takes_first: bool = True

    def encode(self, examples: Sequence[Texts]) -> Encoded:
        """Returns rows with "unit_starts" and "unit_lengths"; `extras` are `Units`."""
        split = [[self._units(text) for text in example.texts] for example in examples]
        windows = [unit_rows([pieces for _, pieces in texts], self.tokenizer, self.seq_len) for texts in split]
        fields: Fields = fields_of(row for rows, _ in windows for row in rows)
        if self.takes_first and fields:  # texts of white space alone have no rows
            lengths = cast(Ragged, fields["unit_lengths"])
            fields = {**fields, "unit_lengths": lengths._replace(values=np.ones_like(lengths.values))}
        sizes = np.array([len(rows) for rows, _ in windows], np.int32)
        truncated = [is_cut for _, is_cut in windows]
        limits = limits_of(self.seq_len, truncated=truncated, split=sizes > 1)
        units = [
            Units(
                list(itertools.chain.from_iterable(names for names, _ in texts)),
                len(texts[0][0]) if len(texts) == 2 else None,
            )
            for texts in split
        ]
        return Encoded(fields, sizes, limits, units)

    def _units(self, text: str) -> tuple[list[str], list[list[int]]]:
        """Returns the units of a text, and the pieces of each; a word that normalizes to nothing is [UNK]."""
        if self.is_of_words:
            words = text.split()
            return words, [ids or [self.tokenizer.unk_id] for ids in self.tokenizer.encode_parts(words)]
        (ids,) = self.tokenizer.encode_batch([text])
        return self.tokenizer.names(ids), [[piece] for piece in ids]


@dataclasses.dataclass(frozen=True)
class MaskedTextCodec(TextCodec):
    """Texts and pairs with one or more [MASK], whose tokens are predicted.

    `[MASK]*32` stands for 32 of them.

    Attributes:
      shift: the offset from a token to the position that predicts it: 0, or a neighbor in a causal model.
      lengths: the numbers of [MASK] that an empty text stands for, one drawn for each; () to refuse empty texts.
      seed: seed of the draws.
    """

    shift: int = 0
    lengths: tuple[int, ...] = ()
    seed: int = 0

    def parse_row(self, row: Row) -> Texts:
        """A text of a table may have a tab between two segments, like a line."""
        (name,) = self.columns.names
        return self.parse(tables.text_of(row, name, self.columns.key).split("\t"), row.where)

    def parse(self, texts: Sequence[str], where: str) -> Texts:
        if self.lengths and not "".join(texts).strip():
            draw = random.bits(self.seed, random.Stream.SAMPLING, 0, np.array([zlib.crc32(where.encode())]), 1)
            return Texts(("[MASK]" * self.lengths[int(random.below(draw, len(self.lengths))[0, 0])],), where)
        return Texts(tuple(_REPEATED.sub(self._masks_of, text) for text in texts), where)

    def _masks_of(self, repeated: re.Match[str]) -> str:
        return "[MASK]" * min(int(repeated[1]), self.seq_len)  # which is too long with [CLS]

    def encode(self, examples: Sequence[Texts]) -> Encoded:
        """Returns rows with "masked_positions"; `extras` are the positions of the [MASK] tokens."""
        segments = [[self.tokenizer.encode_with_masks(text) for text in example.texts] for example in examples]
        masks = [self._masks(*pair) for pair in zip(examples, segments, strict=True)]
        positions = np.array([position for of_row in masks for position in of_row], np.int32) + np.int32(self.shift)
        fields = text_fields(segments, self.tokenizer, self.seq_len)
        field = Ragged(positions, np.array(list(map(len, masks)), np.int32))
        sizes = np.ones(len(examples), np.int32)
        return Encoded({**fields, "masked_positions": field}, sizes, [NO_LIMITS] * len(examples), masks)

    def _masks(self, example: Texts, segments: Sequence[Sequence[int]]) -> list[int]:
        """Returns the positions of the [MASK] tokens. Raises RowError without any, or for too many texts or tokens."""
        ids, _ = self.tokenizer.template.row(segments)
        positions = [position for position, token in enumerate(ids) if token == self.tokenizer.mask_id]
        if not positions or len(segments) > 2 or len(ids) > self.seq_len:
            raise RowError(
                example.where,
                got=f"{len(positions)} [MASK], {len(segments)} segment(s), {len(ids)} word pieces",
                expected=f"at least one [MASK], at most 2 segments with a tab between them in a line, and at "
                f"most {self.seq_len} word pieces with [CLS] and [SEP]",
                fix="correct the text",
            )
        return positions
