"""Summaries that a decoder writes from what BERT makes of an article (Liu and Lapata 2019, section 4)."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import at_least, build, one_of
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, Sums, Task
from bertjax.data.rows.buckets import BucketedBatches, bucket_lengths, budget_sizes, check_seq_len
from bertjax.data.summarization import article_rows, summary_rows
from bertjax.data.summarization.article_rows import ArticleRow
from bertjax.data.summarization.article_text import ArticleText
from bertjax.data.summarization.limits import LimitedArticle
from bertjax.data.summarization.summary_rows import SummaryRows
from bertjax.data.text.tokenizers import WordPiece
from bertjax.decoding.config import DecodingConfig
from bertjax.decoding.selection import SelectionConfig
from bertjax.errors import UserError
from bertjax.interop import presumm
from bertjax.models.bertsum_abs import BertSumAbs, BertSumAbsConfig, copy_embeddings
from bertjax.models.encoder_decoder import Seq2SeqInputs
from bertjax.models.transformer import TENSOR_RULES
from bertjax.progress import tell_once
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import fine_tuning, pretrained, samples, seq2seq, summarization
from bertjax.tasks.fine_tuning import WarmStartConfig
from bertjax.tasks.seq2seq import TargetIds
from bertjax.tasks.summarization import ArticleData

FREE_AFTER_TRAINING = ("decoding", "rouge", *summarization.FREE_AFTER_TRAINING)
_INPUTS = ("input_ids", "token_type_ids")
# What the baselines choose.
_LEAD = SelectionConfig(num_sentences=3, word_budget=0, threshold=None, block_ngrams=0, order="document")
# Where neither the config nor `init_from` says.
_OTHERWISE = {
    "model.decoder_layers": 6,
    "model.decoder_heads": 8,
    "model.decoder_intermediate": 2048,
}


@dataclasses.dataclass(frozen=True)
class Config(WarmStartConfig, seq2seq.SmoothingConfig):
    """The keys of the config that this experiment reads.

    Attributes:
      batch_size: rows of an update, over all devices and micro-batches, where they are padded to `data.seq_len` tokens;
        of shorter rows there are as many more as make up for it, in multiples of this.
      positions: what positions that the model in `init_from` does not have begin as: "tile", copies of all that it has,
        again and again; "repeat_last", copies of the last, as PreSumm. See `pretrained.extend_positions`.
      copy_embeddings: whether the decoder's words begin as BERT's, where `init_from` has no decoder (PreSumm's
        `-use_bert_emb`).
      target_len: pieces of a summary to learn from at most, with what parts its sentences and ends it.
      decoding: fields of `DecodingConfig`.
      num_scored: how many held-out articles are summarized at each evaluation, 2 or more; 0 for all. The likelihood is
        that of all.
      rouge: fields of `RougeConfig`.
    """

    positions: Annotated[str, one_of("tile", "repeat_last")]
    copy_embeddings: bool
    target_len: Annotated[int, at_least(2)]
    decoding: Mapping[str, Any]
    num_scored: int
    rouge: Mapping[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.num_scored == 0 or self.num_scored >= 2, "num_scored", "at least 2, or 0 for all")
        if self.data["long_articles"] != "cut":
            raise UserError(
                "config key data.long_articles",
                got=self.data["long_articles"],
                expected="cut, as one row is all that the decoder sees",
                fix="set --config.data.long_articles=cut, and raise --config.data.seq_len for more",
            )


def resolve(config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
    """Fills in what `init_from` determines. Raises UserError for contradictions, and for missing keys of `data`."""
    config = summarization.resolve(config, _OTHERWISE)
    ArticleData.of(config["data"])
    return config


def preparation(config: Config, workdir: Path) -> ArticleText:
    """The articles that training needs; their vocabulary is kept in the run's folder."""
    return ArticleData.of(config.data).text(workdir, summary_rows.TARGET_TOKENS)


def make(config: Config, vocab_dir: Path | None, prepared: Path | None) -> "Summarization":
    """The task.

    Args:
      config: its settings.
      vocab_dir: see `ArticleData.tokenizer`.
      prepared: any folder if the task is to train or to be scored; without it the articles are not read.
    """
    tokenizer = ArticleData.of(config.data).tokenizer(vocab_dir, summary_rows.TARGET_TOKENS)
    return Summarization(config, tokenizer, reads=prepared is not None)


