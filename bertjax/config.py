"""Config trees as dataclasses: every key is a field, and its value must satisfy the field's type and constraint.

A dataclass may be composed of others that read keys of the same subtree; see `Flat`.
"""

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from bertjax.errors import UserError, did_you_mean

T = TypeVar("T")
_FLAT = object()
_IN_EVERY_RUN = {"in_every_run": True}
# The type of a field that is no key itself: `rows: Flat[TableConfig]` reads its keys from the subtree of the dataclass.
Flat = Annotated[T, _FLAT]

_TOO_LARGE = 2**63  # NumPy and JAX have integers of 64 bits
_SEVERAL = re.compile(r"[(\[]\s*(['\"]).*\1\s*,?\s*[)\]]")  # a tuple or list of texts, given for a key with one text


class Tree(dict[str, Any]):
    """A config whose values are also attributes: `tree.model.dropout` is `tree["model"]["dropout"]`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Copies a config with its subtrees."""
        super().__init__({key: Tree(value) if isinstance(value, Mapping) else value for key, value in values.items()})

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        raise AttributeError(f"no config key {key}", name=key, obj=self)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self]


class Constraint(NamedTuple):
    """The allowed values of a config key, declared as `rate: Annotated[float, above(0, at_most=1)]`.

    Attributes:
      expected: the allowed values in words, for messages and `docs/reference/keys.md`.
      allows: whether a value is allowed.
      choices: the allowed strings, if they are listed.
      formerly: pairs of a value that earlier versions wrote, in lower case, and its present name.
    """

    expected: str
    allows: Callable[[Any], bool]
    choices: Sequence[str] = ()
    formerly: tuple[tuple[str, str], ...] = ()


def at_least(least: int | float, *, below: int | float | None = None, at_most: int | float | None = None) -> Constraint:
    """Allows numbers from `least` on, with at most one of the upper bounds. `below=math.inf` excludes only infinity."""
    return _bounded(f"at least {least}", lambda value: value >= least, below, at_most)


def above(bound: int | float, *, below: int | float | None = None, at_most: int | float | None = None) -> Constraint:
    """Allows numbers greater than `bound`, with an upper bound as in `at_least`."""
    return _bounded(f"above {bound}", lambda value: value > bound, below, at_most)


def one_of(*choices: str, formerly: Mapping[str, str] = types.MappingProxyType({})) -> Constraint:
    """Allows only the strings in `choices`; configs may also contain the earlier values in `formerly`."""
    return Constraint(_listed(choices), lambda value: value in choices, choices, tuple(formerly.items()))


def each(constraint: Constraint) -> Constraint:
    """Allows tuples whose elements all satisfy a constraint."""
    expected = f"each {constraint.expected}"
    return Constraint(expected, lambda values: all(map(constraint.allows, values)), constraint.choices)


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


def always(default: Any) -> Any:
    """Returns a field with the default of new runs. The config of every run has the key: without it, it is damaged.

    A plain default, in contrast, is also the value of runs that are older than the key.
    """
    return dataclasses.field(default=default, metadata=_IN_EVERY_RUN)


Size = Annotated[int, at_least(1)]
Count = Annotated[int, at_least(0)]
Seed = Annotated[int, at_least(0, below=2**32)]
DropoutRate = Annotated[float, at_least(0, below=1)]


def constraints(cls: type) -> dict[str, Constraint]:
    """Returns the constraints of a dataclass's fields, by name. Fields without a constraint are omitted."""
    by_key = {}
    for key, hint in typing.get_type_hints(cls, include_extras=True).items():
        for kind in (hint, *typing.get_args(hint)):  # `Size | None` has the constraint of `Size`
            if typing.get_origin(kind) is Annotated and isinstance(kind.__metadata__[0], Constraint):
                by_key[key] = kind.__metadata__[0]
    return by_key


@functools.cache
def flat_parts(cls: Any) -> Mapping[str, type[Any]]:
    """Returns the dataclasses that a dataclass is composed of, by field; see `Flat`."""
    hints = typing.get_type_hints(cls, include_extras=True).items()
    return {name: hint.__origin__ for name, hint in hints if _FLAT in getattr(hint, "__metadata__", ())}


def readers(cls: type) -> list[type]:
    """Returns a dataclass and those that it is composed of, which together read the keys of a subtree."""
    return [cls, *(reader for part in flat_parts(cls).values() for reader in readers(part))]


def keys(cls: type) -> set[str]:
    """Returns the keys that a dataclass and those that it is composed of read."""
    parts = flat_parts
    names = {f.name for reader in readers(cls) for f in dataclasses.fields(reader) if f.name not in parts(reader)}
    assert not any(names & parts(reader).keys() for reader in readers(cls)), "a flat part has the name of a key"
    return names


