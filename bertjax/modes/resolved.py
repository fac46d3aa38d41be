"""From a request to an experiment and its settings."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax import traverse_util

from bertjax.config import build_all, build_part, check_unresolved
from bertjax.contract import Data, Experiment, Facts, ReadsSettings, Trainable
from bertjax.errors import UserError
from bertjax.modes import extension, overrides
from bertjax.modes.request import Request, config_of
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import has_checkpoint
from bertjax.training import sharding
from bertjax.training.config import InferenceConfig, TrainingConfig

# What a fine-tuning run without a number of updates determines by that of its rows.
_LENGTHS = ("num_steps", "evaluate_every", "checkpoint.save_every")


class Complete(NamedTuple):
    """A task, and the config that it has been built from, all of whose values are set.

    Attributes:
      config: the config.
      settings: what it says of training, or only of inference.
      task: a `Task` in all modes but "predict".
    """

    config: dict[str, Any]
    settings: Any
    task: Any


class Resolved(NamedTuple):
    """An experiment with a config; values that its rows determine may be open.

    Attributes:
      module: the experiment; `Trainable` in all modes but "predict".
      config: the config.
    """

    module: Any
    config: dict[str, Any]

    def data(self, folder: Path) -> Data:
        """The data; see `Trainable.build_data`."""
        data: Data = self.module.build_data(build_part(self.module.Config, self.config), folder)
        return data

    def complete(self, facts: Facts) -> Complete:
        """The task that the facts make of it. Raises UserError for values that are wrong."""
        config = facts.complete(self.config)
        settings, experiment = build_all((_settings(self.module), self.module.Config), config, "")
        return Complete(config, settings, self.module.build_task(experiment, facts))

    def of_folder(self, folder: Path) -> Complete:
        """The task of a trained run, or of published weights."""
        return self.complete(self.module.read_facts(build_part(self.module.Config, self.config), folder))

    def rehearsed(self) -> Complete:
        """The task with stand-in facts, after all checks that need neither rows nor devices. Raises UserError."""
        complete = self.complete(self.module.stand_in_facts(build_part(self.module.Config, self.config)))
        values = traverse_util.flatten_dict(self.config, sep=".")
        if all(values[key] is not None for key in _LENGTHS):
            complete.settings.check_final()
        return complete

    def open_keys(self) -> frozenset[str]:
        """The keys whose values rows determine, dotted."""
        ours, whole = (traverse_util.flatten_dict(each, sep=".") for each in (self.config, self.rehearsed().config))
        return frozenset(key for key, value in ours.items() if value != whole[key])

    def check_folder(self, workdir: Path) -> None:
        """Raises UserError if a folder holds a run of another config, with which this one does not go on."""
        free = extension.free_keys(workdir, self.config)
        run_folder.check_config(workdir, self.config, self.open_keys() | free)


def resolve(request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]) -> Resolved:
    """Resolves the config of a request.

    Args:
      request: the request.
      given: the config of a new run, or None for that of the run in `workdir`.
      find: the experiment of a name.
    Raises:
      UserError: flags or config keys that are missing, wrong or contradictory.
    """
    config = config_of(request, given)
    module: Any = find(config.get("experiment", ""))
    trains = _trains(module)
    if not trains and request.mode != "predict":
        fix = "add --mode=predict --input=FILE --output=FOLDER/, and leave out --workdir"
        raise UserError(f"--mode={request.mode}", got="an experiment without training", expected="predict", fix=fix)
    check_unresolved((_settings(module), module.Config), config)  # no key is missing where `resolve` looks
    if given is None:  # a run's own config is resolved, and the folder in init_from may be gone
        named = request.sources if request.mode == "evaluate" else ()
        values = {key: value for key, value in request.overrides.items() if key.removeprefix("data.") not in named}
        if values and trains:
            config = overrides.override(config, values, module.FREE_AFTER_TRAINING)
        config = config if request.mode == "plan" else sharding.fitted(config)
    else:
        if trains and config["init_from"]:
            config = _with_settings_of_folder(request, module, config)
        if request.mode in ("predict", "export"):
            config = overrides.without_sources(config)
        config = module.resolve(config)
    if request.mode == "plan":
        from bertjax.planning.planner import complete

        config = complete(config)
    return Resolved(module, config)


def rehearse(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> dict[str, Any]:
    """Returns the config after `Resolved.rehearsed`, with stand-ins for values that rows determine."""
    return resolve(request, given, find).rehearsed().config


def check_folder(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> None:
    """Raises UserError, as `run` would, for a bad config, or a folder that holds a run of another one."""
    resolve(request, given, find).check_folder(Path(request.workdir))


def _with_settings_of_folder(request: Request, module: Trainable, config: dict[str, Any]) -> dict[str, Any]:
    """The config with the settings that the folder in `init_from` states.

    A run of the same experiment states them for evaluation and prediction, a published folder for training too.
    """
    folder = Path(config["init_from"])
    stated: Mapping[str, Any] = {}
    if not has_checkpoint(folder):
        stated = module.published_settings(folder) if isinstance(module, ReadsSettings) else {}
    elif request.mode in ("evaluate", "predict"):
        with contextlib.suppress(UserError):  # `resolve` reports what is wrong with the folder
            stated = run_folder.load_config(folder)
        if stated.get("experiment") != config["experiment"]:
            return config
    return overrides.with_settings_of(folder, stated, config, request.overrides, module.FREE_AFTER_TRAINING)


def _settings(module: Experiment) -> type[InferenceConfig]:
    """The settings that an experiment has besides its own."""
    return TrainingConfig if _trains(module) else InferenceConfig


def _trains(module: Experiment) -> bool:
    return isinstance(module, Trainable)
