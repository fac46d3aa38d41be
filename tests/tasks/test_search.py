"""Vectors of the texts of a source, and the documents that they find."""

import numpy as np
import pytest

from bertjax.contract import Example
from bertjax.data.codecs.evaluation_texts import Labeled
from bertjax.data.readers.beir import of_pairs
from bertjax.errors import UserError
from bertjax.tasks import search

PAIRS = of_pairs([("a", "b"), ("b", "c")], ["d"])
LABELED = Labeled({"test": ["a", "b"], "train": ["c"]}, {"test": ["x", "y"], "train": ["x"]})


def vectors(source, unit, values):
    texts = [search.Text(source, kind, number) for kind, number, _ in source.numbered()]
    results = [(Example([], text), [{"features": np.float32(x)}]) for text, x in zip(texts, values, strict=True)]
    found, by_kind = search.vectors(reversed(results), 2, unit=unit)
    assert found is source
    return {kind: each.tolist() for kind, each in by_kind.items()}


def test_only_vectors_of_a_collection_are_scaled():
    values = [[3.0, 0.0], [0.0, -2.0], [0.0, 0.0], [8.0, 0.0], [0.0, 1.0]]
    assert vectors(PAIRS, False, values) == {"query": values[:2], "document": values[2:]}
    scaled = [[1, 0], [0, -1], [0, 0], [1, 0], [0, 1]]
    assert vectors(PAIRS, True, values) == {"query": scaled[:2], "document": scaled[2:]}
    assert vectors(LABELED, True, values[:3]) == {"test": values[:2], "train": values[2:3]}
    with pytest.raises(UserError, match="the model's output: got NaN or infinity; expected vectors"):
        vectors(LABELED, False, [*values[:2], [np.nan, 0]])


def test_a_query_does_not_find_the_document_with_its_id():
    documents = np.float32([[1, 0], [2, 0], [3, 0]])  # b, c, d
    assert search.best(PAIRS, np.float32([[1, 0], [1, 0]]), documents, 2) == {"a": ["d", "c"], "b": ["d", "c"]}
    assert search.best(PAIRS, np.float32([[1, 0], [-1, 0]]), documents, 2) == {"a": ["d", "c"], "b": ["c", "d"]}
