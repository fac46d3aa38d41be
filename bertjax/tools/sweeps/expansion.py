"""Expands a sweep into its runs: the command line and the folder of each. Equal stages of several rows share a run."""

import dataclasses
import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bertjax.errors import UserError, did_you_mean, restored
from bertjax.runs.run_folder import with_recorded, without_off
from bertjax.tools.sweeps.definition import Row, Stage, Sweep

# Makes the config from arguments of `launch.py`.
Load = Callable[[Sequence[str]], dict[str, Any]]

_WORKDIR = "{workdir}"
_DIGEST_LENGTH = 8  # the number of its characters in a folder name
_NONE: Mapping[Any, Any] = MappingProxyType({})


class Key(NamedTuple):
    """The row, stage and seed that a run belongs to."""

    row: str
    stage: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run.

    Attributes:
      folder: the run's folder.
      arguments: the arguments of `launch.py`, without --workdir.
      config: the config that they make.
      needs: the folder of the run that this one starts from, or None.
      keys: the rows, stages and seeds that the run belongs to; several if rows share it.
      metrics: the metrics that the table shows, without which the run is not finished; None if unknown.
    """

    folder: Path
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    needs: Path | None
    keys: tuple[Key, ...]
    metrics: tuple[str, ...] | None

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.folder.name

    @property
    def command(self) -> tuple[str, ...]:
        """All arguments of `launch.py`."""
        return (*self.arguments, f"--workdir={self.folder}")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The config of a stage in a row, without a seed.

    Attributes:
      stage: the stage.
      arguments: the arguments of `launch.py`: the config and its overrides.
      config: the config that they make.
      digest: a digest of the stage's name, of all values that affect the run except the seed, and of the recipe that
        it starts from.
    """

    stage: Stage
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    digest: str


Recipes = dict[tuple[str, str], Recipe]  # by row and stage
Before = Mapping[tuple[str, str], tuple[str, Any]]  # digests and configs by row and stage, as recorded in the folder


def recipes(sweep: Sweep, sets: Sequence[str], load: Load, before: Before = _NONE) -> Recipes:
    """Makes the config of each stage of each row.

    Args:
      sweep: the sweep.
      sets: "STAGE.KEY=VALUE" of the command line, for all rows; "ROW/STAGE.KEY=VALUE" for the row with that slug.
      load: makes a config from arguments of `launch.py`.
      before: the digests and configs that are recorded in the sweep's folder, by row and stage.
    Raises:
      UserError: for an unknown stage, an invalid value, or data that the user must name. The message names the row.
    """
    assignments = [_parsed(sweep, text) for text in sets]
    by_stage: Recipes = {}
    for row in sweep.rows:
        for stage in sweep.stages:
            values = _values(sweep, row, stage, assignments)
            config_file = row.configs.get(stage.name, stage.config)
            arguments = (f"--config={config_file}", *(f"--config.{key}={value}" for key, value in values.items()))
            recorded, earlier = before.get((row.name, stage.name), ("", _NONE))
            try:
                config = with_recorded(load(arguments), earlier)
            except UserError as error:
                raise in_stage(error, row, stage) from error
            needed = by_stage[row.name, stage.init_from].digest if stage.init_from else ""
            digest = _digest_of(stage.name, config, needed, _lengths(config))
            old_digest = _digest_of(stage.name, config, needed, {})  # of older code, without the epochs
            if recorded == old_digest and _lengths(config) == _lengths(earlier):
                digest = old_digest
            by_stage[row.name, stage.name] = Recipe(stage, arguments, config, digest)
    _check_needs(sweep, by_stage)
    return by_stage


def in_stage(error: UserError, row: Row, stage: Stage) -> UserError:
    """Returns an error of the config of a stage in a row. It names the flags of sweeps instead of config flags."""
    message = str(error).replace("--config.", f"--set={stage.name}.")
    return restored(message).within(f"row {row.name!r}, stage {stage.name}")


