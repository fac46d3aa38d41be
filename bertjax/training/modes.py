"""What can be done with an experiment: each mode of `launch.py`, without its flags."""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bertjax.errors import UserError, build_all, check_unresolved
from bertjax.task import Task
from bertjax.training import check, distributed, inference, loop, run_folder, streams
from bertjax.training.config import TrainingConfig

_NEW = ("train", "prepare", "check")  # modes that begin with a config; the others may read a run's


class Outcome(enum.Enum):
    """How it ended."""

    DONE = enum.auto()
    STOPPED = enum.auto()  # by SIGTERM; the same command goes on
    FAILED = enum.auto()  # a check that says no


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
      mode: train, evaluate, predict, export, prepare or check.
      workdir: the run's folder; "" for none.
      input: a file to predict on; "-" for standard input.
      output: a file for predictions, scores or a verdict, "-" for standard output; or a folder to export to.
      checkpoint: latest, best or a step.
    """

    mode: str
    workdir: str
    input: str
    output: str
    checkpoint: str


@runtime_checkable
class Text(Protocol):
    """Text to be prepared, and its place."""

    folder: Path

    @property
    def fingerprint(self) -> str:
        """What the prepared text depends on."""

    def run(self) -> None:
        """Prepares it, unless that has been done."""


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments/`."""

    Config: type

    def resolve(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in what `init_from` determines."""

    def preparation(self, config: Any, workdir: Path) -> Text:
        """The text that training needs."""

    def make(self, config: Any, vocab_dir: Path | None, prepared: Path | None) -> Task:
        """The task, with as much of it as can be made from what is given."""


def run(request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]) -> Outcome:
    """Does what is asked for.

    Args:
      request: what.
      given: the config of a run to be, or None for that of the run in `workdir`.
      find: the experiment of a name.
    Raises:
      UserError: whatever the user can mend.
    """
    module, config = _resolved(request, given, find)
    settings, experiment = build_all((TrainingConfig, module.Config), config, "")
    workdir = Path(request.workdir)
    if request.mode in ("predict", "export"):
        from_run = workdir if request.workdir else None
        task = module.make(experiment, from_run or Path(config["init_from"]), None)
        _infer(request, inference.Inference(task, settings, from_run, request.checkpoint))
        return Outcome.DONE

    rehearsal = module.make(experiment, None, None)  # tells what does not fit together, before text is prepared
    if request.mode in ("train", "check"):
        loop.check(rehearsal, settings)
    if request.mode == "train":
        distributed.on_first_process(lambda: run_folder.save_config(workdir, config))
    text = module.preparation(experiment, workdir)
    distributed.agree(text.fingerprint, "the text to prepare")
    if request.mode in ("train", "evaluate"):
        distributed.on_first_process(lambda: run_folder.check_text(workdir, text.fingerprint))
    distributed.on_first_process(text.run)
    if request.mode == "prepare":
        return Outcome.DONE
    task = module.make(experiment, text.folder, text.folder)
    if request.mode == "train":
        distributed.on_first_process(lambda: task.save_vocabulary(workdir))
        return Outcome.STOPPED if loop.train(task, settings, workdir) else Outcome.DONE
    if request.mode == "check":
        record = check.overfit_one_batch(task, settings)
    else:
        record = inference.Inference(task, settings, workdir, request.checkpoint).evaluate()
    with streams.open_output(request.output, distributed.is_first_process()) as output:
        output.write(streams.json_line(record))
    return Outcome.DONE if record.get("can_learn", True) else Outcome.FAILED


def check_folder(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> None:
    """Raises UserError, as `run` would, for a bad config, or a folder that holds a run of another one."""
    module, config = _resolved(request, given, find)
    build_all((TrainingConfig, module.Config), config, "")
    run_folder.check_config(Path(request.workdir), config)


def _resolved(
    request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]
) -> tuple[Experiment, dict[str, Any]]:
    """The experiment, and the config with all its values."""
    config = config_of(request, given)
    module = find(config.get("experiment", ""))
    check_unresolved((TrainingConfig, module.Config), config, "")  # no key is missing where `resolve` looks
    if given is not None:  # a run's own config is resolved, and the folder in init_from may be gone
        config = module.resolve(config)
    return module, config


def _infer(request: Request, runner: inference.Inference) -> None:
    if request.mode == "export":
        runner.export(Path(request.output))
        return
    with streams.open_output(request.output, distributed.is_first_process()) as output:
        for record in runner.records(streams.read_lines(request.input)):
            output.write(streams.json_line(record))


def config_of(request: Request, given: dict[str, Any] | None) -> dict[str, Any]:
    """The config of a run to be, or of the run that the request names. Raises UserError if flags are missing."""
    is_new = request.mode in _NEW or not request.workdir
    if is_new == (given is None):
        raise UserError(
            "--config",
            got="none" if is_new else "one beside the run's own",
            expected="a file of configs/ to train with, or --workdir of a run, whose config is read from it",
            fix="add --config=configs/bert_pretraining.py:tiny" if is_new else "leave out --config, or --workdir",
        )
    if request.mode in (*_NEW, "evaluate") and not request.workdir:
        raise UserError("--workdir", got="none", expected="a folder for the run", fix="add --workdir=runs/NAME")
    if request.mode == "export" and request.output == "-":
        raise UserError("--output", got="none", expected="a folder to export to", fix="add --output=FOLDER")
    config = run_folder.load_config(Path(request.workdir)) if given is None else given
    if not request.workdir and not config.get("init_from"):
        fix = "add --workdir=RUN or --config.init_from=FOLDER"
        raise UserError("--workdir", got="none, and no init_from", expected="a run or published weights", fix=fix)
    return config
