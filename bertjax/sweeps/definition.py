"""What a file of `configs/sweeps/` says: a published ablation table as stages, rows and figures."""

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertjax.config import Constrained, build, one_of
from bertjax.errors import UserError, did_you_mean
from bertjax.files import with_packaged

FORMS = ("plain", "percent", "exponential")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run that every row has.

    Attributes:
      name: in lower case, such as "pretrain".
      config: a config file of `configs/`, with its variant behind a colon.
      init_from: the stage whose run this one begins with, or "".
      overrides: values by the config's dotted keys, for all rows; "{workdir}" in one stands for the sweep's folder.
      one_seed: whether it is run with the first seed only, as pretraining that many seeds of fine-tuning go on from.
    """

    name: str
    config: str
    init_from: str
    overrides: Mapping[str, Any]
    one_seed: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
      name: as the table has it.
      configs: other config files, by the names of stages.
      overrides: what is different in this row, by "STAGE.KEY"; the stage may be a pattern, such as "pretrain*".
      paper: published figures, by the names of metrics.
    """

    name: str
    configs: Mapping[str, str]
    overrides: Mapping[str, Any]
    paper: Mapping[str, float]

    @property
    def slug(self) -> str:
        """The name as a part of a folder's name: in ASCII, unless nothing of it is."""
        name = self.name.lower()
        return re.sub(r"[^a-z0-9.]+", "-", name).strip("-.") or re.sub(r"[^\w.]+", "-", name).strip("-.")


@dataclasses.dataclass(frozen=True)
class Metric(Constrained, prefix="metrics"):
    """A column of the table.

    Attributes:
      name: its heading.
      stage: whose runs wrote it.
      figure: its name in `metrics.jsonl`: "valid/..." of the best checkpoint, or of the last evaluation where nothing
        tells the best; "test/..." of the end of the run.
      form: "plain"; "percent" of a figure between 0 and 1; "exponential" of a loss, which makes it a perplexity.
      direction: whether the "max" or the "min" is best.
      digits: behind the point.
    """

    name: str
    stage: str
    figure: str
    form: Annotated[str, one_of(*FORMS)]
    direction: Annotated[str, one_of("max", "min")]
    digits: int


@dataclasses.dataclass(frozen=True)
class Sweep:
    """An ablation.

    Attributes:
      stages: the runs of each row, in order.
      rows: the lines of the table.
      base: the row that the others are compared with.
      seeds: each row is run with each of them.
      metrics: the columns of the table.
      source: where the published figures are from, and what they are.
      needs: what the user has to name, by "STAGE.KEY", in words.
    """

    stages: tuple[Stage, ...]
    rows: tuple[Row, ...]
    base: str
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    source: str
    needs: Mapping[str, str]

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)


def load(spec: str) -> Sweep:
    """Reads a sweep from a file with `get_sweep`.

    Args:
      spec: the file, with a variant behind a colon; see `files.with_packaged`.
    Raises:
      UserError: no such file or variant, or one that makes no sense.
    """
    name, _, variant = spec.partition(":")
    name = with_packaged(name)
    try:
        found = importlib.util.spec_from_file_location("sweep", name)
        if not found or not found.loader or not Path(name).exists():
            raise FileNotFoundError(f"no file {name} of Python")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        values = module.get_sweep(variant)
    except UserError as error:
        raise error.within(f"--sweep={spec}") from error
    except Exception as error:  # the file's code can raise any exception
        fix = "correct the path, the variant or the file"
        if isinstance(error, FileNotFoundError):
            fix = did_you_mean(Path(name).stem, _names(), fix, form="configs/sweeps/{}.py")
        raise UserError(
            f"--sweep={spec}",
            got=f"{type(error).__name__}: {error}",
            expected="a file such as configs/sweeps/bert_masking.py, and a variant that it has",
            fix=fix,
        ) from error
    sweep = build(Sweep, values, "sweep")
    _check(sweep)
    return sweep


def _names() -> list[str]:
    """Returns the names of the files in `configs/sweeps/`."""
    return [path.stem for path in Path(__file__).parents[1].glob("configs/sweeps/*.py")]


def _check(sweep: Sweep) -> None:
    """Raises UserError for values that are right each on its own, but not together."""
    stages = [stage.name for stage in sweep.stages]
    rows, metrics = [row.name for row in sweep.rows], [metric.name for metric in sweep.metrics]
    for what, names in (("stages", stages), ("rows", [row.slug for row in sweep.rows]), ("metrics", metrics)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            expected = f"one or more {what}, each of a name of its own"
            raise _wrong(what, f"two named {twice[0]!r}" if twice else "none", expected, "rename one")
    for number, stage in enumerate(sweep.stages):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", stage.name):
            raise _wrong(f"stage {stage.name!r}", "this name", "lower-case letters, digits and _", "rename it")
        if stage.init_from:
            _check_name(f"stage {stage.name!r}: init_from", stage.init_from, stages[:number])
    _check_name("base", sweep.base, rows)
    for row in sweep.rows:
        for name in row.configs:
            _check_name(f"row {row.name!r}: configs", name, stages)
        for name in row.paper:
            _check_name(f"row {row.name!r}: paper", name, metrics)
    for metric in sweep.metrics:
        _check_name(f"metric {metric.name!r}: stage", metric.stage, stages)
        if not metric.figure.startswith(("valid/", "test/")):
            raise _wrong(f"metric {metric.name!r}", repr(metric.figure), '"valid/..." or "test/..."', "correct it")
    for key in sweep.needs:
        _check_name("needs", key.partition(".")[0], stages)
    if not sweep.seeds or len(set(sweep.seeds)) < len(sweep.seeds):
        raise _wrong("seeds", sweep.seeds, "one or more, each once", "correct the list")


def _check_name(where: str, name: str, names: list[str]) -> None:
    if name not in names:
        fix = did_you_mean(name, names, "correct the name")
        raise _wrong(where, repr(name), "one of " + ", ".join(names) if names else "none here", fix)


def _wrong(what: str, got: object, expected: str, fix: str) -> UserError:
    return UserError(f"sweep: {what}", got=got, expected=expected, fix=fix)
