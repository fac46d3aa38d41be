"""Converts pairs of texts to pairs of token sequences, for training, scoring and translation."""

import dataclasses
import functools
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
from jaxtyping import Int32

from bertjax.config import Constrained, at_least, one_of
from bertjax.data.codecs.translation.parallel_text import Pair, ParallelTextConfig
from bertjax.data.readers.lines import RowError
from bertjax.data.text.subword_vocabularies import Vocabularies
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 1024
_SENTENCE_END = re.compile(r"[.!?]['\")\]]*\s+|[。！？]")
_SPACE = re.compile(r"\s+")
# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, bopomofo and Han. Hangul has spaces.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# East Asian punctuation, whose width includes a space; and quotation marks, which other scripts also use.
_WIDE = "\u3000-\u3003\u3008-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
_QUOTES = "\u2018-\u201f\u2026"
_WITHOUT_SPACE = re.compile(
    f"[{_WIDE}].|.[{_WIDE}]|[{_UNSPACED}{_QUOTES}][{_UNSPACED}]|[{_UNSPACED}][{_QUOTES}]", re.DOTALL
)

Row = dict[str, Int32[np.ndarray, " n"]]


@dataclasses.dataclass(frozen=True)
class TranslationRowsConfig(Constrained, prefix="data"):
    """The conversion of pairs to rows.

    Attributes:
      seq_len: the maximum number of tokens of each side, including the end token; longer training pairs are skipped.
        Default: 128, or the model's number of positions if it is smaller; without training pairs, that of the training
        of `init_from` or, if it is unknown, the model's number of positions.
      packing: whether short pairs share a row of `seq_len` tokens in training.
      on_long_line: what to do with a line to translate that has more than `seq_len` tokens. "split" divides it at ends
        of sentences or, if none is near the middle, between words, and joins the translations of the parts (see
        `join_parts`); "refuse" raises an error.
    """

    seq_len: Annotated[int, at_least(2)]
    packing: bool
    on_long_line: Annotated[str, one_of("split", "refuse")]


