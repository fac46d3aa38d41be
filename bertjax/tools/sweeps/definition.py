"""The dataclasses of a sweep file in `configs/sweeps/`: a published ablation table as stages, rows and metrics."""

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertjax.config import Constrained, build, one_of
from bertjax.errors import UserError, did_you_mean, of_code, restored
from bertjax.files import with_packaged
from bertjax.tools.reporting import titles

FORMS = ("plain", "percent", "exponential", "milliseconds")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run that every row has.

    Attributes:
      name: in lower case, such as "pretrain".
      config: a config file of `configs/`, with a variant after a colon.
      init_from: the stage whose run this stage starts from, or "".
      overrides: values for all rows, by the config's dotted keys; "{workdir}" in a value stands for the sweep's folder.
      one_seed: whether it runs with the first seed only, such as a pretraining that all seeds of fine-tuning share.
    """

    name: str
    config: str
    init_from: str
    overrides: Mapping[str, Any]
    one_seed: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
      name: the name in the table.
      configs: config files that replace those of stages, by the names of stages.
      overrides: values for this row, by "STAGE.KEY"; the stage may be a pattern, such as "pretrain*".
      paper: published scores, by the names of metrics.
      baseline: the baseline of its run whose metrics the row shows, such as "lead" for "test/lead_rouge1" where others
        show "test/rouge1"; "" for those of the model.
    """

    name: str
    configs: Mapping[str, str]
    overrides: Mapping[str, Any]
    paper: Mapping[str, float]
    baseline: str = ""

    @property
    def slug(self) -> str:
        """The name as part of a folder name: in ASCII, unless it has no ASCII letters and digits."""
        name = self.name.lower()
        return re.sub(r"[^a-z0-9.]+", "-", name).strip("-.") or re.sub(r"[^\w.]+", "-", name).strip("-.")


@dataclasses.dataclass(frozen=True)
class Metric(Constrained, prefix="metrics"):
    """A column of the table.

    Attributes:
      name: the heading.
      stage: the stage whose runs have the metric.
      figure: the metric in `metrics.jsonl`: "valid/..." at the best checkpoint, or at the last evaluation if no metric
        selects the best; "test/..." at the end of the run; "train/..." the median over the log lines of the run.
      form: "plain"; "percent" for a metric between 0 and 1; "exponential" for a loss, to show a perplexity;
        "milliseconds" for seconds.
      direction: "max" if higher is better, "min" if lower is better; "" to infer it from the metric's name.
      digits: the number of decimals.
    """

    name: str
    stage: str
    figure: str
    form: Annotated[str, one_of(*FORMS)]
    direction: Annotated[str, one_of("max", "min", "")]
    digits: int

    @property
    def is_lower_better(self) -> bool:
        """Whether the lowest value of the column is the best."""
        return (self.direction or titles.direction(self.figure)) in ("min", "lower")

    def figure_of(self, row: Row) -> str:
        """Returns the metric in `metrics.jsonl` that a row shows."""
        split, _, name = self.figure.partition("/")
        return f"{split}/{row.baseline}_{name}" if row.baseline else self.figure


@dataclasses.dataclass(frozen=True)
class Sweep:
    """An ablation.

    Attributes:
      stages: the runs of each row, in order.
      rows: the rows of the table.
      base: the row that the others are compared with.
      seeds: the seeds; each row runs with all of them.
      metrics: the columns of the table.
      needs: descriptions of the values that the user must set, by "STAGE.KEY".
      source: the source and the setting of the published scores; "" without published scores.
      cost: the metric against which the page draws the others, such as the time of a text; "" for no chart.
    """

    stages: tuple[Stage, ...]
    rows: tuple[Row, ...]
    base: str
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    needs: Mapping[str, str]
    source: str = ""
    cost: str = ""

    def stage(self, name: str) -> Stage:
        """Returns the stage with a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def row(self, name: str) -> Row:
        """Returns the row with a name."""
        return next(row for row in self.rows if row.name == name)


def load(spec: str) -> Sweep:
    """Reads a sweep with the `get_sweep` function of a file.

    Args:
      spec: the file, with a variant after a colon; see `files.with_packaged`.
    Raises:
      UserError: if the file or the variant does not exist, or the sweep is invalid.
    """
    name, _, variant = spec.partition(":")
    name = with_packaged(name)
    try:
        module_spec = importlib.util.spec_from_file_location("sweep", name)
        if not module_spec or not module_spec.loader or not Path(name).exists():
            raise FileNotFoundError(f"no Python file {name}")
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        values = module.get_sweep(variant)
        if not isinstance(values, Mapping):
            raise TypeError(f"get_sweep returns {type(values).__name__}, not a dict")
    except UserError as error:
        raise error.within(f"--sweep={spec}") from error
    except Exception as error:  # the file's code can raise any exception
        fix = "correct the path, the variant or the file"
        if isinstance(error, FileNotFoundError):
            fix = did_you_mean(Path(name).stem, _names(), fix, form="configs/sweeps/{}.py")
        raise UserError(
            f"--sweep={spec}",
            got=of_code(error, name),
            expected="a Python file such as configs/sweeps/bert_masking.py, and one of its variants",
            fix=fix,
        ) from error
    try:
        sweep = build(Sweep, values)
    except UserError as error:
        raise _of_file(error).within(f"--sweep={spec}") from error
    _check(sweep)
    return sweep


def _of_file(error: UserError) -> UserError:
    """Returns the error with keys of the sweep file instead of config keys and flags."""
    message = str(error).replace("config key ", "sweep key ").replace("--config.", "")
    return restored(message.replace("a key that --keys lists", "a key of a sweep file"))


def _names() -> list[str]:
    """Returns the names of the files in `configs/sweeps/`."""
    return [path.stem for path in Path(__file__).parents[2].glob("configs/sweeps/*.py")]


def _check(sweep: Sweep) -> None:
    """Raises UserError for values that are valid one by one, but contradict each other."""
    stages = [stage.name for stage in sweep.stages]
    rows = [row.name for row in sweep.rows]
    metrics = [metric.name for metric in sweep.metrics]
    for what, names in (("stages", stages), ("rows", [row.slug for row in sweep.rows]), ("metrics", metrics)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            expected = f"one or more {what} with different names"
            raise _wrong(what, f"two named {twice[0]!r}" if twice else "none", expected, "rename one")
    for number, stage in enumerate(sweep.stages):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", stage.name):
            raise _wrong(f"stage {stage.name!r}", "an invalid name", "lower-case letters, digits and _", "rename it")
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
        if not metric.figure.startswith(("valid/", "test/", "train/")):
            expected = '"valid/...", "test/..." or "train/..."'
            raise _wrong(f"metric {metric.name!r}", repr(metric.figure), expected, "correct it")
    if sweep.cost:
        _check_name("cost", sweep.cost, metrics)
    for key in sweep.needs:
        _check_name("needs", key.partition(".")[0], stages)
    if not sweep.seeds or len(set(sweep.seeds)) < len(sweep.seeds):
        raise _wrong("seeds", sweep.seeds, "one or more different seeds", "correct the list")


def _check_name(where: str, name: str, names: list[str]) -> None:
    if name not in names:
        fix = did_you_mean(name, names, "correct the name")
        raise _wrong(
            where,
            repr(name),
            "one of " + ", ".join(names) if names else "no name, because there are none to choose from",
            fix,
        )


def _wrong(what: str, got: object, expected: str, fix: str) -> UserError:
    return UserError(f"sweep: {what}", got=got, expected=expected, fix=fix)
