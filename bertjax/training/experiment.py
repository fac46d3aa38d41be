"""What the modes ask of a module of `experiments/`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bertjax.task import Predicts, Task


@runtime_checkable
class Text(Protocol):
    """Text to be prepared, and its place."""

    folder: Path

    @property
    def fingerprint(self) -> str:
        """What the prepared text depends on."""

    def run(self) -> None:
        """Prepares it, unless that has been done."""


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments/`."""

    Config: type

    def resolve(self, config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
        """Fills in what `init_from` determines; rows to train on or to score are looked at only if it `reads`."""

    def make(self, config: Any, vocab_dir: Path | None, prepared: Path | None) -> Predicts:
        """The task, with as much of it as can be made from what is given."""


@runtime_checkable
class Trainable(Experiment, Protocol):
    """An experiment that trains; the others only predict.

    Attributes:
      FREE_AFTER_TRAINING: config keys that may differ when a trained run is used; a key stands for all keys below it.
    """

    FREE_AFTER_TRAINING: tuple[str, ...]

    def preparation(self, config: Any, workdir: Path) -> Text:
        """The text that training needs."""

    def make(self, config: Any, vocab_dir: Path | None, prepared: Path | None) -> Task:
        """See `Experiment.make`."""


@runtime_checkable
class ReadsSettings(Protocol):
    """An experiment whose published folders state settings, as a generation_config.json does."""

    def published_settings(self, folder: Path) -> Mapping[str, Any]:
        """What a folder states, as the config has it; keys that it does not state are left out."""
