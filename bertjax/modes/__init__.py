"""What can be done with an experiment: each mode of `launch.py`, without its flags."""

import collections
import contextlib
import dataclasses
import enum
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flax import traverse_util

from bertjax import distributed
from bertjax.config import build_all, check_unresolved
from bertjax.contract import (
    Attends,
    BadInput,
    Example,
    Experiment,
    HasTest,
    OfficialPredictions,
    Predicts,
    ReadsFiles,
    ReadsSettings,
    Task,
    Text,
    Trainable,
    WritesFolder,
    WritesText,
)
from bertjax.errors import UserError
from bertjax.modes import overrides, predictions, streams
from bertjax.progress import track
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import digest, find_steps, has_checkpoint
from bertjax.training import inference, sharding, tracing
from bertjax.training.config import InferenceConfig, TrainingConfig

_log = logging.getLogger(__name__)

_FORMS = {".json": "jsonl", ".jsonl": "jsonl", ".html": "html"}  # of predictions, by their file's suffix
_OF_ONE = ("_low", "_high", "_p")  # endings of figures whose means over checkpoints would say nothing
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
      overrides: the config keys that the command line sets, by dotted name. Without --config, values as written.
      started: how: "command", a list of words, and "defaults", the config without what the command line sets.
      topology: the slice to plan for, such as "v5e:16x16".
      plan_search: whether to look for a mesh, micro-batches and rematerialization that fit it best.
      profile: the first and the last update to trace, "100:110"; "" for none.
    """

    mode: str
    workdir: str
    input: str
    output: str
    format: str
    checkpoint: str
    draw: Callable[..., None] | None
    render: Callable[[Iterator[Mapping[str, Any]]], Iterator[str]]
    report: Callable[[Path], Path] | None
    overrides: Mapping[str, Any]
    started: Mapping[str, Any]
    topology: str
    plan_search: bool
    profile: str


@distributed.ending_together()
def run(request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]) -> Outcome:
    """Does what is asked for.

    Args:
      request: what.
      given: the config of a run to be, or None for that of the run in `workdir`.
      find: the experiment of a name.
    Raises:
      UserError: whatever the user can mend.
    """
    flags = {f"--{name}": getattr(request, name) for name in ("mode", "workdir", "checkpoint", "input", "output")}
    values = request.overrides if given is None else traverse_util.flatten_dict(given, sep=".")
    distributed.agree_on_command({**flags, **values})
    if given is None and request.overrides and request.mode not in ("evaluate", "predict", "export"):
        got, expected = f"--mode={request.mode} and no --config", "--config, or a mode that uses a trained run"
        fix = "leave it out, or add --config"
        raise UserError(f"config key {next(iter(request.overrides))}", got=got, expected=expected, fix=fix)
    if request.mode == "report":
        return _report(request, given, find)
    module, config = _resolved(request, given, find)
    if request.mode == "plan":
        return _plan(request, module, config)
    settings, experiment = build_all((_settings(module, request.mode), module.Config), config, "")
    workdir, profile = Path(request.workdir), tracing.parse_steps(request.profile)
    if request.mode in ("predict", "export"):
        from_run = workdir if request.workdir else None
        task = module.make(experiment, from_run or Path(config["init_from"]), None)
        _infer(request, config, task, inference.Inference(task, settings, from_run, request.checkpoint))
        return Outcome.DONE
    # Not imported by prediction, which starts faster without them.
    from bertjax.modes import check
    from bertjax.training import loop

    assert isinstance(module, Trainable)
    if request.mode == "evaluate" and (_sources(request) or not request.workdir):
        _write_record(request, _evaluated_splits(request, module, config))
        return Outcome.DONE
    rehearsal = module.make(experiment, None, None)  # tells what does not fit together, before text is prepared
    if request.mode in ("train", "check"):
        loop.check(rehearsal, settings, config)
    if request.mode == "train":
        with run_folder.alone(workdir):
            distributed.on_first_process(lambda: run_folder.save_config(workdir, config))
            distributed.on_first_process(lambda: run_folder.save_environment(workdir, request.started))
            text = _prepared(request, module, experiment)
            return _train(request, module.make(experiment, text.folder, text.folder), settings, profile)
    text = _prepared(request, module, experiment)
    if request.mode == "prepare":
        return Outcome.DONE
    task = module.make(experiment, text.folder, text.folder)
    if request.mode == "check":
        record = check.overfit_one_batch(task, settings)
    else:
        record = _evaluated(request, task, settings, workdir)
    _write_record(request, record)
    return Outcome.DONE if record.get("can_learn", True) else Outcome.FAILED


def _prepared(request: Request, module: Trainable, experiment: Any) -> Text:
    """The text, which is that of the run if there is one, prepared."""
    workdir = Path(request.workdir)
    text = module.preparation(experiment, workdir)
    distributed.agree(text.fingerprint, "the text to prepare")
    if request.mode in ("train", "evaluate"):
        distributed.on_first_process(lambda: run_folder.check_text(workdir, text.fingerprint))
    distributed.on_first_process(text.run)
    return text


def _train(request: Request, task: Task, settings: TrainingConfig, profile: range) -> Outcome:
    """Trains, and then tests and shows what came of it."""
    from bertjax.modes import samples
    from bertjax.training import loop

    workdir = Path(request.workdir)
    distributed.on_first_process(lambda: task.save_vocabulary(workdir))
    if loop.train(task, settings, workdir, profile):
        return Outcome.STOPPED
    _test(task, settings, workdir)
    if request.report and not (workdir / samples.FILE).exists():
        _show(lambda: samples.write(task, settings, workdir))
    write_page(request)
    return Outcome.DONE


def write_page(request: Request) -> None:
    """Writes the page of the request's folder if it is to have one; what is in the way of that spoils nothing."""

    def write() -> None:
        assert request.report
        try:
            _log.info("%s", request.report(Path(request.workdir)))
        except (UserError, OSError) as error:
            _log.warning("no page: %s", error)

    if request.report:
        distributed.on_first_process(write)


