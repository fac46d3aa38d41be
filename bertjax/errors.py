"""The exception for errors that the user can correct: what was got, what was expected, and the fix."""

import ast
import contextlib
import difflib
import errno
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

_FIXES = {
    errno.ENOENT: "create the folder first, or choose another path",
    errno.EISDIR: "name a file in it",
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "choose another path, because a file has the name of a folder"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "change its permissions, or choose another path"),
}
# Refused by the operating system; any other OSError is a bug.
_REFUSALS = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
_DISK_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

# The arguments of `bertjax.load` that take the place of config keys and flags in messages.
_OF_KEYS = {"init_from": "folder", "experiment": "experiment"}
_OF_FLAGS = {"checkpoint": "checkpoint", "workdir": "folder", "output": "output", "keys": "the command bertjax --keys"}
_FLAG = re.compile(
    r"""--config\.(?P<key>\w+(?:\.\w+)*)(?:=(?P<value>\.\.\.|"?\([^)]*\)"?|'[^']*'|[\w/*+-]+(?:\.\w+)*))?"""
    rf"|--(?P<flag>{'|'.join(_OF_FLAGS)})\b|(?<![\w/.-])init_from\b"
)

_MAX_PART = 2000  # characters of each part of a message
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(ValueError):
    """Bad input from outside: a flag, a config key, a file, a row, a checkpoint, a device count.

    `launch.py` prints it without a traceback and exits with status 1. Bugs of bertjax raise other exceptions. The
    message is one line: control characters are escaped, and long parts are shortened in the middle.

    Args:
      what: the flag, config key, file or row.
      got: its value.
      expected: what is valid.
      fix: what the user can do, or the question that `did_you_mean` returns.

    >>> raise UserError("data.seq_len", got=3, expected="at least 8", fix="raise data.seq_len")
    Traceback (most recent call last):
    bertjax.errors.UserError: data.seq_len: got 3; expected at least 8. Fix: raise data.seq_len.
    """

    def __init__(self, what: str, *, got: object, expected: str, fix: str) -> None:
        what, got, expected, fix = (_one_line(str(part)) for part in (what, got, expected, fix.rstrip(".")))
        ending = fix if fix.endswith("?") else f"Fix: {fix}."
        super().__init__(f"{what}: got {got}; expected {expected}. {ending}")

    def within(self, where: str) -> "UserError":
        """Returns the error with `where`, such as a file, in front of its message."""
        return restored(f"{where}: {self}")

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle passes no keyword arguments, and worker processes send errors by pickle.
        return restored, (str(self),)


def refuse_other_names(package: str) -> None:
    """Raises UserError if a package at the top level of a clone is imported by another name than `bertjax.PACKAGE`."""
    if not package.startswith("bertjax."):
        got = f"a second copy of bertjax.{package}"
        expected = "one copy, because each has its own classes"
        raise UserError(f"import {package}", got=got, expected=expected, fix=f"import bertjax.{package}")


def did_you_mean(name: str, choices: Iterable[str], fix: str, form: str = "{}") -> str:
    """Returns a question with the choice that is closest to a name, or `fix` if no choice is close.

    >>> did_you_mean("taging", ("tagging", "translation"), "correct the path", form="configs/{}.py")
    "Did you mean 'configs/tagging.py'?"
    """
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.65)
    return f"Did you mean '{form.format(close[0])}'?" if close else fix


def as_user_error(error: Exception, where: str) -> UserError | None:
    """Returns an error that the user can correct as a UserError; None for a bug.

    Args:
      error: any exception. Libraries in C++ and Rust report a full disk by exception types of their own, so these are
        recognized by the message of the operating system.
      where: the file or folder to name if the exception names none.
    """
    if isinstance(error, UserError):
        return error
    if isinstance(error, BrokenProcessPool):
        expected = "about 300 MB of memory per process"
        fix = "lower --config.data.workers and run the same command again"
        return UserError("worker processes", got="a killed process, probably out of memory", expected=expected, fix=fix)
    reason = next((words for words in _DISK_FULL if words in str(error)), None)
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        where = str(error.filename or where)
        reason = error.strerror
    if reason is None:
        return None
    fix = "free some space or choose another path; finished work is kept"
    return UserError(
        where,
        got=reason,
        expected="a readable and writable path with free space",
        fix=_FIXES.get(error.errno or 0, fix) if isinstance(error, OSError) else fix,
    )


def of_code(error: Exception, path: str) -> str:
    """Returns the type, the message and the line of an exception that the code of a user's file raised."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == Path(path).resolve()]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


@contextlib.contextmanager
def naming_arguments(keys: Mapping[str, str] = _OF_KEYS) -> Iterator[None]:
    """Changes the message of a UserError by `in_python`. A context, and a decorator of functions that users call."""
    try:
        yield
    except UserError as error:
        error.args = (in_python(str(error), keys),)
        raise


def in_python(message: str, keys: Mapping[str, str] = _OF_KEYS) -> str:
    """Returns a message that names arguments of Python calls instead of flags.

    >>> in_python("config key init_from=bert: got no such folder. Fix: set --config.data.lowercase=True.")
    'folder=bert: got no such folder. Fix: set config={"data.lowercase": True}.'

    Args:
      message: the message.
      keys: the argument for a config key, where there is one of its own.
    """
    for key, argument in keys.items():
        message = re.sub(rf"(config key |--config\.){re.escape(key)}\b(?!\.\w)", argument, message)
    return _FLAG.sub(_argument, message)


def _argument(flag: re.Match[str]) -> str:
    key = flag["key"]
    value = flag["value"]
    if key is None:
        return _OF_FLAGS[flag["flag"]] if flag["flag"] else _OF_KEYS["init_from"]
    if value is None:
        return f'config["{key}"]'
    value = value.strip('"')
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        value = f'"{value}"'
    return f'config={{"{key}": {value}}}'


def restored(message: str) -> UserError:
    """Returns a UserError with a complete message."""
    error = UserError.__new__(UserError)
    ValueError.__init__(error, message)
    return error


def _one_line(text: str) -> str:
    return _shortened(_CONTROL.sub(lambda match: repr(match[0])[1:-1], _shortened(text)))


def _shortened(text: str) -> str:
    if len(text) <= _MAX_PART:
        return text
    return f"{text[: _MAX_PART // 2]} ... {text[-_MAX_PART // 2 :]}"
