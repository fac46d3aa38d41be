"""Generates dates in the words of one language and of others: an unlimited supply of pairs to translate, without files.

The words are those of the CLDR, from Babel.
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

from bertjax.config import Constrained, always, choice
from bertjax.data.codecs.translation.parallel_text import Pair
from bertjax.data.random import Stream, below, bits, uniform
from bertjax.errors import UserError

_SPLITS = ("train", "valid", "test")
_HELD_OUT = 0.05  # the fraction of dates in each of valid and test

_Form = Literal["full", "long", "medium", "short"]
# Each form of the source and the form of its target. The target must be a function of the source, but in English the
# medium and the long form of a date in May are the same.
_FORMS: tuple[tuple[_Form, _Form], ...] = (("full", "full"), ("long", "long"), ("medium", "long"), ("short", "short"))

_FIRST = np.datetime64("1900-01-01")
_LAST = np.datetime64("2099-12-31")
# These years show all months, days and weekdays of a form, and, by their centuries, whether it omits the century.
_SAMPLE_YEARS = (1912, 2012)
_BLOCK = 1024  # pairs per draw


@dataclasses.dataclass(frozen=True)
class DatesConfig(Constrained, prefix="data"):
    """The languages of dates.

    Attributes:
      source_locale: the locale of the sources, as Babel names it, such as "en" or "de_AT".
      target_locales: one or more locales of the targets. If there are several, the source begins with the target's:
        "<ko> May 9, 2049".
    """

    source_locale: str = always("en")
    target_locales: tuple[str, ...] = always(("ko",))

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = 0 < len(self.target_locales) == len(set(self.target_locales))
        fix = "use for example ('ko',) or ('de', 'ko')"
        self.check(ok, "target_locales", "one locale or several different ones", fix=fix)


class DatePairs:
    """Dates from 1900 to 2099, each pair a pure function of (seed, index).

    Each pair has the date in one of four forms (full, long, medium and short). A form is omitted if the source does not
    determine the target: a year of two digits does not determine one of four. A hash of the date selects its split. The
    date a hundred years earlier or later, which has the same short form, is in the same split. So no test date occurs
    in training, in any form or language.
    """

    def __init__(self, config: DatesConfig, split: str, seed: int) -> None:
        """Initializes the pairs.

        Args:
          config: the languages.
          split: "train", "valid" or "test".
          seed: the seed of the draws.
        Raises:
          UserError: if a locale is unknown.
        """
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
        """Returns a JSON-serializable description of the pairs."""
        return {
            "kind": "dates",
            "split": self._split,
            "seed": self._seed,
            "babel": babel.__version__,
            **dataclasses.asdict(self._config),
        }

    def _draw(self, index: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], ...]:
        """Returns the day, target and form of each index of a block."""
        part = _SPLITS.index(self._split)
        words = bits(self._seed, Stream.DATES, int(index[0] >> 32), index & 0xFFFFFFFF, 3, part)
        targets = below(words[:, 1], len(self._forms))
        forms = below(words[:, 2], np.array([len(forms) for forms in self._forms])[targets])
        return self._days[below(words[:, 0], len(self._days))], targets, forms

    def _pair(self, day: int, target: int, form: int, index: int) -> Pair:
        date = datetime.date.fromordinal(day)
        source_form, target_form = self._forms[target][form]
        source = self._locales[0]
        target_locale = self._locales[1 + target]
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
        fix = "correct the name; pybabel --list-locales lists all"
        raise UserError(
            f"config key {key}", got=repr(name), expected=f"a locale of Babel, such as {near}", fix=fix
        ) from None


def _near(name: str) -> list[str]:
    """Returns similar locales: by the English name of the language, then by language code, then by the whole name."""
    locales = localedata.locale_identifiers()
    languages = {title.lower(): code for code, title in babel.Locale("en").languages.items() if code in locales}
    by_language = [languages[title] for title in difflib.get_close_matches(name.lower(), languages, n=2, cutoff=0.8)]
    first = [code for code in locales if code == name.split("_")[0]]
    return list(dict.fromkeys([*by_language, *first, *difflib.get_close_matches(name, locales, n=5, cutoff=0.4)]))[:5]


def _days(split: str) -> Int64[np.ndarray, " n"]:
    """Returns the ordinals of a split's dates, in order."""
    dates = np.arange(_FIRST, _LAST + 1)
    month = dates.astype("datetime64[M]")
    day_of_month = (dates - month).astype(np.int64)
    # The key is the same for dates a hundred years apart.
    key = (month.astype(np.int64) % 1200) * 31 + day_of_month
    drawn = uniform(bits(0, Stream.ROW_SPLIT, 0, key, 1)[:, 0])
    number = np.searchsorted([1 - 2 * _HELD_OUT, 1 - _HELD_OUT], drawn, side="right")
    ordinals = dates.astype(np.int64) + datetime.date(1970, 1, 1).toordinal()
    return ordinals[number == _SPLITS.index(split)]


@functools.cache  # the result is the same for all splits
def _determined_forms(
    source: babel.Locale, target: babel.Locale
) -> tuple[tuple[DateTimePattern, DateTimePattern], ...]:
    """Returns the forms whose source texts determine their targets, also among the texts of all returned forms."""
    starts = [datetime.date(year, 1, 1) for year in _SAMPLE_YEARS]
    dates = [start + datetime.timedelta(days) for start in starts for days in range(366)]
    forms = []
    targets = dict[str, str]()
    for source_name, target_name in _FORMS:
        form = get_date_format(source_name, source), get_date_format(target_name, target)
        pairs = {(form[0].apply(date, source), form[1].apply(date, target)) for date in dates}
        if len(dict(pairs)) == len(pairs) and all(targets.get(text, other) == other for text, other in pairs):
            targets.update(pairs)
            forms.append(form)
    return tuple(forms)
