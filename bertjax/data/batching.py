"""Pretraining batches: a pure function of (seed, step), as numpy arrays of one static shape."""

from collections.abc import Callable, Iterator, Mapping

import grain
import numpy as np
from jaxtyping import Bool, Int, Int64

from bertjax.data.corpus import Corpus
from bertjax.data.masking import MaskingConfig, mask_tokens, predict_neighbors
from bertjax.data.plan import Plan
from bertjax.data.sentence_pairs import PairsConfig

Batch = Mapping[str, np.ndarray]
Rows = Int64[np.ndarray, " rows"]  # which rows of a global batch
_WEIGHTS = ("masked_weights", "row_weights", "attention_mask")
_ENDLESS = 2**40
# One thread keeps a few batches ahead of the step; it spends its time in NumPy, which lets go of the lock.
_READ_OPTIONS = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class PretrainingBatches:
    """Cuts, masks and stacks the rows of a split.

    A batch holds, for B rows of S tokens of which P at most are predicted:
      input_ids [B, S] int32; token_type_ids [B, S] int32, 0 for the first segment and 1 for the second;
      attention_mask [B, S] int32, 1 for tokens and 0 for padding;
      masked_positions [B, P] int32, masked_labels [B, P] int32, masked_weights [B, P] float32;
      next_sentence_labels [B] int32, 1 for a random next sentence; row_weights [B] float32, 0 where a row
      only fills up the last batch of an evaluation.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        pairs: PairsConfig,
        masking: MaskingConfig,
        *,
        objective: str,
        direction: str,
        seed: int,
        batch_size: int,
    ) -> None:
        """Args: the text; how rows are cut and masked; `masked_lm` or `causal_lm` and its direction."""
        self._corpus, self._split, self._pairs, self._masking = corpus, corpus.splits[split], pairs, masking
        self._objective, self._direction = objective, direction
        self._seed, self._batch_size = seed, batch_size
        self._plan = Plan(self._split.sentences, pairs, masking, seed=seed, folder=corpus.folder / "plans" / split)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of the first epoch."""
        return len(self._plan.rows(0))

    def training(self, start: int, rows: Rows) -> Iterator[Batch]:
        """Rows `rows` of the global batch of each training step from `start` on, without end."""
        return _in_background(lambda index: self.training_batch(start + index, rows), _ENDLESS)

    def evaluation(self, rows: Rows) -> Iterator[Batch]:
        """Rows `rows` of each global batch of the first epoch, each row once; the last batch is filled up."""
        count = -(-len(self._plan.rows(0)) // self._batch_size)
        return _in_background(lambda index: self.evaluation_batch(index, rows), count)

    def training_batch(self, step: int, rows: Rows) -> Batch:
        """Rows `rows` of the global batch of a training step."""
        epoch, place = self._plan.locate(step, self._batch_size)
        planned = self._planned(epoch, place)[rows]
        return self._assemble(planned, self._masking.epoch_of_draws(epoch))

    def evaluation_batch(self, index: int, rows: Rows) -> Batch:
        """Rows `rows` of the global batch `index` of the first epoch; rows that fill up the last weigh 0."""
        planned = self._planned(0, index)
        filled = np.concatenate([planned, np.repeat(planned[:1], self._batch_size - len(planned))])
        real = (np.arange(self._batch_size) < len(planned))[rows]
        batch = self._assemble(filled[rows], 0)
        weights = {name: (batch[name].T * real).T.astype(batch[name].dtype) for name in _WEIGHTS}
        return {**batch, **weights}

    def _planned(self, epoch: int, place: int) -> np.ndarray:
        return self._plan.rows(epoch)[place * self._batch_size : (place + 1) * self._batch_size]

    def _assemble(self, planned: np.ndarray, epoch: int) -> Batch:
        input_ids, token_type_ids, candidates = self._fill(planned)
        lengths = self._lengths(planned)
        if self._objective == "masked_lm":
            predictions = mask_tokens(
                input_ids,
                candidates,
                lengths,
                self._masking,
                is_continuation=self._corpus.tokenizer.is_continuation,
                mask_id=self._corpus.tokenizer.mask_id,
                seed=self._seed,
                epoch=epoch,
                rows=planned["number"].astype(np.int64),
            )
        else:
            predictions = predict_neighbors(input_ids, lengths, self._direction)
        return {
            "input_ids": predictions.input_ids,
            "token_type_ids": token_type_ids,
            "attention_mask": (np.arange(self._pairs.seq_len) < lengths[:, None]).astype(np.int32),
            "masked_positions": predictions.positions,
            "masked_labels": predictions.labels,
            "masked_weights": predictions.weights,
            "next_sentence_labels": planned["is_random_next"].astype(np.int32),
            "row_weights": np.ones(len(planned), np.float32),
        }

    def _lengths(self, planned: np.ndarray) -> Int[np.ndarray, " B"]:
        specials = 3 if self._pairs.next_sentence else 2
        return planned["length_a"].astype(np.int64) + planned["length_b"] + specials

    def _fill(
        self, planned: np.ndarray
    ) -> tuple[Int[np.ndarray, "B S"], Int[np.ndarray, "B S"], Bool[np.ndarray, "B S"]]:
        """[CLS] a [SEP] b [SEP] padded with [PAD]; token types; where text stands, apart from the specials."""
        tokenizer, shape = self._corpus.tokenizer, (len(planned), self._pairs.seq_len)
        input_ids = np.full(shape, tokenizer.pad_id, np.int32)
        token_type_ids, text = np.zeros(shape, np.int32), np.zeros(shape, bool)
        documents = np.unique([planned["document_a"], planned["document_b"]])
        tokens = dict(zip(documents.tolist(), self._split.read(documents.tolist()), strict=True))
        for i, row in enumerate(planned.tolist()):
            document_a, start_a, length_a, document_b, start_b, length_b, *_ = row
            middle, end = 1 + length_a, 2 + length_a + length_b
            input_ids[i, 0] = tokenizer.cls_id
            input_ids[i, 1:middle] = tokens[document_a][start_a : start_a + length_a]
            input_ids[i, middle] = tokenizer.sep_id
            text[i, 1:middle] = True
            if self._pairs.next_sentence:
                input_ids[i, middle + 1 : end] = tokens[document_b][start_b : start_b + length_b]
                input_ids[i, end] = tokenizer.sep_id
                token_type_ids[i, middle + 1 : end + 1] = 1
                text[i, middle + 1 : end] = True
        return input_ids, token_type_ids, text


def _in_background(make_batch: Callable[[int], Batch], count: int) -> Iterator[Batch]:
    return iter(grain.MapDataset.range(count).map(make_batch).to_iter_dataset(_READ_OPTIONS))
