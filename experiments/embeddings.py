"""Vectors of texts that are trained to be similar for related texts (Reimers and Gurevych 2019, Sentence-BERT)."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import contract
from bertjax.config import Flat, Size, above, always, each, one_of
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, Sums
from bertjax.data.codecs.related_texts import RelatedTexts, RelatedTextsCodec, RelatedTextsConfig
from bertjax.data.rows.buckets import max_examples
from bertjax.data.rows.joint_batches import Examples, JointBatches, row_counts
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop import sentence_transformers
from bertjax.interop.published import Published
from bertjax.interop.sentence_transformers import Sentences
from bertjax.models.bert import HeadConfig
from bertjax.models.embedder import Embedder
from bertjax.models.embedding_losses import CORRELATIONS, OBJECTIVES, LossConfig, Objective, Texts, total
from bertjax.models.heads import DenseConfig, Pooling
from bertjax.models.layers import drawing_by_row
from bertjax.models.slices import in_slices
from bertjax.scoring import glue, retrieval
from bertjax.tasks import bert, completion, fine_tuning, samples, search
from bertjax.tasks.teachers import PROMPTS

_RANKED = 10  # documents of the metrics
# On the run's page: the rows that are searched, the examples, and the documents of each.
_SEARCHED = 500
_SHOWN = 8
_SHOWN_DOCUMENTS = 5
_COLUMNS = ("text_columns", "num_negatives", "score_column", "label_column", "header", "separator")
FREE_AFTER_TRAINING = tuple(f"data.{key}" for key in _COLUMNS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fine_tuning.DataConfig):
    """The keys of `data`.

    Attributes:
      row_multiple: the rows of a batch are a multiple of this number times `accumulation_steps`. It must be a multiple
        of the devices that rows are split over.
      row_counts: the numbers of rows that a batch may have. Default: from the training rows.
    """

    rows: Flat[RelatedTextsConfig]
    row_multiple: Size = always(8)
    row_counts: tuple[int, ...] | None = always(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads.

    Attributes:
      init_from: a folder of Hugging Face or sentence-transformers, a google-research checkpoint or a bertjax run to
        take weights, sizes and vocabulary from; or "".
      objective: the loss; see `bertjax.models.embedding_losses`.
      scale: what similarities are multiplied by in "ranking" and "cosent": one over the temperature.
      learn_scale: whether the scale is a parameter, which starts at `scale` (Radford et al. 2021, CLIP).
      symmetric: whether "ranking" also ranks the queries of each positive.
      false_negative_margin: how much more similar to the query than its positive another document may be to be its
        negative; None for any similarity.
      triplet_margin: with "triplet", how much farther from the query than the positive a negative must be.
      sizes: the first numbers of a vector that are also trained as a vector (Matryoshka; Kusupati et al. 2022), such as
        (64, 128); the whole vector always is. All have equal weight.
      sentence_pooling: the pooling. Default: that of `init_from`, or "mean".
      dense: maps of the vectors of texts. Default: those of a sentence-transformers folder; () for none.
      normalize: whether the vectors that are predicted and exported are scaled to length 1. Default: as in `init_from`,
        or True.
      truncate_dim: how many first elements of a vector are predicted, evaluated or exported, not scaled again.
        Losses are of whole vectors. Default: as in `init_from`, otherwise all.
      accumulation_steps: the number of slices of a batch. One slice at a time is in memory.
    """

    model: bert.ModelConfig
    data: DataConfig
    objective: Annotated[str, one_of(*OBJECTIVES)] = always("ranking")
    scale: Annotated[float, above(0)] = always(20.0)
    learn_scale: bool = always(False)
    symmetric: bool = always(False)
    false_negative_margin: float | None = always(None)
    triplet_margin: Annotated[float, above(0)] = always(5.0)
    sizes: Annotated[tuple[int, ...], each(above(0))] = always(())
    sentence_pooling: Pooling = always(None)
    dense: tuple[DenseConfig, ...] = always(None)
    normalize: bool = always(None)
    truncate_dim: Size | None = always(None)
    accumulation_steps: Size = always(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.data.rows
        objective = self.definition
        expected = "a column" if objective.scores else "''"
        has_scores = bool(rows.score_column) == bool(objective.scores)
        rows.check(has_scores, "score_column", f"{expected} with objective={self.objective}")
        of_classes = " or ".join(name for name, other in OBJECTIVES.items() if other.allows_classes)
        has_texts = objective.allows_classes or not rows.label_column
        fix = f"use objective={of_classes}, or columns of texts that are related"
        self.check(has_texts, "objective", f"{of_classes} with classes", fix=fix)
        has_negatives = len(rows.text_columns) > 2 or not objective.needs_negatives
        rows.check(has_negatives, "text_columns", f"a third column, of negatives, with objective={self.objective}")
        are_parts = all(size < self.size for size in self.sizes)
        self.check(are_parts, "sizes", f"numbers below {self.size}, the size of vectors")

    def codec(self, tokenizer: EncoderTokenizer) -> RelatedTextsCodec:
        return RelatedTextsCodec(self.data.rows, tokenizer, self.definition.scores, self.definition.score_range)

    @property
    def definition(self) -> Objective:
        """The definition of `objective`."""
        return OBJECTIVES[self.objective]

    @property
    def size(self) -> int:
        """The size of a vector."""
        return self.dense[-1].size if self.dense else self.model.hidden_size * (1 + self.sentence_pooling.count("+"))

    @property
    def num_texts(self) -> int:
        """The maximum number of texts of an example."""
        return 2 + (self.data.num_negatives if len(self.data.text_columns) > 2 else 0)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines: sizes, casing, pooling, maps and prompts.

    Raises:
      UserError: if config keys contradict each other or `init_from`, or its vectors leave out their prompts.
    """
    sentences = (published and published.sentences) or Sentences(normalizes=True)
    config = completion.bert(config, published, seq_len=(published and published.max_length) or 128)
    config = completion.sentences(config, sentences, config["model"]["hidden_size"])
    data = config["data"]
    defaults = {key: sentences.prompt(*names) for key, names in PROMPTS.items()}
    prompts = {key: default if data[key] is None else data[key] for key, default in defaults.items()}
    if any(prompts.values()) and not sentences.includes_prompt:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="prompts with include_prompt=False",
            expected="vectors that include the tokens of their prompts",
            fix="set --config.data.query_prompt='' and --config.data.document_prompt=''",
        )
    return {**config, "data": {**data, **prompts}}


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Rows of `data.seq_len` have two texts each."""
    data = config["data"]
    num_texts = 2 + data["num_negatives"] * (len(data["text_columns"]) > 2)
    rows = -(-config["batch_size"] * num_texts // 2)
    return fine_tuning.example_config({**config, "data": {**data, "row_counts": (rows,)}})


class Data(fine_tuning.FineTuningData[Config, RelatedTexts]):
    """Related texts."""

    @functools.cached_property
    def _examples(self) -> Examples:
        return Examples(self.fields(), self._config.num_texts)

    @functools.cached_property
    def rows(self) -> Any:
        """The texts of all training rows."""
        return self._examples.texts

    @functools.cached_property
    def train(self) -> JointBatches:  # type: ignore[override]
        config = self._config
        length = _row_length(self.row_lengths, config.data.seq_len)
        self._examples.targets = self._targets
        return JointBatches(self._examples, length, self._row_counts, config.batch_size, config.seed)

    @functools.cached_property
    def _row_counts(self) -> tuple[int, ...]:
        config = self._config
        if config.data.row_counts or not self._trains:
            return config.data.row_counts or ()
        multiple = config.data.row_multiple * config.accumulation_steps
        length = _row_length(self.row_lengths, config.data.seq_len)
        return row_counts(self._examples, length, config.batch_size, multiple, config.seed)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in also `data.row_counts`."""
        config = super().complete(config)
        return {**config, "data": {**config["data"], "row_counts": self._row_counts}}

    def _count_rows(self) -> int:
        return len(self._examples.lengths)

    def baselines(self) -> Mapping[str, float]:
        """Returns the expected accuracy of a random document; see `_rankings`."""
        if self._config.definition.metrics == CORRELATIONS:
            return {}
        rows = [example.source.item for example in self.valid]
        classes, relevant = _relevance(rows)
        documents = {text for row in rows for text in _documents(row.texts)}
        itself = int(bool(self._config.data.label_column))  # a text is not among its own documents
        counts = [len(relevant[name]) - itself for name in classes.values()]
        return {"valid/chance_accuracy@1": float(np.mean(counts)) / max(len(documents) - itself, 1)}


def _row_length(lengths: Sequence[int] | None, seq_len: int) -> int:
    """The tokens of a packed row: at least those of the longest text."""
    return (lengths or (seq_len,))[-1]


class Task(fine_tuning.FineTuningTask[Config]):
    """Makes the vectors of texts similar if the texts are related.

    Parameters: those of `Embedder`, and `log_scale` [] with `learn_scale`.
    """

    architecture = "BertModel"
    couples_rows = True
    exact = True
    _codec: RelatedTextsCodec

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        """Texts to predict on have no prompt; those of validation do."""
        super().__init__(config, vocabulary)
        self.loss_name = config.objective
        self._codec = self._codec.with_prompt("")
        self._loss = LossConfig(config.symmetric, config.false_negative_margin, config.triplet_margin)

    def with_head(self, encoder: HeadConfig, config: Config) -> Embedder:
        return Embedder(encoder, config.sentence_pooling, config.dense)

    def init(self, rng: jax.Array) -> Params:
        params = super().init(rng)
        log_scale = jnp.log(jnp.float32(self._config.scale))
        return {**params, "log_scale": log_scale} if self._config.learn_scale else params

    def warm_start(self, params: Params, published: Published) -> Params:
        """Returns the weights in `init_from`; the scale starts at `scale`."""
        return {**params, **super().warm_start({key: params[key] for key in params if key != "log_scale"}, published)}

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Returns the shapes of `JointBatches.training`."""
        data = self._config.data
        length = _row_length(data.row_lengths, data.seq_len)
        shape = (self._config.batch_size, self._config.num_texts)
        example_fields = {
            "places": jax.ShapeDtypeStruct(shape, np.int32),
            "numbers": jax.ShapeDtypeStruct(shape, np.int32),
            "scores": jax.ShapeDtypeStruct((shape[0], shape[1] - 1), np.float32),
            "weights": jax.ShapeDtypeStruct(shape[:1], np.float32),
        }
        return [
            {name: jax.ShapeDtypeStruct((rows, length), np.int32) for name in (*bert.INPUTS, "position_ids")}
            | {"cls_positions": jax.ShapeDtypeStruct((rows, max_examples(length)), np.int32), **example_fields}
            for rows in data.row_counts or ()
        ]

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns 1, because the loss is that of the whole batch."""
        return {self.loss_name: jnp.ones(())}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        vectors = self.vectors(params, batch, rng)
        scores = batch["scores"] if self._config.definition.scores else jnp.zeros((len(vectors), 0))
        texts = Texts(batch["places"] >= 0, batch["numbers"], scores, batch["weights"])
        scale = jnp.exp(params["log_scale"]) if self._config.learn_scale else jnp.float32(self._config.scale)
        loss = total(self.loss_name, vectors, texts, scale, self._loss, self._config.sizes)
        return {self.loss_name: loss}, fine_tuning.metrics(batch, None, batch["weights"])

    def vectors(self, params: Params, batch: Batch, rng: jax.Array | None) -> jax.Array:
        """Returns the vectors [B, T, F] of the T texts of the rows of a whole batch, which are encoded in slices."""

        def encode(rows: Batch, numbers: jax.Array) -> jax.Array:
            with drawing_by_row(numbers):
                return self.apply(params, rows, rng)

        rows = {name: batch[name] for name in (*bert.INPUTS, "position_ids", "cls_positions")}
        outputs = in_slices(encode, rows, self._config.accumulation_steps)
        return outputs.reshape(-1, outputs.shape[-1])[jnp.maximum(batch["places"], 0)]

    def predictions(self, output: jax.Array, batch: Batch) -> bert.Predictions:
        return bert.Predictions(output, (batch["places"] >= 0) * batch["weights"][:, None], "regression")

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the vector of each row, [B, F]."""
        x = self.apply(params, batch, None)[:, 0]
        if self._config.normalize:
            x /= jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), search.LEAST_NORM)
        return {"features": x[:, : self._config.truncate_dim]}

    def text_vectors(self) -> search.TextVectors:
        """Returns how a search encodes texts: as validation does, with prompts."""
        query = self._config.codec(self._tokenizer)
        document = query.with_prompt(self._config.data.document_prompt)
        size = min(self._config.size, self._config.truncate_dim or self._config.size)
        return search.TextVectors(self, query, document, lambda text: RelatedTexts((text,), (), None), size)

    def score_names(self) -> Sequence[str]:
        return self._config.definition.metrics

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        names = self._config.definition.metrics
        if names == CORRELATIONS:
            cosines = np.array([first @ second for _, (first, second) in _unit(results)])
            return glue.score(names, cosines, np.array([example.source.item.scores[0] for example, _ in results]))
        values = [
            value
            for query, cosines, relevant in _rankings(results)
            for value in retrieval.each_query({query: list(cosines)}, {query: relevant})
        ]
        return {name: float(np.mean([value[name] for value in values])) if values else 0.0 for name in names}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        return {"text": example.source.item.texts[0], "features": outputs[0]["features"]}

    def record_fields(self) -> Sequence[str]:
        return ("text", "features")

    def samples(self, params: Params, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields validation texts with the most similar texts of the first rows, or pairs with their scores."""
        examples = list(itertools.islice(data.validation_examples(), _SEARCHED))
        # One example, because `infer` yields only the first few.
        ((_, outputs),) = infer([Example([row for example in examples for row in example.rows], None)])
        remaining = iter(outputs)
        results = [(example, list(itertools.islice(remaining, len(example.rows)))) for example in examples]
        are_pairs = self._config.definition.metrics == CORRELATIONS
        records = itertools.starmap(self.sample, results) if are_pairs else map(_sample, _rankings(results))
        yield from itertools.islice(records, _SHOWN)
        yield from samples.bert_positions(params)

    def errors(self, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields pairs, whose loss is how far the cosine and the score are apart in rank, or queries, with 1 - 1/rank.

        The share of all pairs between two ranks makes losses of 0 to 1.
        """
        results = list(infer(data.validation_examples()))
        if self._config.definition.metrics != CORRELATIONS:
            points = _points(results)
            for ranking in _rankings(results) if results else ():
                yield {**_sample(ranking), **points.get(ranking.query, {})}
            return
        pairs = list(itertools.starmap(self.sample, results))
        ranks = [glue.ranks(np.array([pair[name] for pair in pairs])) for name in ("score", "reference")]
        for pair, loss in zip(pairs, abs(ranks[0] - ranks[1]) / max(1, len(pairs)), strict=True):
            yield {**pair, "loss": float(loss)}

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record of a pair."""
        ((row, (first, second)),) = _unit([(example, outputs)])
        values = {"score": round(float(first @ second), 6), "reference": row.scores[0]}
        return {"kind": "label", "text": row.texts[0], "second": row.texts[1], **values}

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that sentence-transformers opens."""
        config = self._config
        data = self._config.data
        self.save({"bert": params["bert"]}, folder, self.architecture)
        pooling = config.sentence_pooling
        sentences = Sentences(pooling, config.dense, config.normalize, truncate_dim=config.truncate_dim)
        prompts = {"query": data.query_prompt, "document": data.document_prompt}
        sizes = (self._model_config.hidden_size, self._seq_len)
        maps = params.get("dense", {})
        sentence_transformers.save(folder, sentences, maps, sizes, prompts, Path(config.init_from))


class _Ranking(NamedTuple):
    query: str
    cosines: Mapping[str, float]  # of the most similar documents, in descending order
    relevant: Mapping[str, int]


def _unit(results: Sequence[tuple[Example, Sequence[Output]]]) -> Iterator[tuple[RelatedTexts, np.ndarray]]:
    """Yields the rows of examples with the vectors of their texts, scaled to length 1."""
    for example, outputs in results:
        vectors = np.stack([output["features"] for output in outputs]).astype(np.float32)
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        yield example.source.item, vectors / np.maximum(norms, search.LEAST_NORM)


def _points(results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, Mapping[str, Any]]:
    """Returns the "class" and the "projection" of the first texts; empty if texts have no classes."""
    rows = {row.texts[0]: (row.label, vectors[0]) for row, vectors in _unit(results[:_SEARCHED]) if row.label}
    if not rows:
        return {}
    labels, vectors = zip(*rows.values(), strict=True)
    points = samples.projection(np.stack(vectors)).round(5).tolist()
    return {
        text: {"class": label, "projection": point} for text, label, point in zip(rows, labels, points, strict=True)
    }


def _documents(sequence: Any) -> Any:
    """Returns the entries of the documents among those of the texts of a row. A text of a class is also a document."""
    return sequence[1:] if len(sequence) > 1 else sequence


def _relevance(rows: Sequence[RelatedTexts]) -> tuple[Mapping[str, str], Mapping[str, Mapping[str, int]]]:
    """Returns the class of each query, and the relevant documents of each class. Equal texts are one.

    Without classes, a query is its own class, and its positives are relevant.
    """
    relevant: dict[str, dict[str, int]] = {}
    for texts, _, label in rows:
        relevant.setdefault(label or texts[0], {})[_documents(texts)[0]] = 1
    return {texts[0]: label or texts[0] for texts, _, label in rows}, relevant


def _rankings(results: Sequence[tuple[Example, Sequence[Output]]]) -> Iterator[_Ranking]:
    """Ranks the documents of all rows for each query. If rows have classes, a text is not its own document."""
    rows = list(_unit(results))
    classes, relevant = _relevance([row for row, _ in rows])
    queries = {row.texts[0]: vectors[0] for row, vectors in rows}
    documents = {
        text: vector
        for row, vectors in rows
        for text, vector in zip(_documents(row.texts), _documents(vectors), strict=True)
    }
    names = list(documents)
    has_classes = rows[0][0].label is not None
    scores, places = retrieval.search(np.stack(list(queries.values())), np.stack(list(documents.values())), _RANKED + 1)
    for query, of_query, best in zip(queries, scores.tolist(), places.tolist(), strict=True):
        itself = query if has_classes else None
        pairs = [(names[place], score) for place, score in zip(best, of_query, strict=True) if names[place] != itself]
        right = {name: 1 for name in relevant[classes[query]] if name != itself}
        yield _Ranking(query, dict(pairs[:_RANKED]), right)


def _sample(ranking: _Ranking) -> Mapping[str, Any]:
    """Returns the record of a ranking for the run's page."""
    documents = [
        {"text": text, "score": round(score, 3), "right": text in ranking.relevant}
        for text, score in itertools.islice(ranking.cosines.items(), _SHOWN_DOCUMENTS)
    ]
    reference = next(iter(ranking.relevant), "")
    places = (place for place, text in enumerate(ranking.cosines, start=1) if text in ranking.relevant)
    rank = next(places, 0)
    record = {"kind": "retrieval", "text": ranking.query, "found": documents, "reference": reference, "rank": rank}
    return {**record, "loss": 1 - 1 / rank if rank else 1.0}
