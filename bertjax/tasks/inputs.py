"""Examples of a codec: what is validated or predicted, with the rows of the model."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bertjax.contract import BadInput, Example
from bertjax.data.codecs.codec import Codec, Input
from bertjax.data.readers.lines import BadRows, RowError, of_row
from bertjax.data.rows import stored
from bertjax.data.rows.text_rows import segmented

_ENCODED_AT_ONCE = 256


class Source(NamedTuple):
    """The source of a task's `Example`: what the codec read, and what its task needs besides the rows."""

    item: Any
    extra: Any = None


def encoded(codec: Codec[Any], examples: Iterable[Any]) -> Iterator[Example]:
    """Yields the `Example` of each example that a codec has read. Every row has `segment_ids`, 1 at every token.

    Logs a warning if the vocabulary does not fit the first texts.

    Raises:
      RowError: if the codec cannot encode an example.
    """
    sample = codec.sample()
    remaining = iter(examples)
    while block := list(itertools.islice(remaining, _ENCODED_AT_ONCE)):
        sample.add(map(codec.text, block))
        yield from _encoded(codec, block)
    sample.check()


def _encoded(codec: Codec[Any], block: Sequence[Any]) -> Iterator[Example]:
    fields, sizes, limits, extras = codec.encode(block)
    counts = sizes.tolist()
    rows = iter(stored.split(fields, sum(counts)))
    for item, count, limit, extra in itertools.zip_longest(block, counts, limits, extras):
        yield Example(segmented(itertools.islice(rows, count)), Source(item, extra), limit)


class CodecInputs:
    """The inputs of a task that has a codec and a config with `data.on_bad_row`."""

    _codec: Codec[Any]
    _config: Any

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        return self.numbered(of_lines(self._codec, lines, self._config.data.on_bad_row))

    def examples_in(self, values: Iterable[Any], first: int = 1) -> Iterator[Example]:
        """Yields an example for each Python object. Messages count them from `first` on."""
        return self.numbered(of_objects(self._codec, values, self._config.data.on_bad_row, first))

    def examples_of(self, path: str) -> Iterator[Example] | None:
        examples = of_file(self._codec, path, self._config.data.on_bad_row)
        return examples and self.numbered(examples)

    def numbered(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Yields the examples of one input. Tasks override it that number or count them. Default: unchanged."""
        return examples


def of_lines(codec: Codec[Any], lines: Iterable[str], on_bad_row: str) -> Iterator[Example]:
    """Yields the examples in lines of text; see `predicted`."""
    bad_rows = BadRows(on_bad_row)
    return predicted(codec, codec.lines(lines, bad_rows), bad_rows)


def of_objects(codec: Codec[Any], values: Iterable[Any], on_bad_row: str, first: int = 1) -> Iterator[Example]:
    """Yields the examples in Python objects, which messages count from `first` on; see `predicted`."""
    bad_rows = BadRows(on_bad_row)
    return predicted(codec, codec.objects(values, bad_rows, first), bad_rows)


def of_file(codec: Codec[Any], path: str, on_bad_row: str) -> Iterator[Example] | None:
    """Yields the examples in a table, another file or a folder; returns None for a file of lines; see `predicted`."""
    bad_rows = BadRows(on_bad_row)
    read = codec.file(path, bad_rows)
    return None if read is None else predicted(codec, read, bad_rows)


def predicted(codec: Codec[Any], read: Iterator[Input], bad_rows: BadRows) -> Iterator[Example]:
    """Yields the `Example` of each input and, with `data.on_bad_row=skip`, a `BadInput` for each bad one.

    Outputs keep the order and number of the inputs. Logs a warning if the vocabulary does not fit the first texts.

    Args:
      codec: the kind of the inputs.
      read: the inputs; see `Codec.lines`.
      bad_rows: the policy for bad inputs, with which they are read.
    Raises:
      UserError: for a bad input that is not skipped, or an error that concerns the whole input.
    """
    sample = codec.sample()

    def example_of(one: Input) -> Example:
        with of_row(one.columns):
            (example,) = _encoded(codec, [one.example])
        sample.add([codec.text(one.example)])
        return example._replace(columns=one.columns)

    for result in bad_rows.marked(bad_rows.sift(map(example_of, read))):
        yield Example([], BadInput(result.reason), columns=result.columns) if isinstance(result, RowError) else result
    sample.check()
