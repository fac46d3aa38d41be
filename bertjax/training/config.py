"""The settings of a training run that every task has."""

import dataclasses
import math
from typing import Annotated

from bertjax.config import Constrained, Seed, Size, one_of
from bertjax.errors import UserError
from bertjax.runs.checkpoints import CheckpointConfig
from bertjax.training.optimizers import OptimizerConfig
from bertjax.training.sharding import MeshConfig


@dataclasses.dataclass(frozen=True)
class InferenceConfig(Constrained):
    """Where a task runs, which is all there is to say of one that is not trained."""

    mesh: MeshConfig


@dataclasses.dataclass(frozen=True)
class TrainingConfig(InferenceConfig):
    """How a task is trained.

    Attributes:
      seed: of parameters, data order, masks and dropout.
      rng: how dropout's random bits are made: "threefry2x32", the same everywhere, or "rbg", faster on one TPU or GPU,
        which may differ between kinds of devices and versions of JAX. With "rbg" each of several TPU chips draws
        those of the whole batch, with "threefry2x32" its own.
      num_steps: updates; in fine-tuning those of `num_epochs` where it is not set.
      batch_size: rows of an update, over all devices and micro-batches.
      accumulation_steps: micro-batches that an update's rows are worked through in.
      log_every: updates between two lines of the log; the last is logged in any case.
      evaluate_every: updates between two evaluations; after the last there is one in any case. In fine-tuning once an
        epoch where it is not set.
      parallel: "jit", or "pmap" for comparison.
    """

    seed: Seed
    rng: Annotated[str, one_of("threefry2x32", "rbg")]
    num_steps: Size
    batch_size: Size
    accumulation_steps: Size
    log_every: Size
    evaluate_every: Size
    parallel: Annotated[str, one_of("jit", "pmap")]
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.accumulation_steps:
            raise UserError(
                "config key accumulation_steps",
                got=f"{self.accumulation_steps} micro-batches for batch_size {self.batch_size}",
                expected="a divisor of batch_size",
                fix="change one of the two",
            )

    def check_final(self) -> None:
        """Raises UserError if the run will not have the checkpoints that `checkpoint.final` names at its end."""
        kept = self.checkpoint
        kind, _, count = kept.final.partition(":")
        if kind == "best" and not kept.best_metric:
            got, fix = f"{kept.final}, and no checkpoint.best_metric", "set --config.checkpoint.best_metric"
            raise UserError("config key checkpoint.final", got=got, expected="a metric to tell the best by", fix=fix)
        every, most = kept.save_every, kept.keep
        saved = [*range(every, self.num_steps, every), self.num_steps][-most:]
        if kind.isdecimal() and int(kind) not in saved:
            raise UserError(
                "config key checkpoint.final",
                got=f"step {kind}, which will not be kept",
                expected=f"{self.num_steps}, or a multiple of {every} from {saved[0]} on",
                fix="choose one of these, or save or keep more (checkpoint.{save_every,keep})",
            )
        if kind == "best":  # those that are evaluated too
            every, most = math.lcm(every, self.evaluate_every), kept.keep_best
        there = min(-(-self.num_steps // every), most)
        if count and int(count) > there:
            raise UserError(
                "config key checkpoint.final",
                got=f"{kept.final}, of {there} that there will be",
                expected=f"the mean of at most {there}",
                fix=f"set --config.checkpoint.final={kind}:{there}, or save, evaluate or keep more of them "
                "(checkpoint.{save_every,keep,keep_best}, evaluate_every)",
            )
