"""The request of a command line, and its outcome."""

import contextlib
import dataclasses
import enum
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertjax.contract import ConfigTree, FlatConfig, Record
from bertjax.errors import UserError
from bertjax.runs import run_folder

# Keys of `data` that name the splits to evaluate.
SOURCES = ("valid_source", "valid_target", "test_source", "test_target")
_NEW = ("train", "prepare", "check")  # modes that need --config; the others can read the config of a run


class Outcome(enum.Enum):
    """The exit status."""

    DONE = 0
    FAILED = 1  # a check or a plan with a negative result
    STOPPED = 75  # by SIGTERM or Ctrl-C; the same command resumes. EX_TEMPFAIL of sysexits.h


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a command line.

    Attributes:
      mode: train, evaluate, predict, mine, export, prepare, check, report or plan.
      workdir: the run's folder; "" for none.
      input: a file to predict on; "-" for standard input.
      output: a file for predictions, metrics or a verdict, "-" for standard output, or a folder to export to. If it
        ends in .json, predictions have the official format of the task, if there is one. If it is a folder or ends in a
        slash, tasks that write folders write one.
      format: the format of other predictions: "jsonl", a record per line; "csv" and "tsv", a row per record; "text", a
        text per line; "html", a page. "" selects it by the suffix of `output`; without a suffix it is text if the task
        makes texts, otherwise jsonl.
      columns: columns of the input that each prediction repeats, separated by commas.
      card: fields of the model card of an export, as NAME=VALUE; see `export.card_fields`.
      checkpoint: see `checkpoints.restore_params`. For evaluation of several checkpoints, it begins with "each:".
      plot: a file for the figure of a plan, or of the attention of predictions; "" for no figure.
      plot_layers: the layers in figures of attention, from 0, or from the end if negative; None for all.
      plot_heads: the heads in figures of attention; None for all.
      report: whether to write report.html after training or a sweep; mode "report" always does.
      program: the path of `launch.py`, or of the console command `bertjax`.
      overrides: the config keys that the command line sets, by dotted name. Without --config, values as written.
      started: "command", the command line as a list, and "defaults", the config without the keys that it sets.
      began: the value of `time.perf_counter` when the command began.
      topology: the devices to plan for, such as "v5e:16x16" or "h100:4x8".
      plan_search: whether to search the mesh, micro-batches and rematerialization that fit the slice best.
      profile: the first and the last update to trace, such as "100:110"; "" for none.
    """

    mode: str
    workdir: str = ""
    input: str = "-"
    output: str = "-"
    format: str = ""
    columns: str = ""
    card: Sequence[str] = ()
    checkpoint: str = "final"
    plot: str = ""
    plot_layers: Sequence[int] | None = None
    plot_heads: Sequence[int] | None = None
    report: bool = False
    program: Path = Path("launch.py")
    overrides: FlatConfig = dataclasses.field(default_factory=dict)
    started: Record = dataclasses.field(default_factory=dict)
    began: float = dataclasses.field(default_factory=time.perf_counter)
    topology: str = ""
    plan_search: bool = False
    profile: str = ""

    @property
    def run(self) -> Path | None:
        """The path in `workdir`; None if `workdir` is empty."""
        return Path(self.workdir) if self.workdir else None

    @property
    def sources(self) -> dict[str, str]:
        """The files of the splits that the command line names, by key of `data`."""
        paths = {key.removeprefix("data."): path for key, path in self.overrides.items() if key.startswith("data.")}
        return {key: path for key, path in paths.items() if key in SOURCES}


def command(program: Path, arguments: Iterable[str]) -> list[str]:
    """Returns the words of a command line, `python launch.py ...` or, of an installed package, `bertjax ...`."""
    start = ["python", str(program)] if program.suffix == ".py" else [program.name]
    return [*start, *arguments]


def config_of(request: Request, new_config: ConfigTree | None) -> ConfigTree:
    """Returns `new_config` or the config of the run in `workdir`. Raises UserError for missing or conflicting flags."""
    is_new = request.mode in _NEW or not request.workdir
    if is_new == (new_config is None):
        raise UserError(
            "--config",
            got="none" if is_new else "a config file, but the run has its own config",
            expected="a file of configs/ for a new run, or only --workdir for an existing run",
            fix="add --config=configs/bert_pretraining.py:tiny"
            if is_new
            else "omit --config; --config.KEY=VALUE without it sets keys that may differ after training",
        )
    if request.mode in _NEW and not request.workdir:
        raise UserError("--workdir", got="none", expected="a folder for the run", fix="add --workdir=runs/NAME")
    if request.mode == "export" and request.output == "-":
        raise UserError("--output", got="none", expected="a folder to export to", fix="add --output=FOLDER")
    if request.output.endswith(".gz"):
        expected = "an uncompressed file"
        fix = "omit .gz, and compress the file afterwards"
        raise UserError("--output", got=request.output, expected=expected, fix=fix)
    _check_not_read(request)
    if request.checkpoint.startswith("each:") and request.mode != "evaluate":
        expected = "each: only with --mode=evaluate"
        fix = "omit each:; last:3 is the mean of three checkpoints"
        raise UserError("--checkpoint", got=request.checkpoint, expected=expected, fix=fix)
    if request.columns and request.mode != "predict":
        raise UserError("--columns", got=f"--mode={request.mode}", expected="--mode=predict", fix="omit it")
    if request.card and request.mode != "export":
        raise UserError("--card", got=f"--mode={request.mode}", expected="--mode=export", fix="omit it")
    config = run_folder.load_config(Path(request.workdir)) if new_config is None else new_config
    if not request.workdir and request.mode != "plan" and not config.get("init_from"):
        fix = "add --workdir=RUN or --config.init_from=FOLDER"
        raise UserError("--workdir", got="none, and no init_from", expected="a run or published weights", fix=fix)
    return config


def _check_not_read(request: Request) -> None:
    """Raises UserError if the output would replace a file that the mode reads, or an export the folder of its model."""
    output = Path(request.output)
    if not output.is_file() and not (request.mode == "export" and output.is_dir()):
        return
    settings = {f"--config.{key}": value for key, value in request.overrides.items() if isinstance(value, str)}
    for flag, name in {"--input": request.input, "--workdir": request.workdir, **settings}.items():
        with contextlib.suppress(OSError):  # other code reports a missing file
            if name and output.samefile(name):
                got = f"{request.output}, which is also {flag}"
                fix = "choose another --output"
                raise UserError("--output", got=got, expected="a path that the command does not read", fix=fix)
