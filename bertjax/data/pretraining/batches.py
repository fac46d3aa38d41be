"""Pretraining batches: NumPy arrays of one static shape, as a pure function of (seed, step)."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from bertjax.config import Constrained, Count, Seed, always
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.pretraining.epoch_plan import EpochPlan, PlannedRows
from bertjax.data.pretraining.masking import (
    Draw,
    MaskingConfig,
    Predictions,
    check_stages,
    either,
    mask_tokens,
    predict_neighbors,
)
from bertjax.data.pretraining.noise import RowNoise, row_noise
from bertjax.data.pretraining.sentence_pairs import MIN_SEQ_LEN, PairsConfig, lengths_of
from bertjax.data.rows.layout import Layout, positions_in_groups
from bertjax.data.rows.packing import Packing
from bertjax.errors import UserError

Batch = Mapping[str, np.ndarray]
RowIndices = Int64[np.ndarray, " rows"]  # numbers of rows in a global batch
_ENDLESS = 2**40
_SEGMENT_FIELDS = ("document", "start", "length")  # fields of `INSTANCE` that locate a segment
# A packed row has room for this fraction of predictions above the masking rate, because each instance rounds.
_SPARE_PREDICTIONS = 0.05
# Tokens of a packed row per instance that it has room for. Hardly any text has shorter pairs on average.
_TOKENS_PER_INSTANCE = 8
_SEED_STEP = 0x9E3779B9  # between the seeds of stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceRowsConfig(Constrained, prefix="data"):
    """The assignment of instances to the rows of a batch.

    Attributes:
      packing: whether a row holds several instances, each attending only to itself; otherwise one.
      valid_rows: the maximum number of validation rows per evaluation; 0 for all.
      valid_single_segments: whether validation instances are single segments even if those of training are pairs, so
        that losses with and without next-sentence prediction compare.
      valid_seed: seed of the draws of validation rows: masks, sentence pairs and samples of replaced tokens. None for
        `seed`, as in runs older than this key, which keep it when they resume.
      stages: stages with shorter rows, before one with rows of `seq_len`: pairs of a fraction of all updates and a
        length that divides `seq_len`, such as ((0.5, 32), (0.3, 128)); see docs/guides/pretraining.md.
    """

    packing: bool = always(False)
    valid_rows: Count = always(0)
    valid_single_segments: bool = False
    valid_seed: Seed | None = None
    stages: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"a length of at least {MIN_SEQ_LEN}"
        check_stages(self, "stages", expected, lambda length: type(length) is int and length >= MIN_SEQ_LEN)
        lengths = [length for _, length in self.stages]
        self.check(lengths == sorted(set(lengths)), "stages", "increasing lengths")


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """Everything that determines a batch except the text and the step.

    Attributes:
      pairs: the division of text into instances.
      masking: the masking of tokens.
      rows: the assignment of instances to rows.
      objective: "masked_lm" or "causal_lm".
      direction: the direction of "causal_lm": "left_to_right" or "right_to_left".
      seed: the seed of all draws.
      batch_size: the rows of a global batch.
      num_steps: the number of updates, over which the masking rate and the length of rows change; None if it is not
        known and neither of them changes.
      begin: the first update of a stage.
    """

    pairs: PairsConfig
    masking: MaskingConfig
    rows: InstanceRowsConfig
    objective: str
    direction: str
    seed: int
    batch_size: int
    num_steps: int | None
    begin: int = 0

    def __post_init__(self) -> None:
        for _, length in self.rows.stages:
            if length >= self.pairs.seq_len or self.pairs.seq_len % length:
                expected = f"lengths that divide data.seq_len={self.pairs.seq_len}, and are shorter"
                fix = "change --config.data.stages or --config.data.seq_len"
                raise UserError("config key data.stages", got=f"rows of {length} tokens", expected=expected, fix=fix)
        is_masked = self.objective == "masked_lm" or self.masking.distribution == "constant"
        self.masking.check(is_masked, "distribution", "constant with objective=causal_lm, which hides no tokens")
        self._check_causal_rows()
        if self.masking.valid_rate:  # `resolve` of the experiment checks the rates of training: older runs cut theirs
            self.masking.valid.check_room(self.pairs.seq_len)

    def _check_causal_rows(self) -> None:
        masking = self.masking
        if not any(masking.causal_shares):
            return
        masking.check(not self.pairs.next_sentence, "causal_share", "0 with data.next_sentence=True")
        is_masked = self.objective == "masked_lm" and self.direction == "both"
        masking.check(is_masked, "causal_share", "0 unless objective=masked_lm and model.direction=both")
        block = self.batch_size & -self.batch_size  # the largest power of two that divides it
        for share in masking.causal_shares:
            expected = f"a multiple of 1/{block}, as {block} is the largest power of two that divides batch_size"
            fix = "change the share, or take a power of two as batch_size"
            masking.check(share * block % 1 == 0, "causal_share", expected, got=share, fix=fix)

    @property
    def stages(self) -> tuple["BatchConfig", ...]:
        """The settings of each stage, in the order of training; one without `data.stages`.

        Each stage has an order of documents and masks of its own.
        """
        stages: list[BatchConfig] = []
        fraction = 0.0
        for share, length in (*self.rows.stages, (0.0, self.pairs.seq_len)):
            times = self.pairs.seq_len // length
            most = self.masking.max_predictions
            stages.append(
                dataclasses.replace(
                    self,
                    pairs=dataclasses.replace(self.pairs, seq_len=length),
                    masking=dataclasses.replace(self.masking, max_predictions=most and math.ceil(most / times)),
                    rows=dataclasses.replace(self.rows, stages=()),
                    seed=(self.seed + len(stages) * _SEED_STEP) % 2**32,
                    batch_size=times * self.batch_size,
                    begin=round(fraction * (self.num_steps or 0)),
                )
            )
            fraction += share
        return tuple(stages)

    @property
    def valid(self) -> "BatchConfig":
        """The settings of validation batches, whose rows have the length of the last stage."""
        are_pairs = self.pairs.next_sentence and not self.rows.valid_single_segments
        seed = self.rows.valid_seed
        return dataclasses.replace(
            self,
            pairs=dataclasses.replace(self.pairs, next_sentence=are_pairs),
            masking=self.masking.valid,
            rows=dataclasses.replace(self.rows, stages=()),
            seed=self.seed if seed is None else seed,
        )

    def masking_at(self, step: int) -> MaskingConfig:
        """Returns the masking of a training step."""
        return self.masking.at(min(step / max((self.num_steps or 0) - 1, 1), 1.0))

    @property
    def capacity(self) -> Packing:
        """The capacity of a row.

        A packed row has room for 5 % more predictions than the highest masking rate of its tokens. With next-sentence
        prediction or uniform rates it has room for an instance per 8 tokens; otherwise, their number is not limited.
        """
        length = self.pairs.seq_len
        packing = self.rows.packing
        lengths = np.arange(length + 1)
        if self.objective == "causal_lm" or self.masking.distribution == "uniform":
            predictions = length - 1
            per_instance = np.maximum(lengths - 1, 1)
        else:
            packed = math.ceil((1 + _SPARE_PREDICTIONS) * self.masking.highest_rate * length)
            predictions = packed if packing else self.masking.most_predictions(length)
            per_instance = self.masking.num_predictions(lengths)
        is_limited = self.pairs.next_sentence or self.masking.distribution == "uniform"
        segments = -(-length // _TOKENS_PER_INSTANCE) if is_limited else length
        return Packing(length, predictions, segments if packing else 1, tuple(per_instance.tolist()))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field of a global batch (see `PretrainingBatches`)."""
        capacity = self.capacity
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("input_ids", "token_type_ids", "segment_ids"):
            shapes[name] = self.batch_size, capacity.tokens
        if self.rows.packing:
            shapes["position_ids"] = self.batch_size, capacity.tokens
        for name in ("masked_positions", "masked_labels", "masked_weights"):
            shapes[name] = self.batch_size, capacity.tokens if self.masking.is_mixed else capacity.predictions
        if any(self.masking.causal_shares):
            shapes["causal_rows"] = (self.batch_size,)
        if self.pairs.next_sentence:
            for name in ("cls_positions", "next_sentence_labels", "next_sentence_weights"):
                shapes[name] = self.batch_size, capacity.segments
        return shapes