class Constrained:
    """Base class of config dataclasses: the constructor checks the constraint of every field.

    The class argument `prefix` is the subtree of the config, for messages. A subclass that checks combinations of
    fields calls `super().__post_init__()` first.

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
            value = getattr(self, key)
            self.check(value is None or constraint.allows(value), key, constraint.expected, constraint.choices)

    def check(
        self, ok: Any, key: str, expected: str, choices: Sequence[str] = (), *, got: Any = None, fix: str = ""
    ) -> None:
        """Raises UserError about a field unless `ok`.

        Args:
          ok: whether the value is allowed.
          key: the field, or several as in "{a,b}".
          expected: the allowed values in words.
          choices: the allowed strings; the message names the closest one.
          got: what the message says of the value; None for the value.
          fix: how to correct it. Default: to change the key.
        """
        if not ok:
            name = self._prefix + key
            value = getattr(self, key, None)
            if got is None:
                got = repr(value) if isinstance(value, str) else value
            values = value if isinstance(value, tuple) else (value,)
            wrong = next(item for item in values if item not in choices) if choices else ""
            fix = fix or did_you_mean(str(wrong), choices, f"change --config.{name}")
            raise UserError(f"config key{'s' * ('{' in key)} {name}", got=got, expected=expected, fix=fix)


class Composed(Constrained):
    """Base class of dataclasses with `Flat` parts: a key of a part is also an attribute of the whole."""

    def __getattr__(self, key: str) -> Any:
        for name in flat_parts(type(self)):  # type: ignore[arg-type]
            if name in self.__dict__ and hasattr(self.__dict__[name], key):
                return getattr(self.__dict__[name], key)
        raise AttributeError(f"{type(self).__name__} has no key {key}", name=key, obj=self)


def defaults(*classes: type) -> dict[str, Any]:
    """Returns the config of a new run that these dataclasses read. A key without a default has its type as value."""
    values: dict[str, Any] = {}
    for reader in (reader for cls in classes for reader in readers(cls)):
        hints = typing.get_type_hints(reader)
        for field in dataclasses.fields(reader):
            kind = type(field.default) if is_dataclass(field.default) else _kind(hints[field.name])
            if field.name in flat_parts(reader):
                continue
            if is_dataclass(kind):
                values[field.name] = {**values.get(field.name, {}), **defaults(kind)}
            elif field.default in (dataclasses.MISSING, None):
                values.setdefault(field.name, kind)
            else:
                values[field.name] = field.default
    return values


def _kind(hint: Any) -> Any:
    """Returns the type of a key without parameters: of dataclasses the first, of several other types `object`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType] if is_union else [hint]
    return typing.get_origin(kinds[0]) or kinds[0] if len(kinds) == 1 or is_dataclass(kinds[0]) else object


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Makes the dataclass `cls` from a config subtree.

    A key that the subtree lacks has the default of its field, unless the config of every run has it; see `always`.

    Args:
      cls: a dataclass. Its fields are plain values, tuples, mappings or such dataclasses.
      values: the config subtree.
      where: its dotted name, for messages; "" for the whole config.
    Raises:
      UserError: for a key that is not a field, a missing key whose field has no default, or a value of a wrong type.
    """
    return _composed(cls, _checked_fields((cls,), values, where, is_open=False))


def _composed(cls: type[T], values: Mapping[str, Any]) -> T:
    """Makes a dataclass from the values of its keys and those of its parts."""
    parts = {name: _composed(part, values) for name, part in flat_parts(cls).items()}  # type: ignore[arg-type]
    fields = {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name not in parts}  # type: ignore[arg-type]
    return cls(**fields, **parts)


def build_part(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Makes the dataclass `cls` from a config subtree, like `build`, but ignores keys that are not its fields."""
    return build(cls, {key: values[key] for key in keys(cls) if key in values}, where)


def check_keys(classes: tuple[type, ...], config: Mapping[str, Any]) -> None:
    """Raises UserError like `build` of a config that several dataclasses read, but allows None for any value.

    None stands for a value that is not known yet. Each key must be a field of at least one of the classes.
    """
    _checked_fields(classes, config, "", is_open=True)