def runs(
    sweep: Sweep, recipes: Recipes, seeds: Sequence[int], first: int, workdir: Path, names: Mapping[str, str]
) -> tuple[Run, ...]:
    """Returns the runs of a sweep. Each comes after the run that it starts from.

    Args:
      sweep: the sweep.
      recipes: the configs of its stages and rows.
      seeds: the seeds.
      first: the seed of stages with one seed.
      workdir: the sweep's folder.
      names: the names of existing run folders, by `identity`.
    """
    served: dict[tuple[str, int], list[Key]] = {}
    for key in _keys(sweep, seeds, first):
        served.setdefault((recipes[key.row, key.stage].digest, key.seed), []).append(key)
    slugs = {row.name: row.slug for row in sweep.rows}
    folders: dict[Key, Path] = {}
    sweep_runs = []
    for (digest, seed), keys in served.items():
        row = keys[0].row
        stage = sweep.stage(keys[0].stage)
        recipe = recipes[row, stage.name]
        shared = len({key.row for key in keys}) > 1
        folder_name = f"{stage.name}-{digest[:_DIGEST_LENGTH]}" if shared else f"{slugs[row]}-{stage.name}"
        folder = workdir / "runs" / names.get(f"{digest}-{seed}", f"{folder_name}-seed{seed}")
        folders |= dict.fromkeys(keys, folder)
        before = None
        if stage.init_from:
            earlier = sweep.stage(stage.init_from)
            before = folders[Key(row, earlier.name, first if earlier.one_seed else seed)]
        arguments = [argument.replace(_WORKDIR, str(workdir)) for argument in recipe.arguments]
        config = {**_placed(recipe.config, str(workdir)), "seed": seed}
        if before:
            arguments.append(f"--config.init_from={before}")
            config["init_from"] = str(before)
        placed = with_shared_rows(config, workdir, folder)
        if placed != config:
            arguments.append(f"--config.data.prepared_dir={placed['data']['prepared_dir']}")
        arguments.append(f"--config.seed={seed}")
        rows = [sweep.row(key.row) for key in keys]
        of_stage = [metric for metric in sweep.metrics if metric.stage == stage.name]
        metrics = tuple(dict.fromkeys(metric.figure_of(row) for row in rows for metric in of_stage))
        sweep_runs.append(Run(folder, tuple(arguments), placed, before, tuple(keys), metrics))
    return tuple(sweep_runs)


def with_shared_rows(config: Mapping[str, Any], workdir: Path, folder: Path) -> dict[str, Any]:
    """Returns a run's config with a folder for prepared rows that all runs share, unless the config names one.

    Args:
      config: the config.
      workdir: the folder of all runs.
      folder: the run's folder. A run with its own prepared rows keeps them.
    """
    data = config.get("data", _NONE)
    if data.get("prepared_dir") != "" or next((folder / "data").glob("*/manifest.json"), None):
        return dict(config)
    return {**config, "data": {**data, "prepared_dir": str((workdir / "prepared").absolute())}}


def run_of(runs: Sequence[Run], row: str, stage: str, seed: int) -> Run:
    """Returns the run of a row, stage and seed; for a stage with one seed, its only run."""
    seeds = [key.seed for run in runs for key in run.keys if key.stage == stage]
    key = Key(row, stage, seed if seed in seeds else seeds[0])
    return next(run for run in runs if key in run.keys)


def identity(recipe: Recipe, seed: int) -> str:
    """Returns a key for the contents of a run's folder, independent of the folder's name."""
    return f"{recipe.digest}-{seed}"


def _keys(sweep: Sweep, seeds: Sequence[int], first: int) -> Iterator[Key]:
    for stage in sweep.stages:
        for row in sweep.rows:
            for seed in (first,) if stage.one_seed else seeds:
                yield Key(row.name, stage.name, seed)


class _Set(NamedTuple):
    """A value that the command line sets, for all rows if `row` is ""."""

    row: str
    pattern: str
    key: str
    value: str


def _parsed(sweep: Sweep, text: str) -> _Set:
    """Parses "[ROW/]STAGE.KEY=VALUE"."""
    name, equals, value = text.partition("=")
    row, _, rest = name.rpartition("/")
    pattern, _, key = rest.partition(".")
    if not (equals and key):
        fix = "write --set=pretrain.data.source=FILE"
        raise UserError(
            f"--set={text}",
            got="no stage or no key" if equals else "no value",
            expected="STAGE.KEY=VALUE, or ROW/STAGE.KEY=VALUE",
            fix=fix,
        )
    _check_pattern(pattern, [stage.name for stage in sweep.stages], f"--set={text}")
    if row:
        _check_pattern(row, [row.slug for row in sweep.rows], f"--set={text}")
    return _Set(row, pattern, key, value)


def _check_pattern(pattern: str, names: Sequence[str], where: str) -> None:
    if not fnmatch.filter(names, pattern):
        expected = "one of " + ", ".join(names) + ", or a pattern such as *"
        fix = did_you_mean(pattern, names, "correct the name")
        raise UserError(where, got=repr(pattern), expected=expected, fix=fix)


