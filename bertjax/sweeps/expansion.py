"""A sweep as the list of its runs: each with its command line and its folder, and what equal ones share."""

import dataclasses
import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bertjax.errors import UserError, did_you_mean
from bertjax.runs.run_folder import lasting
from bertjax.sweeps.definition import Row, Stage, Sweep

# Of the arguments of `launch.py`, the config.
Load = Callable[[Sequence[str]], dict[str, Any]]

_WORKDIR = "{workdir}"
_DIGEST = 8  # characters of it in a folder's name
_NONE: Mapping[Any, Any] = MappingProxyType({})
# Keys of `data` that once had a value in the config files, and now follow from the model where they are not set.
_NOW_UNSET = ("seq_len", "window_overlap")


class Key(NamedTuple):
    """What a run is for."""

    row: str
    stage: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
      folder: its own.
      arguments: of `launch.py`, without --workdir.
      config: that they make.
      needs: the folder of the run that it begins with, or None.
      keys: what it is for; several where rows have it in common.
      figures: names in its metrics that the table shows; None if nobody knows what it has when it is finished.
    """

    folder: Path
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    needs: Path | None
    keys: tuple[Key, ...]
    figures: tuple[str, ...] | None

    @property
    def name(self) -> str:
        """That of its folder."""
        return self.folder.name

    @property
    def command(self) -> tuple[str, ...]:
        """All arguments of `launch.py`."""
        return (*self.arguments, f"--workdir={self.folder}")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A stage of a row, before it has a seed.

    Attributes:
      stage: which.
      arguments: of `launch.py`: the config and the values that are set.
      config: that they make.
      content: digest of the stage's name, of what determines the run but for its seed, and of the run before.
    """

    stage: Stage
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    content: str


Recipes = dict[tuple[str, str], Recipe]  # of a sweep, by row and stage
Before = Mapping[tuple[str, str], tuple[str, Any]]  # contents and configs of an earlier one


def recipes(sweep: Sweep, sets: Sequence[str], load: Load, before: Before = _NONE) -> Recipes:
    """The config of each stage of each row.

    Args:
      sweep: what is to be run.
      sets: "STAGE.KEY=VALUE" of the command line, for all rows; "ROW/STAGE.KEY=VALUE" for one, by its slug.
      load: makes a config.
      before: contents and configs that the sweep's folder was started with, by row and stage.
    Raises:
      UserError: a stage or a value that does not exist; data that the user has to name; names the row.
    """
    given = [_parsed(sweep, text) for text in sets]
    found: Recipes = {}
    for row in sweep.rows:
        for stage in sweep.stages:
            values = _values(sweep, row, stage, given)
            config = row.configs.get(stage.name, stage.config)
            arguments = (f"--config={config}", *(f"--config.{key}={value}" for key, value in values.items()))
            recorded, earlier = before.get((row.name, stage.name), ("", _NONE))
            try:
                made = _as_begun(load(arguments), earlier)
            except UserError as error:
                raise error.within(f"row {row.name!r}, stage {stage.name}") from error
            needed = found[row.name, stage.init_from].content if stage.init_from else ""
            content = _content(stage.name, made, needed, _lengths(made))
            if _lengths(made) == _lengths(earlier) and recorded == (old := _content(stage.name, made, needed, {})):
                content = old  # of a folder from before epochs counted
            found[row.name, stage.name] = Recipe(stage, arguments, made, content)
    _check_needs(sweep, found)
    return found


