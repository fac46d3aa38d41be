"""The config of a command in five stages: file, run, `init_from`, budget and rows. The task is built after the last.

1. file: the config of a file in `configs/`, or config.json of a run.
2. run: of a trained run, the keys that the command line sets, and the devices here.
3. init_from: `Experiment.resolve` fills in what the weights in `init_from` determine. A run whose folder in `init_from`
   is gone has the values that were recorded.
4. budget: a budget replaces `num_steps` and `num_epochs`.
5. rows: `Data.complete` fills in classes and lengths; the prepared rows determine the updates within a budget.

Stages 1 to 4 are `resolve`, which reads no rows. Stage 5 is `Resolved.complete`.
"""

import ast
import contextlib
import copy
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jax
from flax import traverse_util

from bertjax import evaluations
from bertjax.config import build, build_part, check_keys, dotted
from bertjax.contract import (
    ConfigTree,
    Data,
    Evaluable,
    Evaluation,
    Experiment,
    FlatConfig,
    MiningTask,
    Record,
    ScoringTask,
    Trainable,
    TrainingTask,
    Vocabulary,
)
from bertjax.errors import UserError, did_you_mean
from bertjax.files import completed
from bertjax.interop.published import Published, open_weights
from bertjax.modes import extension
from bertjax.modes.request import SOURCES, Request, config_of
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import has_checkpoint
from bertjax.training import sharding
from bertjax.training.config import BudgetConfig, EvaluationConfig, InferenceConfig, TrainingConfig

_log = logging.getLogger(__name__)

_TRAINING_SOURCES = ("source", "target")
# Keys that never change the result of training; each experiment adds its FREE_AFTER_TRAINING.
_ALWAYS = (
    *("mesh", "model.attention_backend", "model.dtype"),
    *("data.on_bad_row", "data.workers", "data.prepared_dir", "data.beam", "evaluations"),
)
# Keys of `model` that a plan sets from `data.vocab_size`.
_VOCABULARIES = ("vocab_size", "source_vocab_size", "target_vocab_size")
_LENGTHS = ("num_steps", "evaluate_every", "checkpoint.save_every")
_RECORD = "init_from.json"
# The vocabulary keys of `data`, and the subfolder of the run for each if the run has two vocabularies.
_SIDES = {"vocab_file": "source", "target_vocab_file": "target"}

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
      record: what `save_record` writes to the run's folder; None if `init_from` was not read.
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
            config = _with_copies(config, self.run)
            if published is None and config.get("init_from"):
                published = open_weights(self.run)  # its folder has everything but the weights
        return self.module.Data(build_part(self.module.Config, config), folder, published)  # type: ignore[call-arg]

    def build(self, config: ConfigTree, vocabulary: Vocabulary, settings: type) -> Complete:
        """Builds the task from a complete config."""
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
        complete = self._within_budget(lambda given: module.example_config(given)[0], vocabulary, None)
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
        from bertjax.planning.flops import with_plain_attention

        if budget.hours:
            _check_hours(self.config)
        # Another task, because operations are counted with attention for any device.
        counted = self.build(fill({**with_plain_attention(self.config), "num_steps": 1}), vocabulary, TrainingConfig)
        meter, config = Meter(counted.task, data, self.config["batch_size"]), self.config
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
        ours, whole = (traverse_util.flatten_dict(each, sep=".") for each in (self.config, example))
        is_open = {key for key, value in ours.items() if value != whole[key]}
        return frozenset(is_open | {key for key in ("num_steps", "data.row_lengths") if ours.get(key, 0) is None})

    def check_folder(self, workdir: Path) -> None:
        """Raises UserError if the folder holds a run that this config can neither resume nor extend."""
        free = self.free_keys(workdir)
        run_folder.check_config(workdir, self.config, self.open_keys() | free)

    def free_keys(self, workdir: Path) -> frozenset[str]:
        """The keys that may differ from those of the run in a folder: of evaluations, and of a longer run."""
        before = run_folder.load_config(workdir) if run_folder.has_begun(workdir) else {}
        added = (*evaluations.names(self.config), *evaluations.names(before))
        keys = {key for key in (*dotted(self.config), *dotted(before)) if _is_below(key, added)}
        return extension.free_keys(workdir, self.config) | keys


def trains(module: Experiment) -> TypeGuard[Trainable]:
    """Returns whether an experiment trains."""
    return issubclass(module.Task, TrainingTask)


def readers(module: Experiment, config: ConfigTree) -> tuple[type, ...]:
    """Returns the dataclasses that read the keys of a config."""
    if not trains(module):
        return InferenceConfig, module.Config
    return TrainingConfig, module.Config, evaluations.reader(config)


