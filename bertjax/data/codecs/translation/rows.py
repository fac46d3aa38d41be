"""Converts pairs of texts to pairs of token sequences, for training, scoring and translation."""

import dataclasses
import functools
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int32

from bertjax.config import Constrained, Count, always, at_least, one_of
from bertjax.data.codecs.codec import Columns, Encoded, ParsedCodec, TrainingCodec, TrainingRows, check_texts, limits_of
from bertjax.data.codecs.translation.parallel_text import Pair, ParallelText, ParallelTextConfig
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row
from bertjax.data.rows.stored import Ragged, fields_of
from bertjax.data.splits import TRAIN, VALID
from bertjax.data.text.subword_vocabularies import Vocabularies
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 1024
_NO_ROWS = dict.fromkeys(("input_ids", "labels"), Ragged(np.zeros(0, np.int32), np.zeros(0, np.int32)))
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

TokenRow = dict[str, Int32[np.ndarray, " n"]]


@dataclasses.dataclass(frozen=True)
class TranslationRowsConfig(Constrained, prefix="data"):
    """The conversion of pairs to rows.

    Attributes:
      seq_len: the maximum number of tokens of each side. Default: 128, or the model's positions if fewer; without
        training pairs, that of `init_from` or, if it is unknown, the model's positions.
      target_len: the maximum number of tokens of a target, up to `seq_len`; 0 for `seq_len`.
      packing: whether several examples share a row of `seq_len` tokens in training, each attending only to itself.
      on_long_pair: for a training or validation pair with a longer side, which is counted: "skip" leaves it out;
        "truncate" cuts the side.
      on_long_line: for a line to translate of more than `seq_len` tokens: "split" divides it at ends of sentences or,
        if none is near the middle, between words, and joins the translations; "truncate" cuts it, which its record
        states; "refuse" raises an error.
    """

    seq_len: Annotated[int, at_least(2)] = always(None)
    packing: bool = always(False)
    on_long_line: Annotated[str, one_of("split", "truncate", "refuse")] = always("split")
    target_len: Count = dataclasses.field(default=0, kw_only=True)
    on_long_pair: Annotated[str, one_of("skip", "truncate")] = dataclasses.field(default="skip", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.target_len <= (self.seq_len or self.target_len), "target_len", f"at most {self.seq_len}")
        is_packed = self.packing and self.target_len
        self.check(not is_packed, "target_len", "0 with data.packing", fix="set --config.data.packing=False")

    @property
    def lengths(self) -> tuple[int, int]:
        """The maximum numbers of tokens of the two sides."""
        return self.seq_len, self.target_len or self.seq_len


