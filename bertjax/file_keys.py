"""Tables of the keys of JSON files: which are applied, which have no effect, and which values are refused."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError

_MAX_SHOWN = 200  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class FileKeys:
    """All keys that the reference library writes into a file, also in earlier versions.

    Attributes:
      applied: keys that the reader of the file applies and checks.
      supported: keys with an effect that is not implemented, and their values without that effect.
      inert: keys without an effect on results here, by the reason.
    """

    applied: tuple[str, ...] = ()
    supported: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    inert: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """All keys."""
        return {*self.applied, *self.supported, *itertools.chain(*self.inert.values())}

    def check(self, values: Mapping[str, Any], path: Path) -> None:
        """Raises UserError for a value with an effect that is not implemented."""
        check_supported(values, self.supported, path)


def check_supported(values: Mapping[str, Any], supported: Mapping[str, tuple[Any, ...]], path: Path) -> None:
    """Raises UserError for a value that is not supported; a missing key is.

    Args:
      values: the content of a file.
      supported: the supported values of each key.
      path: the path of the file, for messages.
    """
    for key, choices in supported.items():
        if key in values and not any(_is_equal(values[key], choice) for choice in choices):
            got = f"{values[key]}"[:_MAX_SHOWN]
            expected = " or ".join("no value" if choice is None else repr(choice) for choice in choices)
            raise UserError(
                f"{path}: {key}", got=got, expected=expected, fix="use a model with that value, or correct the file"
            )


def check_fixed(values: Mapping[str, Any], fixed: Mapping[str, Any], path: Path) -> None:
    """Calls `check_supported` for keys with one supported value each."""
    check_supported(values, {key: (value,) for key, value in fixed.items()}, path)


def _is_equal(value: Any, choice: Any) -> bool:
    """Returns whether two JSON values are equal; a number is not equal to a boolean."""
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)
