"""The config of a command in five stages: file, run, budget, `init_from` and rows. The task is built after the last.

1. file (`from_file`): the config of a file in `configs/`, or config.json of a run.
2. run (`for_use`): of a trained run, the keys that the command line sets, and the devices here.
3. budget (`without_length`): of a new run, a budget replaces `num_steps` and `num_epochs`.
4. init_from (`with_weights`): of a new run, `Experiment.resolve` fills in what the weights in `init_from` determine. A
   run whose folder in `init_from` is gone has the values that were recorded.
5. rows (`Resolved.complete`): `Data.complete` fills in classes and lengths; the prepared rows determine the updates
   within a budget.

`resolve` is stages 1 to 4, which read no rows.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jax
from flax import traverse_util

from bertjax import evaluations
from bertjax.config import build, build_part, check_keys, dotted
from bertjax.contract import (
    ConfigTree,
    Data,
    Evaluation,
    MiningTask,
    PredictionTask,
    Record,
    ScoringTask,
    TrainingTask,
    Vocabulary,
)
from bertjax.errors import UserError
from bertjax.interop.published import Published, open_weights
from bertjax.modes import extension
from bertjax.modes.config_values import is_below, override, with_settings, without_sources
from bertjax.modes.experiment import Evaluable, Experiment, Trainable
from bertjax.modes.lost_weights import is_lost, record_of, restored, with_copies
from bertjax.modes.request import Request, config_of
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import has_checkpoint
from bertjax.tasks import distillation, teachers
from bertjax.training import sharding
from bertjax.training.config import BudgetConfig, EvaluationConfig, InferenceConfig, TrainingConfig

_log = logging.getLogger(__name__)

# Keys of `model` that a plan sets from `data.vocab_size`.
_VOCABULARIES = ("vocab_size", "source_vocab_size", "target_vocab_size")
_LENGTHS = ("num_steps", "evaluate_every", "checkpoint.save_every")

Find = Callable[[str], Experiment]


class Complete(NamedTuple):
    """A task and the complete config that it was built from.

    Attributes:
      config: the config.
      settings: its `TrainingConfig`; of other commands than training, the part of it that they need.
      task: the task.
      meter: returns what the first updates of a run with a budget cost, by name; None without a budget.
    """

    config: ConfigTree
    settings: Any
    task: Any
    meter: Callable[[int], dict[str, float]] | None = None


class Resolved(NamedTuple):
    """An experiment with its config after the first four stages. Values that depend on rows may be None.

    Attributes:
      module: the experiment.
      config: the config.
      run: the folder of a run with checkpoints and a vocabulary; None for weights in `init_from`.
      published: the weights in `init_from`, or the run if it was already open; None if nothing was opened.
      record: what `lost_weights.save_record` writes to the run's folder; None if `init_from` was not read.
    """

    module: Experiment
    config: ConfigTree
    run: Path | None = None
    published: Published | None = None
    record: Record | None = None

    def data(self, folder: Path) -> Data:
        """The data, with the vocabulary in a folder; see `Evaluable`. A vocabulary that is gone is that of the run."""
        assert isinstance(self.module, Evaluable)
        config = self.config
        published = self.published
        if self.run:
            config = with_copies(config, self.run)
            if published is None and config.get("init_from"):
                published = open_weights(self.run)  # its folder has everything but the weights
        return self.module.Data(build_part(self.module.Config, config), folder, published)  # type: ignore[call-arg]

    def build(self, config: ConfigTree, vocabulary: Vocabulary, settings: type) -> Complete:
        """Builds the task from a complete config; to train with a teacher, the student."""
        task: PredictionTask
        if settings is TrainingConfig and config.get("teacher"):
            task = distillation.student(self.module, config, vocabulary)
        else:
            task = self.module.Task(build_part(self.module.Config, config), vocabulary)  # type: ignore[call-arg]
        return Complete(dict(config), build_part(settings, config), task)

    def complete(self, data: Data) -> Complete:
        """Completes the config by prepared data, and builds the task to train.

        Raises:
          UserError: for invalid values, or a budget that does not pay for one update.
        """
        return self._within_budget(data.complete, data.vocabulary, data)

    def to_score(self, data: Data) -> Complete:
        """Completes the config by data to score, and builds the task: a `ScoringTask` or a `TrainingTask`."""
        settings = EvaluationConfig if trains(self.module) else InferenceConfig
        return self.build(data.complete(self.config), data.vocabulary, settings)

    def to_predict(self) -> Complete:
        """The task of a trained run or of published weights."""
        source = self.published or open_weights(self.run or Path())
        vocabulary = self.module.open_vocabulary(build_part(self.module.Config, self.config), source)
        return self.build(self.config, vocabulary, InferenceConfig)

    def example(self) -> Complete:
        """The task of an example of complete values, for plans, and to check a config without rows or devices."""
        module = self.module
        assert trains(module)
        _, vocabulary = module.example_config(self.config)
        complete = self._within_budget(lambda config: module.example_config(config)[0], vocabulary, None)
        values = traverse_util.flatten_dict(self.config, sep=".")
        if all(values[key] is not None for key in _LENGTHS):
            complete.settings.check_final()
        return complete

    def _within_budget(
        self, fill: Callable[[ConfigTree], ConfigTree], vocabulary: Vocabulary, data: Data | None
    ) -> Complete:
        """Completes the config by a function, with the number of updates of its budget, and builds the task.

        Args:
          fill: fills in what rows determine.
          vocabulary: the vocabulary.
          data: the prepared data. Without them, the number of updates of batches with several shapes is an estimate.
        """
        budget = build(BudgetConfig, self.config.get("budget", {}), "budget")
        if budget.limit is None:
            return self.build(fill(self.config), vocabulary, TrainingConfig)
        from bertjax.modes.budgets import Meter  # which takes time to import
        from bertjax.training.flops import with_plain_attention

        if budget.hours:
            _check_hours(self.config)
        # Another task, because operations are counted with attention for any device.
        counted = self.build(fill({**with_plain_attention(self.config), "num_steps": 1}), vocabulary, TrainingConfig)
        meter = Meter(counted.task, data, self.config["batch_size"])
        config = self.config
        if config["num_steps"] is None and not budget.hours:
            config = {**config, "num_steps": meter.num_steps(*budget.limit)}
        complete = self.build(fill(config), vocabulary, TrainingConfig)
        num_steps = complete.settings.num_steps

        def used(done: int) -> dict[str, float]:
            return {name: meter.used(name, done, num_steps) for name in ("tokens", "flops")}

        return complete._replace(meter=used)

    def evaluations(self, task: TrainingTask) -> list[Evaluation]:
        """The evaluations that the config adds to that of the validation split; see `evaluations.of_config`."""
        return evaluations.of_config(self.config, task)

    def open_keys(self) -> frozenset[str]:
        """The dotted keys whose values depend on rows."""
        assert trains(self.module)
        example, _ = self.module.example_config(self.config)
        values, example_values = (traverse_util.flatten_dict(config, sep=".") for config in (self.config, example))
        is_open = {key for key, value in values.items() if value != example_values[key]}
        return frozenset(is_open | {key for key in ("num_steps", "data.row_lengths") if values.get(key, 0) is None})

    def check_folder(self, workdir: Path) -> None:
        """Raises UserError if the folder holds a run that this config can neither resume nor extend."""
        free = self.free_keys(workdir)
        run_folder.check_config(workdir, self.config, self.open_keys() | free)

    def free_keys(self, workdir: Path) -> frozenset[str]:
        """The keys that may differ from those of the run in a folder: of evaluations, and of a longer run."""
        before = run_folder.load_config(workdir) if run_folder.has_begun(workdir) else {}
        added = (*evaluations.names(self.config), *evaluations.names(before))
        keys = {key for key in (*dotted(self.config), *dotted(before)) if is_below(key, added)}
        return extension.free_keys(workdir, self.config) | keys


def trains(module: Experiment) -> TypeGuard[Trainable]:
    """Returns whether an experiment trains."""
    return issubclass(module.Task, TrainingTask)


def readers(module: Experiment, config: ConfigTree) -> tuple[type, ...]:
    """Returns the dataclasses that read the keys of a config."""
    if not trains(module):
        return InferenceConfig, module.Config
    return TrainingConfig, module.Config, evaluations.reader(config)


def resolve(request: Request, config: ConfigTree | None, find: Find, published: Published | None = None) -> Resolved:
    """Resolves the config of a request: the first four stages.

    Args:
      request: the request.
      config: the config of a new run; None to read the config of the run in `workdir`.
      find: returns the experiment of a name.
      published: the folder of the run or of `init_from`, if it is already open.
    Raises:
      UserError: for flags or config keys that are missing, invalid or contradictory.
    """
    resolved = from_file(request, config, find, published)
    # The config of a run has the values of stages 3 and 4, and the folder in its init_from may be gone.
    is_of_run = config is None
    resolved = for_use(resolved, request) if is_of_run else with_weights(without_length(resolved, request), request)
    return resolved._replace(config=_for_plan(resolved.config)) if request.mode == "plan" else resolved


def of_config(module: Experiment, config: ConfigTree) -> Resolved:
    """Resolves the config of a new run by its experiment alone, without a command line."""
    published = open_weights(Path(config["init_from"])) if config["init_from"] else None
    return Resolved(module, module.resolve(_with_teacher(config), published), published=published)


def _with_teacher(config: ConfigTree) -> ConfigTree:
    """Fills in what a teacher determines."""
    if not config.get("teacher"):
        return config
    return teachers.with_teacher(config, teachers.open_teacher(config["teacher"]))


def rehearse(request: Request, config: ConfigTree, find: Find) -> ConfigTree:
    """Returns the complete config of `Resolved.example`."""
    return resolve(request, config, find).example().config


def check_folder(request: Request, config: ConfigTree, find: Find) -> None:
    """Raises UserError, as `run` would, for an invalid config or a folder that holds a run of another config."""
    resolve(request, config, find).check_folder(Path(request.workdir))


def _check_mode(mode: str, module: Experiment) -> None:
    """Raises UserError for a mode that an experiment without training does not have."""
    fixes = {"predict": "add --mode=predict --input=FILE --output=FOLDER/, and omit --workdir"}
    if issubclass(module.Task, ScoringTask):
        fixes = {"evaluate": "add --mode=evaluate, and omit --workdir", **fixes}
    if issubclass(module.Task, MiningTask):
        fixes["mine"] = "add --mode=mine --config.data.source=FILE --output=FILE, and omit --workdir"
    if module.Task.export:
        fixes["export"] = "add --mode=export --output=FOLDER, and omit --workdir"
    if mode not in fixes:
        got = "an experiment without training"
        expected = " or ".join(f"--mode={name}" for name in fixes)
        raise UserError(f"--mode={mode}", got=got, expected=expected, fix=next(iter(fixes.values())))


def from_file(request: Request, new_config: ConfigTree | None, find: Find, published: Published | None) -> Resolved:
    """Stage 1: the config of a file in `configs/` or of a run, with known keys only.

    Raises:
      UserError: for missing flags, an unknown key, or a mode that the experiment does not have.
    """
    config = dict(published.config) if published and new_config is None else config_of(request, new_config)
    module = find(config.get("experiment", ""))
    if trains(module):
        is_used = new_config is None and request.mode in ("predict", "export")
        config = evaluations.with_keys(evaluations.without_missing(config) if is_used else config)
    else:
        _check_mode(request.mode, module)
    check_keys(readers(module, config), config)  # `module.resolve` reads keys without checking that they exist
    run = None if request.mode == "check" else request.run  # a check starts from `init_from`
    has_weights = run and run_folder.has_begun(run) and has_checkpoint(run)
    return Resolved(module, config, run if has_weights else None, published)


def for_use(resolved: Resolved, request: Request) -> Resolved:
    """Stage 2, of a trained run: the keys that the command line sets, and the devices here.

    Raises:
      UserError: for a key that may not differ after training.
    """
    config = resolved.config
    module = resolved.module
    sources = request.sources if request.mode == "evaluate" else ()
    values = {key: value for key, value in request.overrides.items() if key.removeprefix("data.") not in sources}
    if values and trains(module):
        added = evaluations.names({**config, "evaluations": values.get("evaluations", config.get("evaluations", ""))})
        config = override(config, values, (*module.FREE_AFTER_TRAINING, *added))
        check_keys(readers(module, config), config)
    return resolved._replace(config=config if request.mode == "plan" else fit_to_devices(config))


def fit_to_devices(config: ConfigTree) -> ConfigTree:
    """Adapts a run's config to the current devices, which may differ from those of training.

    If the mesh does not fit, all devices go on the data axis. The batch size is rounded up to a multiple of the devices
    that rows are split over, which does not change validation metrics.
    """
    count = jax.device_count()
    mesh = config["mesh"]
    try:
        sharding.check_split(config, count)
    except UserError:
        _log.info("the run's mesh %s does not fit %d device(s); rows are split over all devices", dict(mesh), count)
        mesh = {"data": -1, "fsdp": 1, "tensor": 1}
    data, fsdp, _ = sharding.mesh_shape(sharding.MeshConfig(**mesh), count)
    multiple = data * fsdp * config["accumulation_steps"]
    return {**config, "mesh": mesh, "batch_size": -(-config["batch_size"] // multiple) * multiple}


def without_length(resolved: Resolved, request: Request) -> Resolved:
    """Stage 3, of a new run: `num_steps` is None with a budget, which then determines the length.

    Raises:
      UserError: if the command line sets another length too, or if there are two budgets.
    """
    config = resolved.config
    limit = build(BudgetConfig, config.get("budget", {}), "budget").limit if trains(resolved.module) else None
    if limit is None:
        return resolved
    for key in ("num_steps", "num_epochs"):
        if request.overrides.get(key) is not None:
            raise UserError(
                f"config key budget.{limit[0]}",
                got=f"a value, and also {key}={request.overrides[key]}",
                expected="either of them",
                fix=f"omit --config.{key} or --config.budget.{limit[0]}",
            )
    return resolved._replace(config={**config, "num_steps": None})


def with_weights(resolved: Resolved, request: Request) -> Resolved:
    """Stage 4, of a new run: what the weights in `init_from` determine, or what was recorded of weights that are gone.

    Raises:
      UserError: if the weights do not exist or do not fit the config.
    """
    config = resolved.config
    run = resolved.run
    published = resolved.published
    record = None
    config = _with_teacher(config)
    if run and is_lost(config):
        config = restored(run, config, request.overrides)
    else:
        if config["init_from"] and not published:
            published = open_weights(Path(config["init_from"]))
        complete = _by_experiment(request, resolved.module, config, published)
        record = record_of(config, complete, request.overrides) if published else None
        config = complete
    if run:
        config = run_folder.with_recorded(config, run_folder.load_config(run), request.overrides)
    return resolved._replace(config=config, published=published, record=record)


def _by_experiment(request: Request, module: Experiment, config: ConfigTree, published: Published | None) -> ConfigTree:
    """Resolves the config of a new run by `Experiment.resolve`, with the settings of the weights in `init_from`.

    Settings of a run of the same experiment apply to evaluation and prediction, those of a published folder also to
    training.
    """
    if published:
        published.task = config.get("task", "")
    if published and trains(module):
        is_trained = request.mode in ("evaluate", "predict", "export")
        ignored = () if is_trained else published.unstated  # a recipe of training may set them
        settings = {key: value for key, value in published.settings.items() if key not in ignored}
        if published.is_run:
            is_same = published.experiment == config["experiment"] and request.mode in ("evaluate", "predict")
            settings = traverse_util.flatten_dict(published.config, sep=".") if is_same else {}
        config = with_settings(published.path, settings, config, request.overrides, module.FREE_AFTER_TRAINING)
    if request.mode in ("predict", "export"):
        config = without_sources(config)
        for key in ("add_tokens", "add_words"):
            if added := config["data"].get(key):
                expected = "no value, because only training adds tokens"
                fix = "omit it, or train a run with it"
                raise UserError(f"config key data.{key}", got=added, expected=expected, fix=fix)
    return module.resolve(config, published)


def _for_plan(config: ConfigTree) -> ConfigTree:
    """The config with the values that would be set from data or another run, as far as a plan needs them.

    Vocabulary sizes of the model default to `data.vocab_size`. An `init_from` that is not set yet is ignored.
    """
    model = dict(config["model"])
    data = config["data"]
    for key in _VOCABULARIES:
        if key in model and model[key] is None and "vocab_size" in data:
            model[key] = data["vocab_size"]
    return {**config, "model": model, **({"init_from": ""} if config.get("init_from", "") is None else {})}


def _check_hours(config: ConfigTree) -> None:
    """Raises UserError if the config needs the number of updates, which is not known."""
    optimizer = config["optimizer"]
    values = traverse_util.flatten_dict(config, sep=".")
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
