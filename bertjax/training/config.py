"""The settings that all tasks share for training and inference."""

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
    """The settings of a task that only predicts.

    Attributes:
      mesh: the devices.
    """

    mesh: MeshConfig


@dataclasses.dataclass(frozen=True)
class TrainingConfig(InferenceConfig):
    """The settings of training.

    Attributes:
      seed: seed of initial parameters, data order, masks and dropout.
      rng: generator of dropout's random bits: "threefry2x32", which gives the same bits everywhere, or "rbg", which is
        faster on one TPU or GPU, but may differ between kinds of devices and versions of JAX. On several TPU chips,
        each chip draws the bits of the whole batch with "rbg", and only its own with "threefry2x32".
      num_steps: number of updates. Default in fine-tuning: the updates of `num_epochs`.
      batch_size: rows of an update, over all devices and micro-batches.
      accumulation_steps: number of micro-batches of an update.
      log_every: updates between two lines of the log. The last update is always logged.
      evaluate_every: updates between two evaluations. There is always one after the last update. Default in
        fine-tuning: once per epoch.
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
                fix="change batch_size or accumulation_steps",
            )

    def check_final(self) -> None:
        """Raises UserError if the finished run will not have the checkpoints that `checkpoint.final` names."""
        kept = self.checkpoint
        kind, _, count = kept.final.partition(":")
        if kind == "best" and not kept.best_metric:
            got, fix = f"{kept.final}, but no checkpoint.best_metric", "set --config.checkpoint.best_metric"
            expected = "a metric that defines the best checkpoint"
            raise UserError("config key checkpoint.final", got=got, expected=expected, fix=fix)
        every, most = kept.save_every, kept.keep
        saved = [*range(every, self.num_steps, every), self.num_steps][-most:]
        if kind.isdecimal() and int(kind) not in saved:
            raise UserError(
                "config key checkpoint.final",
                got=f"step {kind}, whose checkpoint will not be kept",
                expected=f"{self.num_steps}, or a multiple of {every} from {saved[0]} on",
                fix="choose one of these, or save or keep more checkpoints (checkpoint.{save_every,keep})",
            )
        if kind == "best":  # only checkpoints that are also evaluated
            every, most = math.lcm(every, self.evaluate_every), kept.keep_best
        available = min(-(-self.num_steps // every), most)
        if count and int(count) > available:
            raise UserError(
                "config key checkpoint.final",
                got=f"{kept.final}, but only {available} such checkpoints",
                expected=f"the mean of at most {available}",
                fix=f"set --config.checkpoint.final={kind}:{available}, or save, evaluate or keep more checkpoints "
                "(checkpoint.{save_every,keep,keep_best}, evaluate_every)",
            )
