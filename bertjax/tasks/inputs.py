"""Inputs of `--mode=predict`: an example for each line, row or record, so that outputs keep their order and number."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from bertjax.contract import BadInput, Example
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, RowError, check_text
from bertjax.data.readers.tables import Row

T = TypeVar("T")
# Makes an example of texts, given where they stand. Raises RowError for bad ones.
Make = Callable[[Sequence[str], str], Example]


def examples(rows: Iterator[T], make: Callable[[T], Example], bad_rows: BadRows) -> Iterator[Example]:
    """Makes an example of each row and, with `data.on_bad_row=skip`, a `BadInput` of each bad one.

    Args:
      rows: if they can be bad before `make` sees them, read with `bad_rows`.
      make: raises RowError for a bad row.
      bad_rows: what to do with bad rows.
    Raises:
      UserError: a bad row that is not to be skipped, or something wrong with the whole input.
    """
    for made in bad_rows.marked(bad_rows.sift(map(make, rows))):
        yield Example([], BadInput(made.reason)) if isinstance(made, RowError) else made


def of_lines(lines: Iterable[str], make: Make, on_bad_row: str) -> Iterator[Example]:
    """Makes an example of each line, which is one text; see `examples`.

    Args:
      lines: as `Predicts.examples` takes them. One that is not UTF-8 or has a NUL character is bad.
      make: see there.
      on_bad_row: see `BadRows`.
    """

    def checked(numbered: tuple[int, str]) -> Example:
        number, line = numbered
        where = f"input line {number}"
        check_text(line, where)
        return make([line], where)

    return examples(enumerate(lines, start=1), checked, BadRows(on_bad_row))


def of_table(
    path: str, key: str, columns: Sequence[str], make: Make, on_bad_row: str, header: bool = True
) -> Iterator[Example] | None:
    """Makes an example of each row of a table, with a text for each column; returns None for a file that is no table.

    Args:
      path, key, columns, header: see `tables.read_input`.
      make: see there.
      on_bad_row: see `BadRows`.
    """
    bad_rows = BadRows(on_bad_row)
    rows = tables.read_input(path, key, columns, header, bad_rows)

    def made(row: Row) -> Example:
        return make([tables.text_of(row, column, key) for column in columns], row.where)

    return None if rows is None else examples(rows, made, bad_rows)
