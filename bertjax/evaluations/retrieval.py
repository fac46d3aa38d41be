"""Search in a test collection with the vectors of a task's model (Thakur et al. 2021, BEIR)."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jax

from bertjax.config import Constrained, Size
from bertjax.contract import Batch, Evaluation, Example, Output, Params, PredictionTask, View
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.texts import TextCodec, Texts
from bertjax.data.readers import beir
from bertjax.data.readers.beir import Collection
from bertjax.errors import UserError
from bertjax.models.bert import BertInputs
from bertjax.models.embedder import Embedder
from bertjax.models.embedding_losses import RANKS
from bertjax.tasks import search
from bertjax.tasks.bert import BertTask
from bertjax.tasks.search import TextVectors

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config(Constrained, prefix="retrieval"):
    """A test collection that is searched at evaluations; see configs/retrieval.py.

    Attributes:
      source: a folder in BEIR's form; "" for none.
      qrels: the judgments: "test" for `qrels/test.tsv`.
      every: N to score at every Nth evaluation of the run, and at the last.
    """

    source: str = ""
    qrels: str = "test"
    every: Size = 1


class _MeanVectors(View):
    """The means over the tokens of texts, by the encoder `bert` of any task."""

    def __init__(self, task: BertTask[Any]) -> None:
        self._model = Embedder(task.encoder, "mean", ())
        self._task = task

    def predict_lengths(self) -> Sequence[int]:
        return self._task.predict_lengths()

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        encoder = {"bert": self._task.inference_params(params)["bert"]}
        vectors = self._model.apply({"params": encoder}, BertInputs.of(batch), deterministic=True)
        return {"features": cast(jax.Array, vectors)[:, 0]}


def _text_vectors(task: PredictionTask) -> TextVectors:
    """Returns the vectors of a task, or else the means over the tokens of texts, without prompts."""
    if isinstance(task, search.VectorTask):
        return task.text_vectors()
    if not isinstance(task, BertTask):
        got = "retrieval, for a task without a BERT"
        expected = "an evaluation of this task"
        raise UserError("config key evaluations", got=got, expected=expected, fix="omit it")
    codec = TextCodec(task.tokenizer, task.max_length, Columns("", ()))
    return TextVectors(_MeanVectors(task), codec, codec, lambda text: Texts((text,)), task.encoder.hidden_size)


def evaluation(config: Config, task: PredictionTask, on_bad_row: str) -> Evaluation:
    """Returns the evaluation. Its metrics are `retrieval/ndcg@10` and others, with intervals.

    Raises:
      UserError: for a missing file, or a task without a BERT.
    """
    texts = _text_vectors(task)
    expected = "a folder in BEIR's form"
    fix = "set --config.retrieval.source=FOLDER"
    config.check(config.source, "source", expected, got="no folder", fix=fix)
    folder = beir.Folder(config.source, "retrieval.source", config.qrels, on_bad_row)
    folder.files()

    @functools.cache
    def collection() -> Collection:
        content = folder.read()
        _log.info("searching in %s: %s", config.source, content.sizes)
        return content

    def examples() -> Iterator[Example]:
        return search.examples(collection(), texts.query, texts.document, texts.of_text)

    def score(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        _, vectors = search.vectors(results, texts.size, unit=True)
        metrics = search.metrics(search.best(collection(), vectors["query"], vectors["document"]), collection())
        return {f"retrieval/{name}": value for name, value in metrics.items()}

    names = [f"retrieval/{name}" for name in RANKS]
    return Evaluation("retrieval", texts.view, examples, score, names, config.every)
