"""Converts texts and pairs of texts to rows with special tokens, [CLS] a [SEP] b [SEP] in BERT (section 3)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bertjax.data.rows.stored import Ragged
from bertjax.data.rows.windows import cover
from bertjax.data.text.tokenizers import Tokenizer


def text_row(segments: Sequence[Sequence[int]], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the `input_ids` and `token_type_ids` of a row, both int32.

    Args:
      segments: the word pieces of one or two texts.
      tokenizer: has the template of rows.
    """
    ids, count = tokenizer.template.row(segments)
    types = np.full(len(ids), tokenizer.template.second_type, np.int32)
    types[:count] = 0
    return {"input_ids": np.array(ids, np.int32), "token_type_ids": types}


def segmented(rows: Iterable[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Returns the rows, each with `segment_ids` that are 1 at every token."""
    return [{**row, "segment_ids": np.ones(len(row["input_ids"]), np.int32)} for row in rows]


def text_fields(rows: Iterable[Sequence[Sequence[int]]], tokenizer: Tokenizer, seq_len: int) -> dict[str, Ragged]:
    """Returns the fields of `text_row` for several rows, and truncates their texts to fit into `seq_len` tokens."""
    template = tokenizer.template
    ids: list[int] = []
    counts: list[tuple[int, int]] = []  # the tokens of each token type
    for segments in rows:
        row, count = template.row(_fitting(segments, tokenizer, seq_len))
        ids += row
        counts.append((count, len(row) - count))
    sizes = np.array(counts, np.int32)
    types = np.repeat(np.tile(np.array([0, template.second_type], np.int32), len(sizes)), sizes.ravel())
    fields = {"input_ids": np.array(ids, np.int32), "token_type_ids": types}
    return {name: Ragged(values, sizes.sum(axis=1, dtype=np.int32)) for name, values in fields.items()}


def is_too_long(segments: Sequence[Sequence[int]], tokenizer: Tokenizer, seq_len: int) -> bool:
    """Returns whether texts have to be truncated to fit into a row of `seq_len` tokens."""
    return sum(map(len, segments)) > _room(len(segments), tokenizer, seq_len)


def _room(num_texts: int, tokenizer: Tokenizer, seq_len: int) -> int:
    """Returns the number of tokens of one or two texts that a row has room for."""
    return seq_len - tokenizer.template.num_special(num_texts)


def _fitting(segments: Sequence[Sequence[int]], tokenizer: Tokenizer, seq_len: int) -> list[Sequence[int]]:
    """Returns texts, truncated to fit into a row of `seq_len` tokens."""
    sizes = truncated_sizes([*map(len, segments)], _room(len(segments), tokenizer, seq_len))
    return [tokenizer.template.truncated(ids, size) for ids, size in zip(segments, sizes, strict=True)]


def truncated_sizes(sizes: Sequence[int], room: int) -> list[int]:
    """Returns the sizes of one or two texts after tokens of the longer text are removed until `room` suffices.

    Of equally long texts, the second one loses a token.

    Equal to `_truncate_seq_pair` of google-research/bert. The fast tokenizers' `longest_first` differs if both texts
    are truncated, an odd number of tokens remains, and the second text is not the shorter one: they give the odd token
    to the second text.

    >>> truncated_sizes([5, 2], 5)
    [3, 2]
    """
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    first, second = sizes
    if first >= second:
        second = min(second, max(room // 2, room - first))
        return [min(first, room - second), second]
    first = min(first, max(room - room // 2, room - second))
    return [first, min(second, room - first)]


def unit_rows(
    texts: Sequence[Sequence[Sequence[int]]], tokenizer: Tokenizer, seq_len: int
) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Returns rows that together own each unit of a text or a pair once and in order; one row if everything fits.

    A row of a long pair may have no pieces of one of the texts; both separators remain.

    Args:
      texts: one or two texts. A text is a list of units (words or pieces); a unit is a list of one or more pieces.
      tokenizer: has the template of rows.
      seq_len: the maximum number of tokens of a row. A unit longer than a row is truncated. Neighboring rows share up
        to half of their pieces.
    Returns:
      The rows: the fields of `text_row`, and `unit_starts` and `unit_lengths` [U] int32: the units that the row owns.
      Whether a unit was truncated.
    """
    limit = _room(len(texts), tokenizer, seq_len)
    template = tokenizer.template
    full_units = [pieces for text in texts for pieces in text]
    units = [template.truncated(pieces, limit) for pieces in full_units]
    rows = []
    for window in cover(list(map(len, units)), limit, limit // 2):
        covered = units[window.covers.start : window.covers.stop]
        split = max(len(texts[0]) - window.covers.start, 0)  # the number of the second text's first unit
        parts = [covered[:split], covered[split:]][: len(texts)]
        lengths = np.array([len(unit) for unit in covered], np.int32)
        starts = len(template.start) + np.cumsum(lengths, dtype=np.int32) - lengths
        starts[split:] += len(template.between)
        owned = slice(window.owns.start - window.covers.start, window.owns.stop - window.covers.start)
        row = text_row([[piece for unit in part for piece in unit] for part in parts], tokenizer)
        rows.append({**row, "unit_starts": starts[owned], "unit_lengths": lengths[owned]})
    return rows, max(map(len, full_units), default=0) > limit