class PretrainingBatches:
    """Builds batches of the rows of a split.

    A batch has these fields, for B rows of S tokens with at most P predictions and at most E instances each:
      input_ids, token_type_ids [B, S] int32; token types are 0 for the first segment and 1 for the second;
      segment_ids [B, S] int32: 1, 2, ... for the row's instances (only 1 if rows are not packed), 0 for padding;
      position_ids [B, S] int32: the position in the instance; only if rows are packed;
      masked_positions [B, P] int32, in the row; masked_labels [B, P] int32; masked_weights [B, P] float32;
      P is S if rates are uniform or some rows causal;
    causal_rows [B] int32: 1 for causal rows; only if there are any in a stage of training;
    and with next-sentence prediction:
      cls_positions [B, E] int32, in the row; next_sentence_labels [B, E] int32, 1 for a random next sentence;
      next_sentence_weights [B, E] float32.
    Weights are 0 for unused predictions and instances. Rows that pad the last batch of an evaluation are empty.
    """

    def __init__(self, corpus: Corpus, split: str, config: BatchConfig) -> None:
        """Plans the batches.

        Args:
          corpus: the text.
          split: "train" or "valid".
          config: the settings of the batches.
        """
        self._corpus = corpus
        self._config = config
        self._split = corpus.splits[split]
        self._shapes = config.shapes()
        template = corpus.tokenizer.template
        needs_first = config.masking.is_mixed or config.masking.predict_at == "previous"
        expected = "constant rates, no causal rows, and predict_at=same with a vocabulary without a first token"
        config.masking.check(template.start or not needs_first, "predict_at", expected)
        self._num_special = template.num_special(config.pairs.num_texts)
        self._plan = EpochPlan(
            self._split.sentences,
            config.pairs,
            config.masking,
            config.capacity if config.rows.packing else None,
            num_special=self._num_special,
            seed=config.seed,
            folder=corpus.folder / "plans" / split,
        )

    @property
    def instances_per_epoch(self) -> int:
        """The number of instances in the first epoch; an estimate for large texts."""
        return self._plan.instances_per_epoch

    def token_counts(self, quantiles: int) -> tuple[int, ...]:
        """Returns quantiles of the number of tokens of an instance, without special tokens, of a part of the text."""
        lengths = lengths_of(self._plan.first_instances, 0)
        return tuple(np.quantile(lengths, (np.arange(quantiles) + 0.5) / quantiles, method="nearest").tolist())

    def training(self, start: int, rows: RowIndices, stop: int = _ENDLESS) -> Iterator[Batch]:
        """Yields the rows `rows` of the global batch of each training step from `start` to `stop` - 1."""
        return _in_background(lambda index: self.training_batch(start + index, rows), stop - start)

    def evaluation(self, rows: RowIndices) -> Iterator[Batch]:
        """Yields the rows `rows` of each global batch of the first epoch, each row once. The last batch is padded."""
        count = -(-self._held_out() // self._config.batch_size)
        return _in_background(lambda index: self.evaluation_batch(index, rows), count)

    def training_batch(self, step: int, rows: RowIndices) -> Batch:
        """Returns the rows `rows` of the global batch of a training step."""
        epoch, start = self._plan.locate(step - self._config.begin, self._config.batch_size)
        planned = self._plan.rows(epoch, start, start + self._config.batch_size)
        masking = self._config.masking_at(step)
        noise = row_noise(masking, self._config.seed, step, rows, self._config.batch_size)
        return self._assemble(planned.take(rows), masking, masking.epoch_of_draws(epoch), noise)

    def evaluation_batch(self, index: int, rows: RowIndices) -> Batch:
        """Returns the rows `rows` of the global batch `index` of the first epoch. Rows that pad the last are empty."""
        start = index * self._config.batch_size
        planned = self._plan.rows(0, start, min(start + self._config.batch_size, self._held_out()))
        return self._assemble(planned.take(rows), self._config.masking.valid, 0, None)

    def _held_out(self) -> int:
        """Returns the number of rows of an evaluation."""
        most = self._config.rows.valid_rows
        return min(self._plan.count(0, most), most) if most else self._plan.count(0)

    def _assemble(self, planned: PlannedRows, masking: MaskingConfig, epoch: int, noise: RowNoise | None) -> Batch:
        config = self._config
        instances = planned.instances
        template = self._corpus.tokenizer.template
        layout = Layout.of(lengths_of(instances, self._num_special), np.diff(planned.first))
        predictions = self._predictions(instances, layout, masking, epoch, noise)
        batch = {
            name: np.full(
                (len(planned), *shape[1:]),
                self._corpus.tokenizer.pad_id if name == "input_ids" else 0,
                np.float32 if name.endswith("weights") else np.int32,
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
        self, instances: np.ndarray, layout: Layout, masking: MaskingConfig, epoch: int, noise: RowNoise | None
    ) -> Predictions:
        """Returns the masked or causal instances, one per row."""
        tokenizer = self._corpus.tokenizer
        config = self._config
        lengths = layout.lengths
        input_ids = np.full((len(lengths), lengths.max(initial=1)), tokenizer.pad_id, np.int32)
        input_ids[layout.instance, layout.position] = self._tokens(instances)
        if config.objective == "causal_lm":
            return predict_neighbors(input_ids, lengths, config.direction)
        candidates = np.zeros(input_ids.shape, bool)
        positions = np.arange(input_ids.shape[1])
        template = tokenizer.template
        length_a = instances["length_a"]
        firsts = np.full(len(lengths), len(template.start)), template.second_start(length_a)
        for first, length in zip(firsts, (length_a, instances["length_b"]), strict=True):
            candidates |= (positions >= first[:, None]) & (positions < (first + length)[:, None])
        hidden = mask_tokens(
            input_ids,
            candidates,
            lengths,
            masking,
            is_continuation=tokenizer.is_continuation,
            mask_id=tokenizer.mask_id,
            draw=Draw(
                config.seed, epoch, instances["document_a"].astype(np.int64), instances["start_a"].astype(np.int64)
            ),
            rates=None if noise is None or noise.rates is None else noise.rates[layout.row],
        )
        if noise is None or not noise.is_causal.any():
            return hidden
        return either(noise.is_causal[layout.row], predict_neighbors(input_ids, lengths, "left_to_right"), hidden)

    def _tokens(self, instances: np.ndarray) -> Int32[np.ndarray, " tokens"]:
        """Returns the tokens of all instances."""
        template = self._corpus.tokenizer.template
        start, between, end = (np.array(ids, np.int32) for ids in (template.start, template.between, template.end))
        sides = ("a", "b") if self._config.pairs.next_sentence else ("a",)
        where = (np.concatenate([instances[f"{what}_{side}"] for side in sides]) for what in _SEGMENT_FIELDS)
        segments = self._split.read(*where)
        parts = [np.zeros(0, np.int32)]
        for i in range(len(instances)):
            first, *others = segments[i :: len(instances)]
            parts += [start, first, *(part for other in others for part in (between, other)), end]
        return np.concatenate(parts)


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


def _in_background(make_batch: Callable[[int], Batch], count: int) -> Iterator[Batch]:
    import grain  # a slow import that prediction does not need

    # One thread prepares a few batches ahead of the step. It spends its time in NumPy, which releases the GIL.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(grain.MapDataset.range(count).map(make_batch).to_iter_dataset(options))
