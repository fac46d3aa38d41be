"""The settings that all tasks share for training and inference."""

import dataclasses
import math
from typing import Annotated

from bertjax.config import Constrained, Seed, Size, always, at_least, one_of
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
class EvaluationConfig(InferenceConfig):
    """The settings of an evaluation.

    Attributes:
      batch_size: rows of an update, over all devices and micro-batches.
      accumulation_steps: number of micro-batches of an update.
    """

    batch_size: Size = always(32)
    accumulation_steps: Size = always(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        got = f"{self.accumulation_steps} micro-batches for batch_size {self.batch_size}"
        ok = self.batch_size % self.accumulation_steps == 0
        fix = "change batch_size or accumulation_steps"
        self.check(ok, "accumulation_steps", "a divisor of batch_size", got=got, fix=fix)


@dataclasses.dataclass(frozen=True)
class BudgetConfig(Constrained, prefix="budget"):
    """What a run may use; it then ends with the last update within the budget. 0 for no budget.

    At most one key may be set. It replaces `num_steps` and `num_epochs` of the config file.

    Attributes:
      tokens: positions of all training rows, padding included.
      flops: operations of the matrix products of all updates, without those that rematerialization repeats.
      hours: time of updates with their waits for batches, over all starts of the run; at least one update is made. Such
        a run cannot be repeated bit for bit; see docs/guides/runs.md.
    """

    tokens: Annotated[float, at_least(0, below=math.inf)] = 0.0
    flops: Annotated[float, at_least(0, below=math.inf)] = 0.0
    hours: Annotated[float, at_least(0, below=math.inf)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name, value in vars(self).items() if value] or [""]
        got = f"a value, and also {' and '.join(f'budget.{name}' for name in names[1:])}"
        self.check(len(names) == 1, names[0], "at most one budget", got=got, fix="omit the others")

    @property
    def limit(self) -> tuple[str, float] | None:
        """The key that is set, with its value; None without a budget."""
        return next(((name, value) for name, value in vars(self).items() if value), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(EvaluationConfig):
    """The settings of training.

    Attributes:
      seed: seed of initial parameters, data order, masks and dropout.
      rng: generator of dropout's random bits: "threefry2x32", the same bits everywhere, or "rbg", faster on one TPU or
        GPU, but different between devices and versions of JAX. On several TPU chips, each draws the bits of the whole
        batch with "rbg".
      num_steps: number of updates. Default: those of the budget, in fine-tuning those of `num_epochs`. With
        `budget.hours`, they are not known until the run has ended.
      log_every: updates between two lines of the log. The last update is always logged.
      evaluate_every: updates between two evaluations. There is always one after the last update. Default in
        fine-tuning: once per epoch.
      evaluate_patience: ends training after this number of evaluations in a row without improvement of
        `checkpoint.best_metric`; 0 to make all updates. The learning rate decays over `num_steps`.
      parallel: "jit", or "pmap" for comparison.
      budget: what the run may use, instead of `num_steps` or `num_epochs`.
      evaluations: names of further evaluations, separated by commas: "retrieval", "minimal_pairs" or those of installed
        packages. The keys of each are below its name.
    """

    seed: Seed = always(0)
    rng: Annotated[str, one_of("threefry2x32", "rbg")] = always("threefry2x32")
    num_steps: Size | None = always(None)
    log_every: Size = always(50)
    evaluate_every: Size = always(None)
    parallel: Annotated[str, one_of("jit", "pmap")] = always("jit")
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    budget: BudgetConfig = BudgetConfig()
    evaluate_patience: Annotated[int, at_least(0)] = 0
    evaluations: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.num_steps is not None or bool(self.budget.hours), "num_steps", "a number of updates")
        ok = not self.evaluate_patience or self.checkpoint.best_metric
        fix = "set --config.checkpoint.best_metric"
        got = f"{self.evaluate_patience}, but no checkpoint.best_metric"
        self.check(ok, "evaluate_patience", "a metric that should improve", got=got, fix=fix)

    def check_final(self) -> None:
        """Raises UserError if the finished run will not have the checkpoints that `checkpoint.final` names."""
        checkpoint = self.checkpoint
        kind, _, count = checkpoint.final.partition(":")
        if kind == "best" and not checkpoint.best_metric:
            got = f"{checkpoint.final}, but no checkpoint.best_metric"
            fix = "set --config.checkpoint.best_metric"
            expected = "a metric that defines the best checkpoint"
            raise UserError("config key checkpoint.final", got=got, expected=expected, fix=fix)
        if self.num_steps is None:
            return
        interval = checkpoint.save_every
        most = checkpoint.keep
        patience = self.evaluate_patience
        if kind.isdecimal() and patience:
            got = f"step {kind}, in a run that may end before"
            expected = "latest, best, or the mean of several"
            fix = "choose one of these, or set --config.evaluate_patience=0"
            raise UserError("config key checkpoint.final", got=got, expected=expected, fix=fix)
        saved = [*range(interval, self.num_steps, interval)[-most:], self.num_steps][-most:]
        if kind.isdecimal() and int(kind) not in saved:
            raise UserError(
                "config key checkpoint.final",
                got=f"step {kind}, whose checkpoint will not be kept",
                expected=f"{self.num_steps}, or a multiple of {interval} from {saved[0]} on",
                fix="choose one of these, or save or keep more checkpoints (checkpoint.{save_every,keep})",
            )
        if kind == "best":  # only checkpoints that are also evaluated
            interval = math.lcm(interval, self.evaluate_every)
            most = checkpoint.keep_best
        surely = min(self.num_steps, patience * self.evaluate_every) if patience else self.num_steps  # updates
        available = min(-(-surely // interval), most)
        if count and int(count) > available:
            raise UserError(
                "config key checkpoint.final",
                got=f"{checkpoint.final}, but only {available} such checkpoints",
                expected=f"the mean of at most {available}",
                fix=f"set --config.checkpoint.final={kind}:{available}, or save, evaluate or keep more checkpoints "
                "(checkpoint.{save_every,keep,keep_best}, evaluate_every)"
                + (", or raise evaluate_patience" if patience else ""),
            )
