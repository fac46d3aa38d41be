"""Evaluates vectors of texts by search (Thakur et al. 2021, BEIR), clustering and linear probing; mines negatives."""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from bertjax.config import Composed, Constrained, Count, Flat, Seed, Size, always, one_of
from bertjax.contract import Example, MiningTask, Output
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.evaluation_texts import Labeled, Sources, SourcesConfig
from bertjax.data.codecs.texts import PromptedTextCodec, Texts
from bertjax.data.readers.beir import Collection
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import VocabularyConfig
from bertjax.errors import UserError
from bertjax.experiments import features
from bertjax.interop import sentence_transformers
from bertjax.interop.published import Published, open_weights
from bertjax.interop.sentence_transformers import Sentences
from bertjax.loading import load
from bertjax.models.heads import DenseConfig
from bertjax.scoring import clustering, glue, negatives, probing, retrieval
from bertjax.scoring.negatives import MiningConfig
from bertjax.tasks import bert, search
from bertjax.tasks.evaluation_data import EvaluationData

if TYPE_CHECKING:
    from bertjax.model import Model

_log = logging.getLogger(__name__)
# Keys of `features.Config` that `resolve` fills in.
_OF_FEATURES = ("sentence_pooling", "dense", "normalize", "include_prompt", "truncate_dim", "model", "data")
_NO_TABLE = Columns("", ())
_FIXED = {"pooling": "sentence", "word_pooling": "first", "prompt_name": None, "dtype_out": "float32"}


@dataclasses.dataclass(frozen=True)
class DataConfig(Composed, prefix="data"):
    """What is evaluated or mined, and how texts become rows.

    Attributes:
      seq_len: the maximum number of tokens of a row. Default: for vectors of texts that of `init_from`; otherwise the
        model's positions.
    """

    sources: Flat[SourcesConfig]
    vocabulary: Flat[VocabularyConfig]
    seq_len: int = always(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Constrained):
    """The config keys that this experiment reads. Defaults are those of `init_from`.

    Attributes:
      experiment: the name of its file.
      init_from: a folder of Hugging Face or sentence-transformers, a google-research checkpoint or a bertjax run to
        take weights, sizes and vocabulary from; or "".
      sentence_pooling: "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean" or "lasttoken", or several such as
        "cls+mean". Default: that of `init_from`, or "mean".
      dense: maps of the vectors of texts. Default: those of a sentence-transformers folder; () for none.
      normalize: whether vectors are scaled to length 1.
      include_prompt: whether `sentence_pooling` includes the tokens of the prompt. Default: as in a
        sentence-transformers folder, otherwise True. If not, [CLS] is excluded too, as there.
      truncate_dim: how many first elements of a vector of a text are kept, not scaled again. Default: as in a
        sentence-transformers folder, otherwise all.
      query_prompt: a text that precedes each query and each labeled text. Default: the prompt "query" of a
        sentence-transformers folder, or its default prompt.
      document_prompt: a text that precedes each document. Default: the prompt "document", "passage" or "corpus" of a
        sentence-transformers folder, or its default prompt.
      similarity: "cosine", or "dot" for dot products.
      reranker: a cross-encoder that reorders the documents found: a folder for transformers'
        ...ForSequenceClassification with one label, or a run; "" for none.
      rerank: the number of documents of each query that `reranker` reorders.
      seed: the seed of clusters and of negatives drawn with `mining.sampling=random`.
      mining: how `--mode=mine` chooses negatives.
      model: the encoder, and the layers to read.
      data: what is evaluated or mined.
    """

    experiment: str
    init_from: str = always("")
    sentence_pooling: str = always(None)
    dense: tuple[DenseConfig, ...] = always(None)
    normalize: bool = always(None)
    include_prompt: bool = always(None)
    truncate_dim: Size | None = always(None)
    query_prompt: str = always(None)
    document_prompt: str = always(None)
    similarity: Annotated[str, one_of("cosine", "dot")] = always(None)
    reranker: str = always("")
    rerank: Count = always(100)
    seed: Seed = always(0)
    mining: MiningConfig
    model: features.ModelConfig
    data: DataConfig

    def codec(self, tokenizer: EncoderTokenizer) -> PromptedTextCodec:
        includes_prompt = self.include_prompt
        return PromptedTextCodec(tokenizer, self.data.seq_len, _NO_TABLE, includes_prompt=includes_prompt)


