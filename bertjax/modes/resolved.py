"""From a request to an experiment and its settings."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.config import build_all, check_unresolved
from bertjax.contract import Experiment, ReadsSettings, Trainable
from bertjax.errors import UserError
from bertjax.modes import overrides
from bertjax.modes.request import Request, config_of
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import has_checkpoint
from bertjax.training import sharding
from bertjax.training.config import InferenceConfig, TrainingConfig


class Resolved(NamedTuple):
    """An experiment with a config all of whose values are set.

    Attributes:
      module: the experiment; `Trainable` in all modes but "predict".
      config: the config.
      settings: what the config says of training, or only of inference.
      experiment: what it says to the experiment: `module.Config`.
    """

    module: Any
    config: dict[str, Any]
    settings: Any
    experiment: Any

    @classmethod
    def of(cls, module: Experiment, config: dict[str, Any]) -> "Resolved":
        """Builds the settings. Raises UserError for values that are wrong."""
        return cls(module, config, *build_all((_settings(module), module.Config), config, ""))


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
    module = find(config.get("experiment", ""))
    if not isinstance(module, Trainable) and request.mode != "predict":
        fix = "add --mode=predict --input=FILE --output=FOLDER/, and leave out --workdir"
        raise UserError(f"--mode={request.mode}", got="an experiment without training", expected="predict", fix=fix)
    check_unresolved((_settings(module), module.Config), config)  # no key is missing where `resolve` looks
    if given is None:  # a run's own config is resolved, and the folder in init_from may be gone
        named = request.sources if request.mode == "evaluate" else ()
        values = {key: value for key, value in request.overrides.items() if key.removeprefix("data.") not in named}
        if values and isinstance(module, Trainable):
            config = overrides.override(config, values, module.FREE_AFTER_TRAINING)
        config = config if request.mode == "plan" else sharding.fitted(config)
    else:
        if isinstance(module, Trainable) and config["init_from"]:
            config = _with_settings_of_folder(request, module, config)
        config = module.resolve(config, reads=request.mode not in ("predict", "export"))
    if request.mode == "plan":
        from bertjax.planning.planner import complete

        config = complete(config)
    return Resolved.of(module, config)


def rehearse(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> dict[str, Any]:
    """Returns the resolved config after all checks that need neither text nor devices. Raises UserError."""
    module, config, settings, experiment = resolve(request, given, find)
    settings.check_final()
    module.make(experiment, None, None)
    return config


def check_folder(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> None:
    """Raises UserError, as `run` would, for a bad config, or a folder that holds a run of another one."""
    run_folder.check_config(Path(request.workdir), rehearse(request, given, find))


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
    return TrainingConfig if isinstance(module, Trainable) else InferenceConfig