class _Source(NamedTuple):
    """What the row of an example has been made of."""

    article: LimitedArticle
    is_cut: bool  # whether the article is longer than the row


class Summarization(Task):
    """See `bertjax.contract.Task`."""

    def __init__(self, config: Config, tokenizer: WordPiece, reads: bool) -> None:
        """Args: settings; the vocabulary; whether to read. Raises UserError if they do not fit together."""
        self._config, self._tokenizer, self._data = config, tokenizer, ArticleData.of(config.data)
        self._model_config, self._head = fine_tuning.model_configs(config, BertSumAbsConfig, tokenizer.vocab)
        check_seq_len(self._data.rows.seq_len, self._model_config.max_positions)
        if self._data.rows.interval_segments:
            fine_tuning.check_two_segments(self._model_config)
        self._model = BertSumAbs(self._model_config, self._head)
        self._decoding = build(DecodingConfig, config.decoding, "decoding")
        seq2seq.check_finds(self._decoding)
        self._rouge = build(RougeConfig, config.rouge, "rouge")
        start, end, _ = summary_rows.target_ids(tokenizer)
        self._ids = TargetIds(start, end, tokenizer.pad_id, tokenizer.unk_id)
        self._lengths = bucket_lengths(self._data.rows.seq_len)
        self._sizes = budget_sizes(self._lengths, config.batch_size)
        self._scored = self._data.scored() if reads else {}
        self._valid = self._batched(self._scored["valid"]) if reads else None

    @functools.cached_property
    def _train(self) -> BucketedBatches:
        """The articles to train on, which are not read to be scored."""
        return self._batched(self._data.read("train"))

    def _batched(self, articles: Sequence[LimitedArticle]) -> BucketedBatches:
        rows = SummaryRows(map(self._pair, articles), self._config.target_len)
        return BucketedBatches(rows, self._lengths, self._sizes, self._config.seed)

    def _pair(self, article: LimitedArticle) -> dict[str, np.ndarray]:
        assert article.summary is not None
        words, limit = self._data.rows.words, self._config.target_len
        labels = summary_rows.target(article.summary, self._tokenizer, words, limit)
        return {**_inputs(self._row(article)), "labels": labels}

    def _row(self, article: LimitedArticle) -> ArticleRow:
        """The first row of an article: the only one, as articles are truncated."""
        row, *_ = article_rows.rows(article.sentences, self._tokenizer, self._data.rows)
        return row

    def init(self, rng: jax.Array) -> Params:
        """See `Task.init`."""
        ids = jnp.zeros((1, 1), jnp.int32)
        inputs = Seq2SeqInputs(ids, ids, ids, ids)
        return self._model.init(rng, inputs, deterministic=True, return_attention=False)["params"]

    def warm_start(self, params: Params) -> Params:
        """See `Task.warm_start`."""
        if not self._config.init_from:
            return params
        found = pretrained.warm_start(params, Path(self._config.init_from), positions=self._config.positions)
        is_new = "decoder_layers" not in pretrained.describe(Path(self._config.init_from)).model
        return copy_embeddings(found) if is_new and self._config.copy_embeddings else found

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Task.partition_rules`."""
        return TENSOR_RULES

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        target = self._config.target_len
        specs = fine_tuning.batch_specs(zip(self._sizes, self._lengths, strict=True), {}, {})
        return [
            {
                **spec,
                **{name: jax.ShapeDtypeStruct((size, target), np.int32) for name in ("labels", "target_segment_ids")},
            }
            for spec, size in zip(specs, self._sizes, strict=True)
        ]

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Task.batches`."""
        assert self._valid, "a task that has read no articles only predicts"
        return self._train.training(start, rows) if split == "train" else self._valid.evaluation(rows)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The tokens of the summaries."""
        return {"summary": jnp.maximum(seq2seq.count(batch["target_segment_ids"] != 0), 1)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy with smoothed labels, and the metrics of `seq2seq.loss`; see `Task.loss`."""
        output = seq2seq.apply(self._model, params, batch, self._ids.start, rng, return_attention=False)
        total, metrics = seq2seq.loss(output.logits, batch, self._config, self._ids.pad)
        return {"summary": total}, metrics

    def baselines(self) -> Mapping[str, float]:
        """What the first sentences of each article score, and those of the oracle."""
        scored = {**self._scored, "valid": self._held_out}
        return summarization.baselines(scored, lambda article: _LEAD, self._rouge)

    @property
    def _held_out(self) -> Sequence[LimitedArticle]:
        return self._scored["valid"][: self._config.num_scored or None]

    def held_out(self) -> Iterator[Example]:
        """The first held-out articles, to be summarized."""
        return self._counted(map(self._example, self._held_out))

    def tested(self) -> Iterator[Example]:
        """All articles to test on."""
        return self._counted(map(self._example, self._scored.get("test", ())))

    def score_names(self) -> Sequence[str]:
        """Those of `summarization.figure_names`, and of summaries that are given."""
        return (*summarization.figure_names(self._rouge), *seq2seq.FIGURES)

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `summarization.figures`."""
        texts = [self._sentences(outputs) for _, outputs in results]
        found = [example.source.article for example, _ in results]
        return summarization.figures(texts, found, lambda article: _LEAD, self._rouge)

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """See `ArticleData.of_lines`."""
        return self._counted(self._data.of_lines(lines, self._example))

    def examples_of(self, path: str) -> Iterator[Example]:
        """See `ArticleData.of_files`."""
        return self._counted(self._data.of_files(path, self._example))

    def _example(self, article: LimitedArticle) -> Example:
        row = self._row(article)
        return fine_tuning.example([_inputs(row)], _Source(article, row.is_cut))

    def _counted(self, examples: Iterable[Example]) -> Iterator[Example]:
        """The same examples; logs at their end how many articles were truncated."""
        count = cut = 0
        for example in seq2seq.numbered(examples, self._decoding):
            count += 1
            cut += isinstance(example.source, _Source) and example.source.is_cut
            yield example
        if cut:
            tell_once(f"truncated {cut} of {count} articles to data.seq_len={self._data.rows.seq_len} tokens")

    def predict_lengths(self) -> Sequence[int]:
        """See `Task.predict_lengths`."""
        return self._lengths

    def width(self) -> int:
        """See `Task.width`."""
        return seq2seq.width(self._decoding)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The summary of each row: ids [B, 1, T], lengths and scores [B, 1]."""
        continues = jnp.asarray(self._tokenizer.is_continuation)
        return seq2seq.write(self._model, params, batch, self._decoding, self._ids, self._config.seed, continues)

    def _sentences(self, outputs: Sequence[Output], rank: int = 0) -> list[str]:
        (output,) = outputs
        return summary_rows.sentences(output["ids"][rank, : output["lengths"][rank]].tolist(), self._tokenizer)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The summary, as sentences, with its score; all of `n_best`; and the reference, if there is one."""
        article = example.source.article.article
        each = [
            {"summary": self._sentences(outputs, rank), "score": round(float(outputs[0]["scores"][rank]), 6)}
            for rank in range(self._decoding.n_best)
        ]
        record = {"id": article.id, **each[0], **({"n_best": each} if len(each) > 1 else {})}
        return record if article.summary is None else {**record, "reference": list(article.summary)}

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Held-out articles with what is written of them, and the reference; see `Task.samples`."""
        for number, (example, outputs) in enumerate(infer(self.held_out())):
            sentences = list(example.source.article.article.sentences)
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer.vocab)
            yield {**self.record(example, outputs), "kind": "summary", "article": sentences, **seen}
        yield from samples.bert_positions(params)

    def line(self, record: Mapping[str, Any]) -> str:
        """What a file of summaries has of a record."""
        return " ".join(record["summary"])

    def export(self, params: Params, folder: Path) -> None:
        """A folder whose encoder `transformers.BertModel.from_pretrained` opens, with decoder and vocabulary."""
        presumm.save(folder, params, self._model_config, self._head, self._data.seen_rows())
        self._tokenizer.save(folder, self._model_config.max_positions)

    def save_vocabulary(self, folder: Path) -> None:
        """See `Task.save_vocabulary`."""
        self._tokenizer.save(folder)


def _inputs(row: ArticleRow) -> dict[str, np.ndarray]:
    return {name: row.inputs[name] for name in _INPUTS}
