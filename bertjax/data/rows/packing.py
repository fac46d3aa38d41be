"""Packs instances into rows of one length, so that little of a batch is padding.

Instances of equal length are alike, so the histogram of lengths is packed, as in Krell et al. 2021, "Efficient
Sequence Packing without Cross-contamination": longest first, each to where it leaves the least room (best fit;
their SPFHP takes the fullest row the other way round and leaves more). It takes milliseconds for any number of
instances. Which of the instances of a length go where is random.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from bertjax.data import random


@dataclasses.dataclass(frozen=True)
class Packing:
    """What a row holds.

    Attributes:
      tokens: how many tokens.
      predictions: how many predicted tokens.
      segments: how many instances.
      wanted: for instances of 0, 1, ... `tokens` tokens, how many of them are predicted.
    """

    tokens: int
    predictions: int
    segments: int
    wanted: tuple[int, ...]


class Recipe(NamedTuple):
    """Rows that are filled alike, and what room they have left."""

    rows: int
    lengths: tuple[int, ...]
    tokens: int
    predictions: int
    segments: int

    def with_more(self, rows: int, length: int, predictions: int, copies: int = 1) -> "Recipe":
        """So many of these rows with more instances of a length."""
        return Recipe(
            rows,
            self.lengths + (length,) * copies,
            self.tokens - length * copies,
            self.predictions - predictions * copies,
            self.segments - copies,
        )


def pack(lengths: Int[np.ndarray, " n"], packing: Packing, seed: int, epoch: int, part: int) -> Int64[np.ndarray, " n"]:
    """The row that each instance goes to, from 0 on.

    A pure function of its arguments; `part` tells apart what one epoch packs.
    """
    recipes = make_recipes(np.bincount(lengths, minlength=packing.tokens + 1), packing)
    # A slot is where an instance of some length goes. Slots and instances are matched in the order of lengths.
    starts = np.cumsum([0, *(recipe.rows for recipe in recipes)])
    slot_lengths = [np.tile(recipe.lengths, recipe.rows) for recipe in recipes]
    slot_rows = [
        start + np.repeat(np.arange(recipe.rows), len(recipe.lengths))
        for start, recipe in zip(starts, recipes, strict=False)
    ]
    shuffled = random.permutation(seed, epoch, len(lengths), part)
    rows = np.empty(len(lengths), np.int64)
    if recipes:
        slots = np.argsort(np.concatenate(slot_lengths), kind="stable")
        rows[shuffled[np.argsort(lengths[shuffled], kind="stable")]] = np.concatenate(slot_rows)[slots]
    return rows


def make_recipes(counts: Int[np.ndarray, " L"], packing: Packing) -> list[Recipe]:
    """How to fill rows with `counts[l]` instances of each length l, every one of them once."""
    empty = Recipe(0, (), packing.tokens, packing.predictions, packing.segments)
    opened: list[list[Recipe]] = [[] for _ in range(packing.tokens + 1)]  # by the tokens that are left
    for length in np.flatnonzero(counts)[::-1].tolist():
        left, wanted = int(counts[length]), packing.wanted[length]
        while left:
            place = _best_fit(opened, length, wanted)
            if place is None:
                copies = min(left, packing.tokens // length, packing.predictions // wanted, packing.segments)
                recipe = empty.with_more(left // copies, length, wanted, copies)
            else:
                room, index = place
                old = opened[room].pop(index)
                recipe = old.with_more(min(left, old.rows), length, wanted)
                copies = 1
                if recipe.rows < old.rows:
                    opened[room].append(old._replace(rows=old.rows - recipe.rows))
            opened[recipe.tokens].append(recipe)
            left -= recipe.rows * copies
    return [recipe for recipes in opened for recipe in recipes]


def _best_fit(opened: list[list[Recipe]], length: int, predictions: int) -> tuple[int, int] | None:
    """Where the rows stand that have the least room in which an instance fits."""
    for room in range(length, len(opened)):
        for index, recipe in enumerate(opened[room]):
            if recipe.predictions >= predictions and recipe.segments:
                return room, index
    return None
