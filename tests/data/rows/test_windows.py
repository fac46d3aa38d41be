from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.rows.windows import cover


def shown(found):
    return [(window.covers.start, window.covers.stop, window.owns.start, window.owns.stop) for window in found]


def test_parts():
    assert shown(cover([1, 2, 1], 4, 2)) == [(0, 3, 0, 3)]
    # Ten units: a shared unit belongs to the window with more context around it, or else to the first.
    assert shown(cover([1] * 10, 6, 2)) == [(0, 6, 0, 5), (4, 10, 5, 10)]
    # The last window starts as early as possible.
    assert shown(cover([1] * 7, 6, 2)) == [(0, 6, 0, 4), (1, 7, 4, 7)]
    assert shown(cover([1] * 4, 2, 0)) == [(0, 2, 0, 2), (2, 4, 2, 4)]
    # A unit longer than a window has a window of its own.
    assert shown(cover([1, 9, 1], 4, 2)) == [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)]
    assert cover([], 4, 2) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 12), st.data())
def test_every_unit_is_owned_once_and_where_it_has_most_context(counts, limit, data):
    found = cover(counts, limit, data.draw(st.integers(0, limit - 1)))
    assert [unit for window in found for unit in window.owns] == list(range(len(counts)))
    sizes = [min(count, limit) for count in counts]
    for window in found:
        assert len(window.owns)
        assert set(window.owns) <= set(window.covers)
        assert sum(sizes[window.covers.start : window.covers.stop]) <= limit
        for unit in window.owns:
            sides = [
                min(sum(sizes[each.covers.start : unit]), sum(sizes[unit + 1 : each.covers.stop]))
                for each in (window, *found)
                if unit in each.covers
            ]
            assert sides[0] == max(sides)