def resolve(request: Request, given: ConfigTree | None, find: Find, published: Published | None = None) -> Resolved:
    """Resolves the config of a request: the first four stages.

    Args:
      request: the request.
      given: the config of a new run; None to read the config of the run in `workdir`.
      find: returns the experiment of a name.
      published: the folder of the run or of `init_from`, if it is already open.
    Raises:
      UserError: for flags or config keys that are missing, invalid or contradictory.
    """
    config = dict(published.config) if published and given is None else config_of(request, given)
    module = find(config.get("experiment", ""))
    if not trains(module):
        _check_mode(request.mode, module)
    if trains(module):
        config = evaluations.with_keys(config)
    # `module.resolve` reads keys without checking that they exist.
    check_keys(readers(module, config), config)
    run, record = _run_of(request), None
    if given is None:  # a run's config is already resolved, and the folder in init_from may be gone
        config = _of_run(request, config, module)
    else:
        config = without_length(config, request.overrides) if trains(module) else config
        if run and is_lost(config):
            config = _restored(run, config, request.overrides)
        else:
            if config["init_from"] and not published:
                published = open_weights(Path(config["init_from"]))
            resolved = _by_experiment(request, module, config, published)
            record = _record(config, resolved, request.overrides) if published else None
            config = resolved
        if run:
            config = run_folder.with_recorded(config, run_folder.load_config(run))
    return Resolved(module, _for_plan(config) if request.mode == "plan" else config, run, published, record)


def of_config(module: Experiment, config: ConfigTree) -> Resolved:
    """Resolves the config of a new run by its experiment alone, without a command line."""
    published = open_weights(Path(config["init_from"])) if config["init_from"] else None
    return Resolved(module, module.resolve(config, published), published=published)


def rehearse(request: Request, given: ConfigTree, find: Find) -> ConfigTree:
    """Returns the complete config of `Resolved.example`."""
    return resolve(request, given, find).example().config


def check_folder(request: Request, given: ConfigTree, find: Find) -> None:
    """Raises UserError, as `run` would, for an invalid config or a folder that holds a run of another config."""
    resolve(request, given, find).check_folder(Path(request.workdir))


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
        got, expected = "an experiment without training", " or ".join(f"--mode={name}" for name in fixes)
        raise UserError(f"--mode={mode}", got=got, expected=expected, fix=next(iter(fixes.values())))


# Stage 2: run


def _run_of(request: Request) -> Path | None:
    """The folder in `workdir` if it holds a run whose weights replace those in `init_from`."""
    run = None if request.mode == "check" else request.run  # a check starts from `init_from`
    return run if run and run_folder.has_begun(run) and has_checkpoint(run) else None


def _of_run(request: Request, config: ConfigTree, module: Experiment) -> ConfigTree:
    """The config of a trained run for a use of it."""
    named = request.sources if request.mode == "evaluate" else ()
    values = {key: value for key, value in request.overrides.items() if key.removeprefix("data.") not in named}
    if values and trains(module):
        added = evaluations.names({**config, "evaluations": values.get("evaluations", config.get("evaluations", ""))})
        config = override(config, values, (*module.FREE_AFTER_TRAINING, *added))
        check_keys(readers(module, config), config)
    return config if request.mode == "plan" else fit_to_devices(config)


def override(config: ConfigTree, overrides: FlatConfig, free: Sequence[str]) -> ConfigTree:
    """Returns a run's config with the values that the command line sets.

    Args:
      config: the run's config.
      overrides: values by dotted key. A str is parsed as on the command line.
      free: the experiment's keys that may differ after training. A key includes all keys below it.
    Raises:
      UserError: for a key that may not differ.
    """
    result = copy.deepcopy(dict(config))
    known, allowed = list(dotted(config)), (*_ALWAYS, *free)
    for key, written in overrides.items():
        if not _is_below(key, allowed):
            raise UserError(
                f"config key {key}",
                got=f"{written!r}, for a trained run",
                expected="a key that may differ after training: " + ", ".join(allowed),
                fix="omit it, or train a run with it"
                if key in known
                else did_you_mean(key, (name for name in known if _is_below(name, allowed)), "correct the name"),
            )
        subtree, name = place(result, key)
        subtree[name] = _parsed(written, subtree.get(name))
    return result


