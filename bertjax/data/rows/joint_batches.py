"""Training batches of examples of several texts that one loss couples. All texts of a batch are packed into its rows.

A batch has `batch_size` examples in each epoch's random order, whatever their lengths, so which texts are compared does
not depend on how rows are padded. Packing needs one shape of batch for nearly all of them, and leaves little padding.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import cast

import numpy as np
from jaxtyping import Int64

from bertjax.data.random import permutation
from bertjax.data.rows.buckets import Indices, Rows, max_examples
from bertjax.data.rows.layout import positions_in_groups
from bertjax.data.rows.packed_rows import row_capacity
from bertjax.data.rows.packing import pack
from bertjax.data.rows.stored import Fields
from bertjax.data.rows.targets import Targets, at

# Parts of the permutation's stream; 0 to 2 are those of other batches.
_EXAMPLES = 3
_RELATED = 4
_ROWS = 5
_SAMPLED = 64  # batches by which the usual number of rows is chosen


class Examples:
    """Examples of one to T texts each.

    Attributes:
      lengths: the tokens of each example.
    """

    def __init__(self, fields: Fields, num_texts: int) -> None:
        """Initializes the examples.

        Args:
          fields: the fields of all texts; see `RelatedTextsCodec.training`.
          num_texts: T. With 2, an example of one text gets another one of its class; see `texts_of`.
        """
        example_fields = ("place", "number", "score")
        place, number, self._scores = (cast(np.ndarray, fields[name]) for name in example_fields)
        self._numbers = np.unique(number, return_inverse=True)[1]
        self.texts = Rows({name: field for name, field in fields.items() if name not in example_fields})
        self._starts = np.flatnonzero(place == 0)
        self._counts = np.diff(self._starts, append=len(place))
        self.num_texts = num_texts
        self.targets: Targets = {}
        self.are_classes = bool(self._counts.max(initial=0) == 1)
        self.lengths = np.add.reduceat(self.texts.lengths, self._starts)

    @property
    def least(self) -> int:
        """The number of texts without which an example has no weight: a query and its positive."""
        return min(2, self.num_texts)

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self._starts)

    def ordered(self, seed: int, epoch: int) -> Int64[np.ndarray, "n T"]:
        """Returns the texts of all examples in the random order of an epoch; -1 for none.

        The second text of an example of a class is the one after it in a random order of the class. Of a class of one
        text it is missing.
        """
        places = np.arange(self.num_texts)
        texts = np.where(places < self._counts[:, None], self._starts[:, None] + places, -1)
        if self.are_classes:
            texts[:, 1] = self._successors(seed, epoch)
        return texts[permutation(seed, epoch, len(texts), _EXAMPLES)]

    def _successors(self, seed: int, epoch: int) -> Indices:
        shuffled = permutation(seed, epoch, len(self), _RELATED)
        order = shuffled[np.argsort(self._numbers[shuffled], kind="stable")]  # class after class
        numbers = self._numbers[order]
        first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        following = np.append(order[1:], 0)
        ends = np.append(first[1:], len(order)) - 1
        following[ends] = np.where(first == ends, -1, order[first])
        successors = np.empty_like(order)
        successors[order] = following
        return successors

    def described(self, texts: Int64[np.ndarray, "B T"]) -> dict[str, np.ndarray]:
        """Returns "numbers" [B, T] int32 and "scores" [B, T - 1] float32 of texts, and their targets.

        See `Texts` of the losses.
        """
        is_present = texts >= 0
        numbers = np.where(is_present, self._numbers[texts], 0)
        scores = np.where(is_present, self._scores[texts], 0)[:, 1:]
        return {"numbers": numbers.astype(np.int32), "scores": scores.astype(np.float32), **at(self.targets, texts)}


@dataclasses.dataclass(frozen=True)
class JointBatches:
    """Training batches of examples; see the module. A batch is a pure function of (seed, step).

    Attributes:
      examples: the examples.
      length: the tokens of a row.
      sizes: the numbers of rows that a batch may have, ascending; see `row_counts`.
      batch_size: examples per global batch.
      seed: the seed of the order.
    """

    examples: Examples
    length: int
    sizes: tuple[int, ...]
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; the same in every epoch."""
        return -(-len(self.examples) // self.batch_size)

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Yields the part of the global batch of each step from `start` on that `rows` select, without end.

        `rows` are numbers below `batch_size`; of a field of n entries, they select the same share of its entries.
        Fields, for B examples of T texts, R rows of S tokens with room for E texts each: those of `Rows.packed` without
        "weights"; "places" [B, T] int32, row * E + number of each text, -1 for none; those of `Examples.described`; and
        "weights" [B] float32, 0 for an example that only fills the last batch of an epoch.
        """
        for epoch in itertools.count(start // self.steps_per_epoch):
            ordered = self.examples.ordered(self.seed, epoch)
            first = max(start, epoch * self.steps_per_epoch)
            for step in range(first, (epoch + 1) * self.steps_per_epoch):
                batch = self._batch(_texts(ordered, step % self.steps_per_epoch, self.batch_size), step)
                yield {name: field[_share(rows, self.batch_size, len(field))] for name, field in batch.items()}

    def _batch(self, texts: Int64[np.ndarray, "B T"], step: int) -> dict[str, np.ndarray]:
        is_present = texts >= 0
        rows = self.examples.texts
        row = _packed(rows.lengths[texts[is_present]], self.length, self.seed, step)
        size = next(size for size in self.sizes if size > row.max(initial=0))
        order = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=size)
        fields = rows.packed(texts[is_present][order], counts, self.length)
        del fields["weights"]
        slots = np.empty_like(row)
        slots[order] = row[order] * max_examples(self.length) + positions_in_groups(counts)
        places = np.full(texts.shape, -1, np.int32)
        places[is_present] = slots
        weights = np.asarray(is_present[:, : self.examples.least].all(axis=1), np.float32)
        return {**fields, "places": places, "weights": weights, **self.examples.described(texts)}


def row_counts(examples: Examples, length: int, batch_size: int, multiple: int, seed: int) -> tuple[int, ...]:
    """Returns the numbers of rows that batches may have: the usual one, and one that suffices for any batch.

    Args:
      examples: the examples.
      length: the tokens of a row; no text is longer.
      batch_size: examples per batch.
      multiple: all numbers are multiples of it.
      seed: chooses the batches that are tried.
    """
    ordered = examples.ordered(seed, 0)
    most = 0
    for number in range(min(-(-len(ordered) // batch_size), _SAMPLED)):
        texts = _texts(ordered, number, batch_size)
        most = max(most, 1 + _packed(examples.texts.lengths[texts[texts >= 0]], length, seed, number).max(initial=0))
    # Any two rows that best fit fills share more tokens than a row has; the bound of one text a row always holds.
    longest = int(np.sort(examples.lengths)[-batch_size:].sum()) * (2 if examples.are_classes else 1)
    bound = min(2 * longest // length + 1, batch_size * examples.num_texts)
    room = -(-batch_size * examples.num_texts // max_examples(length))  # rows for as many texts
    sizes = {-(-max(count, 1) // multiple) * multiple for count in (most, max(bound, room, most))}
    return tuple(sorted(map(int, sizes)))


def _texts(ordered: Int64[np.ndarray, "n T"], number: int, batch_size: int) -> Int64[np.ndarray, "B T"]:
    """The texts of a batch of an epoch; the last one is filled up with examples without texts."""
    chosen = ordered[number * batch_size :][:batch_size]
    return np.pad(chosen, ((0, batch_size - len(chosen)), (0, 0)), constant_values=-1)


def _packed(lengths: Indices, length: int, seed: int, step: int) -> Indices:
    """The row of each text of a batch."""
    return pack(lengths, row_capacity(length, max_examples(length)), seed, step, _ROWS)


def _share(rows: Indices, batch_size: int, size: int) -> Int64[np.ndarray, " m"]:
    """The entries, of `size`, that correspond to these of `batch_size` rows."""
    return np.flatnonzero(np.isin(np.arange(size) * batch_size // size, rows))
