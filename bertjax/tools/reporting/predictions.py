"""The page of predictions: summaries with their articles, or a table of records."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertjax.tools.reporting import libraries, page, summaries
from bertjax.tools.reporting.tables import row, table

_MOST = 20_000  # records on a page
_DRAWN = 200  # as in the script, which draws the others on demand


def write(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the parts of a self-contained HTML document.

    Summaries and translations of long texts have a section each. A table of other records has the first 20,000, and the
    page states how many there are.

    Args:
      records: the records of `--mode=predict`. That of a bad input has "error".
    Raises:
      UserError: if the extra `report` is not installed.
    """
    libraries.check()
    remaining = iter(records)
    begin = []
    for record in remaining:
        begin.append(record)
        if "error" not in record:
            break
    everything = itertools.chain(begin, remaining)
    if begin and (kind := summaries.kind_of(begin[-1])):
        yield from summaries.page(everything, kind)
        return
    rows = [_flat(record) for record in itertools.islice(everything, _MOST)]
    count = len(rows) + sum(1 for _ in everything)
    names = list(dict.fromkeys(name for values in rows for name in values))
    texts = [[_text(values.get(name)) for name in names] for values in rows]
    notices = [f"The table has the first {len(rows):,} of {count:,} records."] if count > len(rows) else []
    yield page.of_predictions(table(names, map(row, texts[:_DRAWN]), more=texts[_DRAWN:]), count, notices)


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a record by column: those of a mapping have columns of their own."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Returns a value that JSON can represent, such as a list for an array."""
    return value.tolist() if hasattr(value, "tolist") else value
