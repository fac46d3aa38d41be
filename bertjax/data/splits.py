"""Splits off validation rows if they have no source of their own."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int

from bertjax.config import Constrained, always
from bertjax.data.random import Stream, bits, uniform
from bertjax.errors import UserError

T = TypeVar("T")
TRAIN = "train"
VALID = "valid"
_SPLIT_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class SplitConfig(Constrained, prefix="data"):
    """The sources of the training and validation rows.

    Attributes:
      source: the training data; "" to score validation rows only.
      valid_source: the validation data; "" to split them off the training data.
      valid_fraction: the fraction that is split off if `valid_source` is empty.
    """

    source: str = always("")
    valid_source: str = always("")
    valid_fraction: float = always(0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.valid_source, self.valid_fraction)


def read_splits(
    config: SplitConfig,
    read: Callable[[str, str], Iterator[T]],
    seed: int,
    group: Callable[[T, int], int] = lambda row, number: number,
    of_groups: str = "rows",
) -> Iterator[tuple[str, T]]:
    """Yields each row with its split, "train" or "valid". Yields training rows only if `config.source` is set.

    Args:
      config: the sources.
      read: reads a source; takes the source and the config key that names it.
      seed: draws the validation rows if they have no source.
      group: returns the group number of a row, from the row and its number: 0, 1, ... in the order of the first rows. A
        group is never divided. By default each row is a group.
      of_groups: what the groups are, for messages.
    Raises:
      UserError: if `read` raises it, or if the training or the validation split would be empty.
    """
    if config.valid_source:
        if config.source:
            for row in read(config.source, "data.source"):
                yield TRAIN, row
        for row in read(config.valid_source, "data.valid_source"):
            yield VALID, row
        return
    count = count_held_out = num_groups = 0
    rows = read(config.source, "data.source")
    while part := list(itertools.islice(rows, _SPLIT_AT_ONCE)):
        groups = np.array([group(row, number) for number, row in enumerate(part, start=count)])
        out = held_out(groups, config.valid_fraction, seed)
        yield from ((VALID if is_out else TRAIN, row) for is_out, row in zip(out.tolist(), part, strict=True))
        count = count + len(part)
        count_held_out = count_held_out + int(out.sum())
        num_groups = max(num_groups, int(groups.max()) + 1)
    if not 0 < count_held_out < count:
        groups_of = f" with {num_groups} {of_groups}, which are not divided," if num_groups < count else ""
        raise UserError(
            f"config key data.valid_fraction={config.valid_fraction}",
            got=f"{count_held_out} of {count} rows{groups_of} of {config.source} in the validation split",
            expected="at least one row in the training split and one in the validation split",
            fix="change the fraction, add rows, or set data.valid_source to a file of validation rows",
        )


def check_split(valid_source: str, valid_fraction: float) -> None:
    """Raises UserError unless `valid_source` is set or `valid_fraction` is in (0, 1)."""
    if not valid_source and not 0 < valid_fraction < 1:
        expected = "a fraction above 0 and below 1"
        fix = "use 0.1, or set data.valid_source to a file of validation rows"
        raise UserError("config key data.valid_fraction", got=valid_fraction, expected=expected, fix=fix)


def held_out(groups: Int[np.ndarray, " rows"], fraction: float, seed: int) -> Bool[np.ndarray, " rows"]:
    """Returns whether each row goes to the validation split. Depends only on the seed and the row's group number.

    Args:
      groups: the group number of each row. A group is never divided.
      fraction: the probability that a group goes to the validation split.
      seed: the seed of the draw.
    """
    return uniform(bits(seed, Stream.ROW_SPLIT, 0, groups, 1)[:, 0]) < fraction


def is_held_out(text: str, fraction: float, seed: int) -> bool:
    """Returns whether a text goes to the validation split. Depends on the seed and the text: copies stay together.

    Args:
      text: the text.
      fraction: the probability that a distinct text goes to the validation split.
      seed: the seed of the draw.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, salt=seed.to_bytes(16, "little")).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64