def resolve(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Fills in what `init_from` determines: sizes, casing, pooling, prompts, length and similarity."""
    sentences = published.sentences or Sentences()
    default = sentences.default_prompt or ""
    defaults = {
        "query_prompt": sentences.prompt("query", default),
        "document_prompt": sentences.prompt("document", "passage", "corpus", default),
        "similarity": sentence_transformers.read_similarity(published.path),
    }
    settings = {key: value if config[key] is None else config[key] for key, value in defaults.items()}
    features_config = features.resolve({**config, **_FIXED, "prompt": ""}, published)
    return {**config, **settings, **{key: features_config[key] for key in _OF_FEATURES}}


open_vocabulary = bert.open_vocabulary


class Data(EvaluationData):
    """The texts of `Sources`, all of them validation examples."""

    def __init__(self, config: Config, folder: Path, published: Published | None) -> None:
        assert published, "the experiment has no runs"
        self._config = config
        self._published = published
        self._sources = Sources(config.data.sources)

    def key(self) -> Any:
        return [self._sources.fingerprint(), self.vocabulary.key]

    @functools.cached_property
    def vocabulary(self) -> EncoderTokenizer:
        return open_vocabulary(self._config, self._published)

    def validation_examples(self) -> Iterator[Example]:
        """Reads and checks all rows first."""
        config = self._config
        source = self._sources.read()
        codec = config.codec(self.vocabulary)
        query = dataclasses.replace(codec, prompt=config.query_prompt)
        document = dataclasses.replace(codec, prompt=config.document_prompt)
        yield from search.examples(source, query, document, lambda text: Texts((text,)))


class Task(features.Task, MiningTask):
    """Evaluates the vectors of texts. Predictions are the vectors of queries; see `features.Task`."""

    export = None  # type: ignore[assignment]  # see configs/features.py

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        data = config.data
        columns = (data.text_field,)
        of_data = features.DataConfig(data.vocab_file, data.lowercase, data.seq_len, columns, data.on_bad_row)
        settings = {key: getattr(config, key) for key in ("experiment", "init_from", *_OF_FEATURES)}
        settings |= {**_FIXED, "prompt": config.query_prompt, "data": of_data}
        super().__init__(features.Config(**settings), vocabulary)
        self._codec = dataclasses.replace(self._codec, has_tabs=False)
        self._settings = config
        keys = (
            *("init_from", "sentence_pooling", "normalize", "include_prompt", "truncate_dim"),
            *("similarity", "reranker", "rerank", "seed"),
        )
        self.protocol = {
            "prompts": {"query": config.query_prompt, "document": config.document_prompt},
            "seq_len": data.seq_len,
            **{key: getattr(config, key) for key in keys},
            **{key: getattr(config.model, key) for key in ("layers", "dtype")},
        }

    def score(self, results: Iterable[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The metrics of a collection with bootstrap intervals over queries, or those of labeled texts."""
        reranker = self._open_reranker() if self._settings.reranker else None  # before the long work
        source, vectors = search.vectors(results, self.size, unit=self._settings.similarity == "cosine")
        if isinstance(source, Labeled):
            return self._of_labels(source.labels, vectors)
        rankings = search.best(source, vectors["query"], vectors["document"], max(search.FOUND, self._settings.rerank))
        sizes = {
            "queries": len(source.queries),
            "queries_left_out": source.left_out,
            "documents": len(source.documents),
        }
        metrics = search.metrics(rankings, source)
        if reranker:
            before = {f"before_reranking/{name}": value for name, value in metrics.items()}
            metrics = {**search.metrics(self._reranked(reranker, rankings, source), source), **before}
        return {**metrics, **{name: float(size) for name, size in sizes.items()}}

    def _of_labels(self, labels: Mapping[str, Sequence[str]], vectors: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The v-measure of as many clusters as classes and, with training rows, the accuracy of a linear probe."""
        test = labels["test"]
        clusters = clustering.k_means(vectors["test"], len(set(test)), self._settings.seed)
        metrics = dict(clustering.v_measure(test, clusters.tolist())._asdict())
        if "train" in labels:
            names = {name: place for place, name in enumerate(sorted({*test, *labels["train"]}))}
            places = {split: np.array([names[name] for name in split_labels]) for split, split_labels in labels.items()}
            predicted = probing.fit(vectors["train"], places["train"], len(names))(vectors["test"])
            scores = glue.score(("accuracy", "macro_f1"), predicted, places["test"])
            right = (predicted == places["test"]).astype(np.float64)
            metrics |= {f"probe/{name}": value for name, value in scores.items()}
            metrics |= search.with_interval("probe/accuracy", right)
        sizes = {"texts": len(test), "classes": len(set(test)), "training_texts": len(labels.get("train", ()))}
        return {**metrics, **{name: float(size) for name, size in sizes.items()}}

    def _open_reranker(self) -> "Model":
        """The cross-encoder, whose records of pairs have a "score"."""
        path = Path(self._settings.reranker)
        self._settings.check(path.exists(), "reranker", "the folder of a cross-encoder", got=f"{path}, no such folder")
        published = open_weights(path)
        if published.is_run and published.experiment != "reranker":  # such as regression on pairs
            return load(path)
        if not published.is_run and published.num_classes != 1:
            got = f"a model with {published.num_classes} outputs"
            expected = "a cross-encoder with one"
            raise UserError(f"config key reranker={path}", got=got, expected=expected, fix="name another folder")
        # Sigmoids close to 1 would be equal.
        return load(path, "" if published.is_run else "reranker", config={"activation": "identity"})

    def _reranked(self, model: "Model", rankings: Mapping[str, list[str]], source: Collection) -> dict[str, list[str]]:
        """The documents found. A cross-encoder orders the first ones by its scores."""
        first = {query: names[: self._settings.rerank] for query, names in rankings.items()}
        needed = {name for names in first.values() for name in names}
        texts = {name: text for name, text in source.texts() if name in needed}
        pairs = [(source.queries[query], texts[name]) for query, names in first.items() for name in names]
        scores = iter(record["score"] for record in model.predict(pairs))
        best = {query: retrieval.ranked({name: next(scores) for name in names}) for query, names in first.items()}
        return {query: [*best[query], *names[self._settings.rerank :]] for query, names in rankings.items()}

    def mine(self, results: Iterable[tuple[Example, Sequence[Output]]]) -> Iterator[Mapping[str, Any]]:
        """Positives of equal queries, and a document equal to the query, are no negatives."""
        label = self._settings.data.label_column
        self._settings.data.check(not label, "label_column", "'' with --mode=mine", fix="omit the variant labels")
        source, vectors = search.vectors(results, self.size, unit=self._settings.similarity == "cosine")
        assert isinstance(source, Collection)
        names = source.documents
        numbers = {name: number for number, name in enumerate(source.documents)}
        positives = [[numbers[name] for name in source.relevant[query]] for query in source.queries]
        equal = [numbers.get(query, -1) for query in source.queries]
        config = self._settings.mining
        rows = 0
        few = 0
        mined = negatives.mine(vectors["query"], vectors["document"], positives, equal, config, self._settings.seed)
        for query, places in zip(source.queries, mined, strict=True):
            for positive in source.relevant[query]:
                rows += 1
                few = few + (len(places) < config.num_negatives)
                yield {"query": query, "positive": positive, "negatives": [names[place] for place in places]}
        _log.info("mined %d rows of %d queries from %d documents", rows, len(positives), len(names))
        if few:
            text = "%d of %d rows have fewer than %d negatives: raise mining.up_to, or lower mining.skip or the margin"
            _log.warning(text, few, rows, config.num_negatives)
