"""Batches of denoising: NumPy arrays of one static shape, as a pure function of (seed, step)."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from bertjax.data.pretraining.batch_config import BatchConfig
from bertjax.data.pretraining.batches import PretrainingBatches, SourceRows, Tokens, dtype_of
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.pretraining.denoising import OBJECTIVES, NoiseConfig, Texts
from bertjax.data.pretraining.masking import Draw, MaskingConfig
from bertjax.data.pretraining.noise import RowNoise
from bertjax.data.rows.layout import positions_in_groups

_SIDES = (("input_ids", "segment_ids"), ("labels", "target_segment_ids"))


@dataclasses.dataclass(frozen=True)
class DenoisingBatchConfig(BatchConfig):
    """Everything that determines a batch except the text and the step. `objective` is a name in `OBJECTIVES`.

    Attributes:
      noise: the hidden spans.
    """

    noise: NoiseConfig = dataclasses.field(kw_only=True)

    def row_shapes(self, num_special: int) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each field of a batch of texts with `num_special` special tokens."""
        widths = OBJECTIVES[self.objective].widths(self.pairs.seq_len, num_special, self.noise)
        shapes: dict[str, tuple[int, ...]] = {}
        for names, width in zip(_SIDES, widths, strict=True):
            shapes |= dict.fromkeys(names, (self.batch_size, width))
        return {**shapes, "hidden_weights": shapes["labels"]}


class DenoisingBatches(PretrainingBatches):
    """Builds batches of the rows of a split: an instance is a source and a target.

    A batch has these fields, for B rows of sources of at most S tokens and targets of at most T:
      input_ids, segment_ids [B, S] int32: the source; segments are 1, and 0 for padding;
      labels, target_segment_ids [B, T] int32: the target;
      hidden_weights [B, T] float32: 1 for tokens of the target that the source hides, and otherwise 0.
    """

    _config: DenoisingBatchConfig

    def __init__(self, corpora: Mapping[str, Corpus], split: str, config: DenoisingBatchConfig) -> None:
        super().__init__(corpora, split, config)
        self._shapes = config.row_shapes(self._num_special)
        self._objective = OBJECTIVES[config.objective]
        self._marks = self._objective.ids(self._tokenizer)

    def _assemble(
        self, rows: SourceRows, texts: Sequence[Tokens], masking: MaskingConfig, noise: RowNoise | None
    ) -> dict[str, np.ndarray]:
        fields = (rows.planned.instances[f"{name}_a"].astype(np.int64) for name in ("document", "start", "length"))
        documents, starts, lengths = fields
        row = np.repeat(np.arange(len(rows.planned)), np.diff(rows.planned.first))
        (split,) = self._splits
        tokens = np.concatenate([np.zeros(0, np.int32), *(text for _, text, _ in texts)])
        sentences = split.sentences.of_tokens(documents, starts, lengths)
        draw = Draw(self._config.seed, rows.epochs[row], documents, starts)
        noised = self._objective.hide(Texts(tokens, lengths, sentences), self._config.noise, self._marks, draw)
        count = len(rows.planned)
        batch = {name: np.zeros((count, width), dtype_of(name)) for name, (_, width) in self._shapes.items()}
        self._put(batch, _SIDES[0], row, noised.sources, noised.source_lengths)
        places = self._put(batch, _SIDES[1], row, noised.targets, noised.target_lengths)
        batch["hidden_weights"][places] = noised.is_hidden
        return batch

    def _put(
        self,
        batch: dict[str, np.ndarray],
        side: tuple[str, str],
        row: Int64[np.ndarray, " n"],
        tokens: Int32[np.ndarray, " tokens"],
        lengths: Int64[np.ndarray, " n"],
    ) -> tuple[Int64[np.ndarray, " tokens"], Int64[np.ndarray, " tokens"]]:
        """Writes texts with special tokens to their rows of a side. Returns the rows and columns of the tokens."""
        template = self._tokenizer.template
        ids, segments = (batch[name] for name in side)
        ids[:] = self._tokenizer.pad_id
        first = len(template.start)
        ids[row, :first] = template.start
        ids[row[:, None], (first + lengths)[:, None] + np.arange(len(template.end))] = template.end
        segments[row] = np.arange(ids.shape[1]) < (lengths + self._num_special)[:, None]
        places = np.repeat(row, lengths), first + positions_in_groups(lengths)
        ids[places] = tokens
        return places
