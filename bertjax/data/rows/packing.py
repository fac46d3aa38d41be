"""Packs instances into rows of a fixed length, so that little of a batch is padding.

Instances of equal length are interchangeable, so the histogram of lengths is packed, as in Krell et al. 2021,
"Efficient Sequence Packing without Cross-contamination". Longer instances are packed first, each into the row where it
leaves the least room (best fit). Their SPFHP instead fills the row that has the most room, and leaves more room
unused. Packing takes milliseconds for any number of instances. Instances of equal length are assigned at random.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from bertjax.data import random


@dataclasses.dataclass(frozen=True)
class Packing:
    """The capacity of a row.

    Attributes:
      tokens: the number of tokens.
      predictions: the number of predicted tokens.
      segments: the number of instances.
      per_instance: the number of predicted tokens of an instance of 0, 1, ... `tokens` tokens.
    """

    tokens: int
    predictions: int
    segments: int
    per_instance: tuple[int, ...]


class Recipe(NamedTuple):
    """Several rows with instances of the same lengths, and the room left in each of them."""

    rows: int
    lengths: tuple[int, ...]
    tokens: int
    predictions: int
    segments: int

    def with_more(self, rows: int, length: int, predictions: int, copies: int = 1) -> "Recipe":
        """Returns `rows` of these rows with `copies` more instances of one length."""
        return Recipe(
            rows,
            self.lengths + (length,) * copies,
            self.tokens - length * copies,
            self.predictions - predictions * copies,
            self.segments - copies,
        )


def pack(lengths: Int[np.ndarray, " n"], packing: Packing, seed: int, epoch: int, part: int) -> Int64[np.ndarray, " n"]:
    """Returns the row of each instance, from 0 on.

    A pure function of its arguments. `part` distinguishes several packings of one epoch.
    """
    recipes = make_recipes(np.bincount(lengths, minlength=packing.tokens + 1), packing)
    # A slot is room for an instance of one length. Slots and instances are matched in order of length.
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
    """Returns how to fill rows with `counts[l]` instances of each length l, each instance once."""
    empty = Recipe(0, (), packing.tokens, packing.predictions, packing.segments)
    opened: list[list[Recipe]] = [[] for _ in range(packing.tokens + 1)]  # indexed by the tokens left
    for length in np.flatnonzero(counts)[::-1].tolist():
        remaining = int(counts[length])
        predictions = packing.per_instance[length]
        while remaining:
            fit = _best_fit(opened, length, predictions)
            if fit is None:
                copies = min(remaining, packing.tokens // length, packing.predictions // predictions, packing.segments)
                recipe = empty.with_more(remaining // copies, length, predictions, copies)
            else:
                room, index = fit
                old = opened[room].pop(index)
                recipe = old.with_more(min(remaining, old.rows), length, predictions)
                copies = 1
                if recipe.rows < old.rows:
                    opened[room].append(old._replace(rows=old.rows - recipe.rows))
            opened[recipe.tokens].append(recipe)
            remaining -= recipe.rows * copies
    return [recipe for recipes in opened for recipe in recipes]


def _best_fit(opened: list[list[Recipe]], length: int, predictions: int) -> tuple[int, int] | None:
    """Returns the indices in `opened` of the fullest rows in which an instance fits; None if it fits in none."""
    for room in range(length, len(opened)):
        for index, recipe in enumerate(opened[room]):
            if recipe.predictions >= predictions and recipe.segments:
                return room, index
    return None
