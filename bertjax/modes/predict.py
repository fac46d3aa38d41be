"""`--mode=predict`."""

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax import distributed, files
from bertjax.contract import BadInput, Example, PredictionTask
from bertjax.errors import UserError
from bertjax.model import Model
from bertjax.modes import predictions, streams
from bertjax.progress import track

_log = logging.getLogger(__name__)

_FORMS = {".json": "jsonl", ".jsonl": "jsonl", ".html": "html"}  # formats by the suffix of the output


def predict(
    model: Model,
    source: str,
    output: str,
    form: str,
    fingerprint: Callable[[str], str],
    render: Callable[[Iterator[Mapping[str, Any]]], Iterator[str]] | None,
    draw: Callable[..., None] | None,
) -> None:
    """Writes a record for each input.

    Args:
      model: the model.
      source: a file, a folder or "-"; see `Request.input`.
      output: see `Request`.
      form: see `Request.format`.
      fingerprint: returns a digest of everything that the lines of a format depend on; "" if they cannot be resumed.
      render: makes the parts of the HTML page of the records; None without pages.
      draw: draws the attention of an example; None for no figures.
    Raises:
      UserError: for bad input, or an output or a format that the task does not have.
    """
    task = model.task
    if draw and not task.attention:
        got, expected = "a task that draws no attention", "a task that does, such as translation"
        raise UserError("--plot", got=got, expected=expected, fix="omit it")
    _check_input(task, source)
    examples, is_writer = _examples(model, source, draw), distributed.is_first_process()
    if task.official and output.endswith(".json"):
        good = (record for record in model.records(examples) if "error" not in record)
        with streams.open_output(output, is_writer) as file:
            file.write(streams.json_line(task.official(good)))
        return
    if task.open_folder and (output.endswith("/") or Path(output).is_dir()):
        with _open_folder(task.open_folder, Path(output)) as take:
            for record in model.records(examples):
                take(record)
        return
    form = form or _FORMS.get(Path(output).suffix, "")
    if form == "html":
        assert render
        with streams.open_output(output, is_writer) as file:
            file.writelines(render(model.records(examples)))
        return
    write_line = _line_writer(task, form)
    with predictions.open_lines(output, is_writer, fingerprint(form)) as (file, done):
        for record in model.records(examples, done):
            file.write(write_line(record))


@contextlib.contextmanager
def _open_folder(open_folder: Callable[[Path], Any], folder: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
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


def _check_input(task: PredictionTask, source: str) -> None:
    """Raises UserError for bad lines or rows of a file before any prediction is made."""
    if not Path(source).is_file() and not Path(source).is_dir():
        return  # a pipe can be read once
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # prediction reads the input again and logs the same lines
    try:
        collections.deque(track(_found(task, source), "checking", "example"), maxlen=0)
    finally:
        logging.disable(before)


def _found(task: PredictionTask, source: str) -> Iterator[Example]:
    """Returns the examples in the input."""
    of_file = None if source == "-" else task.examples_of(source)
    return of_file or task.examples(streams.read_lines(source))


def _examples(model: Model, source: str, draw: Callable[..., None] | None) -> Iterator[Example]:
    """Yields the examples in the input, shows progress, logs the number of bad ones, and draws them with --plot."""
    count = bad = 0
    for example in track(_found(model.task, source), "predicting", "example"):
        count += 1
        bad += isinstance(example.source, BadInput)
        if draw:
            _draw(draw, model, count, example)
        yield example
    if bad:
        _log.warning("%d of %d inputs are bad: their records have an error instead of a prediction", bad, count)


def _draw(draw: Callable[..., None], model: Model, number: int, example: Example) -> None:
    """Draws the attention of an example if it has one row."""
    kinds = model.attention(example)
    if kinds is not None and not kinds:
        got, expected = "a model without attention", "a model with attention"
        fix = "omit it, or train a model with --config.model.attention=additive"
        raise UserError("--plot", got=got, expected=expected, fix=fix)
    if kinds and distributed.is_first_process():
        draw(number, kinds)


def _line_writer(task: PredictionTask, form: str) -> Callable[[Mapping[str, Any]], str]:
    """Returns a function from a record to its line: text if the task makes texts and the format allows, or JSON."""
    line = task.line
    if form == "text" and not line:
        fix = "omit --format, or set it to jsonl"
        raise UserError("--format=text", got="a task without text output", expected="a task that writes texts", fix=fix)
    if line and form != "jsonl":
        # Every record has exactly one line; that of a bad input is empty.
        return lambda record: "\n" if "error" in record else line(record).replace("\n", " ") + "\n"
    return streams.json_line
