"""Reads the prepared articles of PreSumm and BertSum (`format_to_bert`): lists of dicts, saved with `torch.save`.

The files are read without torch, and nothing that they contain is executed; see `torch_pickle`. Of each article, the
texts are read, not the ids of word pieces: `src_txt`, the sentences of sufficient length, and `tgt_txt`, the sentences
of the summary with `<q>` between them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row
from bertjax.errors import UserError
from bertjax.interop.formats import torch_pickle

SUFFIX = ".pt"
FIELDS = ("src_txt", "tgt_txt")
_MAX_BYTES = 2**27  # four times a file of 2,000 articles, which PreSumm writes
_LABELS = ("src_sent_labels", "labels")  # PreSumm's and BertSum's name
_IDS = ("src", "tgt", "segs", "clss")


def read_rows(path: Path) -> Iterator[Row]:
    """Returns an iterator over the articles of a file: `FIELDS`, as lists of sentences, and other fields than ids.

    PreSumm writes labels of the first sentences only, as many as it has `clss`. The other labels are 0.

    Raises:
      UserError: if the file cannot be read, has other Python objects than plain ones, or is not a list.
      RowError: if an element is not a dict; the iterator can then continue.
    """
    articles = torch_pickle.read(path, limit=_MAX_BYTES)
    if not isinstance(articles, list):
        got = type(articles).__name__
        expected = "a list of dicts with 'src_txt' and 'tgt_txt', as PreSumm writes it"
        raise UserError(str(path), got=got, expected=expected, fix="name the files of format_to_bert, not a model")
    return map(_row, articles, (f"{path}: article {number}" for number in range(1, len(articles) + 1)))


def _row(values: Any, where: str) -> Row:
    if not isinstance(values, dict):
        raise RowError(where, type(values).__name__, "a dict with 'src_txt' and 'tgt_txt'", "write the file again")
    row = {name: value for name, value in values.items() if name not in _IDS}
    sentences, summary = (values.get(name) for name in FIELDS)
    if isinstance(summary, str):
        row[FIELDS[1]] = [text for text in summary.split("<q>") if text.strip()]
    for name in _LABELS:
        match row.get(name), values.get("clss"), sentences:
            case list() as labels, list() as starts, list() if len(labels) == len(starts):
                row[name] = labels + [0] * (len(sentences) - len(labels))
    return Row(row, where)
