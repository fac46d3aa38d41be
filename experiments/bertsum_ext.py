"""Summaries made of an article's own sentences (Liu 2019; Liu and Lapata 2019, section 3)."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from bertjax.config import build, one_of
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, Sums, Task
from bertjax.data.rows.buckets import BucketedBatches, Rows, bucket_lengths, budget_sizes, check_seq_len
from bertjax.data.summarization import article_rows, article_text
from bertjax.data.summarization.article_rows import ArticleRow, with_labels
from bertjax.data.summarization.article_text import ArticleText
from bertjax.data.summarization.limits import LimitedArticle
from bertjax.data.text.tokenizers import WordPiece
from bertjax.decoding import selection
from bertjax.decoding.selection import SelectionConfig
from bertjax.errors import UserError
from bertjax.interop import huggingface, presumm
from bertjax.models.bert import BertInputs
from bertjax.models.bertsum import BertSum, BertSumConfig, first_places
from bertjax.models.transformer import TENSOR_RULES
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import fine_tuning, pretrained, samples, summarization
from bertjax.tasks.fine_tuning import FineTuningConfig
from bertjax.tasks.summarization import ArticleData

_log = logging.getLogger(__name__)
FREE_AFTER_TRAINING = ("selection", "match_reference", "rouge", *summarization.FREE_AFTER_TRAINING)

_OF_TOKENS = {"sentence_starts": np.int32, "labels": np.float32, "label_weights": np.float32}
_OF_ROWS = {"first_sentences": np.int32}
_SHORTEST = 3  # tokens of a sentence: [CLS], a piece, [SEP]
# Where neither the config nor `init_from` says.
_OTHERWISE = {
    "model.scorer": "classifier",
    "model.scorer_layers": 2,
    "model.scorer_heads": 8,
    "model.scorer_intermediate": 2048,
    "model.rnn_compat": False,
}


@dataclasses.dataclass(frozen=True)
class Config(FineTuningConfig):
    """The keys of the config that this experiment reads.

    Attributes:
      batch_size: rows of an update, over all devices and micro-batches, where they are padded to `data.seq_len` tokens;
        of shorter rows there are as many more as make up for it, in multiples of this.
      positions: what positions that the model in `init_from` does not have begin as: "tile", copies of all that it has,
        again and again; "repeat_last", copies of the last, as PreSumm. See `pretrained.extend_positions`.
      loss_reduction: "mean" over the sentences of a batch, or their "sum", as the published code.
      selection: fields of `SelectionConfig`.
      match_reference: in scoring, for comparisons at equal length, the limit in place of those of `selection`:
        "sentences", as many as the reference has; "words", at most as many; or "", which leaves those.
      rouge: fields of `RougeConfig`.
    """

    positions: Annotated[str, one_of("tile", "repeat_last")]
    loss_reduction: Annotated[str, one_of("mean", "sum")]
    selection: Mapping[str, Any]
    match_reference: Annotated[str, one_of(*selection.MATCHES)]
    rouge: Mapping[str, Any]


def resolve(config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
    """Fills in what `init_from` determines, and lengths in updates where there is a vocabulary to count rows with.

    Raises:
      UserError: contradictions, and whatever is wrong with the articles.
    """
    otherwise = {**_OTHERWISE, "model.sentence_pooling": _pooling(config["init_from"])}
    config = summarization.resolve(config, otherwise)
    data, count = ArticleData.of(config["data"]), 1
    lengths = {key: config[key] for key in ("num_steps", "evaluate_every")}
    lengths["checkpoint.save_every"] = config["checkpoint"]["save_every"]
    unset = [key for key, value in lengths.items() if value is None]
    if unset and data.articles.source and reads:
        if not data.vocabulary.vocab_file:
            got, expected = "none", "a number of updates, as rows are not known before the vocabulary is trained"
            fix = f"set --config.{unset[0]}, or give a vocabulary in data.vocab_file"
            raise UserError(f"config key {unset[0]}", got=got, expected=expected, fix=fix)
        size = max(1, config["batch_size"])
        count = size * _batches(data, article_text.given(data.vocabulary), size, config["seed"]).steps_per_epoch
    return fine_tuning.resolve_lengths(config, count)


def _pooling(init_from: str) -> str:
    """What a scorer's sentences are where nothing else says: means if the encoder was trained to give such vectors."""
    try:
        pooling = huggingface.read_pooling(init_from) if init_from and Path(init_from).is_dir() else None
    except UserError:  # vectors that we do not make, of an encoder that serves as well as any
        pooling = None
    return "mean" if pooling == "mean" else "cls"


