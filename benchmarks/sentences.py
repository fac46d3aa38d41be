"""Korean sentence splitting: our rules, and kiwipiepy (`data.splitter=kiwi`) if the extra `korean` is installed.

    python -m benchmarks.sentences --data=dev.jsonl

Lines of the file are JSON objects: "id" (SOURCE-NUMBER), "text", and "sentences", whose texts are in "text" in order.
"Exact" is the share of the file's sentences that a splitter returns, at the same position. Precision, recall and F1
are of boundaries: the ends of all sentences of a text except the last.
"""

import argparse
import importlib.util
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import common
from bertjax.data.text import sentences

HEADER = ("source", "splitter", "sentences", "exact", "precision", "recall", "F1")


class Counts(NamedTuple):
    """Counts of a splitter: sentences of the file, exact ones, boundaries of the file, of the splitter, common ones."""

    sentences: int
    exact: int
    expected: int
    returned: int
    common: int

    def cells(self) -> list[str]:
        """Returns the cells of `HEADER` after the splitter."""
        exact = self.exact / max(self.sentences, 1)
        precision = self.common / max(self.returned, 1)
        recall = self.common / max(self.expected, 1)
        f1 = 2 * self.common / max(self.returned + self.expected, 1)
        return [str(self.sentences), *(f"{value:.3f}" for value in (exact, precision, recall, f1))]


def spans(text: str, parts: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the (start, stop) of each part. Raises ValueError if the text does not contain the parts in order."""
    bounds = [(0, 0)]
    for part in parts:
        start = text.index(part, bounds[-1][1])
        bounds.append((start, start + len(part)))
    return bounds[1:]


def count(text: str, expected: Sequence[str], returned: Sequence[str]) -> Counts:
    """Compares the sentences of one text."""
    gold, ours = (spans(text, parts) for parts in (expected, returned))
    gold_ends, our_ends = ({stop for _, stop in bounds[:-1]} for bounds in (gold, ours))
    return Counts(len(gold), len({*gold} & {*ours}), len(gold_ends), len(our_ends), len(gold_ends & our_ends))


def main() -> None:
    """Prints the speeds, and a table with a row for each source and splitter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the file of texts with their sentences")
    rows = [json.loads(line) for line in parser.parse_args().data.read_text("utf-8").splitlines()]
    size = sum(len(row["text"].encode()) for row in rows) / 1e6
    counts = defaultdict[tuple[str, str], list[Counts]](list)
    has_kiwi = importlib.util.find_spec("kiwipiepy") is not None
    for splitter in sentences.SPLITTERS if has_kiwi else (sentences.PUNKT,):
        sentences.split(rows[0]["text"], splitter)  # loads the model
        began = time.process_time()
        for row in rows:
            result = count(row["text"], row["sentences"], sentences.split(row["text"], splitter))
            counts[row["id"].rpartition("-")[0], splitter].append(result)
            counts["all", splitter].append(result)
        print(f"{splitter}: {size / (time.process_time() - began):.2f} MB per CPU second")
    totals = {key: Counts(*map(sum, zip(*of_texts, strict=True))) for key, of_texts in sorted(counts.items())}
    print(common.table(HEADER, [[*key, *total.cells()] for key, total in totals.items()]))


if __name__ == "__main__":
    main()
