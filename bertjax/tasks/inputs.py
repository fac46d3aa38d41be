"""Inputs of `--mode=predict`: each line, row or record becomes one example, so outputs keep their order and number."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bertjax.contract import BadInput, Example
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, RowError, check_text, of_row
from bertjax.data.readers.tables import Row

T = TypeVar("T")
# Makes an example from texts and their location, such as "input line 3". Raises RowError for bad texts.
Make = Callable[[Sequence[str], str], Example]


def examples(rows: Iterator[T], make: Callable[[T], Example], bad_rows: BadRows) -> Iterator[Example]:
    """Makes an example from each row and, with `data.on_bad_row=skip`, a `BadInput` from each bad row.

    Args:
      rows: the rows. If the reader itself can find bad rows, it must use `bad_rows`.
      make: makes an example from a row; raises RowError for a bad row.
      bad_rows: the policy for bad rows.
    Raises:
      UserError: for a bad row that is not skipped, or an error that concerns the whole input.
    """
    for made in bad_rows.marked(bad_rows.sift(map(make, rows))):
        yield Example([], BadInput(made.reason), columns=made.columns) if isinstance(made, RowError) else made


def of_lines(lines: Iterable[str], make: Make, on_bad_row: str, *, splits_tabs: bool) -> Iterator[Example]:
    """Makes an example from each line; see `examples`.

    Args:
      lines: as in `PredictionTask.examples`. Lines with invalid UTF-8 or a NUL character are bad.
      make: see `Make`.
      on_bad_row: see `BadRows`.
      splits_tabs: whether a line has several texts, with tabs between them. Otherwise a line is one text.
    """
    found = ((f"input line {number}", line) for number, line in enumerate(lines, start=1))
    return _of_texts(found, lambda line: line.split("\t") if splits_tabs else [line], make, on_bad_row)


def of_objects(values: Iterable[Any], make: Make, on_bad_row: str, first: int = 1) -> Iterator[Example]:
    """Makes an example from each Python object, which is a text, or a tuple or list of texts; see `examples`.

    Args:
      values: the objects. Those of other types are bad.
      make: see `Make`.
      on_bad_row: see `BadRows`.
      first: the number of the first object.
    """
    found = ((f"input {number}", value) for number, value in enumerate(values, start=first))
    return _of_texts(found, lambda value: [value] if isinstance(value, str) else value, make, on_bad_row)


def _of_texts(
    found: Iterator[tuple[str, Any]], split: Callable[[Any], Any], make: Make, on_bad_row: str
) -> Iterator[Example]:
    def checked(each: tuple[str, Any]) -> Example:
        where, value = each
        texts = split(value)
        if not (isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts)):
            got, expected = f"an object of type {type(value).__name__}", "a text (str), or a tuple of texts"
            raise RowError(where, got, expected, "convert it to a str or a tuple of str")
        for text in texts:
            check_text(text, where)
        return make(texts, where)

    return examples(found, checked, BadRows(on_bad_row))


def check_texts(texts: Sequence[str], where: str, numbers: Sequence[int], fix: str = "") -> None:
    """Raises RowError for an empty text, or if the number of texts is not in `numbers`.

    Args:
      texts: the texts of a line, a row or a Python object.
      where: its location.
      numbers: the allowed numbers of texts.
      fix: a further way to correct the number.
    """
    if len(texts) not in numbers:
        expected = f"{' or '.join(map(_counted, numbers))}, with tabs between the texts of a line"
        fix = "replace tabs within texts by spaces, or add the missing text" + (f", or {fix}" if fix else "")
        raise RowError(where, _counted(len(texts)), expected, fix)
    if not all(map(str.strip, texts)):
        raise RowError(where, "an empty text", "a text", "add the text or delete the line")


def _counted(number: int) -> str:
    return "one text" if number == 1 else f"{number} texts"


def of_rows(
    path: str,
    key: str,
    columns: Sequence[str],
    make: Callable[[Row], Example],
    data: Any,
    *,
    tabs: bool = False,
) -> Iterator[Example] | None:
    """Makes an example from each row of a table. Returns None for a file that is not a table.

    Args:
      path, key, columns, tabs: see `tables.read_input`.
      make: makes an example from a row; raises RowError for a bad row.
      data: the keys `data` of the config: `on_bad_row` and, if the task has them, `header` and `separator`.
    """
    bad_rows, separator = BadRows(data.on_bad_row), getattr(data, "separator", "")
    rows = tables.read_input(path, key, columns, getattr(data, "header", True), separator, bad_rows, tabs=tabs)

    def made(row: Row) -> Example:
        with of_row(row.values):
            return make(row)._replace(columns=row.values)

    return None if rows is None else examples(rows, made, bad_rows)


def of_table(
    path: str,
    key: str,
    columns: Sequence[str],
    make: Make,
    data: Any,
    *,
    tabs: bool = False,
) -> Iterator[Example] | None:
    """Makes an example from each row of a table, with a text per column; see `of_rows`."""

    def made(row: Row) -> Example:
        return make([tables.text_of(row, column, key) for column in columns], row.where)

    return of_rows(path, key, columns, made, data, tabs=tabs)


def limited(limit: str, *, truncated: bool = False, split: bool = False) -> Mapping[str, str]:
    """Returns `Example.limited` of an input that is truncated or split because it is longer than `limit`."""
    return {name: limit for name, is_so in (("truncated", truncated), ("split", split)) if is_so}
