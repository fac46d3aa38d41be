"""Config trees as dataclasses: every key is a field, whose type and constraint its value has to satisfy."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from bertjax.errors import UserError

T = TypeVar("T")

_TOO_LARGE = 2**63  # for an integer of any library


class Constraint(NamedTuple):
    """Which values of its type a config key may have, declared as `rate: Annotated[float, above(0, at_most=1)]`.

    Attributes:
      expected: the allowed values in words, for messages and `docs/reference/keys.md`.
      allows: whether a value is allowed.
    """

    expected: str
    allows: Callable[[Any], bool]


def at_least(least: int | float, *, below: int | float | None = None, at_most: int | float | None = None) -> Constraint:
    """Numbers from `least` on, with at most one of the two upper bounds; `below=math.inf` excludes infinity alone."""
    return _bounded(f"at least {least}", lambda value: value >= least, below, at_most)


def above(bound: int | float, *, below: int | float | None = None, at_most: int | float | None = None) -> Constraint:
    """Numbers greater than `bound`, with an upper bound as in `at_least`."""
    return _bounded(f"above {bound}", lambda value: value > bound, below, at_most)


def one_of(*choices: str) -> Constraint:
    """One of several strings."""
    return Constraint("one of " + ", ".join(each or "''" for each in choices), lambda value: value in choices)


def each(constraint: Constraint) -> Constraint:
    """Tuples whose elements all satisfy a constraint."""
    return Constraint(f"each {constraint.expected}", lambda values: all(map(constraint.allows, values)))


def _bounded(
    expected: str, allows: Callable[[Any], bool], below: int | float | None, at_most: int | float | None
) -> Constraint:
    if below is not None:
        return Constraint(
            f"{expected} and {'finite' if below == math.inf else f'below {below}'}",
            lambda value: allows(value) and value < below,
        )
    if at_most is not None:
        return Constraint(f"{expected} and at most {at_most}", lambda value: allows(value) and value <= at_most)
    return Constraint(expected, allows)


Size = Annotated[int, at_least(1)]
Count = Annotated[int, at_least(0)]
Seed = Annotated[int, at_least(0, below=2**32)]
DropoutRate = Annotated[float, at_least(0, below=1)]


def constraints(cls: type) -> dict[str, Constraint]:
    """The constraints of a dataclass's fields, by name; a field without one is left out."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {key: hint.__metadata__[0] for key, hint in hints.items() if typing.get_origin(hint) is Annotated}


class Constrained:
    """Base of config dataclasses: construction checks the constraint of every field.

    A subclass names its subtree of the config, for messages. One with checks across fields calls
    `super().__post_init__()` first.

    >>> @dataclasses.dataclass(frozen=True)
    ... class ModelConfig(Constrained, prefix="model"):
    ...     dropout: Annotated[float, at_least(0, below=1)]
    >>> ModelConfig(dropout=1.0)
    Traceback (most recent call last):
    bertjax.errors.UserError: config key model.dropout: got 1.0; expected at least 0 and below 1. Fix: change
        --config.model.dropout.
    """

    _prefix = ""  # not annotated, or it would be a field

    def __init_subclass__(cls, prefix: str | None = None) -> None:
        super().__init_subclass__()
        if prefix is not None:
            cls._prefix = f"{prefix}."

    def __post_init__(self) -> None:
        for key, constraint in constraints(type(self)).items():
            self.check(constraint.allows(getattr(self, key)), key, constraint.expected)

    def check(self, ok: bool, key: str, expected: str) -> None:
        """Raises UserError about the field `key` unless `ok`."""
        if not ok:
            value, name = getattr(self, key), self._prefix + key
            got = repr(value) if isinstance(value, str) else value
            raise UserError(f"config key {name}", got=got, expected=expected, fix=f"change --config.{name}")


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Makes the dataclass `cls` from a config subtree; every key must be a field, and every field given.

    A dead or mistyped key is an error, and so is a missing one whose field has no default. Defaults are for library
    users and for runs that are older than a key; the files of `configs/` name every key.

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


def build_part(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Makes the dataclass `cls` from a config subtree, as `build`, but ignores the keys of others."""
    return build(cls, {key: values[key] for key in typing.get_type_hints(cls) if key in values}, where)


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
    is_large = type(value) is int and abs(value) >= _TOO_LARGE
    if type(value) is int and float in allowed and int not in allowed and not is_large:
        return float(value)
    # bool is an int to isinstance; `num_layers=True` is a mistake all the same.
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed) or is_large:
        raise UserError(
            f"config key {where}",
            got=f"{value!r} ({type(value).__name__})",
            expected=f"a value of type {_name(hint)}" + (", of 64 bits" if is_large else ""),
            fix=f"set --config.{where} to a value of that type",
        )
    return value


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
