"""Resolves a request to an experiment with its config."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax import traverse_util

from bertjax.config import build, build_all, build_part, check_unresolved
from bertjax.contract import Data, Evaluable, Experiment, Facts, ReadsSettings, Task, Trainable
from bertjax.errors import UserError
from bertjax.modes import extension, init_from, overrides
from bertjax.modes.request import Request, config_of
from bertjax.planning.flops import with_plain_attention
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import has_checkpoint
from bertjax.training import sharding
from bertjax.training.config import UNLIMITED, BudgetConfig, InferenceConfig, TrainingConfig

# Keys that fine-tuning derives from the number of rows if they are None.
_LENGTHS = ("num_steps", "evaluate_every", "checkpoint.save_every")


class Complete(NamedTuple):
    """A task and the complete config that it was built from.

    Attributes:
      config: the config.
      settings: its `TrainingConfig`, or its `InferenceConfig` if the experiment only predicts.
      task: a `Task`, or a `Predicts` if the experiment only predicts.
    """

    config: dict[str, Any]
    settings: Any
    task: Any


class Resolved(NamedTuple):
    """An experiment with its config. Values that depend on rows may be None.

    Attributes:
      module: the experiment. It is `Trainable` in all modes except "predict" and "evaluate".
      config: the config.
      run: the folder of a run with checkpoints and a vocabulary; None for weights in `init_from`.
      record: the record that `init_from.save` writes to the run's folder; None if `init_from` was not read.
    """

    module: Any
    config: dict[str, Any]
    run: Path | None = None
    record: Mapping[str, Any] | None = None

    def data(self, folder: Path) -> Data:
        """The data; see `Trainable.build_data`. A vocabulary that is gone is read from the run's folder.

        If the config has no `num_steps`, `Data.of_length` must be called with that of the complete config.
        """
        config = init_from.with_copies(self.config, self.run) if self.run else self.config
        data: Data = self.module.build_data(self._part(config), folder)
        return data

    def _part(self, config: Mapping[str, Any]) -> Any:
        """The `Config` of the experiment. An unknown number of updates is 1 here; see `Data.of_length`."""
        known = {**config, "num_steps": 1} if config.get("num_steps", 0) is None else config
        return build_part(self.module.Config, known)

    def complete(self, facts: Facts, data: Data | None = None) -> Complete:
        """Completes the config by the facts and builds the task.

        Args:
          facts: the facts.
          data: the prepared data, from which a budget determines the number of updates. Without data, it is an estimate
            if batches have several shapes.
        Raises:
          UserError: for invalid values.
        """
        config = facts.complete(self._with_length(facts, data))
        settings, experiment = build_all((_settings(self.module), self.module.Config), config, "")
        return Complete(config, settings, self.module.build_task(experiment, facts))

    def _with_length(self, facts: Facts, data: Data | None) -> dict[str, Any]:
        """The config with the number of updates of its budget, if it has one and no number of updates."""
        config = self.config
        limit = build(BudgetConfig, config.get("budget", {}), "budget").limit
        if limit is None or config["num_steps"] is not None:
            return config
        if limit[0] == "hours":
            _check_hours(config)
            return {**config, "num_steps": UNLIMITED}
        from bertjax.modes import budgets  # which takes time to import

        return {**config, "num_steps": budgets.num_steps(*limit, self.counted(facts), data, config["batch_size"])}

    def counted(self, facts: Facts) -> Task:
        """The task to count operations of, on any device."""
        config = {**with_plain_attention(self.config), "num_steps": 1}
        task: Task = self._replace(config=config).complete(facts).task
        return task

    def of_folder(self, folder: Path) -> Complete:
        """The task of the trained run or published weights in a folder."""
        return self.complete(self.module.read_facts(self._part(self.config), folder))

    def rehearsed(self) -> Complete:
        """Builds the task with stand-in facts. Raises UserError for errors that show without rows or devices."""
        complete = self.complete(self.module.stand_in_facts(self._part(self.config)))
        values = traverse_util.flatten_dict(self.config, sep=".")
        if all(values[key] is not None for key in _LENGTHS):
            complete.settings.check_final()
        return complete

    def open_keys(self) -> frozenset[str]:
        """The dotted keys whose values depend on rows."""
        ours, whole = (traverse_util.flatten_dict(each, sep=".") for each in (self.config, self.rehearsed().config))
        return frozenset(key for key, value in ours.items() if value != whole[key])

    def check_folder(self, workdir: Path) -> None:
        """Raises UserError if the folder holds a run that this config can neither resume nor extend."""
        free = extension.free_keys(workdir, self.config)
        run_folder.check_config(workdir, self.config, self.open_keys() | free)


def resolve(request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]) -> Resolved:
    """Resolves the config of a request.

    Args:
      request: the request.
      given: the config of a new run; None to read the config of the run in `workdir`.
      find: returns the experiment of a name.
    Raises:
      UserError: for flags or config keys that are missing, invalid or contradictory.
    """
    config = config_of(request, given)
    module: Any = find(config.get("experiment", ""))
    trains = _trains(module)
    if not trains:
        _check_mode(request.mode, module)
    check_unresolved(
        (_settings(module), module.Config), config
    )  # `module.resolve` reads keys without checking that they exist
    if given is not None and trains:
        given = config = _without_length(config, request.overrides)
    run, record = _run_of(request), None
    if given is None:  # a run's config is already resolved, and the folder in init_from may be gone
        named = request.sources if request.mode == "evaluate" else ()
        values = {key: value for key, value in request.overrides.items() if key.removeprefix("data.") not in named}
        if values and trains:
            config = overrides.override(config, values, module.FREE_AFTER_TRAINING)
        config = config if request.mode == "plan" else sharding.fit_to_devices(config)
    elif run and init_from.is_lost(config):
        config = init_from.restore(run, config, request.overrides)
    else:
        config = _by_experiment(request, module, config)
        record = init_from.record(given, config, request.overrides) if config["init_from"] else None
    if request.mode == "plan":
        from bertjax.planning.planner import complete

        config = complete(config)
    return Resolved(module, config, run, record)


def _check_mode(mode: str, module: Experiment) -> None:
    """Raises UserError for a mode that an experiment without training does not have."""
    fixes = {"predict": "add --mode=predict --input=FILE --output=FOLDER/, and omit --workdir"}
    if isinstance(module, Evaluable):
        fixes = {"evaluate": "add --mode=evaluate, and omit --workdir", **fixes}
    if mode not in fixes:
        got, expected = "an experiment without training", " or ".join(f"--mode={name}" for name in fixes)
        raise UserError(f"--mode={mode}", got=got, expected=expected, fix=next(iter(fixes.values())))


def _without_length(config: dict[str, Any], overridden: Mapping[str, Any]) -> dict[str, Any]:
    """The config without `num_steps` if it has a budget, which then determines the length.

    Raises:
      UserError: if the command line sets another length too, or if there are two budgets.
    """
    limit = build(BudgetConfig, config.get("budget", {}), "budget").limit
    if limit is None:
        return config
    for key in ("num_steps", "num_epochs"):
        if overridden.get(key) is not None:
            raise UserError(
                f"config key budget.{limit[0]}",
                got=f"a value, and also {key}={overridden[key]}",
                expected="either of them",
                fix=f"omit --config.{key} or --config.budget.{limit[0]}",
            )
    return {**config, "num_steps": None}


def _check_hours(config: Mapping[str, Any]) -> None:
    """Raises UserError if the config needs the number of updates, which is not known."""
    optimizer, values = config["optimizer"], traverse_util.flatten_dict(config, sep=".")
    for key in (key for key in extension.BY_PROGRESS if values.get(key)):
        fix = f"add {extension.BY_PROGRESS[key]}, or set budget.tokens or budget.flops"
        raise UserError(f"config key {key}", got=f"{values[key]}, with budget.hours", expected="no value", fix=fix)
    if optimizer["warmup_steps"] is None and not optimizer.get("schedule_steps"):
        raise UserError(
            "config key optimizer.warmup_steps",
            got="no value, with budget.hours",
            expected="a number of updates",
            fix="set --config.optimizer.warmup_steps=100, or another number",
        )


def _run_of(request: Request) -> Path | None:
    """The folder in `workdir` if it holds a run whose weights replace those in `init_from`."""
    run = None if request.mode == "check" else request.run  # a check starts from `init_from`
    return run if run and run_folder.has_begun(run) and has_checkpoint(run) else None


def _by_experiment(request: Request, module: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Resolves the config of a new run by `Experiment.resolve`, with the settings of the folder in `init_from`."""
    if _trains(module) and config["init_from"]:
        config = _with_settings_of_folder(request, module, config)
    if request.mode in ("predict", "export"):
        config = overrides.without_sources(config)
    resolved: dict[str, Any] = module.resolve(config)
    return resolved


def rehearse(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> dict[str, Any]:
    """Returns the complete config of `Resolved.rehearsed`: values that depend on rows come from stand-in facts."""
    return resolve(request, given, find).rehearsed().config


def check_folder(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> None:
    """Raises UserError, as `run` would, for an invalid config or a folder that holds a run of another config."""
    resolve(request, given, find).check_folder(Path(request.workdir))


def _with_settings_of_folder(request: Request, module: Trainable, config: dict[str, Any]) -> dict[str, Any]:
    """The config with the settings of the folder in `init_from`.

    Settings of a run of the same experiment apply to evaluation and prediction, those of a published folder also to
    training.
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
    """The dataclass of the settings that all experiments of this kind share."""
    return TrainingConfig if _trains(module) else InferenceConfig


def _trains(module: Experiment) -> bool:
    return isinstance(module, Trainable)