def part(cls: type[T], config: Any) -> T:
    """Returns the fields of `cls` in a dataclass that extends it, such as the `HeadConfig` in `config.model`."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def _checked_fields(
    classes: tuple[type, ...], values: Mapping[str, Any], where: str, *, is_open: bool
) -> dict[str, Any]:
    """Returns the value of every field, converted to the field's type."""
    classes = tuple(reader for cls in classes for reader in readers(cls))
    parts = {name for cls in classes for name in flat_parts(cls)}
    hints = {key: hint for cls in classes for key, hint in typing.get_type_hints(cls).items()}
    fields = {key: hint for key, hint in hints.items() if key not in parts}
    later = {
        f.name: f.default
        for cls in classes
        for f in dataclasses.fields(cls)
        if f.default is not dataclasses.MISSING and not f.metadata
    }
    values = {**later, **values}
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in fields:
            others = [name for name in (*fields, *dotted(values)) if name.partition(".")[0] != key]
            raise unknown_key(prefix + key, [prefix + name for name in others])
    for key, hint in fields.items():
        if key not in values:
            expected = f"a value of type {_name(hint)}"
            fix = f"set --config.{prefix}{key}=VALUE"
            raise UserError(f"config key {prefix}{key}", got="no value", expected=expected, fix=fix)
    renamed = {key: dict(constraint.formerly) for cls in classes for key, constraint in constraints(cls).items()}
    values = {key: renamed.get(key, {}).get(str(value).lower(), value) for key, value in values.items()}
    return {key: _checked(values[key], hint, prefix + key, is_open) for key, hint in fields.items()}


def dotted(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields the dotted names of all keys of a config tree, subtrees included."""
    for key, value in values.items():
        yield key
        if isinstance(value, Mapping):
            yield from (f"{key}.{name}" for name in dotted(value))


def unknown_key(key: str, keys: Iterable[str]) -> UserError:
    """Returns the error for a dotted config key that is not one of `keys`.

    It suggests a key of the same name in another subtree, such as "optimizer.learning_rate" for "learning_rate", or
    else the key with the most similar name.
    """
    names = list(dict.fromkeys(keys))
    same = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    close = difflib.get_close_matches(key, same, n=1, cutoff=0.0)
    siblings = [name for name in names if name.rpartition(".")[0] == key.rpartition(".")[0]]
    fix = did_you_mean(close[0] if close else key, names, "correct the name or delete the key")
    expected = "a key that --keys lists" if fix.endswith("?") or not siblings else _listed(siblings)
    return UserError(f"config key {key}", got="an unknown key", expected=expected, fix=fix)


def choice(value: str, choices: Sequence[str], where: str) -> str:
    """Returns `value` if it is one of `choices`.

    Args:
      value: the value.
      choices: the allowed values.
      where: the config key or the --flag, for messages.
    Raises:
      UserError: if `value` is not in `choices`.
    """
    if value not in choices:
        raise UserError(
            where if where.startswith("--") else f"config key {where}",
            got=repr(value),
            expected=_listed(choices),
            fix=did_you_mean(str(value), choices, "choose one of these"),
        )
    return value


def _listed(choices: Iterable[str]) -> str:
    return "one of " + ", ".join(choice or "''" for choice in choices)


def _checked(value: Any, hint: Any, where: str, is_open: bool) -> Any:
    """Returns `value` as the type `hint`. An int is converted to a float and a list to a tuple, and nothing else."""
    options = (hint, *(() if typing.get_origin(hint) is tuple else typing.get_args(hint)))
    subtrees = [kind for kind in options if isinstance(kind, type) and is_dataclass(kind)]
    if is_open and value is None and not subtrees:
        return None
    if subtrees and isinstance(value, Mapping):
        # Of several dataclasses, the one with the most keys of the subtree.
        cls = max(subtrees, key=lambda kind: len(keys(kind) & value.keys()))
        return _checked_fields((cls,), value, where, is_open=True) if is_open else build(cls, value, where)
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    allowed = tuple(typing.get_origin(kind) or kind for kind in kinds)
    if tuple in allowed and isinstance(value, (list, tuple)):
        element = typing.get_args(kinds[allowed.index(tuple)])[0]  # tuple[element, ...]
        if element is Any:
            return tuple(value)
        return tuple(_checked(item, element, f"{where}[{i}]", is_open) for i, item in enumerate(value))
    is_large = type(value) is int and abs(value) >= _TOO_LARGE
    if type(value) is int and float in allowed and int not in allowed and not is_large:
        return float(value)
    # isinstance takes a bool for an int, but `num_layers=True` is an error.
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed) or is_large:
        expected = f"a value of type {_name(hint)}" + (", of 64 bits" if is_large else "")
        fix = f"set --config.{where} to a value of that type"
        raise UserError(f"config key {where}", got=f"{value!r} ({type(value).__name__})", expected=expected, fix=fix)
    if isinstance(value, str) and _SEVERAL.fullmatch(value):
        got = f"{value}, several values"
        fix = f"set --config.{where} to one of them, or write a,b if it may name several"
        raise UserError(f"config key {where}", got=got, expected="one value", fix=fix)
    return value


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
