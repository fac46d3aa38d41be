"""The one exception for what a user can get wrong: what was got, what was expected, and the fix."""

import errno
import os
import re
from concurrent.futures.process import BrokenProcessPool
from typing import Any

_FIXES = {errno.ENOENT: "make the folder first, or choose another path", errno.EISDIR: "name a file in it"}
# What a machine refuses; any other OSError is a bug.
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
_NO_ROOM = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

_MAX_PART = 2000  # characters of each part of a message
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(ValueError):
    """Bad input from outside: a flag, a config key, a file, a row, a checkpoint, a device count.

    `launch.py` prints it without a traceback and exits with status 1. Our own bugs are `assert`s. The message is one
    line, whatever was read from a file: control characters are escaped, and the middle of long parts is left out.

    >>> raise UserError("data.seq_len", got=3, expected="at least 8", fix="raise data.seq_len")
    Traceback (most recent call last):
    bertjax.errors.UserError: data.seq_len: got 3; expected at least 8. Fix: raise data.seq_len.
    """

    def __init__(self, what: str, *, got: object, expected: str, fix: str) -> None:
        what, got, expected, fix = (_one_line(str(part)) for part in (what, got, expected, fix.rstrip(".")))
        super().__init__(f"{what}: got {got}; expected {expected}. Fix: {fix}.")

    def within(self, where: str) -> "UserError":
        """The same, told of a part of something larger."""
        return restored(f"{where}: {self}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes send theirs home by pickle, which knows nothing of keyword arguments.
        return restored, (str(self),)


def as_user_error(error: Exception, where: str) -> UserError | None:
    """What to tell the user about `error`; None if it is a bug of ours.

    Args:
      error: a UserError, or what the machine refused. Libraries in C++ and Rust tell of a full disk in types of
        their own, but all in the same words.
      where: the file or folder in question, for errors that do not name it.
    """
    if isinstance(error, UserError):
        return error
    if isinstance(error, BrokenProcessPool):
        return UserError(
            "worker processes",
            got="one that was killed, most likely for want of memory",
            expected="memory for all of them, some 300 MB each",
            fix="lower --config.data.workers; the same command goes on after what was finished",
        )
    reason = next((words for words in _NO_ROOM if words in str(error)), None)
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        where, reason = str(error.filename or where), error.strerror
    if reason is None:
        return None
    room = "free some room or choose another path; what was finished before is kept"
    return UserError(
        where,
        got=reason,
        expected="a place that can be read and written, with room left",
        fix=_FIXES.get(error.errno or 0, room) if isinstance(error, OSError) else room,
    )


def restored(message: str) -> UserError:
    """The error of a message that one had."""
    error = UserError.__new__(UserError)
    ValueError.__init__(error, message)
    return error


def _one_line(text: str) -> str:
    return _shortened(_CONTROL.sub(lambda match: repr(match[0])[1:-1], _shortened(text)))


def _shortened(text: str) -> str:
    if len(text) <= _MAX_PART:
        return text
    return f"{text[: _MAX_PART // 2]} ... {text[-_MAX_PART // 2 :]}"