def runs(
    sweep: Sweep, recipes: Recipes, seeds: Sequence[int], first: int, workdir: Path, names: Mapping[str, str]
) -> tuple[Run, ...]:
    """The runs of a sweep, each after the one that it begins with.

    Args:
      sweep: what is to be run.
      recipes: of its rows.
      seeds: with each of which.
      first: that of stages of one seed.
      workdir: the sweep's folder.
      names: of folders that have been given before, by what they hold.
    """
    served: dict[tuple[str, int], list[Key]] = {}
    for key in _keys(sweep, seeds, first):
        served.setdefault((recipes[key.row, key.stage].content, key.seed), []).append(key)
    slugs = {row.name: row.slug for row in sweep.rows}
    folders: dict[Key, Path] = {}
    found = []
    for (content, seed), keys in served.items():
        row, stage = keys[0].row, sweep.stage(keys[0].stage)
        recipe = recipes[row, stage.name]
        shared = len({key.row for key in keys}) > 1
        own = f"{stage.name}-{content[:_DIGEST]}" if shared else f"{slugs[row]}-{stage.name}"
        folder = workdir / "runs" / names.get(f"{content}-{seed}", f"{own}-seed{seed}")
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
        figures = tuple(metric.figure for metric in sweep.metrics if metric.stage == stage.name)
        found.append(Run(folder, tuple(arguments), placed, before, tuple(keys), figures))
    return tuple(found)


def with_shared_rows(config: Mapping[str, Any], workdir: Path, folder: Path) -> dict[str, Any]:
    """Returns a run's config with a place for prepared rows that all runs share, unless it states one.

    Args:
      config: the config.
      workdir: the folder of all runs.
      folder: the run's folder. A run that has prepared its own rows keeps them.
    """
    data = config.get("data", _NONE)
    if data.get("prepared_dir") != "" or next((folder / "data").glob("*/manifest.json"), None):
        return dict(config)
    return {**config, "data": {**data, "prepared_dir": str((workdir / "prepared").absolute())}}


def run_of(runs: Sequence[Run], row: str, stage: str, seed: int) -> Run:
    """The run that a figure of a row is from; of a stage of one seed the same for all."""
    seeds = [key.seed for run in runs for key in run.keys if key.stage == stage]
    key = Key(row, stage, seed if seed in seeds else seeds[0])
    return next(run for run in runs if key in run.keys)


def identity(recipe: Recipe, seed: int) -> str:
    """What a run's folder holds, whatever its name."""
    return f"{recipe.content}-{seed}"


def _keys(sweep: Sweep, seeds: Sequence[int], first: int) -> Iterator[Key]:
    for stage in sweep.stages:
        for row in sweep.rows:
            for seed in (first,) if stage.one_seed else seeds:
                yield Key(row.name, stage.name, seed)


class _Set(NamedTuple):
    """A value of the command line; for all rows if `row` is ""."""

    row: str
    pattern: str
    key: str
    value: str


def _parsed(sweep: Sweep, text: str) -> _Set:
    """What "[ROW/]STAGE.KEY=VALUE" says."""
    name, equals, value = text.partition("=")
    row, _, rest = name.rpartition("/")
    pattern, _, key = rest.partition(".")
    if not (equals and key):
        fix = "write --set=pretrain.data.source=FILE"
        raise UserError(f"--set={text}", got="this", expected="STAGE.KEY=VALUE, or ROW/STAGE.KEY=VALUE", fix=fix)
    _check_pattern(pattern, [stage.name for stage in sweep.stages], f"--set={text}")
    if row:
        _check_pattern(row, [row.slug for row in sweep.rows], f"--set={text}")
    return _Set(row, pattern, key, value)


def _check_pattern(pattern: str, names: Sequence[str], where: str) -> None:
    if not fnmatch.filter(names, pattern):
        expected = "one of " + ", ".join(names) + ", or a pattern such as *"
        fix = did_you_mean(pattern, names, "correct the name")
        raise UserError(where, got=repr(pattern), expected=expected, fix=fix)


