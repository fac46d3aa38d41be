"""The pairs that a translation model learns from, and is tested on: of texts in files, or of dates that are made up."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.config import Constrained, Count, Size
from bertjax.data.translation.dates import DatePairs, DatesConfig
from bertjax.data.translation.parallel_text import Pair, ParallelText, ParallelTextConfig
from bertjax.errors import UserError

DATES = "dates"  # the source that is made up
_FILES = (
    *("target", "valid_source", "valid_target", "test_source", "test_target"),
    *("source_column", "target_column", "source_prefix", "target_prefix"),
)
_SAMPLED_DATES = 20_000  # in which all that dates are written with occurs
# Pairs are held out by their texts alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0


@dataclasses.dataclass(frozen=True)
class DateCounts(Constrained, prefix="data"):
    """How many dates there are to be scored on.

    Attributes:
      num_valid: how many made-up dates are held out; of no effect on pairs in files.
      num_test: how many made-up dates are tested on, 0 for none; of no effect on pairs in files.
    """

    num_valid: Size
    num_test: Count


class TranslationText:
    """The pairs of each split.

    Attributes:
      is_dates: whether they are dates, of which there is no end to train on.
      has_test: whether there are pairs to test on.
      texts: the pairs of each split that are read from files.
    """

    def __init__(self, files: ParallelTextConfig, dates: DatesConfig, counts: DateCounts, seed: int) -> None:
        """Args: which files; or which dates, if `files.source` names them; what draws the dates to train on.

        Raises:
          UserError: sources that do not fit together, or are not there.
        """
        self.is_dates = files.source == DATES
        named = [field for field in _FILES if getattr(files, field)]
        if self.is_dates and named:
            raise UserError(
                "config key data.source",
                got=f"{DATES}, beside data.{named[0]}",
                expected="no other files beside made-up dates",
                fix="set --config.data.source to the pairs to train on, or to nothing where nothing is trained",
            )
        self._files = files
        self.has_test = bool(counts.num_test if self.is_dates else files.test_source)
        self._counts = dataclasses.asdict(counts)
        splits = ("train", "valid", "test") if self.has_test else ("train", "valid")
        # To be scored on held-out pairs takes none to train on.
        read = [] if self.is_dates else [split for split in splits if split != "train" or files.source]
        self.texts = {split: ParallelText(files, split, _SPLIT_SEED) for split in read}
        self._dates = {}
        if self.is_dates:
            seeds = {"train": seed, "valid": _SPLIT_SEED, "test": _SPLIT_SEED}
            self._dates = {split: DatePairs(dates, split, seeds[split]) for split in splits}

    def pairs(self, split: str) -> Iterator[Pair]:
        """The pairs of a split; of dates to train on, some that have all characters in them."""
        if self.is_dates:
            count = _SAMPLED_DATES if split == "train" else self._counts[f"num_{split}"]
            return itertools.islice(self._dates[split].pairs(0), count)
        text = self.texts.get(split) or ParallelText(self._files, split, _SPLIT_SEED)
        return text.pairs()

    def dates(self, start: int) -> Iterator[Pair]:
        """The dates to train on from a number on, without end."""
        return self._dates["train"].pairs(start)

    def fingerprint(self) -> dict[str, Mapping[str, Any]]:
        """A JSON-able description of the pairs."""
        if self.is_dates:
            return {**{split: dates.fingerprint() for split, dates in self._dates.items()}, "counts": self._counts}
        return {split: text.fingerprint() for split, text in self.texts.items()}
