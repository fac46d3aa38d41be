"""Which rows are held out where no source of their own gives them."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int

from bertjax.config import Constrained
from bertjax.data.random import Stream, bits, uniform
from bertjax.errors import UserError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class SplitConfig(Constrained, prefix="data"):
    """Where training rows and held-out rows come from.

    Attributes:
      source: the training rows; empty where there are only held-out rows to score.
      valid_source: the held-out rows; empty to hold out rows of `source`.
      valid_fraction: which fraction of the rows is held out where `valid_source` is empty, drawn by their numbers.
    """

    source: str
    valid_source: str
    valid_fraction: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.valid_source, self.valid_fraction)


def read_splits(
    config: SplitConfig,
    read: Callable[[str, str], list[T]],
    seed: int,
    group: Callable[[list[T]], Sequence[int]] = lambda rows: range(len(rows)),
) -> tuple[list[T], list[T]]:
    """Returns the training rows, none without a source of them, and the held-out rows.

    Args:
      config: the sources.
      read: returns the rows of a source, given the config key that names it.
      seed: what draws the held-out rows, if they have no source.
      group: returns the numbers of rows; those of one number are held out together.
    Raises:
      UserError: as `read`; or no row on one side.
    """
    if config.valid_source:
        train = read(config.source, "data.source") if config.source else []
        return train, read(config.valid_source, "data.valid_source")
    rows = read(config.source, "data.source")
    out = held_out(np.array(group(rows)), config.valid_fraction, seed, config.source)
    return list(itertools.compress(rows, ~out)), list(itertools.compress(rows, out))


def check_split(valid_source: str, valid_fraction: float) -> None:
    """Raises UserError unless there is a source of held-out rows, or a fraction of all rows to hold out."""
    if not valid_source and not 0 < valid_fraction < 1:
        raise UserError(
            "config key data.valid_fraction",
            got=valid_fraction,
            expected="a fraction of the rows above 0 and below 1",
            fix="use 0.1, or give held-out rows as data.valid_source",
        )


def held_out(groups: Int[np.ndarray, " rows"], fraction: float, seed: int, source: str) -> Bool[np.ndarray, " rows"]:
    """Whether each row is held out, which follows from the seed and its group's number alone.

    Args:
      groups: rows of one number are held out together or not at all.
      fraction: of the groups.
      seed: what draws them.
      source: what the rows are of, for messages.
    Raises:
      UserError: no row on one side.
    """
    out: Bool[np.ndarray, " rows"] = uniform(bits(seed, Stream.ROW_SPLIT, 0, groups, 1)[:, 0]) < fraction
    if out.all() or not out.any():
        raise UserError(
            f"config key data.valid_fraction={fraction}",
            got=f"{out.sum()} of {len(out)} rows of {source} held out",
            expected="some rows to train on, and some to evaluate",
            fix="change it, give more rows, or give held-out rows as data.valid_source",
        )
    return out


def is_held_out(text: str, fraction: float, seed: int) -> bool:
    """Whether a text is held out, which follows from the seed and the text alone: so are all of its copies.

    Args:
      text: what has to be on one side.
      fraction: of the different texts.
      seed: what draws them.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, salt=seed.to_bytes(16, "little")).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64
