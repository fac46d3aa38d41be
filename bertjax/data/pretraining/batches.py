"""Pretraining batches: NumPy arrays of one static shape, as a pure function of (seed, step)."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int32, Int64

from bertjax.data.pretraining.batch_config import BatchConfig
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.pretraining.epoch_plan import EpochPlan, PlannedRows
from bertjax.data.pretraining.masking import Draw, MaskingConfig, Predictions, either, mask_tokens, predict_neighbors
from bertjax.data.pretraining.mixture import RowOrder
from bertjax.data.pretraining.noise import RowNoise, row_noise
from bertjax.data.pretraining.preparation import text_hash
from bertjax.data.pretraining.sentence_pairs import lengths_of
from bertjax.data.rows.layout import Layout, positions_in_groups

T = TypeVar("T")
Batch = Mapping[str, np.ndarray]
Tokens = list[Int32[np.ndarray, " _"]]  # the parts of an instance
RowIndices = Int64[np.ndarray, " rows"]  # numbers of rows in a global batch
_ENDLESS = 2**40
# Text of several steps of training is read at once: of as many as have this many tokens (25 MB in batches).
_TOKENS_AT_ONCE = 1 << 20
_STEPS_AT_ONCE = 64
_SEGMENT_FIELDS = ("document", "start", "length")  # fields of `INSTANCE` that locate a segment


def dtype_of(name: str) -> type[np.generic]:
    """Returns the type of a field of a batch."""
    return np.float32 if name.endswith("weights") or name == "epochs" else np.int32


class SourceRows(NamedTuple):
    """Rows of several sources."""

    planned: PlannedRows
    sources: Int64[np.ndarray, " m"]  # the number of each row's source
    epochs: Int64[np.ndarray, " m"]  # the epoch of the source that each row is part of

    def part(self, start: int, stop: int) -> "SourceRows":
        """Returns the rows from `start` to `stop` - 1."""
        return SourceRows(self.planned.take(np.arange(start, stop)), self.sources[start:stop], self.epochs[start:stop])

    @classmethod
    def of_epochs(cls, planned: Sequence[PlannedRows], epochs: Sequence[int]) -> "SourceRows":
        """Returns rows of epochs of the only source."""
        of_rows = np.repeat(epochs, list(map(len, planned)))
        return cls(PlannedRows.joined(planned), np.zeros_like(of_rows), of_rows)


class PretrainingBatches:
    """Builds batches of the rows of a split.

    A batch has these fields, for B rows of S tokens with at most P predictions and at most E instances each:
      input_ids, token_type_ids [B, S] int32; token types are 0 for the first segment and 1 for the second;
      segment_ids [B, S] int32: 1, 2, ... for the row's instances (only 1 if rows are not packed), 0 for padding;
      position_ids [B, S] int32: the position in the instance; only if rows are packed;
      masked_positions [B, P] int32, in the row; masked_labels [B, P] int32; masked_weights [B, P] float32;
      P is S if rates are uniform or some rows causal;
    causal_rows [B] int32: 1 for causal rows; only if there are any in a phase of training;
    sources [B] int32, the number of each row's source, and epochs [B] float32, the epochs of that source before the
      row, counted in its first epoch; only in training on a mixture;
    and with next-sentence prediction:
      cls_positions [B, E] int32, in the row; next_sentence_labels [B, E] int32, 1 for a random next sentence;
      next_sentence_weights [B, E] float32.
    Weights are 0 for unused predictions and instances. Rows that pad the last batch of an evaluation are empty.
    """

    def __init__(self, corpora: Mapping[str, Corpus], split: str, config: BatchConfig) -> None:
        """Plans the batches.

        Args:
          corpora: the text of each source by its name, all with one vocabulary; evaluations have one source. The draws
            of a source depend on its name, "" for that of `data.source`, and not on the other sources.
          split: "train" or "valid".
          config: the settings of the batches.
        """
        self._tokenizer = next(iter(corpora.values())).tokenizer
        self._config = config
        self._splits = [corpus.splits[split] for corpus in corpora.values()]
        self._shapes = config.shapes()
        template = self._tokenizer.template
        needs_first = config.masking.is_mixed or config.masking.predict_at == "previous"
        expected = "constant rates, no causal rows, and predict_at=same with a vocabulary without a first token"
        config.masking.check(template.start or not needs_first, "predict_at", expected)
        self._num_special = template.num_special(config.pairs.num_texts)
        self._keys = np.array([text_hash(name) % 2**32 if name else 0 for name in corpora])
        self._plans = [
            EpochPlan(
                corpus.splits[split].sentences,
                config.pairs,
                config.masking,
                config.capacity if config.rows.packing else None,
                num_special=self._num_special,
                seed=(config.seed + key) % 2**32,
                folder=corpus.folder / "plans" / split,
            )
            for corpus, key in zip(corpora.values(), self._keys.tolist(), strict=True)
        ]
        self._order = RowOrder(config.weights, config.earlier) if config.weights else None

    @property
    def instances_per_epoch(self) -> tuple[int, ...]:
        """The number of instances in the first epoch of each source; an estimate for large texts."""
        return tuple(plan.instances_per_epoch for plan in self._plans)

    @functools.cached_property
    def rows_per_epoch(self) -> Int64[np.ndarray, " sources"]:
        """The number of rows in the first epoch of each source. Plans the whole epoch, unless it was counted before."""
        return np.array([plan.count(0) for plan in self._plans])

    def token_counts(self, quantiles: int) -> tuple[int, ...]:
        """Returns quantiles of the number of tokens of an instance, without special tokens, of a part of the text."""
        weights = self._config.weights or (1,)
        lengths = [lengths_of(plan.first_instances, 0) for plan in self._plans]
        # As many instances per weight from each source, and at least one.
        most = min(len(some) / weight for some, weight in zip(lengths, weights, strict=True) if weight)
        taken = [some[: math.ceil(most * weight)] for some, weight in zip(lengths, weights, strict=True)]
        shares = (np.arange(quantiles) + 0.5) / quantiles
        return tuple(np.quantile(np.concatenate(taken), shares, method="nearest").tolist())

    def training(self, start: int, rows: RowIndices, stop: int = _ENDLESS) -> Iterator[Batch]:
        """Yields the rows `rows` of the global batch of each training step from `start` to `stop` - 1."""
        steps = min(max(_TOKENS_AT_ONCE // (len(rows) * self._config.pairs.seq_len), 1), _STEPS_AT_ONCE)

        def make(index: int) -> list[Batch]:
            first = start + index * steps
            return self.training_batches(range(first, min(first + steps, stop)), rows)

        return itertools.chain.from_iterable(_in_background(make, -(-(stop - start) // steps)))

    def evaluation(self, rows: RowIndices) -> Iterator[Batch]:
        """Yields the rows `rows` of each global batch of the first epoch, each row once. The last batch is padded."""
        count = -(-self._held_out() // self._config.batch_size)
        return _in_background(lambda index: self.evaluation_batch(index, rows), count)

    def training_batches(self, steps: Sequence[int], rows: RowIndices) -> list[Batch]:
        """Returns the rows `rows` of the global batches of training steps, whose text is read at once."""
        config = self._config
        done = np.array(steps)[:, None] - config.begin
        if self._order:
            sources, numbers = self._order.locate((done * config.batch_size + rows).ravel())
            chosen = self._mixed(sources, numbers)
            passed = numbers / self.rows_per_epoch[sources]
        else:
            chosen = self._unmixed(done.ravel().tolist(), rows)
        texts = self._texts(chosen)
        batches: list[Batch] = []
        for number, step in enumerate(steps):
            masking = config.masking_at(step)
            noise = row_noise(masking, config.seed, step, rows, config.batch_size)
            of_step = slice(number * len(rows), (number + 1) * len(rows))
            first, last = chosen.planned.first[[of_step.start, of_step.stop]]
            batch = self._assemble(chosen.part(of_step.start, of_step.stop), texts[first:last], masking, noise)
            if self._order:
                fields = {"sources": sources, "epochs": passed}
                batch |= {name: field[of_step].astype(dtype_of(name)) for name, field in fields.items()}
            batches.append(batch)
        return batches

    def _unmixed(self, steps: Sequence[int], rows: RowIndices) -> SourceRows:
        """Returns the rows of the only source in steps of a phase."""
        (plan,) = self._plans
        size = self._config.batch_size
        before = sum(count for count, _ in self._config.earlier) // size
        places = [plan.locate(before + step, size) for step in steps]
        planned = [plan.rows(epoch, start, start + size).take(rows) for epoch, start in places]
        return SourceRows.of_epochs(planned, [epoch for epoch, _ in places])

    def _mixed(self, sources: Int64[np.ndarray, " n"], numbers: Int64[np.ndarray, " n"]) -> SourceRows:
        """Returns rows of sources by number, counted over all epochs."""
        order = np.lexsort((numbers, sources))
        epochs = np.zeros_like(numbers)
        parts = []
        for source in np.unique(sources):
            rows = order[sources[order] == source]
            planned, epochs[rows] = self._plans[source].rows_at(numbers[rows])
            parts.append(planned)
        return SourceRows(PlannedRows.joined(parts).take(np.argsort(order)), sources, epochs)

    def evaluation_batch(self, index: int, rows: RowIndices) -> Batch:
        """Returns the rows `rows` of the global batch `index` of the first epoch. Rows that pad the last are empty."""
        start = index * self._config.batch_size
        planned = self._plans[0].rows(0, start, min(start + self._config.batch_size, self._held_out()))
        chosen = SourceRows.of_epochs([planned.take(rows)], [0])
        return self._assemble(chosen, self._texts(chosen), self._config.masking.valid, None)

    def _held_out(self) -> int:
        """Returns the number of rows of an evaluation."""
        most = self._config.rows.valid_rows
        return min(self._plans[0].count(0, most), most) if most else self._plans[0].count(0)

    def _assemble(
        self, rows: SourceRows, texts: Sequence[Tokens], masking: MaskingConfig, noise: RowNoise | None
    ) -> dict[str, np.ndarray]:
        config = self._config
        instances = rows.planned.instances
        template = self._tokenizer.template
        layout = Layout.of(lengths_of(instances, self._num_special), np.diff(rows.planned.first))
        predictions = self._predictions(rows, texts, layout, masking, noise)
        batch = {
            name: np.full(
                (len(rows.planned), *shape[1:]), self._tokenizer.pad_id if name == "input_ids" else 0, dtype_of(name)
            )
            for name, shape in self._shapes.items()
        }
        row = layout.token_row
        column = layout.token_column
        batch["input_ids"][row, column] = predictions.input_ids[layout.instance, layout.position]
        second = template.second_start(instances["length_a"])[layout.instance]
        batch["token_type_ids"][row, column] = template.second_type * (layout.position >= second)
        batch["segment_ids"][row, column] = 1 + layout.number[layout.instance]
        if config.rows.packing:
            batch["position_ids"][row, column] = layout.position
        _put_predictions(batch, predictions, layout)
        if noise and "causal_rows" in batch:
            batch["causal_rows"][:] = noise.is_causal
        if config.pairs.next_sentence:
            batch["cls_positions"][layout.row, layout.number] = layout.offset
            batch["next_sentence_labels"][layout.row, layout.number] = instances["is_random_next"]
            batch["next_sentence_weights"][layout.row, layout.number] = 1
        return batch

    def _predictions(
        self, rows: SourceRows, texts: Sequence[Tokens], layout: Layout, masking: MaskingConfig, noise: RowNoise | None
    ) -> Predictions:
        """Returns the masked or causal instances, one per row."""
        tokenizer = self._tokenizer
        config = self._config
        instances = rows.planned.instances
        sources = rows.sources[layout.row]
        lengths = layout.lengths
        input_ids = np.full((len(lengths), lengths.max(initial=1)), tokenizer.pad_id, np.int32)
        input_ids[layout.instance, layout.position] = np.concatenate(
            [np.zeros(0, np.int32), *itertools.chain.from_iterable(texts)]
        )
        if config.objective == "causal_lm":
            return predict_neighbors(input_ids, lengths, config.direction)
        candidates = np.zeros(input_ids.shape, bool)
        positions = np.arange(input_ids.shape[1])
        template = tokenizer.template
        length_a = instances["length_a"]
        firsts = np.full(len(lengths), len(template.start)), template.second_start(length_a)
        for first, length in zip(firsts, (length_a, instances["length_b"]), strict=True):
            candidates |= (positions >= first[:, None]) & (positions < (first + length)[:, None])
        epochs = (masking.epoch_of_draws(rows.epochs)[layout.row] + self._keys[sources]) % 2**32
        hidden = mask_tokens(
            input_ids,
            candidates,
            lengths,
            masking,
            is_continuation=tokenizer.is_continuation,
            mask_id=tokenizer.mask_id,
            draw=Draw(
                config.seed, epochs, instances["document_a"].astype(np.int64), instances["start_a"].astype(np.int64)
            ),
            rates=None if noise is None or noise.rates is None else noise.rates[layout.row],
        )
        if noise is None or not noise.is_causal.any():
            return hidden
        return either(noise.is_causal[layout.row], predict_neighbors(input_ids, lengths, "left_to_right"), hidden)

    def _texts(self, rows: SourceRows) -> list[Tokens]:
        """Returns the parts of each instance. All are read at once, because a read of few rows costs more per row."""
        instances = rows.planned.instances
        template = self._tokenizer.template
        start, between, end = (np.array(ids, np.int32) for ids in (template.start, template.between, template.end))
        sides = ("a", "b") if self._config.pairs.next_sentence else ("a",)
        places = [np.concatenate([instances[f"{what}_{side}"] for side in sides]) for what in _SEGMENT_FIELDS]
        sources = np.tile(np.repeat(rows.sources, np.diff(rows.planned.first)), len(sides))
        segments: dict[int, Int32[np.ndarray, " _"]] = {}
        for source, split in enumerate(self._splits):
            chosen = np.flatnonzero(sources == source)
            tokens = split.read(*(place[chosen] for place in places))
            segments.update(zip(chosen.tolist(), tokens, strict=True))
        texts = []
        for i in range(len(instances)):
            first, *others = (segments[place] for place in range(i, len(sources), len(instances)))
            texts.append([start, first, *(part for other in others for part in (between, other)), end])
        return texts


def _put_predictions(batch: Batch, predictions: Predictions, layout: Layout) -> None:
    """Writes predictions to the batch. Those of a row's instances follow one another."""
    instance, index = np.nonzero(predictions.weights)
    weights = predictions.weights[instance, index]
    counts = np.bincount(instance, minlength=len(layout.row))
    before = np.cumsum(counts) - counts
    row = layout.row[instance]
    column = (
        before[instance] - before[(np.arange(len(layout.row)) - layout.number)[instance]] + positions_in_groups(counts)
    )
    batch["masked_positions"][row, column] = predictions.positions[instance, index] + layout.offset[instance]
    batch["masked_labels"][row, column] = predictions.labels[instance, index]
    batch["masked_weights"][row, column] = weights


def _in_background(make: Callable[[int], T], count: int) -> Iterator[T]:
    import grain  # a slow import that prediction does not need

    # One thread prepares batches ahead of the step. It spends its time in NumPy, which releases the GIL.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return iter(grain.MapDataset.range(count).map(make).to_iter_dataset(options))