def _batches(data: ArticleData, tokenizer: WordPiece, batch_size: int, seed: int) -> BucketedBatches:
    lengths = bucket_lengths(data.rows.seq_len)
    rows = _training_rows(data, tokenizer)
    return BucketedBatches(rows, lengths, budget_sizes(lengths, batch_size), seed)


@functools.lru_cache(maxsize=1)
def _training_rows(data: ArticleData, tokenizer: WordPiece) -> Rows:
    """The rows of all articles; `resolve` counts them before the task trains on them."""
    articles = data.read("train")
    _check_labels(articles, data)
    return Rows(
        with_labels(row, article.labels)
        for article in articles
        for row in article_rows.rows(article.sentences, tokenizer, data.rows)
    )


def _check_labels(articles: Sequence[LimitedArticle], data: ArticleData) -> None:
    """Raises UserError if no article has a sentence that belongs into its summary; warns if most have none, or if the
    oracle sees but a few of the letters.
    """
    count = sum(any(article.labels) for article in articles)
    is_ascii = data.labels.oracle.letters == "ascii" and data.labels.oracle.method != "verbatim"  # no words compared
    seen = summarization.ascii_share([each for each in articles if each.article.gold is None]) if is_ascii else 1.0
    if 2 * count >= len(articles) and seen >= 0.5:
        return
    got = f"{count} of {len(articles)} articles with a sentence that belongs into their summary"
    fix = "check that the summaries are those of the articles"
    if data.labels.oracle.method == "verbatim":
        fix += ", and that they have one sentence a line"
    if seen < 0.5:
        got += f", by ASCII letters, which are {seen:.0%} of those of the summaries"
    if is_ascii:
        fix += f"; if they are not in English, set {summarization.OF_OTHER_LETTERS}"
    if not count:
        raise UserError("config keys data.{source,oracle}", got=got, expected="one in most", fix=fix)
    _log.warning("%s; %s", got, fix)


def preparation(config: Config, workdir: Path) -> ArticleText:
    """The articles that training needs; their vocabulary is kept in the run's folder."""
    return ArticleData.of(config.data).text(workdir, ())


def make(config: Config, vocab_dir: Path | None, prepared: Path | None) -> "Summarization":
    """The task.

    Args:
      config: its settings.
      vocab_dir: see `ArticleData.tokenizer`; without it nothing more than the settings can be checked.
      prepared: any folder if the task is to train or to be scored; without it no articles are read.
    """
    tokenizer = ArticleData.of(config.data).tokenizer(vocab_dir, ())
    return Summarization(config, tokenizer, reads=prepared is not None)


class _Source(NamedTuple):
    """What the rows of an example have been made of."""

    article: LimitedArticle
    rows: Sequence[ArticleRow]


