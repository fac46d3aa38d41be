"""`--mode=predict`."""

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax import distributed, files
from bertjax.contract import (
    Attended,
    AttendingTask,
    BadInput,
    Example,
    OfficialFormat,
    PredictionTask,
    Record,
    TakeRecord,
)
from bertjax.errors import UserError
from bertjax.model import Model
from bertjax.modes import predictions, record_tables, streams
from bertjax.modes.request import Request
from bertjax.modes.tools import tool
from bertjax.progress import track

_log = logging.getLogger(__name__)

Draw = Callable[[int, Mapping[str, Attended]], None]  # draws the attention of an example with a number from 1

# Formats by the suffix of the output.
_FORMS = {".json": "jsonl", ".jsonl": "jsonl", ".html": "html", ".csv": "csv", ".tsv": "tsv"}


def predict(model: Model, request: Request, fingerprint: Callable[[str], str], columns: Sequence[str] = ()) -> None:
    """Writes a record for each input.

    Args:
      model: the model.
      request: the request.
      fingerprint: returns a digest of everything that the lines of a format depend on; "" if they cannot be resumed.
      columns: the columns of the input that each record repeats; see `record_tables.with_columns`.
    Raises:
      UserError: for bad input, or an output or a format that the task does not have.
    """
    task = model.task
    output = request.output
    if request.plot and not isinstance(task, AttendingTask):
        got = "a task that draws no attention"
        expected = "a task that does, such as translation"
        raise UserError("--plot", got=got, expected=expected, fix="omit it")
    official = task.official if output.endswith(".json") and isinstance(task, OfficialFormat) else None
    open_folder = task.open_folder if output.endswith("/") or Path(output).is_dir() else None
    form = request.format or _FORMS.get(Path(output).suffix, "")
    lines = None if official or open_folder or form == "html" else _lines(task, form, columns)
    if columns:
        record_tables.check_columns(columns, task, is_record=form == "html" or bool(lines and lines.is_record))
    _check_input(model, request.input, columns)
    examples = _examples(model, request, columns)
    is_writer = distributed.is_first_process()
    if official:
        good = (record for record in model.records(examples) if "error" not in record)
        with streams.open_output(output, is_writer) as file:
            file.write(streams.json_line(official(good)))
    elif open_folder:
        with _open_folder(open_folder, Path(output)) as take:
            for record in model.records(examples):
                take(record)
    elif lines is None:
        with streams.open_output(output, is_writer) as file:
            file.writelines(tool("prediction page")(model.records(examples)))
    else:
        made_of = fingerprint(form)
        with predictions.open_lines(output, is_writer, made_of, lines.header, is_quoted=form == "csv") as (file, done):
            for record in model.records(examples, done):
                file.write(lines.line(record))


@contextlib.contextmanager
def _open_folder(
    open_folder: Callable[[Path], contextlib.AbstractContextManager[TakeRecord]], folder: Path
) -> Iterator[TakeRecord]:
    """Yields a function that takes each record and writes it in the first process.

    Raises:
      UserError: if another command writes to the folder.
    """
    if not distributed.is_first_process():
        yield lambda record: None
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.alone(folder), open_folder(folder) as take:
        yield take


def _check_input(model: Model, source: str, columns: Sequence[str]) -> None:
    """Raises UserError for bad lines or rows of a file before any prediction is made."""
    if not Path(source).is_file() and not Path(source).is_dir():
        return  # a pipe can be read once
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # prediction reads the input again and logs the same lines
    try:
        collections.deque(track(_found(model, source, columns), "checking", "example"), maxlen=0)
    finally:
        logging.disable(before)


def _found(model: Model, source: str, columns: Sequence[str]) -> Iterator[Example]:
    """Returns the examples in the input, with these columns of their rows."""
    of_file = None if source == "-" else model.task.examples_of(source)
    examples = of_file or model.task.examples(streams.read_lines(source))
    return record_tables.with_columns(examples, columns, source, model.config["data"]["on_bad_row"])


def _examples(model: Model, request: Request, columns: Sequence[str]) -> Iterator[Example]:
    """Yields the examples in the input, shows progress, logs the number of bad ones, and draws them with --plot."""
    layers = request.plot_layers
    heads = request.plot_heads
    draw = tool("attention figure")(Path(request.plot), layers, heads) if request.plot else None
    count = bad = 0
    for example in track(_found(model, request.input, columns), "predicting", "example"):
        count += 1
        bad += isinstance(example.source, BadInput)
        if draw:
            _draw(draw, model, count, example)
        yield example
    if bad:
        _log.warning("%d of %d inputs are bad: their records have an error instead of a prediction", bad, count)


def _draw(draw: Draw, model: Model, number: int, example: Example) -> None:
    """Draws the attention of an example if it has one row."""
    kinds = model.attention(example)
    if kinds is not None and not kinds:
        got = "a model without attention"
        expected = "a model with attention"
        fix = "omit it, or train a model with --config.model.attention=additive"
        raise UserError("--plot", got=got, expected=expected, fix=fix)
    if kinds and distributed.is_first_process():
        draw(number, kinds)


class _Lines(NamedTuple):
    """How records are written as lines."""

    line: Callable[[Record], str]
    header: str = ""
    is_record: bool = True  # whether a line has the names of its record


def _lines(task: PredictionTask, form: str, columns: Sequence[str]) -> _Lines:
    """Returns the lines of a format: tables, text if the task makes texts and the format allows, or JSON."""
    text = task.line
    if form == "text" and not text:
        fix = "omit --format, or set it to jsonl"
        raise UserError("--format=text", got="a task without text output", expected="a task that writes texts", fix=fix)
    if form in record_tables.FORMS:
        writer = record_tables.Writer(form, task, columns)
        return _Lines(writer, writer.header)
    if text and form != "jsonl":

        def line(record: Record) -> str:
            """Returns exactly one line; that of a bad input is empty."""
            return "\n" if "error" in record else text(record).replace("\n", " ") + "\n"

        return _Lines(line, is_record=False)
    return _Lines(streams.json_line)