def _values(sweep: Sweep, row: Row, stage: Stage, assignments: Sequence[_Set]) -> dict[str, str]:
    """Returns the values set for a stage of a row by the sweep file or the user, as text for `launch.py`.

    The user cannot set a key for all rows that the row sets, because that would be a different ablation.
    """
    values = {key: _text(value, f"stage {stage.name!r}: {key}") for key, value in stage.overrides.items()}
    by_user = [one for one in assignments if fnmatch.fnmatchcase(stage.name, one.pattern)]
    for_all = {one.key: one.value for one in by_user if not one.row}
    for_row = {one.key: one.value for one in by_user if one.row and fnmatch.fnmatchcase(row.slug, one.row)}
    values |= for_all
    for name, value in row.overrides.items():
        pattern, _, key = name.partition(".")
        where = f"row {row.name!r}: {name}"
        _check_pattern(pattern, [stage.name for stage in sweep.stages], where)
        if not fnmatch.fnmatchcase(stage.name, pattern):
            continue
        if key in for_all and value != "":  # "" marks a value that the user must set for this row
            raise UserError(
                f"--set={stage.name}.{key}",
                got=f"a value for all rows, and one in row {row.name!r}",
                expected="keys that no row sets",
                fix=f"omit it, or set {row.slug}/{stage.name}.{key} for that row only",
            )
        values[key] = _text(value, where)
    values |= for_row
    for key in ("seed", *(["init_from"] if stage.init_from else [])):
        if key in values:
            got = f"the key {key} of stage {stage.name}"
            expected = "a key that the sweep does not set itself"
            fix = "set seeds with --seeds, and init_from of a stage in the file"
            raise UserError(f"row {row.name!r}", got=got, expected=expected, fix=fix)
    return values


def _text(value: Any, where: str) -> str:
    """Returns a value in the form of a flag."""
    if value is None or isinstance(value, Mapping):
        expected = "a value that can be written as a flag"
        raise UserError(where, got=repr(value), expected=expected, fix="set its keys one by one, or use another config")
    return value if isinstance(value, str) else repr(tuple(value) if isinstance(value, list) else value)


def _digest_of(stage: str, config: Mapping[str, Any], before: str, lengths: Mapping[str, Any]) -> str:
    # The seed is excluded. Averaging of checkpoints and early stopping affect the metrics, so they are included. Keys
    # that are off are left out, as in `run_folder.differences`: sweeps from before a key was added keep their digests.
    on = without_off(config)
    if config.get("evaluate_patience"):
        on |= {key: config[key] for key in ("evaluate_patience", "evaluate_every")}
    if "attention_backend" in config.get("model", _NONE):
        on["model.attention_backend"] = "xla"  # the default when this key was part of every digest
    parts = {**on, **lengths, "checkpoint": config.get("checkpoint"), "seed": None}
    return hashlib.sha256(json.dumps([stage, parts, before], sort_keys=True).encode()).hexdigest()


def _lengths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys that determine lengths of a fine-tuning config, if these lengths depend on the rows."""
    warmup = config.get("optimizer", _NONE).get("warmup_steps", 0)
    is_open = {"num_epochs": config.get("num_steps", 0) is None, "warmup_fraction": warmup is None}
    return {key: config.get(key) for key in is_open if is_open[key]}


def _placed(value: Any, workdir: str) -> Any:
    """Returns a tree of values with the sweep's folder in place of "{workdir}"."""
    if isinstance(value, Mapping):
        return {key: _placed(part, workdir) for key, part in value.items()}
    return value.replace(_WORKDIR, workdir) if isinstance(value, str) else value


def _check_needs(sweep: Sweep, by_stage: Recipes) -> None:
    """Raises UserError if a value that the user must set is missing."""
    missing: dict[str, str] = {}
    for name, what in sweep.needs.items():
        stage, *path = name.split(".")
        without = [row for row in sweep.rows if _at(by_stage[row.name, stage].config, path) in (None, "", [])]
        alike = [row for row in sweep.rows if not _sets(row, stage, ".".join(path))]
        if alike and all(row in without for row in alike):
            missing[name] = what
            without = [row for row in without if row not in alike]
        missing |= {f"{row.slug}/{name}": f"{what} of row {row.name!r}" for row in without}
    if missing:
        raise UserError(
            "the sweep's data",
            got="no " + ", ".join(missing),
            expected="; ".join(f"{name}: {what}" for name, what in missing.items()),
            fix="add " + " ".join(f"--set={name}=PATH" for name in missing),
        )


def _sets(row: Row, stage: str, key: str) -> bool:
    """Returns whether a row overrides a key, possibly with "", which the user must replace."""
    names = (name.partition(".") for name in row.overrides)
    return any(fnmatch.fnmatchcase(stage, pattern) and of == key for pattern, _, of in names)


def _at(config: Any, path: Sequence[str]) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config
