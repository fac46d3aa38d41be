"""Rows of the words or characters of a sentence, with the positions at which their tags are predicted."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.rows.text_rows import unit_rows
from bertjax.data.text.tokenizers import EncoderTokenizer


def sentence_rows(
    words: Sequence[str], tokenizer: EncoderTokenizer, seq_len: int
) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Returns the rows that together own each word of a sentence once, and whether a word was truncated.

    It is one row if the sentence fits. See `unit_rows`.

    A word that normalizes to nothing is [UNK].

    Args:
      words: the words of a sentence, at least one.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row.
    """
    pieces = [ids or [tokenizer.unk_id] for ids in tokenizer.encode_parts(words)]
    return unit_rows([pieces], tokenizer, seq_len)


def character_rows(
    characters: Sequence[str], tokenizer: EncoderTokenizer, seq_len: int
) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Returns the rows that together own each token of a text once, and False, because no token is truncated.

    "unit_starts" has the position of the token of each character: the first that ends after it begins. A character that
    normalizes to nothing thus has the token after it.

    Args:
      characters: the characters of a sentence, at least one, with the white space after each.
      tokenizer: the tokenizer.
      seq_len: the maximum number of tokens of a row.
    """
    pieces = tokenizer.encode_with_offsets("".join(characters))
    ids = pieces.ids.tolist() or [tokenizer.unk_id]
    rows, _ = unit_rows([[[token] for token in ids]], tokenizer, seq_len)
    lengths = np.array(list(map(len, characters)))
    tokens = np.searchsorted(pieces.ends, np.cumsum(lengths) - lengths, side="right").clip(max=len(ids) - 1)
    first = 0  # the first token that the row owns
    for row in rows:
        starts = row["unit_starts"]
        row["unit_starts"] = starts[tokens[(first <= tokens) & (tokens < first + len(starts))] - first]
        first += len(starts)
    return rows, False
