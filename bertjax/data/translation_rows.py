"""Pairs of texts as pairs of token sequences, to learn from and to translate."""

import dataclasses
import functools
import itertools
import logging
import re
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int32

from bertjax.data.parallel_text import Pair, ParallelTextConfig
from bertjax.data.subword_vocabularies import Vocabularies
from bertjax.errors import UserError, choice

_log = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 1024
_SENTENCE_END = re.compile(r"[.!?]['\")\]]*\s+|[。！？]")
_SPACE = re.compile(r"\s+")

Row = dict[str, Int32[np.ndarray, " n"]]


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """How pairs become rows.

    Attributes:
      seq_len: tokens of each side at most, the end token counted; longer pairs are not trained on.
      packing: whether short pairs share a row of `seq_len` tokens in training.
      on_long_line: what to do with a line to translate of more tokens than a translation may have
        (`decoding.max_length`) or the model has positions for: "split" at ends of sentences or, for want of them,
        between words, or "refuse".
    """

    seq_len: int
    packing: bool
    on_long_line: str

    def __post_init__(self) -> None:
        choice(self.on_long_line, ("split", "refuse"), "data.on_long_line")
        if self.seq_len < 2:
            raise UserError("config key data.seq_len", got=self.seq_len, expected="at least 2", fix="raise it")


@dataclasses.dataclass(frozen=True)
class TranslationRows:
    """Makes rows: `input_ids` of the source and `labels` of the target, both with their end tokens.

    Attributes:
      vocabularies: of the two sides.
      config: see there.
      files: which prefixes texts have.
    """

    vocabularies: Vocabularies
    config: RowsConfig
    files: ParallelTextConfig

    def encoded(self, pairs: Iterable[Pair]) -> Iterator[Row]:
        """Each pair as a row, however long."""
        pairs = iter(pairs)
        while part := list(itertools.islice(pairs, _ENCODED_AT_ONCE)):
            sides = [pair.source for pair in part], [pair.target for pair in part]
            for row in zip(*map(self._ids, (0, 1), sides), strict=True):
                yield dict(zip(("input_ids", "labels"), row, strict=True))

    def fitting(self, pairs: Iterable[Pair], split: str) -> Iterator[Row]:
        """The rows of a split's pairs that are not too long. Raises UserError if there are none."""
        long = count = 0
        for row in self.encoded(pairs):
            if max(map(len, row.values())) > self.config.seq_len:
                long += 1
                continue
            count += 1
            yield row
        if long:
            what = long, long + count, split, self.config.seq_len
            _log.warning("left out %d of %d pairs of %s: over %d tokens", *what)
        if not count:
            raise UserError(
                "config key data.seq_len",
                got=f"{self.config.seq_len}, and all {long} pairs of {split} are longer",
                expected="pairs that fit",
                fix="raise --config.data.seq_len",
            )

    def to_translate(self, text: str, limit: int, where: str, refuses: bool) -> list[Row]:
        """A text as one row, as several if it is too long for one, or as none if it is empty; each with the prefix.

        Args:
          text: without white space around it.
          limit: tokens of a row at most.
          where: it stands.
          refuses: whether one that is too long is an error.
        Raises:
          UserError: it is too long, and is not to be split or cannot be.
        """
        prefix, text = self.files.parted_source(text)
        return self._divided(prefix, text, limit, where, refuses) if text else []

    def _divided(self, prefix: str, text: str, limit: int, where: str, refuses: bool) -> list[Row]:
        (ids,) = self._ids(0, [prefix + text])
        if len(ids) <= limit:
            return [_with_segments({"input_ids": ids})]
        if refuses or len(text) == 1:
            fix = "divide the line, set --config.data.on_long_line=split, or raise --config.decoding.max_length"
            raise _too_long(where, len(ids) - 1, limit - 1, fix)
        cut = _middle(text)
        halves = text[:cut].rstrip(), text[cut:].lstrip()
        return [row for half in halves for row in self._divided(prefix, half, limit, where, refuses)]

    def to_score(self, source: str, target: str, limit: int, where: str) -> Row:
        """A source and its target as one row, with their prefixes; arguments as of `to_translate`.

        Raises:
          UserError: one is too long.
        """
        sides = self.files.parted_source(source), self.files.parted_target(target)
        (row,) = self.encoded([Pair("".join(sides[0]), "".join(sides[1]), where)])
        longest = max(map(len, row.values()))
        if longest > limit:
            raise _too_long(where, longest - 1, limit - 1, "divide both")
        return _with_segments(row)

    def translation(self, ids: Int32[np.ndarray, " n"]) -> str:
        """The text of a target, without its prefix."""
        fitting = [len(prefix) for prefix in self._target_prefixes if np.array_equal(prefix, ids[: len(prefix)])]
        return self.vocabularies.target.decode(ids[max(fitting, default=0) :])

    @functools.cached_property
    def _target_prefixes(self) -> list[Int32[np.ndarray, " n"]]:
        return self.vocabularies.target.encode_batch([prefix.strip() for prefix in self.files.target_prefix])

    def _ids(self, side: int, texts: list[str]) -> list[Int32[np.ndarray, " n"]]:
        vocabulary = self.vocabularies[side]
        return [np.append(ids, np.int32(vocabulary.eos_id)) for ids in vocabulary.encode_batch(texts)]


def _middle(text: str) -> int:
    """Where to divide a text: at the end of a sentence near its middle, or else between two words, or anywhere."""
    middle = len(text) // 2
    for boundary, farthest in ((_SENTENCE_END, middle // 2), (_SPACE, middle)):
        ends = [match.end() for match in boundary.finditer(text) if abs(match.end() - middle) <= farthest]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    return middle


def _with_segments(row: Row) -> Row:
    names = {"input_ids": "segment_ids", "labels": "target_segment_ids"}
    return row | {names[name]: np.ones_like(ids) for name, ids in row.items()}


def _too_long(where: str, got: int, room: int, fix: str) -> UserError:
    return UserError(where, got=f"{got:,} tokens", expected=f"at most {room:,}", fix=fix)
