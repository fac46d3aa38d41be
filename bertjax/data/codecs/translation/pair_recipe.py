"""The recipe of pairs of texts, which are read and encoded once; see `bertjax.data.prepared`."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data.codecs.translation.parallel_text import Pair, ParallelText
from bertjax.data.codecs.translation.rows import TranslationRows
from bertjax.data.prepared import TRAIN, VALID, Encoded, Recipe
from bertjax.data.rows.stored import Ragged, fields_of

_NO_ROWS = dict.fromkeys(("input_ids", "labels"), Ragged(np.zeros(0, np.int32), np.zeros(0, np.int32)))


@dataclasses.dataclass(frozen=True)
class PairRecipe(Recipe[Pair]):
    """The recipe of pairs: `input_ids` of the source and `labels` of the target, each with its own length.

    Attributes:
      texts: the pairs of "train" and "valid".
      encoder: encodes pairs. Training pairs of more than `seq_len` tokens are skipped.
    """

    texts: Mapping[str, ParallelText]
    encoder: TranslationRows

    def key(self) -> Any:
        """See `Recipe.key`."""
        texts = {split: self.texts[split].fingerprint() for split in (TRAIN, VALID)}
        return [texts, self.encoder.vocabularies.fingerprint, self.encoder.config.seq_len]

    def read(self) -> Iterator[tuple[str, Pair]]:
        """See `Recipe.read`. Raises UserError if `ParallelText.pairs` does."""
        for split in (TRAIN, VALID):
            yield from ((split, pair) for pair in self.texts[split].pairs())

    def text(self, row: Pair) -> str:
        """See `Recipe.text`."""
        return f"{row.source}\t{row.target}"

    def encode(self, rows: Sequence[Pair]) -> Encoded:
        """See `Recipe.encode`. Pairs that are too long are left out."""
        fitting = list(filter(self.encoder.fits, self.encoder.encoded(rows)))
        left_out = {"data.seq_len": len(rows) - len(fitting)}
        return Encoded(fields_of(fitting) or _NO_ROWS, {}, left_out=left_out)

    def restored(self, values: Any) -> Pair:
        """See `Recipe.restored`."""
        source, target, where, *references = values  # rows of earlier versions have no references
        return Pair(source, target, where, tuple(*references))
