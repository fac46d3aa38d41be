"""Search in a test collection with the vectors of its texts (Thakur et al. 2021, BEIR), and its metrics."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from bertjax.contract import Example, Output, View
from bertjax.data.codecs.codec import Codec
from bertjax.data.readers.beir import Collection
from bertjax.errors import UserError
from bertjax.scoring import bootstrap, retrieval
from bertjax.tasks import inputs

FOUND = 100  # the documents of a query that metrics read
LEAST_NORM = 1e-12


class Text(NamedTuple):
    """A text of a collection, or of `evaluation_texts.Labeled`: its kind, and its number there."""

    of: Any
    kind: str
    number: int


class TextVectors(NamedTuple):
    """How a search encodes texts.

    Attributes:
      view: returns the "features" of rows, a vector of each.
      query, document: the codecs of queries and documents, with one row for each text.
      of_text: returns what the codecs encode, from a text.
      size: the size of a vector.
    """

    view: View
    query: Codec[Any]
    document: Codec[Any]
    of_text: Callable[[str], Any]
    size: int


@runtime_checkable
class VectorTask(Protocol):
    """A task that is trained for the vectors of texts."""

    def text_vectors(self) -> TextVectors:
        """Returns how a search encodes texts."""


def examples(source: Any, query: Codec[Any], document: Codec[Any], of_text: Callable[[str], Any]) -> Iterator[Example]:
    """Yields the examples of the texts of a source, which are their `Text`s.

    Args:
      source: a collection, or labeled texts.
      query, document: the codecs of queries and labeled texts, and of documents.
      of_text: returns what the codecs encode, from a text.
    """
    for is_document, texts in itertools.groupby(source.numbered(), lambda text: text[0] == "document"):
        places, contents = itertools.tee(texts)
        encoded = inputs.encoded(document if is_document else query, (of_text(text) for *_, text in contents))
        for (kind, number, _), example in zip(places, encoded, strict=True):
            yield example._replace(source=Text(source, kind, number))


def vectors(
    results: Iterable[tuple[Example, Sequence[Output]]], size: int, *, unit: bool
) -> tuple[Any, dict[str, Float[np.ndarray, "N D"]]]:
    """Returns the source of the texts, and their vectors by kind.

    Args:
      results: examples of `Text`s with the outputs, whose "features" are a vector.
      size: D, the size of a vector.
      unit: whether the vectors of a collection are scaled to length 1, for search by cosines.
    Raises:
      UserError: if a vector has a NaN or an infinite number.
    """
    vectors_by_kind: dict[str, np.ndarray] = {}
    for example, outputs in results:
        source, kind, number = example.source
        if kind not in vectors_by_kind:
            vectors_by_kind[kind] = np.zeros((source.sizes[kind], size), np.float32)
        vectors_by_kind[kind][number] = outputs[0]["features"]
    for matrix in vectors_by_kind.values():
        if unit and isinstance(source, Collection):
            matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), LEAST_NORM)
        if not np.isfinite(matrix).all():
            fix = "name other weights, or set --config.model.dtype=float32"
            raise UserError("the model's output", got="NaN or infinity", expected="vectors", fix=fix)
    return source, vectors_by_kind


def best(
    source: Collection, queries: Float[np.ndarray, "Q D"], documents: Float[np.ndarray, "N D"], count: int = FOUND
) -> dict[str, list[str]]:
    """Returns the `count` best documents of each query, without one that has its id."""
    _, places = retrieval.search(queries, documents, count + 1)  # one more, for the one with the id of the query
    rankings = ([source.documents[place] for place in row] for row in places.tolist())
    pairs = zip(source.queries, rankings, strict=True)
    return {query: [name for name in ranking if name != query][:count] for query, ranking in pairs}


def metrics(rankings: Mapping[str, Sequence[str]], source: Collection) -> dict[str, float]:
    """Returns the metrics of the documents of each query, best first, with intervals; see `retrieval.each_query`."""
    values_by_name = retrieval.summarized(list(retrieval.each_query(rankings, source.relevant)))
    return {key: value for name, values in values_by_name.items() for key, value in with_interval(name, values).items()}


def with_interval(name: str, values: Float[np.ndarray, " N"]) -> dict[str, float]:
    """Returns the mean of a metric with its 95 % bootstrap interval."""
    low, high, _ = bootstrap.interval(bootstrap.resampled_means(values[:, None])[:, 0])
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}
