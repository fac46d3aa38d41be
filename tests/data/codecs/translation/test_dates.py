import datetime
import functools
import itertools

import numpy as np
import pytest
from babel.dates import format_date

from bertjax.data.codecs.translation import dates
from bertjax.data.codecs.translation.dates import DatePairs, DatesConfig
from bertjax.errors import UserError

SPLITS = ("train", "valid", "test")


def stream(targets=("ko",), split="train", seed=0, source="en"):
    return DatePairs(DatesConfig(source, targets), split, seed)


def take(pairs, count, start=0):
    return list(itertools.islice(pairs.pairs(start), count))


@functools.cache
def translations(source, target):
    """Returns the possible translations of each source, for the dates of some years."""
    found = {}
    for year in (1905, 1940, 2000, 2040):
        for day in range(365):
            date = datetime.date(year, 1, 1) + datetime.timedelta(day)
            for form, other in (("full", "full"), ("long", "long"), ("medium", "long"), ("short", "short")):
                text = format_date(date, form, source)
                found.setdefault(text, set()).add(format_date(date, other, target))
    return found


def test_pairs_have_the_words_of_the_cldr():
    known = translations("en", "ko")
    assert known["Tuesday, May 8, 2040"] == {"2040년 5월 8일 화요일"}
    assert known["May 8, 2040"] == {"2040년 5월 8일"}
    assert known["5/8/40"] == {"40. 5. 8."}
    pairs = take(stream(), 3000)
    seen = [pair for pair in pairs if pair.source in known]
    assert len(seen) > 50
    assert all({pair.target} == known[pair.source] for pair in seen)
    assert pairs[7].where == "dates, train 7"


def test_a_form_that_does_not_determine_the_target_is_omitted():
    # A Japanese short date has four digits of the year, an English one has two.
    assert not any("/" in pair.source for pair in take(stream(("ja",)), 500))
    assert any("/" in pair.source for pair in take(stream(("ko",)), 100))
    # The other direction is unambiguous.
    assert any(pair.source.count("/") == 2 for pair in take(stream(("en",), source="ja"), 100))


def test_a_pair_is_a_function_of_seed_and_index():
    whole = take(stream(), 2100)
    for start in (1, 1023, 1024, 2048):
        assert take(stream(), 20, start) == whole[start : start + 20]
    assert take(stream(seed=1), 50) != whole[:50]
    far = 2**32 * 3 + 5
    assert take(stream(), 2, far)[1] == take(stream(), 1, far + 1)[0]
    assert take(stream(), 20, far)[0].source != whole[5].source


def test_several_languages():
    pairs = take(stream(("ko", "de")), 400)
    known = {name: translations("en", name) for name in ("ko", "de")}
    names = [pair.source[1:3] for pair in pairs]
    assert set(names) == {"ko", "de"} and 140 < names.count("ko") < 260
    for name, pair in zip(names, pairs, strict=True):
        assert pair.source.startswith(f"<{name}> ")
        assert known[name].get(pair.source[5:], {pair.target}) == {pair.target}


def test_a_date_and_all_dates_with_the_same_short_form_are_in_one_split():
    days = {split: dates._days(split) for split in SPLITS}
    first, last = datetime.date(1900, 1, 1).toordinal(), datetime.date(2099, 12, 31).toordinal()
    assert sorted(np.concatenate(list(days.values())).tolist()) == list(range(first, last + 1))
    assert 0.04 < len(days["test"]) / (last - first) < 0.06
    assert 0.04 < len(days["valid"]) / (last - first) < 0.06

    def short(split):
        return {format_date(datetime.date.fromordinal(day), "short", "en") for day in days[split]}

    train, valid, test = map(short, SPLITS)
    assert not train & test and not train & valid and not valid & test


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (("en", ("Korea",)), r"data\.target_locales: got 'Korea'; expected a locale of Babel, such as .*\bko\b"),
        (("english", ("ko",)), r"data\.source_locale: got 'english'; .* such as en, .*Fix: correct the name; pybabel"),
        (("en", ()), r"data\.target_locales: got \(\); expected one locale or several different ones\. Fix: use"),
    ],
)
def test_unknown_locales_are_errors(config, message):
    with pytest.raises(UserError, match=message):
        DatePairs(DatesConfig(*config), "train", 0)
