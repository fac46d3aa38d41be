"""Converts texts and pairs of texts to BERT's input: [CLS] a [SEP] b [SEP] (Devlin et al. 2019, section 3)."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bertjax.data.rows.stored import Ragged
from bertjax.data.rows.windows import cover
from bertjax.data.text.tokenizers import Tokenizer


def text_row(segments: Sequence[Sequence[int]], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the `input_ids` and `token_type_ids` of a row, both int32.

    Args:
      segments: the word pieces of one or two texts.
      tokenizer: provides the special tokens.
    """
    ids, token_types = [tokenizer.cls_id], [0]
    for token_type, segment in enumerate(segments):
        ids += [*segment, tokenizer.sep_id]
        token_types += [token_type] * (len(segment) + 1)
    return {"input_ids": np.array(ids, np.int32), "token_type_ids": np.array(token_types, np.int32)}


def text_fields(rows: Iterable[Sequence[Sequence[int]]], tokenizer: Tokenizer) -> dict[str, Ragged]:
    """Returns the fields of `text_row` for several rows.

    Args:
      rows: for each row, the word pieces of one or two texts.
      tokenizer: provides the special tokens.
    """
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    ids, lengths, runs = list[int](), list[int](), list[tuple[int, int]]()
    for segments in rows:
        ids.append(cls)
        for segment in segments:
            ids += segment
            ids.append(sep)
        sizes = [len(segment) + 1 for segment in segments]
        runs.append((sizes[0] + 1, sum(sizes[1:])))
        lengths.append(sum(sizes) + 1)
    of_rows = np.array(lengths, np.int32)
    types = np.repeat(np.tile(np.array([0, 1], np.int32), len(runs)), np.array(runs).ravel())
    return {"input_ids": Ragged(np.array(ids, np.int32), of_rows), "token_type_ids": Ragged(types, of_rows)}


def truncate(segments: Sequence[Sequence[int]], seq_len: int) -> list[Sequence[int]]:
    """Removes tokens from the end of the longer text, or the second of equally long ones, until the row fits.

    Equal to `_truncate_seq_pair` of google-research/bert. The fast tokenizers' `longest_first` differs if both texts
    are truncated, an odd number of tokens remains, and the second text is not the shorter one: they give the odd token
    to the second text.

    >>> truncate([[1, 2, 3, 4, 5], [6, 7]], 8)
    [[1, 2, 3], [6, 7]]
    """
    room = seq_len - 1 - len(segments)
    if len(segments) == 1:
        return [segments[0][:room]]
    first, second = segments
    if len(first) >= len(second):
        second = second[: room // 2] if len(first) > room - room // 2 else second[: room - len(first)]
        return [first[: room - len(second)], second]
    first = first[: room - room // 2] if len(second) > room // 2 else first[: room - len(second)]
    return [first, second[: room - len(first)]]


def unit_rows(
    texts: Sequence[Sequence[Sequence[int]]], tokenizer: Tokenizer, seq_len: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields rows that together own each unit of a text or a pair once and in order; one row if everything fits.

    A row of a long pair may have no pieces of one of the texts; both separators remain.

    Args:
      texts: one or two texts. A text is a list of units (words or pieces); a unit is a list of one or more pieces.
      tokenizer: provides the special tokens.
      seq_len: the maximum number of tokens of a row. A unit longer than a row is truncated. Neighboring rows share up
        to half of their pieces.
    Yields:
      the fields of `text_row`, and `unit_starts` and `unit_lengths` [U] int32: the units that the row owns.
    """
    limit = seq_len - 1 - len(texts)
    units = [pieces[:limit] for text in texts for pieces in text]
    for window in cover(list(map(len, units)), limit, limit // 2):
        covered = units[window.covers.start : window.covers.stop]
        split = max(len(texts[0]) - window.covers.start, 0)  # the number of the second text's first unit
        parts = [covered[:split], covered[split:]][: len(texts)]
        lengths = np.array([len(unit) for unit in covered], np.int32)
        starts = 1 + np.cumsum(lengths, dtype=np.int32) - lengths
        starts[split:] += 1
        owned = slice(window.owns.start - window.covers.start, window.owns.stop - window.covers.start)
        row = text_row([[piece for unit in part for piece in unit] for part in parts], tokenizer)
        yield {**row, "unit_starts": starts[owned], "unit_lengths": lengths[owned]}