def _values(sweep: Sweep, row: Row, stage: Stage, given: Sequence[_Set]) -> dict[str, str]:
    """What is set in a stage of a row: by the file, for all rows or this one, or by the user; as `launch.py` takes it.

    A key that the row sets is not the user's to set for all rows, as that would be another ablation.
    """
    values = {key: _text(value, f"stage {stage.name!r}: {key}") for key, value in stage.overrides.items()}
    by_user = [one for one in given if fnmatch.fnmatchcase(stage.name, one.pattern)]
    for_all = {one.key: one.value for one in by_user if not one.row}
    own = {one.key: one.value for one in by_user if one.row and fnmatch.fnmatchcase(row.slug, one.row)}
    values |= for_all
    for name, value in row.overrides.items():
        pattern, _, key = name.partition(".")
        where = f"row {row.name!r}: {name}"
        _check_pattern(pattern, [stage.name for stage in sweep.stages], where)
        if not fnmatch.fnmatchcase(stage.name, pattern):
            continue
        if key in for_all and value != "":  # which is for the user to name for this row
            raise UserError(
                f"--set={stage.name}.{key}",
                got=f"a value for all rows beside that of row {row.name!r}",
                expected="keys that no row sets",
                fix=f"leave it out, or set {row.slug}/{stage.name}.{key} for that row alone",
            )
        values[key] = _text(value, where)
    values |= own
    for key in ("seed", *(["init_from"] if stage.init_from else [])):
        if key in values:
            got, expected = f"the key {key} of stage {stage.name}", "a key that the sweep does not set itself"
            fix = "set seeds by --seeds, and what a stage begins with in the file"
            raise UserError(f"row {row.name!r}", got=got, expected=expected, fix=fix)
    return values


def _text(value: Any, where: str) -> str:
    """A value as a flag has it."""
    if value is None or isinstance(value, Mapping):
        expected = "a value that a flag can have"
        raise UserError(where, got=repr(value), expected=expected, fix="set its parts, or name another config")
    return value if isinstance(value, str) else repr(tuple(value) if isinstance(value, list) else value)


def _as_begun(config: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the values of an earlier one where a key has none now."""
    data, earlier = config.get("data", _NONE), before.get("data", _NONE)
    values = {key: earlier[key] for key in _NOW_UNSET if key in earlier and key in data and data[key] is None}
    return {**config, "data": {**data, **values}} if values else config


def _content(stage: str, config: Mapping[str, Any], before: str, lengths: Mapping[str, Any]) -> str:
    # Seeds are apart from it; where checkpoints are averaged, that changes the figures. A key that came later is off in
    # sweeps that were begun before: what is off is left out, as in `run_folder.differences`.
    on = {key: value for key, value in lasting(config).items() if value or value is None}
    parts = {**on, **lengths, "checkpoint": config.get("checkpoint"), "seed": None}
    return hashlib.sha256(json.dumps([stage, parts, before], sort_keys=True).encode()).hexdigest()


def _lengths(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that determine open values of a fine-tuning config, together with its rows."""
    warmup = config.get("optimizer", _NONE).get("warmup_steps", 0)
    is_open = {"num_epochs": config.get("num_steps", 0) is None, "warmup_fraction": warmup is None}
    return {key: config.get(key) for key in is_open if is_open[key]}


def _placed(value: Any, workdir: str) -> Any:
    """A tree of values with the folder in the places that are left for it."""
    if isinstance(value, Mapping):
        return {key: _placed(part, workdir) for key, part in value.items()}
    return value.replace(_WORKDIR, workdir) if isinstance(value, str) else value


def _check_needs(sweep: Sweep, found: Recipes) -> None:
    """Raises UserError unless everything has been named that the user has to name."""
    missing: dict[str, str] = {}
    for name, what in sweep.needs.items():
        stage, *path = name.split(".")
        without = [row for row in sweep.rows if _at(found[row.name, stage].config, path) in (None, "", [])]
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
    """Whether a row has its own value of a key, which may be one for the user to name."""
    names = (name.partition(".") for name in row.overrides)
    return any(fnmatch.fnmatchcase(stage, pattern) and of == key for pattern, _, of in names)


def _at(config: Any, path: Sequence[str]) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config