@dataclasses.dataclass(frozen=True)
class PairCodec(ParsedCodec[Pair], TrainingCodec[Pair]):
    """Pairs of texts: `input_ids` of the source and `labels` of the target, both with their end tokens.

    Inputs to predict on are texts, or with `scores_targets` texts with their translations. A pair that is longer than
    `seq_len` is left out of training, and of the loss of the validation split. A text to translate is split into
    several rows.

    Attributes:
      vocabularies: the vocabularies of the two sides.
      config: the conversion settings.
      files: the config of the pairs, for their prefixes and columns.
      texts: the pairs of "train" and "valid"; empty without pairs to prepare.
      scores_targets: whether the rows of `encode` have targets, which are scored.
      refuses_long: whether a text to translate that is too long is an error.
    """

    kind = "PairRecipe"
    vocabularies: Vocabularies
    config: TranslationRowsConfig
    files: ParallelTextConfig
    texts: Mapping[str, ParallelText] = dataclasses.field(default_factory=dict)
    scores_targets: bool = False
    refuses_long: bool = False

    def key(self) -> Any:
        texts = {split: self.texts[split].fingerprint() for split in (TRAIN, VALID)}
        config = self.config
        others = [config.target_len, config.on_long_pair]
        more = others if others != [0, "skip"] else []  # rows of earlier versions have neither
        newline = self.vocabularies.target.newline
        more += [newline] if newline != "\n" else []
        return [texts, self.vocabularies.fingerprint, config.seq_len, *more]

    def splits(self) -> Iterator[tuple[str, Pair]]:
        for split in (TRAIN, VALID):
            yield from ((split, pair) for pair in self.texts[split].pairs())

    @property
    def splits_tabs(self) -> bool:  # type: ignore[override]
        """Whether a line has a text and its target."""
        return self.scores_targets

    @property
    def has_tabs(self) -> bool:  # type: ignore[override]
        """Whether a `.tsv` file may be lines of a text and its target."""
        return self.scores_targets

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        files = self.files
        if self.scores_targets:
            names = [files.source_column, files.target_column]
            return Columns("data.{source_column,target_column}", names, files.header, files.separator)
        return Columns("data.source_column", [files.source_column], files.header, files.separator)

    def parse(self, texts: Sequence[str], where: str) -> Pair:
        """Returns a pair of stripped texts, as in training. An empty line has no rows."""
        source, *targets = (text.strip() for text in texts)
        if self.scores_targets:
            check_texts([source, *targets], where, (2,), "omit decoding.method=forced to translate")
        elif source or targets:
            check_texts([source, *targets], where, (1,))
        return Pair(source, targets[0] if targets else "", where)

    def parse_row(self, row: Row) -> Pair:
        """Returns the pair of a row. A row to translate may have the target, with which the record is compared."""
        pair = super().parse_row(row)
        target = None if self.scores_targets else row.values.get(self.files.target_column)
        return pair._replace(target=target.strip()) if isinstance(target, str) else pair

    def text(self, example: Pair) -> str:
        return f"{example.source}\t{example.target}"

    def gold(self, example: Pair) -> tuple[str, ...]:
        """Returns the references, without prefixes."""
        _, target = self.files.split_target_prefix(example.target, example.where)
        return (target, *example.references)

    def encode(self, examples: Sequence[Pair]) -> Encoded:
        """Returns the rows of sources to translate, or of pairs to score.

        Raises:
          RowError: if there are several prefixes and a text has none, or a text is too long and may not or cannot be
            split.
        """
        rows = [[self._scored(pair)] if self.scores_targets else self._translated(pair) for pair in examples]
        sizes = np.array(list(map(len, rows)), np.int32)
        is_cut = [any(not self.fits(row) for row in of_example) for of_example in rows]
        limits = limits_of(self.config.seq_len, truncated=is_cut, split=sizes > 1)
        return Encoded(fields_of(map(self._truncated, itertools.chain.from_iterable(rows))), sizes, limits)

    def _translated(self, pair: Pair) -> list[TokenRow]:
        """Returns the row of a source, several if it is too long, or none if it is empty; each has the prefix."""
        if not pair.source:
            return []
        prefix, text = self.files.split_source_prefix(pair.source, pair.where)
        return self._divided(prefix, text, pair.where) if text else []

    def _divided(self, prefix: str, text: str, where: str) -> list[TokenRow]:
        (ids,) = self._ids(0, [prefix + text])
        limit = self.config.seq_len
        if len(ids) <= limit or (self.config.on_long_line == "truncate" and not self.refuses_long):
            return [{"input_ids": ids}]
        if self.refuses_long or len(text) == 1:
            fix = "divide the line, or set --config.data.on_long_line=split"
            raise _too_long(where, len(ids) - 1, limit - 1, fix)
        cut = _middle(text)
        halves = text[:cut].rstrip(), text[cut:].lstrip()
        return [row for half in halves for row in self._divided(prefix, half, where)]

    def _scored(self, pair: Pair) -> TokenRow:
        """Returns the row of a source and its target, with their prefixes."""
        where = pair.where
        source = "".join(self.files.split_source_prefix(pair.source, where))
        target = "".join(self.files.split_target_prefix(pair.target, where))
        (row,) = self.rows([Pair(source, target, where)])
        for ids, limit in zip(row.values(), self.config.lengths, strict=True):
            if len(ids) > limit:
                fix = "divide the source and the target, or raise data.{seq_len,target_len}"
                raise _too_long(where, len(ids) - 1, limit - 1, fix)
        return {**row, "target_segment_ids": np.ones_like(row["labels"])}

    def training(self, examples: Sequence[Pair]) -> TrainingRows:
        rows = list(self.rows(examples))
        fitting = list(filter(self.fits, rows))
        count = len(rows) - len(fitting)
        if self.config.on_long_pair == "truncate":
            return TrainingRows(fields_of(map(self._truncated, rows)) or _NO_ROWS, {"pairs_truncated": count})
        return TrainingRows(fields_of(fitting) or _NO_ROWS, {}, left_out={"data.seq_len": count})

    def restored(self, values: Any) -> Pair:
        source, target, where, *references = values  # rows of earlier versions have no references
        return Pair(source, target, where, tuple(*references))

    def rows(self, pairs: Iterable[Pair]) -> Iterator[TokenRow]:
        """Yields each pair as a row of any length."""
        remaining = iter(pairs)
        while block := list(itertools.islice(remaining, _ENCODED_AT_ONCE)):
            sources = self._ids(0, [pair.source for pair in block])
            newline = self.vocabularies.target.newline
            targets = self._ids(1, [pair.target.replace("\n", newline) for pair in block])
            for source, target in zip(sources, targets, strict=True):
                yield {"input_ids": source, "labels": target}

    def fits(self, row: TokenRow) -> bool:
        """Returns whether no side of a row has more tokens than its maximum."""
        return all(len(ids) <= limit for ids, limit in zip(row.values(), self.config.lengths, strict=False))

    def _truncated(self, row: TokenRow) -> TokenRow:
        """Returns a row whose sides have at most their maximum numbers of tokens, with their special tokens."""
        result = dict(row)
        for name, vocabulary, limit in zip(
            ("input_ids", "labels"), self.vocabularies, self.config.lengths, strict=True
        ):
            template = vocabulary.template
            if name in row and len(row[name]) > limit:
                text = row[name][len(template.start) : len(row[name]) - len(template.end)].tolist()
                ids, _ = template.row([template.truncated(text, limit - template.num_special(1))])
                result[name] = np.array(ids, np.int32)
        return result

    def fitting(self, pairs: Iterable[Pair], split: str) -> Iterator[TokenRow]:
        """Yields the rows of a split's pairs, without those that are too long, or truncated.

        Raises:
          UserError: if there are none.
        """
        count = fitting = 0
        is_cut = self.config.on_long_pair == "truncate"
        for row in self.rows(pairs):
            count += 1
            fitting += self.fits(row)
            if is_cut or self.fits(row):
                yield self._truncated(row)
        self.report_too_long(count - fitting, count, split)

    def report_too_long(self, long: int, count: int, split: str) -> None:
        """Logs a warning if pairs are too long.

        Args:
          long: the number of these pairs.
          count: the number of all pairs.
          split: the split.
        Raises:
          UserError: if all pairs were skipped.
        """
        is_cut = self.config.on_long_pair == "truncate"
        if long:
            of_target = f", or {self.config.target_len} of the target" if self.config.target_len else ""
            message = "%s %d of %d pairs of %s: more than %d tokens%s"
            done = "truncated" if is_cut else "skipped"
            _log.warning(message, done, long, count, split, self.config.seq_len, of_target)
        if long == count and not is_cut:
            got = f"{self.config.seq_len}, and all {long} pairs of {split} are longer"
            fix = "raise --config.data.seq_len"
            raise UserError("config key data.seq_len", got=got, expected="a length that some pairs fit in", fix=fix)

    def translation(self, ids: Int32[np.ndarray, " n"]) -> str:
        """Returns the text of a target, without its prefix."""
        fitting = [len(prefix) for prefix in self._target_prefixes if np.array_equal(prefix, ids[: len(prefix)])]
        return self.vocabularies.target.decode(ids[max(fitting, default=0) :].tolist())

    @functools.cached_property
    def _target_prefixes(self) -> list[list[int]]:
        return self.vocabularies.target.encode_batch([prefix.strip() for prefix in self.files.target_prefix])

    def _ids(self, side: int, texts: list[str]) -> list[Int32[np.ndarray, " n"]]:
        vocabulary = self.vocabularies[side]
        template = vocabulary.template
        return [np.array(template.row([ids])[0], np.int32) for ids in vocabulary.encode_batch(texts)]


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


def _too_long(where: str, got: int, room: int, fix: str) -> RowError:
    return RowError(where, f"{got:,} tokens", f"at most {room:,}", fix)
