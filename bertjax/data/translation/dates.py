"""Dates in the words of one language and of others: an unlimited supply of pairs to translate, without a file.

The words are those of the CLDR, as Babel has them.
"""

import dataclasses
import datetime
import difflib
import functools
import itertools
from collections.abc import Iterator
from typing import Any, Literal

import babel
import numpy as np
from babel import localedata
from babel.dates import DateTimePattern, get_date_format
from jaxtyping import Int64

from bertjax.config import choice
from bertjax.data.random import Stream, below, bits, uniform
from bertjax.data.translation.parallel_text import Pair
from bertjax.errors import UserError

_SPLITS = ("train", "valid", "test")
_HELD_OUT = 0.05  # of the dates, for each of valid and test

_Form = Literal["full", "long", "medium", "short"]
# What each form of the source is translated to. The target has to be a function of the source, but in English the
# medium and the long form of a date in May are one.
_FORMS: tuple[tuple[_Form, _Form], ...] = (("full", "full"), ("long", "long"), ("medium", "long"), ("short", "short"))

_FIRST, _LAST = np.datetime64("1900-01-01"), np.datetime64("2099-12-31")
# With these days all that can be told apart in a form is seen: months, days, weekdays, and centuries by their lack.
_SAMPLE_YEARS = (1912, 2012)
_BLOCK = 1024  # pairs that are drawn at once


@dataclasses.dataclass(frozen=True)
class DatesConfig:
    """Which languages.

    Attributes:
      source_locale: what dates are given in, as Babel names it, such as "en" or "de_AT".
      target_locales: what dates are written in, one or more. If there are several, the source begins with the one
        wanted: "<ko> May 9, 2049".
    """

    source_locale: str
    target_locales: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.target_locales or len(set(self.target_locales)) < len(self.target_locales):
            raise UserError(
                "config key data.target_locales",
                got=self.target_locales,
                expected="one locale or several different ones",
                fix="for example ('ko',) or ('de', 'ko')",
            )


class DatePairs:
    """Dates from 1900 to 2099, each pair a pure function of (seed, index).

    A pair has the date in one of four forms (full, long, medium and short). A form is left out where the source's
    does not determine the target's, as a year of two digits does not determine one of four. A date is in one split,
    by a hash of it, and so are those a hundred years before or after it, which its short form may also mean. So no
    test date is ever seen in training, in any form or language.
    """

    def __init__(self, config: DatesConfig, split: str, seed: int) -> None:
        """Args: the languages; "train", "valid" or "test"; what draws. Raises UserError for an unknown locale."""
        self._config = config
        self._split = choice(split, _SPLITS, "split")
        self._seed = seed
        source = _locale(config.source_locale, "data.source_locale")
        targets = [_locale(name, "data.target_locales") for name in config.target_locales]
        self._days = _days(split)
        self._locales = [source, *targets]
        self._forms = [_determined_forms(source, target) for target in targets]
        prefixes = [f"<{name}> " for name in config.target_locales]
        self._prefixes = prefixes if len(targets) > 1 else [""]

    def pairs(self, start: int) -> Iterator[Pair]:
        """Yields the pairs from number `start` on, without end."""
        for block in itertools.count(start // _BLOCK):
            index = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            drawn = self._draw(index)
            for number in range(max(0, start - block * _BLOCK), _BLOCK):
                yield self._pair(*(int(values[number]) for values in (*drawn, index)))

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-able description of the pairs."""
        return {
            "kind": "dates",
            "split": self._split,
            "seed": self._seed,
            "babel": babel.__version__,
            **dataclasses.asdict(self._config),
        }

    def _draw(self, index: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], ...]:
        """The day, target and form of each index of a block."""
        part = _SPLITS.index(self._split)
        words = bits(self._seed, Stream.DATES, int(index[0] >> 32), index & 0xFFFFFFFF, 3, part)
        targets = below(words[:, 1], len(self._forms))
        forms = below(words[:, 2], np.array([len(forms) for forms in self._forms])[targets])
        return self._days[below(words[:, 0], len(self._days))], targets, forms

    def _pair(self, day: int, target: int, form: int, index: int) -> Pair:
        date = datetime.date.fromordinal(day)
        source_form, target_form = self._forms[target][form]
        source, target_locale = self._locales[0], self._locales[1 + target]
        return Pair(
            self._prefixes[target] + source_form.apply(date, source),
            target_form.apply(date, target_locale),
            f"dates, {self._split} {index}",
        )


def _locale(name: str, key: str) -> babel.Locale:
    try:
        return babel.Locale.parse(name.replace("-", "_"))
    except (ValueError, babel.UnknownLocaleError):
        near = ", ".join(_near(name.replace("-", "_"))) or "de, ko"
        fix = "correct the name; pybabel --list-locales prints all"
        raise UserError(
            f"config key {key}", got=repr(name), expected=f"a locale of Babel, such as {near}", fix=fix
        ) from None


def _near(name: str) -> list[str]:
    """The locales that may be meant: by the English name of their language, then by the name's first part, then all."""
    known = localedata.locale_identifiers()
    languages = {title.lower(): code for code, title in babel.Locale("en").languages.items() if code in known}
    named = [languages[title] for title in difflib.get_close_matches(name.lower(), languages, n=2, cutoff=0.8)]
    first = [code for code in known if code == name.split("_")[0]]
    return list(dict.fromkeys([*named, *first, *difflib.get_close_matches(name, known, n=5, cutoff=0.4)]))[:5]


def _days(split: str) -> Int64[np.ndarray, " n"]:
    """The ordinals of a split's dates, in order."""
    dates = np.arange(_FIRST, _LAST + 1)
    month = dates.astype("datetime64[M]")
    day_of_month = (dates - month).astype(np.int64)
    # Alike for dates a hundred years apart.
    key = (month.astype(np.int64) % 1200) * 31 + day_of_month
    drawn = uniform(bits(0, Stream.ROW_SPLIT, 0, key, 1)[:, 0])
    number = np.searchsorted([1 - 2 * _HELD_OUT, 1 - _HELD_OUT], drawn, side="right")
    ordinals = dates.astype(np.int64) + datetime.date(1970, 1, 1).toordinal()
    return ordinals[number == _SPLITS.index(split)]


@functools.cache  # which is the same for all splits
def _determined_forms(
    source: babel.Locale, target: babel.Locale
) -> tuple[tuple[DateTimePattern, DateTimePattern], ...]:
    """The forms in which, among all those taken together, the source determines the target."""
    starts = [datetime.date(year, 1, 1) for year in _SAMPLE_YEARS]
    dates = [start + datetime.timedelta(days) for start in starts for days in range(366)]
    forms, known = [], dict[str, str]()
    for source_name, target_name in _FORMS:
        form = get_date_format(source_name, source), get_date_format(target_name, target)
        pairs = {(form[0].apply(date, source), form[1].apply(date, target)) for date in dates}
        if len(dict(pairs)) == len(pairs) and all(known.get(text, other) == other for text, other in pairs):
            known.update(pairs)
            forms.append(form)
    return tuple(forms)