class Summarization(Task):
    """See `bertjax.contract.Task`."""

    def __init__(self, config: Config, tokenizer: WordPiece, reads: bool) -> None:
        """Args: settings; the vocabulary; whether to read. Raises UserError if they do not fit together."""
        self._config, self._tokenizer, self._data = config, tokenizer, ArticleData.of(config.data)
        self._model_config, self._head = fine_tuning.model_configs(config, BertSumConfig, tokenizer.vocab)
        check_seq_len(self._data.rows.seq_len, self._model_config.max_positions)
        if self._data.rows.interval_segments:
            fine_tuning.check_two_segments(self._model_config)
        self._model = BertSum(self._model_config, self._head)
        self._selection = build(SelectionConfig, config.selection, "selection")
        self._rouge = build(RougeConfig, config.rouge, "rouge")
        self._lengths = bucket_lengths(self._data.rows.seq_len)
        self._sizes = budget_sizes(self._lengths, config.batch_size)
        self._scored = self._data.scored() if reads else {}

    @functools.cached_property
    def _train(self) -> BucketedBatches:
        """The rows to train on, which are not read to be scored."""
        return _batches(self._data, self._tokenizer, self._config.batch_size, self._config.seed)

    def init(self, rng: jax.Array) -> Params:
        """See `Task.init`."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self._model.init(rng, BertInputs(ids, ids, ids, cls_positions=ids), ids, deterministic=True)["params"]

    def warm_start(self, params: Params) -> Params:
        """See `Task.warm_start`."""
        if not self._config.init_from:
            return params
        return pretrained.warm_start(params, Path(self._config.init_from), positions=self._config.positions)

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Task.partition_rules`."""
        return TENSOR_RULES

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        return fine_tuning.batch_specs(zip(self._sizes, self._lengths, strict=True), _OF_TOKENS, _OF_ROWS)

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Task.batches`."""
        return self._train.training(start, rows) if split == "train" else iter(())

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The sentences: those that a row owns, so that each counts once; or 1, for a sum."""
        number = jnp.maximum(jnp.sum(batch["label_weights"]), 1)
        return {"sentences": number if self._config.loss_reduction == "mean" else jnp.ones_like(number)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The binary cross-entropy of each sentence's label; see `Task.loss`."""
        # A sentence of words that normalize to nothing may be shorter; some may then go unlearned in a full row.
        shortest = _SHORTEST + self._data.labels.limits.min_words
        count = batch["input_ids"].shape[1] // shortest + 1
        logits, positions = self._logits(params, batch, count + count % 2, rng)  # cuDNN trains on even lengths only
        labels, weights = (jnp.take_along_axis(batch[name], positions, axis=1) for name in ("labels", "label_weights"))
        each = optax.sigmoid_binary_cross_entropy(logits, labels)
        metrics = {
            "tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(())),
            "accuracy": (jnp.sum(((logits > 0) == (labels > 0)) * weights), jnp.sum(weights)),
        }
        return {"sentences": jnp.sum(each * weights)}, metrics

    def _logits(
        self, params: Params, batch: Batch, count: int, rng: jax.Array | None
    ) -> tuple[Float[Array, "B E"], Array]:
        """Those of the first `count` sentences of each row, and the places of their [CLS]."""
        positions = first_places(batch["sentence_starts"], count)
        logits: Any = self._model.apply(
            {"params": params},
            BertInputs.of(batch)._replace(cls_positions=positions),
            jnp.take_along_axis(batch["sentence_starts"], positions, axis=1),
            batch["first_sentences"],
            deterministic=rng is None,
            rngs={} if rng is None else {"dropout": rng},
        )
        return logits, positions

    def baselines(self) -> Mapping[str, float]:
        """What the first sentences score, and those of the oracle: as many, but with no rules for their scores."""
        return summarization.baselines(self._scored, self._rules, self._rouge)

    def held_out(self) -> Iterator[Example]:
        """See `Task.held_out`; an article each."""
        return map(self._example, self._scored["valid"])

    def tested(self) -> Iterator[Example]:
        """See `Task.tested`."""
        return map(self._example, self._scored.get("test", ()))

    def score_names(self) -> Sequence[str]:
        """Those of `summarization.figure_names`, and the loss."""
        return (*summarization.figure_names(self._rouge), "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `summarization.figures`. The loss is that of an article, summed over its sentences."""
        pairs = [(example.source.article, _merged(example, outputs)) for example, outputs in results]
        summaries = [summarization.summary(a, _probabilities(logits), self._rules(a)) for a, logits in pairs]
        figures = summarization.figures(summaries, [article for article, _ in pairs], self._rules, self._rouge)
        return {**figures, "loss": float(np.mean([_loss(logits, article.labels) for article, logits in pairs]))}

    def _rules(self, article: LimitedArticle) -> SelectionConfig:
        """Those of a summary that is compared with the reference."""
        assert article.article.summary is not None
        return selection.matched(self._selection, article.article.summary, self._config.match_reference)

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """See `ArticleData.of_lines`."""
        return self._data.with_min_words(self._selection.min_words).of_lines(lines, self._example)

    def examples_of(self, path: str) -> Iterator[Example]:
        """See `ArticleData.of_files`."""
        return self._data.with_min_words(self._selection.min_words).of_files(path, self._example)

    def _example(self, article: LimitedArticle) -> Example:
        rows = article_rows.rows(article.sentences, self._tokenizer, self._data.rows)
        return fine_tuning.example([row.inputs for row in rows], _Source(article, rows))

    def predict_lengths(self) -> Sequence[int]:
        """See `Task.predict_lengths`."""
        return self._lengths

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of the sentences of each row, [B, E]."""
        logits, _ = self._logits(params, batch, batch["input_ids"].shape[1] // _SHORTEST + 1, None)
        return {"logits": logits}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The summary; for each sentence of the article its score, null if it is out of limits; who was passed over."""
        article, logits = example.source.article, _merged(example, outputs)
        selected = summarization.select(article, _probabilities(logits), self._selection)
        scores: list[float | None] = [None] * len(article.article.sentences)
        for number, score in zip(article.numbers, _probabilities(logits).tolist(), strict=True):
            scores[number] = None if score == -np.inf else round(score, 6)
        positions = [article.numbers[i] for i in selected.chosen]
        record = {
            "id": article.article.id,
            "summary": [article.article.sentences[i] for i in positions],
            "positions": positions,
            "sentences": list(article.article.sentences),
            "scores": scores,
            "refused": [
                {
                    "position": article.numbers[each.sentence],
                    "reason": each.reason,
                    "blocked_by": None if each.blocked_by is None else article.numbers[each.blocked_by],
                    "ngram": " ".join(each.ngram),
                }
                for each in selected.refused
            ],
        }
        return record if article.summary is None else {**record, "reference": list(article.article.summary or ())}

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Held-out articles with their sentences' scores, the reference and the oracle's choice; see `Task.samples`."""
        for number, (example, outputs) in enumerate(infer(self.held_out())):
            article = example.source.article
            oracle = [article.numbers[i] for i in np.flatnonzero(article.labels)]
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer.vocab)
            yield {**self.record(example, outputs), "kind": "extract", "oracle": oracle, **seen}
        yield from samples.bert_positions(params)

    def line(self, record: Mapping[str, Any]) -> str:
        """What a file of summaries has of a record."""
        return " ".join(record["summary"])

    def export(self, params: Params, folder: Path) -> None:
        """A folder whose encoder `transformers.BertModel.from_pretrained` opens, with the scorer and the vocabulary."""
        presumm.save(folder, params, self._model_config, self._head, self._data.seen_rows())
        self._tokenizer.save(folder, self._model_config.max_positions)

    def save_vocabulary(self, folder: Path) -> None:
        """See `Task.save_vocabulary`."""
        self._tokenizer.save(folder)


def _merged(example: Example, outputs: Sequence[Output]) -> np.ndarray:
    """The logit of each sentence that was taken, -inf for those that no row shows."""
    article, rows = example.source
    return article_rows.merged(rows, [output["logits"] for output in outputs], len(article.sentences))


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """Those of the sentences that have a logit; -inf for the others. What is no number stays so."""
    return np.where(logits == -np.inf, -np.inf, 1 / (1 + np.exp(-logits)))


def _loss(logits: np.ndarray, labels: Sequence[int]) -> float:
    """The sum over the sentences that have a score."""
    known = logits != -np.inf
    return float(np.sum(np.logaddexp(0, logits[known]) - logits[known] * np.array(labels)[known]))
