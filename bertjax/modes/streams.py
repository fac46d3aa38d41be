"""Inputs and outputs of predictions: files, pipes, devices and standard streams."""

import codecs
import contextlib
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from bertjax.contract import Record
from bertjax.errors import UserError
from bertjax.files import alone, standard_output


def read_lines(name: str) -> Iterator[str]:
    """Yields the lines of a UTF-8 file (`.gz` too), or of standard input if `name` is "-".

    Line ends and the byte order mark are omitted. Bytes that are not UTF-8 become lone surrogates (`surrogateescape`),
    which the task handles.

    Raises:
      UserError: for a missing or damaged file, or standard input with several processes.
    """
    if name == "-" and jax.process_count() > 1:
        raise UserError(
            "--input=-",
            got="standard input with several processes",
            expected="a file, which all processes can read",
            fix="set --input=FILE",
        )
    with _open_input(name) as file:
        for number, line in enumerate(file):
            content = line if number else line.removeprefix(codecs.BOM_UTF8)
            if content:
                yield content.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _open_input(name: str) -> Iterator[Iterable[bytes]]:
    """Opens an input, decompressing .gz. Raises UserError for errors, also for those of reads in the with block."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(name) if name.endswith(".gz") else Path(name).open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"--input={name}",
            got=f"a damaged or truncated gzip file ({error})",
            expected="a complete gzip file",
            fix="create or copy the file again (gzip -t tests it)",
        ) from error
    except OSError as error:
        raise UserError(
            f"--input={name}",
            got=error.strerror,
            expected="an existing file, or - for standard input",
            fix="correct the path",
        ) from error


def json_line(record: Record) -> str:
    """Returns a record as a line of JSON; see `json_text`."""
    return json_text(record) + "\n"


def json_text(value: Any) -> str:
    """Returns a value as JSON. Numbers of arrays have 6 decimals, as in BERT's extract_features.py.

    Raises:
      UserError: for NaN and infinity, which JSON does not have.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_rounded)
    except ValueError as error:
        raise UserError(
            "the model's output",
            got="numbers that are not finite",
            expected="probabilities and losses",
            fix="choose another --checkpoint or other weights",
        ) from error


def _rounded(array: np.ndarray) -> list[Any]:
    return np.round(array.astype(np.float64), 6).tolist()


@contextlib.contextmanager
def open_output(name: str, is_writer: bool) -> Iterator[TextIO]:
    """Opens standard output if `name` is "-", otherwise a file, which gets its name when it is complete.

    Args:
      name: the file.
      is_writer: whether this process writes the file. The output of other processes is discarded.
    Raises:
      OSError: if the file cannot be written or the disk is full. The error names the file.
      UserError: if another process is writing the file.
    """
    path = Path(name if is_writer else os.devnull)
    with named_errors(name), contextlib.suppress(BrokenPipeError):  # the reader of a pipe may exit
        if name == "-" and is_writer:
            with standard_output() as file:
                yield file
        elif path.exists() and not path.is_file():  # a device or a pipe
            with path.open("w", encoding="utf-8") as file:
                yield file
        else:
            partial = path.with_name(path.name + ".partial")
            with alone(path):
                try:
                    with partial.open("w", encoding="utf-8") as file:
                        yield file
                    partial.rename(path)
                finally:
                    partial.unlink(missing_ok=True)


@contextlib.contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Adds the name of the output to an OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"--output={name}") from error
