"""Finds training documents that contain a text of an evaluation: most of its runs of eight words."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import UInt64

from bertjax.data.pretraining.shingles import WordHasher, distinct, run_hashes, shingles
from bertjax.data.readers import lines, tables
from bertjax.data.readers.kinds import TABLES, kind_of
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows
from bertjax.data.rows.layout import positions_in_groups
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.workers import gather

T = TypeVar("T")

_log = logging.getLogger(__name__)

KEY = "data.evaluation_texts"
SIZE = 8  # words in a run; texts of fewer words are not searched
_TABLE_BITS = 24
_BATCH_CHARACTERS = 1 << 18
_FILES = ("runs", "texts", "sizes")


class Text(NamedTuple):
    """A text of an evaluation set."""

    where: str  # "file:line", or the row of a table
    content: str


def files(source: str) -> list[Path]:
    """Returns the files of evaluation texts, comma-separated paths and globs. Raises UserError if one is missing."""
    return tables.find_files(source, KEY, "") if source else []


def read_texts(source: str) -> Iterator[Text]:
    """Yields the lines of text files, and the values of all columns with text of tables; see `tables.read_rows`."""
    for path in files(source):
        if kind_of(path, KEY, TABLES, "lines of text"):
            for row in tables.read_file(path, True, BadRows("stop")):
                yield from (Text(row.where, value) for value in row.values.values() if isinstance(value, str))
        else:
            yield from (Text(line.where, lines.decode(line)) for line in lines.read_lines(path, MAX_LINE_BYTES))


def hashed(
    texts: Iterable[Text], tokenizer: EncoderTokenizer, hasher: WordHasher
) -> Iterator[tuple[Text, UInt64[np.ndarray, " w"]]]:
    """Yields each text that has tokens, and the hashes of its words."""
    for batch in gather(texts, lambda text: len(text.content), _BATCH_CHARACTERS):
        encoded = zip(batch, tokenizer.encode_batch([text.content for text in batch]), strict=True)
        full = [(text, np.array(ids)) for text, ids in encoded if ids]
        if full:
            yield from zip([text for text, _ in full], hasher.words([ids for _, ids in full]), strict=True)


class TextIndex:
    """The runs of eight words of all texts, in files that worker processes share."""

    def __init__(self, folder: Path, containment: float) -> None:
        """Opens the files that `write` wrote. A document contains a text if it has this share of the text's runs."""
        self._runs, self._texts, self._sizes = (np.load(folder / f"{name}.npy", "r") for name in _FILES)
        self._containment = containment
        self._may_occur = np.zeros(1 << _TABLE_BITS, bool)  # looked up first: most runs of a document are in no text
        self._may_occur[_slots(self._runs)] = True

    @staticmethod
    def write(folder: Path, texts: Iterable[tuple[T, UInt64[np.ndarray, " _"]]]) -> list[T]:
        """Writes the index of texts, given as pairs of a label and hashes of words. Returns all labels."""
        labels = []
        runs = [np.zeros(0, np.uint64)]
        for label, words in texts:
            labels.append(label)
            runs.append(shingles(words, SIZE) if len(words) >= SIZE else runs[0])
        sizes = np.array(list(map(len, runs[1:])), np.int32)
        joined = np.concatenate(runs)
        order = np.argsort(joined, kind="stable")
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        arrays: list[np.ndarray] = [joined[order], owners[order], sizes]
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in zip(_FILES, arrays, strict=True):
            np.save(folder / f"{name}.npy", array)
        text = "searching %d of %d evaluation texts and validation documents: those with at least %d words"
        _log.info(text, (sizes > 0).sum(), len(labels), SIZE)
        return labels

    def best(self, words: UInt64[np.ndarray, " w"]) -> tuple[int, float]:
        """Returns the text with the largest share of its runs in a document, and the share; -1 and 0.0 if none."""
        runs = run_hashes(words, SIZE)
        runs = distinct(runs[self._may_occur[_slots(runs)]])
        first = np.searchsorted(self._runs, runs, "left")
        counts = np.searchsorted(self._runs, runs, "right") - first
        texts, common = np.unique(
            self._texts[np.repeat(first, counts) + positions_in_groups(counts)], return_counts=True
        )
        shares = common / self._sizes[texts]
        if shares.max(initial=0.0) < self._containment:
            return -1, 0.0
        return int(texts[shares.argmax()]), float(shares.max())


def _slots(runs: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    return runs >> np.uint64(64 - _TABLE_BITS)
