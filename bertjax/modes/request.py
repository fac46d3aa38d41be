"""What a command line requests, and how it ends."""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.modes import overrides
from bertjax.runs import run_folder

_NEW = ("train", "prepare", "check")  # modes that begin with a config; the others may read a run's


class Outcome(enum.Enum):
    """How it ended, as an exit status."""

    DONE = 0
    FAILED = 1  # a check that says no
    STOPPED = 75  # by SIGTERM; the same command goes on. EX_TEMPFAIL of sysexits.h


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
      mode: train, evaluate, predict, export, prepare, check, report or plan.
      workdir: the run's folder; "" for none.
      input: a file to predict on; "-" for standard input.
      output: a file for predictions, scores or a verdict, "-" for standard output; or a folder to export to.
        Predictions are in the field's official form, where it has one, if the name ends in .json; and in a folder, for
        a task that writes folders, if there is one of that name or the name ends in a slash.
      format: of other predictions: "jsonl", a record a line; "text", a text a line; "html", a page. If it is "", the
        output's name may end in .jsonl or .html, and otherwise it is text if that is what the task makes.
      checkpoint: see `checkpoints.restore_params`; to evaluate, "each:" before that of several.
      draw: draws what the parts of an example looked at, which is given with the example's number from 1 on, or a plan,
        which is all that it is given; None for no pictures.
      render: makes the parts of a page of records.
      report: writes the page of a folder and says where it is; None for no pages but in mode "report".
      program: the path of `launch.py`, or of the console command `bertjax`.
      overrides: the config keys that the command line sets, by dotted name. Without --config, values as written.
      started: how: "command", a list of words, and "defaults", the config without what the command line sets.
      topology: the slice to plan for, such as "v5e:16x16".
      plan_search: whether to look for a mesh, micro-batches and rematerialization that fit it best.
      profile: the first and the last update to trace, "100:110"; "" for none.
    """

    mode: str
    workdir: str = ""
    input: str = "-"
    output: str = "-"
    format: str = ""
    checkpoint: str = "final"
    draw: Callable[..., None] | None = None
    render: Callable[[Iterator[Mapping[str, Any]]], Iterator[str]] | None = None
    report: Callable[[Path], Path] | None = None
    program: Path = Path("launch.py")
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    started: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    topology: str = ""
    plan_search: bool = False
    profile: str = ""

    @property
    def run(self) -> Path | None:
        """The folder in `workdir`, if there is one."""
        return Path(self.workdir) if self.workdir else None

    @property
    def sources(self) -> dict[str, Any]:
        """The splits to evaluate that the command line names, by key of `data`."""
        named = {key.removeprefix("data."): path for key, path in self.overrides.items() if key.startswith("data.")}
        return {key: path for key, path in named.items() if key in overrides.SOURCES}


def command(program: Path, arguments: Iterable[str]) -> list[str]:
    """Returns the words of a command line, `python launch.py ...` or, of an installed package, `bertjax ...`."""
    start = ["python", str(program)] if program.suffix == ".py" else [program.name]
    return [*start, *arguments]


def config_of(request: Request, given: dict[str, Any] | None) -> dict[str, Any]:
    """The given config, or that of the run in `workdir`. Raises UserError if flags are missing or contradict."""
    is_new = request.mode in _NEW or not request.workdir
    if is_new == (given is None):
        raise UserError(
            "--config",
            got="none" if is_new else "one beside the run's own",
            expected="a file of configs/ to train with, or --workdir of a run, whose config is read from it",
            fix="add --config=configs/bert_pretraining.py:tiny"
            if is_new
            else "leave out --config; --config.KEY=VALUE without it sets keys that may differ after training",
        )
    if request.mode in _NEW and not request.workdir:
        raise UserError("--workdir", got="none", expected="a folder for the run", fix="add --workdir=runs/NAME")
    if request.mode == "export" and request.output == "-":
        raise UserError("--output", got="none", expected="a folder to export to", fix="add --output=FOLDER")
    if request.output.endswith(".gz"):
        expected, fix = "an uncompressed file", "leave off .gz, and compress the file afterwards"
        raise UserError("--output", got=request.output, expected=expected, fix=fix)
    if request.checkpoint.startswith("each:") and request.mode != "evaluate":
        expected, fix = "each: with --mode=evaluate alone", "leave it out: last:3 is the mean of three checkpoints"
        raise UserError("--checkpoint", got=request.checkpoint, expected=expected, fix=fix)
    config = run_folder.load_config(Path(request.workdir)) if given is None else given
    if not request.workdir and request.mode != "plan" and not config.get("init_from"):
        fix = "add --workdir=RUN or --config.init_from=FOLDER"
        raise UserError("--workdir", got="none, and no init_from", expected="a run or published weights", fix=fix)
    return config
