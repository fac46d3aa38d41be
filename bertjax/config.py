"""Config trees as dataclasses: every key is a field, every field has a value of its type."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bertjax.errors import UserError

T = TypeVar("T")


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


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
