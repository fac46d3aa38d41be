"""The settings of pretraining batches: rows, phases, and the capacity of a row."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from bertjax.config import Constrained, Count, Seed, always
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.pretraining.mixture import Phase, Weights
from bertjax.data.pretraining.sentence_pairs import MIN_SEQ_LEN, PairsConfig
from bertjax.data.pretraining.stages import check_stages
from bertjax.data.rows.packing import Packing
from bertjax.errors import UserError

# A packed row has room for this fraction of predictions above the masking rate, because each instance rounds.
_SPARE_PREDICTIONS = 0.05
# Tokens of a packed row per instance that it has room for. Hardly any text has shorter pairs on average.
_TOKENS_PER_INSTANCE = 8
_SEED_STEP = 0x9E3779B9  # between the seeds of lengths of rows


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
      num_steps: the number of updates, over which the masking rate and the phases change; None if it is not known
        and none of them changes.
      schedule: the phases of training; empty for one phase, and for evaluations.
      begin: the first update of a phase.
      rate: the masking rate of a phase; None for that of `masking`.
      weights: the weights of the sources of a mixture in a phase; empty without a mixture.
      earlier: the rows and the weights of earlier phases with rows of the same length, whose order a phase continues.
    """

    pairs: PairsConfig
    masking: MaskingConfig
    rows: InstanceRowsConfig
    objective: str
    direction: str
    seed: int
    batch_size: int
    num_steps: int | None
    schedule: tuple[Phase, ...] = ()
    begin: int = 0
    rate: float | None = None
    weights: Weights = ()
    earlier: tuple[tuple[int, Weights], ...] = ()

    def __post_init__(self) -> None:
        for phase in self.schedule[:-1]:
            is_shorter = phase.seq_len < self.pairs.seq_len or not self.rows.stages
            if not is_shorter or self.pairs.seq_len % phase.seq_len:
                expected = f"lengths that divide data.seq_len={self.pairs.seq_len}, and are shorter"
                fix = "change their lengths or --config.data.seq_len"
                key = "stages" if self.rows.stages else "phases"
                got = f"rows of {phase.seq_len} tokens"
                raise UserError(f"config key data.{key}", got=got, expected=expected, fix=fix)
        is_masked = self.objective == "masked_lm" or self.masking.distribution == "constant"
        self.masking.check(is_masked, "distribution", "constant with objective=causal_lm, which hides no tokens")
        masking = self.masking
        is_free = masking.distribution == "constant" and masking.mode == "dynamic"
        if self._has_rates and not (is_free and not masking.final_rate and not masking.max_predictions):
            expected = "none with masking.final_rate, max_predictions, distribution=uniform or mode=static"
            raise UserError("config key data.phases", got="masking rates", expected=expected, fix="omit one of them")
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
            key = "causal_share" if share == masking.causal_share else "causal_stages"
            masking.check(share * block % 1 == 0, key, expected, got=share, fix=fix)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of rows of all phases, in the order of training."""
        return tuple(dict.fromkeys(phase.seq_len for phase in self.schedule)) or (self.pairs.seq_len,)

    @property
    def phases(self) -> tuple["BatchConfig", ...]:
        """The settings of each phase, in the order of training.

        Each length of rows has an order of documents and masks of its own.
        """
        schedule = self.schedule or (Phase(0.0, self.pairs.seq_len, None, self.weights),)
        shares = itertools.accumulate((phase.share for phase in schedule[:-1]), initial=0.0)
        begins = [round(share * (self.num_steps or 0)) for share in shares]
        earlier: dict[int, list[tuple[int, Weights]]] = {length: [] for length in self.lengths}
        phases: list[BatchConfig] = []
        for phase, begin, end in itertools.zip_longest(schedule, begins, begins[1:]):
            times = self.pairs.seq_len // phase.seq_len
            most = self.masking.max_predictions
            # Phases with rows of one length have one capacity, so that an epoch has the same rows in all of them.
            highest = max(other.rate or self.masking.rate for other in schedule if other.seq_len == phase.seq_len)
            masking = dataclasses.replace(self.masking, rate=highest, max_predictions=most and math.ceil(most / times))
            phases.append(
                dataclasses.replace(
                    self,
                    pairs=dataclasses.replace(self.pairs, seq_len=phase.seq_len),
                    masking=masking,
                    rows=dataclasses.replace(self.rows, stages=()),
                    seed=(self.seed + self.lengths.index(phase.seq_len) * _SEED_STEP) % 2**32,
                    batch_size=times * self.batch_size,
                    schedule=(),
                    begin=begin,
                    rate=(phase.rate or self.masking.rate) if self._has_rates else None,
                    weights=phase.weights,
                    earlier=tuple(earlier[phase.seq_len]),
                )
            )
            if end is not None:
                earlier[phase.seq_len].append(((end - begin) * times * self.batch_size, phase.weights))
        return tuple(phases)

    @property
    def _has_rates(self) -> bool:
        return any(phase.rate for phase in self.schedule)

    @property
    def valid(self) -> "BatchConfig":
        """The settings of validation batches, whose rows have the length of the last phase."""
        are_pairs = self.pairs.next_sentence and not self.rows.valid_single_segments
        seed = self.rows.valid_seed
        return dataclasses.replace(
            self,
            pairs=dataclasses.replace(self.pairs, next_sentence=are_pairs),
            masking=self.masking.valid,
            rows=dataclasses.replace(self.rows, stages=()),
            seed=self.seed if seed is None else seed,
            schedule=(),
        )

    def masking_at(self, step: int) -> MaskingConfig:
        """Returns the masking of a training step."""
        masking = self.masking.at(min(step / max((self.num_steps or 0) - 1, 1), 1.0))
        return dataclasses.replace(masking, rate=self.rate) if self.rate else masking

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
        """The shape of each field of a global batch of training (see `PretrainingBatches`)."""
        capacity = self.capacity
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("input_ids", "token_type_ids", "segment_ids"):
            shapes[name] = self.batch_size, capacity.tokens
        if self.rows.packing:
            shapes["position_ids"] = self.batch_size, capacity.tokens
        # Fewer than all positions, as special tokens are not masked, tell evaluations from mixed rows.
        predictions = capacity.tokens if self.masking.is_mixed else min(capacity.predictions, capacity.tokens - 1)
        for name in ("masked_positions", "masked_labels", "masked_weights"):
            shapes[name] = self.batch_size, predictions
        if any(self.masking.causal_shares):
            shapes["causal_rows"] = (self.batch_size,)
        if self.weights:
            shapes["sources"] = shapes["epochs"] = (self.batch_size,)
        if self.pairs.next_sentence:
            for name in ("cls_positions", "next_sentence_labels", "next_sentence_weights"):
                shapes[name] = self.batch_size, capacity.segments
        return shapes
