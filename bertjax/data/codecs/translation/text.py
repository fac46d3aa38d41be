"""The pairs for training and evaluation of a translation model: texts in files, or generated dates."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.config import Constrained, Count, Size, always
from bertjax.data.codecs.translation.dates import DatePairs, DatesConfig
from bertjax.data.codecs.translation.parallel_text import Pair, ParallelText, ParallelTextConfig
from bertjax.data.readers.sources import DATES
from bertjax.errors import UserError

_FILES = (
    *("target", "valid_source", "valid_target", "test_source", "test_target"),
    *("source_column", "target_column", "source_prefix", "target_prefix"),
)
_SAMPLED_DATES = 20_000  # enough to contain every word and character of dates
# The validation split depends only on the texts, so that runs with different seeds are comparable.
_SPLIT_SEED = 0


@dataclasses.dataclass(frozen=True)
class DateCounts(Constrained, prefix="data"):
    """The numbers of generated dates for evaluation.

    Attributes:
      num_valid: the number of generated validation dates. Ignored for pairs in files.
      num_test: the number of generated test dates; 0 for none. Ignored for pairs in files.
    """

    num_valid: Size = always(1000)
    num_test: Count = always(1000)


class TranslationText:
    """The pairs of each split.

    Attributes:
      is_dates: whether the pairs are dates; then the training split is endless.
      has_test: whether there are test pairs.
      texts: the pairs of each split, if they are in files.
    """

    def __init__(self, files: ParallelTextConfig, dates: DatesConfig, counts: DateCounts, seed: int) -> None:
        """Opens the sources.

        Args:
          files: the files, if `files.source` is not `DATES`.
          dates: the languages of dates, if `files.source` is `DATES`.
          counts: the numbers of dates for evaluation.
          seed: the seed of the training dates.
        Raises:
          UserError: if sources do not exist or do not fit together.
        """
        self.is_dates = files.source == DATES
        set_fields = [field for field in _FILES if getattr(files, field)]
        if self.is_dates and set_fields:
            raise UserError(
                "config key data.source",
                got=f"{DATES} together with data.{set_fields[0]}",
                expected="no files together with generated dates",
                fix=f"set --config.data.source to the training pairs or to '', or remove data.{set_fields[0]}",
            )
        self._files = files
        self.has_test = bool(counts.num_test if self.is_dates else files.test_source)
        self._counts = dataclasses.asdict(counts)
        splits = ("train", "valid", "test") if self.has_test else ("train", "valid")
        # Evaluation on validation pairs needs no training pairs.
        read = [] if self.is_dates else [split for split in splits if split != "train" or files.source]
        self.texts = {split: ParallelText(files, split, _SPLIT_SEED) for split in read}
        self._dates = {}
        if self.is_dates:
            seeds = {"train": seed, "valid": _SPLIT_SEED, "test": _SPLIT_SEED}
            self._dates = {split: DatePairs(dates, split, seeds[split]) for split in splits}

    def pairs(self, split: str) -> Iterator[Pair]:
        """Returns the pairs of a split. Of training dates, returns a sample that contains all their characters."""
        if self.is_dates:
            count = _SAMPLED_DATES if split == "train" else self._counts[f"num_{split}"]
            return itertools.islice(self._dates[split].pairs(0), count)
        text = self.texts.get(split) or ParallelText(self._files, split, _SPLIT_SEED)
        return text.pairs()

    def dates(self, start: int) -> Iterator[Pair]:
        """Yields the training dates from number `start` on, without end."""
        return self._dates["train"].pairs(start)

    def fingerprint(self) -> dict[str, Mapping[str, Any]]:
        """Returns a JSON-serializable description of the pairs."""
        if self.is_dates:
            return {**{split: dates.fingerprint() for split, dates in self._dates.items()}, "counts": self._counts}
        return {split: text.fingerprint() for split, text in self.texts.items()}