@dataclasses.dataclass(frozen=True)
class TranslationRows:
    """Makes rows of `input_ids` (the source) and `labels` (the target), both with their end tokens.

    Attributes:
      vocabularies: the vocabularies of the two sides.
      config: the conversion settings.
      files: the config of the pairs, for their prefixes.
    """

    vocabularies: Vocabularies
    config: TranslationRowsConfig
    files: ParallelTextConfig

    def encoded(self, pairs: Iterable[Pair]) -> Iterator[Row]:
        """Yields each pair as a row of any length."""
        pairs = iter(pairs)
        while part := list(itertools.islice(pairs, _ENCODED_AT_ONCE)):
            sides = [pair.source for pair in part], [pair.target for pair in part]
            for row in zip(*map(self._ids, (0, 1), sides), strict=True):
                yield dict(zip(("input_ids", "labels"), row, strict=True))

    def fits(self, row: Row) -> bool:
        """Returns whether neither side of a row has more than `seq_len` tokens."""
        return max(map(len, row.values())) <= self.config.seq_len

    def fitting(self, pairs: Iterable[Pair], split: str) -> Iterator[Row]:
        """Yields the rows of a split's pairs that are not too long. Raises UserError if there are none."""
        count = fitting = 0
        for row in self.encoded(pairs):
            count += 1
            if self.fits(row):
                fitting += 1
                yield row
        self.report_too_long(count - fitting, count, split)

    def report_too_long(self, long: int, count: int, split: str) -> None:
        """Logs a warning if pairs were skipped because they are too long.

        Args:
          long: the number of skipped pairs.
          count: the number of all pairs.
          split: the split.
        Raises:
          UserError: if all pairs were skipped.
        """
        if long:
            what = long, count, split, self.config.seq_len
            _log.warning("skipped %d of %d pairs of %s: more than %d tokens", *what)
        if long == count:
            raise UserError(
                "config key data.seq_len",
                got=f"{self.config.seq_len}, and all {long} pairs of {split} are longer",
                expected="a length that some pairs fit in",
                fix="raise --config.data.seq_len",
            )

    def source_rows(self, text: str, where: str, refuses: bool) -> list[Row]:
        """Converts a text to one row, to several if it is too long, or to none if it is empty; each has the prefix.

        Args:
          text: a stripped text.
          where: the position of the text, for messages.
          refuses: whether a text that is too long is an error.
        Raises:
          RowError: if there are several prefixes and the text has none, or if it is too long and may not or cannot be
            split.
        """
        if not text:
            return []
        prefix, text = self.files.split_source_prefix(text, where)
        return self._divided(prefix, text, where, refuses) if text else []

    def _divided(self, prefix: str, text: str, where: str, refuses: bool) -> list[Row]:
        (ids,), limit = self._ids(0, [prefix + text]), self.config.seq_len
        if len(ids) <= limit:
            return [_with_segments({"input_ids": ids})]
        if refuses or len(text) == 1:
            fix = "divide the line, or set --config.data.on_long_line=split"
            raise _too_long(where, len(ids) - 1, limit - 1, fix)
        cut = _middle(text)
        halves = text[:cut].rstrip(), text[cut:].lstrip()
        return [row for half in halves for row in self._divided(prefix, half, where, refuses)]

    def scoring_row(self, pair: Pair) -> Row:
        """Converts a source and its target to one row, with their prefixes.

        Raises:
          RowError: if a side is too long, or if there are several prefixes and it has none.
        """
        where = pair.where
        sides = self.files.split_source_prefix(pair.source, where), self.files.split_target_prefix(pair.target, where)
        (row,) = self.encoded([Pair("".join(sides[0]), "".join(sides[1]), where)])
        longest, limit = max(map(len, row.values())), self.config.seq_len
        if longest > limit:
            raise _too_long(where, longest - 1, limit - 1, "divide the source and the target, or raise data.seq_len")
        return _with_segments(row)

    def translation(self, ids: Int32[np.ndarray, " n"]) -> str:
        """Returns the text of a target, without its prefix."""
        fitting = [len(prefix) for prefix in self._target_prefixes if np.array_equal(prefix, ids[: len(prefix)])]
        return self.vocabularies.target.decode(ids[max(fitting, default=0) :])

    @functools.cached_property
    def _target_prefixes(self) -> list[Int32[np.ndarray, " n"]]:
        return self.vocabularies.target.encode_batch([prefix.strip() for prefix in self.files.target_prefix])

    def _ids(self, side: int, texts: list[str]) -> list[Int32[np.ndarray, " n"]]:
        vocabulary = self.vocabularies[side]
        return [np.append(ids, np.int32(vocabulary.eos_id)) for ids in vocabulary.encode_batch(texts)]


def join_parts(parts: Sequence[str]) -> str:
    """Joins the translations of the parts of a text, with a space between them unless their script has none.

    No space is put between two characters of scripts without spaces between words, nor next to East Asian punctuation.

    >>> join_parts(["Ein Hund.", "Eine Katze."]), join_parts(["犬が見る。", "猫が好き。"])
    ('Ein Hund. Eine Katze.', '犬が見る。猫が好き。')
    """
    text = ""
    for part in filter(None, parts):
        text += part if not text or _WITHOUT_SPACE.match(text[-1] + part[0]) else f" {part}"
    return text


def _middle(text: str) -> int:
    """Returns where to divide a text: at a sentence end near its middle, else between two words, else in the middle."""
    middle = len(text) // 2
    for boundary, farthest in ((_SENTENCE_END, middle // 2), (_SPACE, middle)):
        ends = [match.end() for match in boundary.finditer(text) if abs(match.end() - middle) <= farthest]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    return middle


def _with_segments(row: Row) -> Row:
    names = {"input_ids": "segment_ids", "labels": "target_segment_ids"}
    return row | {names[name]: np.ones_like(ids) for name, ids in row.items()}


def _too_long(where: str, got: int, room: int, fix: str) -> RowError:
    return RowError(where, f"{got:,} tokens", f"at most {room:,}", fix)
