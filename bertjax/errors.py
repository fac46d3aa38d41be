"""The one exception for what a user can get wrong: what was got, what was expected, and the fix."""

import dataclasses
import errno
import os
import re
import types
import typing
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

T = TypeVar("T")

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


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Makes the dataclass `cls` from a config subtree; every key must be a field, and every field given.

    There are no defaults to fall back on, so a dead, missing or mistyped key cannot go unnoticed. A key that came later
    has one, which is what runs did before that; `configs/` name it all the same.

    Args:
      cls: a dataclass whose fields are plain values, tuples, mappings or such dataclasses.
      values: the config subtree.
      where: its dotted name, for the message; "" for the whole config.
    Raises:
      UserError: an unknown or missing key, or a value of another type than the field's.
    """
    return build_all((cls,), values, where)[0]


def build_all(classes: tuple[type, ...], values: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    """Makes several dataclasses from one config subtree, as `build`; each key must be a field of one or more."""
    checked = _checked_fields(classes, values, where, unresolved=False)
    hints = [typing.get_type_hints(cls) for cls in classes]
    return tuple(cls(**{key: checked[key] for key in each}) for cls, each in zip(classes, hints, strict=True))


def check_unresolved(classes: tuple[type, ...], config: Mapping[str, Any]) -> None:
    """Raises UserError as `build_all` of a whole config does, but takes None for a value still to be filled in."""
    _checked_fields(classes, config, "", unresolved=True)


def _checked_fields(
    classes: tuple[type, ...], values: Mapping[str, Any], where: str, *, unresolved: bool
) -> dict[str, Any]:
    """The values of all fields, as the fields' types."""
    fields = {key: hint for cls in classes for key, hint in typing.get_type_hints(cls).items()}
    later = {
        f.name: f.default for cls in classes for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING
    }
    values = {**later, **values}
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in fields:
            raise UserError(
                f"config key {prefix}{key}",
                got="an unknown key",
                expected="one of " + ", ".join(fields),
                fix="correct the name or delete the key",
            )
    for key, hint in fields.items():
        if key not in values:
            raise UserError(
                f"config key {prefix}{key}",
                got="no value",
                expected=f"a value of type {_name(hint)}",
                fix=f"set --config.{prefix}{key}=...",
            )
    return {key: _checked(values[key], hint, prefix + key, unresolved) for key, hint in fields.items()}


def choice(value: str, choices: tuple[str, ...], where: str) -> str:
    """Returns `value` if it is one of `choices`, else raises UserError; `where` is a config key or a --flag."""
    if value not in choices:
        raise UserError(
            where if where.startswith("--") else f"config key {where}",
            got=repr(value),
            expected="one of " + ", ".join(each or "''" for each in choices),
            fix="choose one of these",
        )
    return value


def _checked(value: Any, hint: Any, where: str, unresolved: bool) -> Any:
    """Returns `value` as `hint`: an int passes for a float, a list for a tuple; nothing else is converted."""
    if unresolved and value is None:
        return None
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _checked_fields((hint,), value, where, unresolved=True) if unresolved else build(hint, value, where)
    origin = typing.get_origin(hint) or hint
    if origin is tuple and isinstance(value, (list, tuple)):
        element = typing.get_args(hint)[0]  # tuple[element, ...]
        if element is Any:
            return tuple(value)
        return tuple(_checked(item, element, f"{where}[{i}]", unresolved) for i, item in enumerate(value))
    allowed = typing.get_args(hint) if origin in (typing.Union, types.UnionType) else (origin,)
    if type(value) is int and float in allowed and int not in allowed:
        return float(value)
    # bool is an int to isinstance; `num_layers=True` is a mistake all the same.
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise UserError(
            f"config key {where}",
            got=f"{value!r} ({type(value).__name__})",
            expected=f"a value of type {_name(hint)}",
            fix=f"set --config.{where} to a value of that type",
        )
    return value


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
    if len(text) > _MAX_PART:
        text = f"{text[: _MAX_PART // 2]} ... {text[-_MAX_PART // 2 :]}"
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