def _show(make: Callable[[], None]) -> None:
    """Makes samples; text that is gone, say, or figures that are not finite leave a page without them."""
    try:
        make()
    except (UserError, OSError) as error:
        _log.warning("no samples: %s", error)


def _report(request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]) -> Outcome:
    """Writes the page of a run, whose samples are made first if it has none, or of a sweep."""
    from bertjax.modes import samples

    workdir = Path(request.workdir)

    def make() -> None:
        module, config = _resolved(request, given, find)
        settings, experiment = build_all((_settings(module, request.mode), module.Config), config, "")
        assert isinstance(module, Trainable)
        text = module.preparation(experiment, workdir)
        run_folder.check_text(workdir, text.fingerprint)
        distributed.on_first_process(text.run)
        samples.write(module.make(experiment, text.folder, text.folder), settings, workdir)

    def write() -> None:
        assert request.report
        path = request.report(workdir)
        with streams.open_output(request.output, is_writer=True) as output:
            output.write(f"{path}\n")

    if has_checkpoint(workdir) and not (workdir / samples.FILE).exists():
        _show(make)
    distributed.on_first_process(write)
    return Outcome.DONE


def _plan(request: Request, module: Experiment, config: Mapping[str, Any]) -> Outcome:
    """Tells what training on a slice would need and take."""
    from bertjax.planning import planner

    def build(planned: Mapping[str, Any]) -> tuple[Task, TrainingConfig]:
        assert isinstance(module, Trainable)
        settings, experiment = build_all((TrainingConfig, module.Config), planned, "")
        return module.make(experiment, None, None), settings

    record = planner.run(request.topology, request.plan_search, config, build)
    if request.draw:
        request.draw(record)
    _write_record(request, record)
    return Outcome.DONE if record["fits"] else Outcome.FAILED


def _sources(request: Request) -> dict[str, Any]:
    """The splits that the command line names for a run, by key of `data`."""
    named = {key.removeprefix("data."): path for key, path in request.overrides.items() if key.startswith("data.")}
    return {key: path for key, path in named.items() if key in overrides.SOURCES}


