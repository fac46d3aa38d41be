"""Texts and pairs of texts as BERT's input: [CLS] a [SEP] b [SEP] (Devlin et al. 2019, section 3)."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.tokenizers import WordPiece


def text_row(segments: Sequence[Sequence[int]], tokenizer: WordPiece) -> dict[str, np.ndarray]:
    """Returns the `input_ids` and `token_type_ids` of a row, int32 of its length.

    Args:
      segments: the word pieces of one text or two.
      tokenizer: whose special tokens go around them.
    """
    ids, token_types = [tokenizer.cls_id], [0]
    for token_type, segment in enumerate(segments):
        ids += [*segment, tokenizer.sep_id]
        token_types += [token_type] * (len(segment) + 1)
    return {"input_ids": np.array(ids, np.int32), "token_type_ids": np.array(token_types, np.int32)}


def truncate(segments: Sequence[Sequence[int]], seq_len: int) -> list[Sequence[int]]:
    """Cuts texts at their ends until they fit into a row, always the longer one, of equals the second.

    As `_truncate_seq_pair` of google-research/bert, and `longest_first` of transformers.

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