def fit_to_devices(config: ConfigTree) -> ConfigTree:
    """Adapts a run's config to the current devices, which may differ from those of training.

    If the mesh does not fit, all devices go on the data axis. The batch size is rounded up to a multiple of the devices
    that rows are split over, which does not change validation metrics.
    """
    count, mesh = jax.device_count(), config["mesh"]
    try:
        sharding.check_split(config, count)
    except UserError:
        _log.info("the run's mesh %s does not fit %d device(s); rows are split over all devices", dict(mesh), count)
        mesh = {"data": -1, "fsdp": 1, "tensor": 1}
    data, fsdp, _ = sharding.mesh_shape(sharding.MeshConfig(**mesh), count)
    multiple = data * fsdp * config["accumulation_steps"]
    return {**config, "mesh": mesh, "batch_size": -(-config["batch_size"] // multiple) * multiple}


# Stage 3: init_from


def _by_experiment(request: Request, module: Experiment, config: ConfigTree, published: Published | None) -> ConfigTree:
    """Resolves the config of a new run by `Experiment.resolve`, with the settings of the weights in `init_from`.

    Settings of a run of the same experiment apply to evaluation and prediction, those of a published folder also to
    training.
    """
    if published and trains(module):
        stated = published.settings
        if published.is_run:
            is_same = published.experiment == config["experiment"] and request.mode in ("evaluate", "predict")
            stated = traverse_util.flatten_dict(published.config, sep=".") if is_same else {}
        config = with_settings(published.path, stated, config, request.overrides, module.FREE_AFTER_TRAINING)
    if request.mode in ("predict", "export"):
        config = without_sources(config)
        if added := config["data"].get("add_tokens"):
            expected, fix = "no value, because only training adds tokens", "omit it, or train a run with it"
            raise UserError("config key data.add_tokens", got=added, expected=expected, fix=fix)
    return module.resolve(config, published)


def with_settings(
    folder: Path, stated: FlatConfig, config: ConfigTree, overridden: Collection[str], free: Sequence[str]
) -> ConfigTree:
    """Returns a config with the settings of the folder in its `init_from`, and logs every difference.

    Args:
      folder: a run's folder or a published one, for messages.
      stated: its settings, by dotted key.
      config: the config of a file in `configs/` and the command line.
      overridden: the keys that the command line sets, which win. Values of `data` also win if they are set, because
        they describe the files to read.
      free: the experiment's keys that may differ after training.
    """
    result = copy.deepcopy(dict(config))
    before, values = json.loads(json.dumps(dict(stated))), _flat(json.loads(json.dumps(config)))
    for key in (key for key in values if key in before and before[key] != values[key] and _is_below(key, free)):
        if key in overridden or (key.startswith("data.") and values[key] is not None):
            _log.info("config key %s: %r; %s has %r", key, values[key], folder, before[key])
        else:
            _log.info("config key %s: %r, from %s; the config file has %r", key, before[key], folder, values[key])
            subtree, name = place(result, key)
            subtree[name] = before[key]
    return result


def is_gone(path: Path) -> bool:
    """Whether a path of weights or a vocabulary is gone. An empty folder, such as an unmounted disk, is gone too."""
    # A checkpoint of Google's may be named by its prefix; old folders of sentence-transformers have only subfolders.
    places = (path, Path(f"{path}.index"), *path.glob("*"), *path.glob("*/config.json"))
    return not any(place.is_file() for place in places)


def is_lost(config: ConfigTree) -> bool:
    """Whether a config names weights in `init_from` that are gone."""
    return bool(config.get("init_from")) and is_gone(Path(config["init_from"]))


def _record(given: ConfigTree, resolved: ConfigTree, overridden: Collection[str]) -> Record:
    """What `save_record` writes: the config before and after `init_from`, and the keys that the command line sets."""
    return {"given": _flat(given), "resolved": _flat(resolved), "overridden": sorted(overridden)}


def save_record(workdir: Path, record: Record) -> None:
    """Writes into a run's folder what `init_from` determined, so that the run can resume after that folder is gone."""
    with completed(workdir / _RECORD) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")


def _restored(workdir: Path, given: ConfigTree, overridden: Collection[str]) -> ConfigTree:
    """Resolves a config without the folder in its `init_from`.

    Args:
      workdir: the folder of a run that has begun.
      given: the config before `init_from` is resolved. A key that differs from the one that the run was started with
        has the value given here.
      overridden: the keys that the command line sets.
    Raises:
      UserError: if the run's folder does not hold what `init_from` determined.
    """
    try:
        found = json.loads((workdir / _RECORD).read_text())
        before, result = dict(found["given"]), dict(found["resolved"])
        known = set(found["overridden"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"config key init_from={given['init_from']}",
            got=f"no such folder, and no readable {_RECORD} in {workdir}",
            expected=f"the folder that the run was started from, or the {_RECORD} that the run saved",
            fix=f"restore the folder, or start another run with --config.init_from={workdir}",
        ) from error
    now, newly_set = _flat(given), set(overridden) - known
    for key in before.keys() - now.keys():
        result.pop(key, None)
    for key, value in now.items():
        if key in newly_set or key not in before or before[key] != value:
            result[key] = value
    return traverse_util.unflatten_dict(result, sep=".")


def _with_copies(config: ConfigTree, workdir: Path) -> ConfigTree:
    """The config for the data of a run. The run's folder replaces `init_from` and vocabularies that are gone."""
    data = dict(config["data"])
    for key, side in _SIDES.items():
        if data.get(key) and is_gone(Path(data[key])):
            data[key] = str(workdir / side if (workdir / side).is_dir() else workdir)
            data.pop("add_tokens", None)  # the copy has them
    return {**config, "data": data, **({"init_from": str(workdir)} if is_lost(config) else {})}


def _for_plan(config: ConfigTree) -> ConfigTree:
    """The config with the values that would be set from data or another run, as far as a plan needs them.

    Vocabulary sizes of the model default to `data.vocab_size`. An `init_from` that is not set yet is ignored.
    """
    model, data = dict(config["model"]), config["data"]
    for key in _VOCABULARIES:
        if key in model and model[key] is None and "vocab_size" in data:
            model[key] = data["vocab_size"]
    return {**config, "model": model, **({"init_from": ""} if config.get("init_from", "") is None else {})}


# Stage 4: budget


def without_length(config: ConfigTree, overridden: FlatConfig) -> ConfigTree:
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


def with_length(config: ConfigTree, done: int) -> ConfigTree:
    """Returns the config of a run with `budget.hours` that has ended after a number of updates."""
    return {**config, "num_steps": done}


def _check_hours(config: ConfigTree) -> None:
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


# Configs of evaluations and predictions


def splits_to_score(
    config: ConfigTree, sources: Mapping[str, str], *, reads_training: bool
) -> Iterator[tuple[str, ConfigTree]]:
    """Yields each split to evaluate, "valid" or "test", with a config whose validation split it is.

    Args:
      config: the config.
      sources: the files of the splits, by key (see `SOURCES`); empty to split the training data as the config says.
      reads_training: whether to keep the sources of the training data.
    """
    emptied = SOURCES if reads_training else (*SOURCES, *_TRAINING_SOURCES)
    data = _without(config["data"], emptied)
    named = [split for split in ("valid", "test") if any(key.startswith(split) for key in sources)]
    for split in named or ["valid"]:
        own = {key.replace(split, "valid", 1): path for key, path in sources.items() if key.startswith(split)}
        yield split, {**config, "data": {**data, **own}}


def with_prepared_dir(config: ConfigTree, folder: Path) -> ConfigTree:
    """Returns a config whose prepared rows are in a folder."""
    return {**config, "data": {**config["data"], "prepared_dir": str(folder)}}


def without_sources(config: ConfigTree) -> ConfigTree:
    """Returns a config without any source of rows."""
    return {**config, "data": _without(config["data"], (*SOURCES, *_TRAINING_SOURCES))}


def to_mine(config: ConfigTree) -> ConfigTree:
    """Returns a config without sources to evaluate."""
    return {**config, "data": _without(config["data"], SOURCES)}


def without_limits(config: ConfigTree, overridden: Collection[str]) -> ConfigTree:
    """Returns a config that scores all rows, except where `overridden` names a limit."""
    result = copy.deepcopy(dict(config))
    for subtree, prefix, key in ((result, "", "num_scored"), (result["data"], "data.", "valid_rows")):
        if key in subtree and prefix + key not in overridden:
            subtree[key] = 0  # no limit
    return result


def _without(data: ConfigTree, sources: Collection[str]) -> ConfigTree:
    """The subtree `data` with these sources emptied."""
    return {**data, **{key: "" for key in sources if key in data}}


def _flat(config: ConfigTree) -> FlatConfig:
    return traverse_util.flatten_dict(config, sep=".")


def place(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Returns the subtree that contains a dotted key, and the key's name in it. Raises UserError if it is a value."""
    *path, name = key.split(".")
    for part in path:
        config = config.setdefault(part, {})
        if not isinstance(config, dict):
            raise UserError(
                f"config key {key}",
                got=f"a key below {part}, which is a value",
                expected="a key that --keys lists",
                fix="correct the name",
            )
    return config, name


def _is_below(key: str, prefixes: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{prefix}.") for prefix in prefixes)


def _parsed(written: Any, before: Any) -> Any:
    """The value of a flag: a string if the key holds one, otherwise a Python literal if it parses."""
    if not isinstance(written, str) or isinstance(before, str):
        return written
    if written.lower() in ("true", "false"):
        return written.lower() == "true"
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(written)
    return written