def _evaluated_splits(request: Request, module: Trainable, config: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a run, or of the weights in `init_from`, on all rows of the splits that are named.

    A run's training data is not read.
    """
    workdir = Path(request.workdir) if request.workdir else None
    sources = _sources(request) if workdir else {key: config["data"].get(key) for key in overrides.SOURCES}
    sources = {key: path for key, path in sources.items() if path}
    config = overrides.without_limits(config, request.overrides)
    if workdir and "prepared_dir" in config["data"]:
        config["data"]["vocab_file"] = str(workdir)
    record: dict[str, float] = {}
    for split, of_split in overrides.splits_to_score(config, sources, reads_training=workdir is None):
        settings, experiment = build_all((TrainingConfig, module.Config), of_split, "")
        task = _scored(module, experiment, of_split, workdir)
        metrics = _evaluated(request, task, settings, workdir)
        record |= {name.replace("valid/", f"{split}/", 1): value for name, value in metrics.items()}
    return record


def _scored(module: Trainable, experiment: Any, config: Mapping[str, Any], workdir: Path | None) -> Task:
    """The task with the vocabulary of a run, or of `init_from`, and with the rows to score."""
    if "prepared_dir" not in config["data"]:
        folder = workdir or Path(config["init_from"])
        return module.make(experiment, folder, folder)
    if workdir is None and not config["data"]["prepared_dir"]:
        got, expected = "none, and no --workdir", "a folder for the prepared text"
        fix = "set --config.data.prepared_dir=FOLDER"
        raise UserError("config key data.prepared_dir", got=got, expected=expected, fix=fix)
    text = module.preparation(experiment, workdir or Path())
    distributed.on_first_process(text.run)
    return module.make(experiment, text.folder, text.folder)


def _evaluated(request: Request, task: Task, settings: TrainingConfig, workdir: Path | None) -> dict[str, float]:
    """The figures of a checkpoint, or the means of those of each of several, as PreSumm has them of its three best,
    without intervals and p then.
    """
    kind, _, several = request.checkpoint.partition(":")
    names = list(map(str, find_steps(workdir, several))) if workdir and kind == "each" else [request.checkpoint]
    records = [inference.Inference(task, settings, workdir, name).evaluate() for name in names]
    if len(records) == 1:
        return records[0]
    averaged = [name for name in records[0] if not name.endswith(_OF_ONE)]
    return {name: sum(record[name] for record in records) / len(records) for name in averaged}


def _write_record(request: Request, record: Mapping[str, Any]) -> None:
    with streams.open_output(request.output, distributed.is_first_process()) as output:
        output.write(streams.json_line(record))


def _test(task: Task, settings: TrainingConfig, workdir: Path) -> None:
    """Adds a trained run's metrics on the test split, if there is one, beside the split's baselines of step 0; once."""
    from bertjax.training import metric_log

    if isinstance(task, HasTest):
        with metric_log.MetricLog(workdir, resumed=settings.num_steps) as log:
            if not log.has_scores(settings.num_steps, "test/"):
                scores = inference.Inference(task, settings, workdir, "final").test()
                log.write(settings.num_steps, {**log.scores(0, "test/"), **scores} if scores else {})


def rehearse(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> dict[str, Any]:
    """The config with all its values, checked as `run` would, but for text and devices. Raises UserError."""
    module, config = _resolved(request, given, find)
    settings, experiment = build_all((_settings(module, request.mode), module.Config), config, "")
    settings.check_final()
    module.make(experiment, None, None)
    return config


def check_folder(request: Request, given: dict[str, Any], find: Callable[[str], Experiment]) -> None:
    """Raises UserError, as `run` would, for a bad config, or a folder that holds a run of another one."""
    run_folder.check_config(Path(request.workdir), rehearse(request, given, find))


def _resolved(
    request: Request, given: dict[str, Any] | None, find: Callable[[str], Experiment]
) -> tuple[Experiment, dict[str, Any]]:
    """The experiment, and the config with all its values."""
    config = config_of(request, given)
    module = find(config.get("experiment", ""))
    classes = _settings(module, request.mode), module.Config
    check_unresolved(classes, config)  # no key is missing where `resolve` looks
    if given is None:  # a run's own config is resolved, and the folder in init_from may be gone
        named = () if request.mode != "evaluate" else _sources(request)
        values = {key: value for key, value in request.overrides.items() if key.removeprefix("data.") not in named}
        if values and isinstance(module, Trainable):
            config = overrides.override(config, values, module.FREE_AFTER_TRAINING)
        return module, config if request.mode == "plan" else sharding.fitted(config)
    if isinstance(module, Trainable) and config["init_from"]:
        config = _with_settings_of_folder(request, module, config)
    return module, module.resolve(config, reads=request.mode not in ("predict", "export"))


def _with_settings_of_folder(request: Request, module: Trainable, config: dict[str, Any]) -> dict[str, Any]:
    """The config with the settings that the folder in `init_from` states.

    A run of the same experiment states them for evaluation and prediction, a published folder for training too.
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


def _settings(module: Experiment, mode: str) -> type[InferenceConfig]:
    """The settings that an experiment has beside its own. Raises UserError if it does not have the mode."""
    if isinstance(module, Trainable):
        return TrainingConfig
    if mode != "predict":
        fix = "add --mode=predict --input=FILE --output=FOLDER/, and leave out --workdir"
        raise UserError(f"--mode={mode}", got="an experiment without training", expected="predict", fix=fix)
    return InferenceConfig


def _infer(request: Request, config: Mapping[str, Any], task: Predicts, runner: inference.Inference) -> None:
    if request.mode == "export":
        runner.export(Path(request.output))
        return
    if request.draw and not isinstance(task, Attends):
        got, expected = "a task without pictures of attention", "one that has them, such as translation"
        raise UserError("--plot", got=got, expected=expected, fix="leave it out")
    _check_input(request, task)
    examples = _examples(request, task, runner)
    if isinstance(task, OfficialPredictions) and request.output.endswith(".json"):
        good = (record for record in runner.records(examples) if "error" not in record)
        with streams.open_output(request.output, distributed.is_first_process()) as output:
            output.write(streams.json_line(task.official(good)))
        return
    if isinstance(task, WritesFolder) and (request.output.endswith("/") or Path(request.output).is_dir()):
        with _open_folder(task, Path(request.output)) as take:
            for record in runner.records(examples):
                take(record)
        return
    form = request.format or _FORMS.get(Path(request.output).suffix, "")
    if form == "html":
        with streams.open_output(request.output, distributed.is_first_process()) as output:
            output.writelines(request.render(runner.records(examples)))
        return
    write_line = _line_writer(task, form)
    weights = digest(Path(request.workdir), request.checkpoint) if request.workdir else ""
    made_of = predictions.fingerprint({**config, "form": form}, weights, request.input)
    with predictions.open_lines(request.output, distributed.is_first_process(), made_of) as (output, done):
        for record in runner.records(examples, done):
            output.write(write_line(record))


@contextlib.contextmanager
def _open_folder(task: WritesFolder, folder: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Gives what takes each record; only the first process writes. Raises UserError if another command writes there."""
    if not distributed.is_first_process():
        yield lambda record: None
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with streams.alone(folder), task.open_folder(folder) as take:
        yield take


def _check_input(request: Request, task: Predicts) -> None:
    """Raises UserError for a bad line or row of a file before any work is done, not when its turn comes."""
    if not Path(request.input).is_file() and not Path(request.input).is_dir():
        return  # a pipe can be read once
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what is said of the input is said when it is predicted on
    try:
        collections.deque(track(_found(request, task), "checking", "examples"), maxlen=0)
    finally:
        logging.disable(before)


def _found(request: Request, task: Predicts) -> Iterator[Example]:
    """The examples in the input."""
    of_files = task if isinstance(task, ReadsFiles) and request.input != "-" else None
    return (of_files and of_files.examples_of(request.input)) or task.examples(streams.read_lines(request.input))


def _examples(request: Request, task: Predicts, runner: inference.Inference) -> Iterator[Example]:
    """Yields the examples in the input with progress, and logs how many are bad; with --plot, draws each first."""
    count = bad = 0
    for example in track(_found(request, task), "predicting", "examples"):
        count += 1
        bad += isinstance(example.source, BadInput)
        if request.draw:
            _draw(request, runner, count, example)
        yield example
    if bad:
        _log.warning("%d of %d inputs are bad: their records have an error instead of a prediction", bad, count)


def _draw(request: Request, runner: inference.Inference, number: int, example: Example) -> None:
    """Draws what the words of an example looked at, if it has one row."""
    assert request.draw
    kinds = runner.attention(example)
    if kinds is not None and not kinds:
        got, expected = "a model without attention", "one that has it"
        fix = "leave it out, or train one with it: a recurrent one by --config.model.attention=additive"
        raise UserError("--plot", got=got, expected=expected, fix=fix)
    if kinds and distributed.is_first_process():
        request.draw(number, kinds)


def _line_writer(task: Predicts, form: str) -> Callable[[Mapping[str, Any]], str]:
    """What makes a line of a record: text, if that is what the task makes and nothing else is asked for, or JSON."""
    if form == "text" and not isinstance(task, WritesText):
        fix = "leave out --format, or set it to jsonl"
        raise UserError("--format=text", got="a task whose records are no texts", expected="one that writes", fix=fix)
    if isinstance(task, WritesText) and form != "jsonl":
        # One line for each record, whatever it holds; an empty one for a bad input.
        return lambda record: "\n" if "error" in record else task.line(record).replace("\n", " ") + "\n"
    return streams.json_line


def config_of(request: Request, given: dict[str, Any] | None) -> dict[str, Any]:
    """The config of a run to be, or of the run that the request names. Raises UserError if flags are missing."""
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
        expected, fix = "a name of what is written as it is", "leave off .gz, and pack the file afterwards"
        raise UserError("--output", got=request.output, expected=expected, fix=fix)
    if request.checkpoint.startswith("each:") and request.mode != "evaluate":
        expected, fix = "each: with --mode=evaluate alone", "leave it out: last:3 is the mean of three checkpoints"
        raise UserError("--checkpoint", got=request.checkpoint, expected=expected, fix=fix)
    config = run_folder.load_config(Path(request.workdir)) if given is None else given
    if not request.workdir and request.mode != "plan" and not config.get("init_from"):
        fix = "add --workdir=RUN or --config.init_from=FOLDER"
        raise UserError("--workdir", got="none, and no init_from", expected="a run or published weights", fix=fix)
    return config
