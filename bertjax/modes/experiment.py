"""What a module of `experiments/` defines, so that the modes of `launch.py` run it."""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from bertjax.contract import ConfigTree, Data, PredictionTask, Vocabulary

if TYPE_CHECKING:
    from bertjax.interop.published import Published


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments/`.

    Attributes:
      Config: the config keys that it reads in addition to those of `TrainingConfig` or `InferenceConfig`.
      Task: a subclass of `PredictionTask`, made from a complete `Config` and a `Vocabulary`. Raises UserError if they
        contradict each other.
    """

    Config: type
    Task: type[PredictionTask]

    def resolve(self, config: ConfigTree, published: "Published | None") -> ConfigTree:
        """Fills in what `init_from` determines; reads no rows. Values that depend on rows stay None.

        Args:
          config: the whole config.
          published: the weights in `init_from`; None without them.
        """

    def open_vocabulary(self, config: Any, published: "Published") -> Vocabulary:
        """Returns the vocabulary of a trained run or of published weights, from a `Config`."""


@runtime_checkable
class Evaluable(Experiment, Protocol):
    """An experiment whose task is a `ScoringTask` or a `TrainingTask`.

    Attributes:
      Data: a subclass of `contract.Data`, made from a `Config`, the folder that `Data.prepare` writes the vocabulary
        to, and the `Published` in `init_from`, or None. Raises UserError for invalid settings or missing sources.
    """

    Data: type[Data]


class Trainable(Evaluable, Protocol):
    """An experiment whose task is a `TrainingTask`.

    Attributes:
      FREE_AFTER_TRAINING: config keys that may differ when a trained run is used. A key includes all keys below it.
    """

    FREE_AFTER_TRAINING: tuple[str, ...]

    def example_config(self, config: ConfigTree) -> tuple[ConfigTree, Vocabulary]:
        """Returns an example of a complete config and a vocabulary, for plans and checks that read no data."""
