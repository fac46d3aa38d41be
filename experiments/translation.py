"""Translation, or any text from text, by an encoder and a decoder (Vaswani et al. 2017; Bahdanau et al. 2015)."""

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import seq2seq, showing, translators
from bertjax.data.buckets import BucketedBatches, bucket_lengths, budget_sizes
from bertjax.data.dates import DatesConfig
from bertjax.data.packed_rows import PackedBatches, row_of
from bertjax.data.pair_rows import PairRows, StreamBatches
from bertjax.data.parallel_text import Pair, ParallelTextConfig
from bertjax.data.subword_vocabularies import SubwordConfig, Vocabularies
from bertjax.data.translation_text import DateCounts, TranslationText
from bertjax.decoding.config import DecodingConfig
from bertjax.errors import UserError, build, build_all, choice
from bertjax.interop import marian
from bertjax.interop.marian import SpecialIds
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from bertjax.models.partitioning import TENSOR_RULES
from bertjax.models.recurrent_seq2seq import RecurrentConfig, RecurrentSeq2Seq
from bertjax.scoring import translation as scoring
from bertjax.seq2seq import TargetIds
from bertjax.task import Attended, Batch, Example, Infer, Metrics, Output, Params, Sums
from bertjax.task import Rows as RowIndices

_log = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 1024
_METRICS = ("nll", "perplexity", "token_accuracy")  # of targets that are given
_ANY_SIZE = 8  # of a vocabulary that is not there yet


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of the config that this experiment reads.

    Attributes:
      experiment: the name of its file.
      init_from: a run of ours or the folder of a MarianMTModel to begin with; or "".
      seed: of the order of pairs; the training wing has it too.
      batch_size: rows of a global batch of the longest pairs; of shorter ones there are as many more as make up for it.
      architecture: "transformer" or "recurrent".
      model: fields of `EncoderDecoderConfig` or of `RecurrentConfig`.
      data: which pairs, and how they are encoded.
      label_smoothing, smoothing_denominator: see `losses.smoothed_cross_entropy`.
      start_token: what the decoder is fed first: the vocabulary's "begin" (Marian's has none, and uses "pad"), "pad" or
        "end" (as fairseq does).
      decoding: fields of `DecodingConfig`.
      metrics: held-out figures, of `scoring.translation.SCORES`.
      num_scored: how many held-out pairs are translated at each evaluation; the likelihood is that of all.
    """

    experiment: str
    init_from: str
    seed: int
    batch_size: int
    architecture: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    label_smoothing: float
    smoothing_denominator: str
    start_token: str
    decoding: Mapping[str, Any]
    metrics: tuple[str, ...]
    num_scored: int

    def __post_init__(self) -> None:
        choice(self.architecture, ("transformer", "recurrent"), "architecture")
        seq2seq.SmoothingConfig(self.label_smoothing, self.smoothing_denominator)
        choice(self.start_token, ("begin", "pad", "end"), "start_token")
        for metric in self.metrics:
            choice(metric, tuple(scoring.SCORES), "metrics")
        if self.num_scored < 1:
            fix = "score 500 pairs or so"
            raise UserError("config key num_scored", got=self.num_scored, expected="at least 1", fix=fix)


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """How pairs become rows.

    Attributes:
      seq_len: tokens of each side at most, the end token counted; longer pairs are not trained on.
      packing: whether short pairs share a row of that length.
      on_long_line: what to do with a line to translate that the model has no positions for: "split" or "refuse".
    """

    seq_len: int
    packing: bool
    on_long_line: str

    def __post_init__(self) -> None:
        choice(self.on_long_line, ("split", "refuse"), "data.on_long_line")
        if self.seq_len < 2:
            raise UserError("config key data.seq_len", got=self.seq_len, expected="at least 2", fix="raise it")


_DATA = (ParallelTextConfig, DatesConfig, DateCounts, SubwordConfig, RowsConfig)


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines. Raises UserError for contradictions."""
    return translators.resolve(config)


def preparation(config: Config, workdir: Path) -> translators.Preparation:
    """The vocabularies, which are those of `init_from`, given, or trained on the pairs to train on."""
    files, dates, counts, vocabularies, _ = build_all(_DATA, config.data, "data")
    text = TranslationText(files, dates, counts, config.seed)
    return translators.Preparation(workdir / "data", text, vocabularies, config.init_from)


def make(config: Config, vocab_dir: Path | None, prepared: Path | None) -> "Translation":
    """The task.

    Args:
      config: its settings.
      vocab_dir: a folder with the vocabularies; without it nothing more than the settings can be checked.
      prepared: any folder if the task is to train; without it the pairs are not read.
    """
    vocabularies = translators.open_vocabularies(vocab_dir) if vocab_dir else None
    return Translation(config, vocabularies, reads=prepared is not None)


class Translation:
    """See `bertjax.task.Task`."""

    def __init__(self, config: Config, vocabularies: Vocabularies | None, reads: bool) -> None:
        """Args: settings; of both sides, if there are any yet; whether to read pairs.

        Raises:
          UserError: they do not fit together.
        """
        self._config, self._vocabularies = config, vocabularies
        files, dates, counts, _, self._rows = build_all(_DATA, config.data, "data")
        self._text: TranslationText | None = None
        if reads or not vocabularies:  # what only predicts has no need of pairs, and they may be gone
            self._text = TranslationText(files, dates, counts, config.seed)
        self._model = _model(config, [v.vocab_size if v else _ANY_SIZE for v in vocabularies or (None, None)])
        self._decoding = build(DecodingConfig, config.decoding, "decoding")
        self._smoothing = seq2seq.SmoothingConfig(config.label_smoothing, config.smoothing_denominator)
        self._ids = TargetIds(*translators.target_ids(config.start_token, vocabularies and vocabularies[1]))
        self._limit = self._most_positions()
        self._train: BucketedBatches | PackedBatches | StreamBatches | None = None
        self._valid: BucketedBatches | None = None
        if reads:
            self._read_pairs()

    def _most_positions(self) -> int:
        """Tokens of a text at most."""
        if self._config.architecture == "recurrent":
            return max(self._rows.seq_len, self._decoding.max_length)
        limit: int = self._config.model["max_positions"]
        for key, value in (("data.seq_len", self._rows.seq_len), ("decoding.max_length", self._decoding.max_length)):
            if value > limit:
                raise UserError(
                    f"config key {key}",
                    got=value,
                    expected=f"at most model.max_positions={limit}",
                    fix="lower it, or raise --config.model.max_positions",
                )
        return limit

    def _read_pairs(self) -> None:
        config, length = self._config, self._rows.seq_len
        lengths = bucket_lengths(length)
        sizes = budget_sizes(lengths, config.batch_size)
        self._valid = BucketedBatches(PairRows(self._fitting("valid")), lengths, sizes, config.seed)
        if self._pairs.is_dates:
            PairRows(self._encoded(self._pairs.pairs("valid"))).check_fits(length)
            dates = self._pairs.dates
            self._train = StreamBatches(lambda start: self._encoded(dates(start)), length, config.batch_size)
        elif self._rows.packing:
            packing = row_of(length, length // 2)
            self._train = PackedBatches(PairRows(self._fitting("train")), packing, config.batch_size, config.seed)
        else:
            self._train = BucketedBatches(PairRows(self._fitting("train")), lengths, sizes, config.seed)

    @property
    def _pairs(self) -> TranslationText:
        assert self._text, "a task that has read no pairs only predicts"
        return self._text

    def _fitting(self, split: str) -> Iterator[dict[str, np.ndarray]]:
        """The rows of a split's pairs that are not too long. Raises UserError if there are none."""
        long = count = 0
        for row in self._encoded(self._pairs.pairs(split)):
            if max(map(len, row.values())) > self._rows.seq_len:
                long += 1
                continue
            count += 1
            yield row
        if long:
            _log.warning("left out %d of %d pairs of %s: over %d tokens", long, long + count, split, self._rows.seq_len)
        if not count:
            raise UserError(
                "config key data.seq_len",
                got=f"{self._rows.seq_len}, and all {long} pairs of {split} are longer",
                expected="pairs that fit",
                fix="raise --config.data.seq_len",
            )

    def _encoded(self, pairs: Iterable[Pair]) -> Iterator[dict[str, np.ndarray]]:
        """Each pair as `input_ids` and `labels`, both with their end tokens."""
        assert self._vocabularies
        pairs = iter(pairs)
        while part := list(itertools.islice(pairs, _ENCODED_AT_ONCE)):
            source, target = (
                vocabulary.encode_batch(texts)
                for vocabulary, texts in zip(
                    self._vocabularies, ([p.source for p in part], [p.target for p in part]), strict=True
                )
            )
            for a, b in zip(source, target, strict=True):
                ends = (np.append(ids, np.int32(v.eos_id)) for ids, v in zip((a, b), self._vocabularies, strict=True))
                yield dict(zip(("input_ids", "labels"), ends, strict=True))

    def init(self, rng: jax.Array) -> Params:
        """See `Task.init`."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self._model.init(rng, ids, ids, ids, ids, deterministic=True, return_attention=False)["params"]

    def warm_start(self, params: Params) -> Params:
        """See `Task.warm_start`."""
        return translators.warm_start(params, Path(self._config.init_from)) if self._config.init_from else params

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Task.partition_rules`."""
        return TENSOR_RULES

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        size, length = self._config.batch_size, self._rows.seq_len
        names = ["input_ids", "segment_ids", "labels", "target_segment_ids"]
        shapes = list(zip(budget_sizes(bucket_lengths(length), size), bucket_lengths(length), strict=True))
        if self._rows.packing and not self._pairs.is_dates:
            names += ["position_ids", "target_position_ids"]
        if self._rows.packing or self._pairs.is_dates:
            shapes = [(size, length)]
        return [
            {name: jax.ShapeDtypeStruct(shape, np.int32) for name in names}
            | {"weights": jax.ShapeDtypeStruct(shape[:1], np.float32)}
            for shape in shapes
        ]

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Task.batches`."""
        assert self._train and self._valid, "a task that has read no pairs only predicts"
        return self._train.training(start, rows) if split == "train" else self._valid.evaluation(rows)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The tokens of the targets."""
        return {"translation": jnp.maximum(seq2seq.count(batch["target_segment_ids"] != 0), 1)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy with smoothed labels, and the metrics of `seq2seq.loss`; see `Task.loss`."""
        output = seq2seq.apply(self._model, params, batch, self._ids.start, rng, return_attention=False)
        total, metrics = seq2seq.loss(output.logits, batch, self._smoothing, self._ids.pad)
        return {"translation": total}, metrics

    def baselines(self) -> Mapping[str, float]:
        """None: nothing that is as plain as a unigram model says how well one translates."""
        return {}

    def held_out(self) -> Iterator[Example]:
        """The first held-out pairs, to be translated."""
        return self._scored(itertools.islice(self._pairs.pairs("valid"), self._config.num_scored))

    def tested(self) -> Iterator[Example]:
        """All pairs to test on."""
        return self._scored(self._pairs.pairs("test") if self._pairs.has_test else ())

    def _scored(self, pairs: Iterable[Pair]) -> Iterator[Example]:
        for pair in pairs:
            yield self._example(pair.source, pair.target, pair.where)

    def score_names(self) -> Sequence[str]:
        """The metrics of the config, and those of the loss."""
        return (*self._config.metrics, *_METRICS, "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The metrics of the config, in percent."""
        hypotheses = [self._translation(outputs, 0)[0] for _, outputs in results]
        references = [[example.source[1]] for example, _ in results]
        return scoring.score(self._config.metrics, hypotheses, references)

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """A text in each line; an empty one stays empty."""
        for number, line in enumerate(lines, start=1):
            yield self._example(line.strip(), None, f"input line {number}")

    def _example(self, text: str, reference: str | None, where: str) -> Example:
        """A text as one row, or as several if it is too long for one."""
        assert self._vocabularies
        vocabulary = self._vocabularies[0]
        (ids,) = vocabulary.encode_batch([text]) if text else (np.zeros(0, np.int32),)
        room = self._limit - 1
        if len(ids) > room and self._rows.on_long_line == "refuse":
            raise UserError(
                where,
                got=f"{len(ids):,} tokens",
                expected=f"at most {room:,}",
                fix="divide the line, or set --config.data.on_long_line=split",
            )
        parts = [ids[start : start + room] for start in range(0, len(ids), room)]
        rows = [np.append(part, np.int32(vocabulary.eos_id)) for part in parts]
        return Example([{"input_ids": row, "segment_ids": np.ones_like(row)} for row in rows], (text, reference))

    def predict_lengths(self) -> Sequence[int]:
        """See `Task.predict_lengths`."""
        return bucket_lengths(self._limit)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The `n_best` translations of each row: ids [B, n, T], lengths and scores [B, n]."""
        return seq2seq.write(self._model, params, batch, self._decoding, self._ids)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The text, its translation with its score, and all of the `n_best` if they are more than one."""
        text, score = self._translation(outputs, 0)
        record = {"source": example.source[0], "translation": text, "score": score}
        if self._decoding.n_best > 1:
            each = [self._translation(outputs, rank) for rank in range(self._decoding.n_best)]
            record["n_best"] = [{"translation": text, "score": score} for text, score in each]
        return record

    def line(self, record: Mapping[str, Any]) -> str:
        """What a file of translations has of a record."""
        return str(record["translation"])

    def _translation(self, outputs: Sequence[Output], rank: int) -> tuple[str, float]:
        """The text of some rank, and its score; of a text in several rows they are joined, and added up."""
        assert self._vocabularies
        parts = [self._vocabularies[1].decode(o["ids"][rank, : o["lengths"][rank]]) for o in outputs]
        return " ".join(parts), round(sum((float(o["scores"][rank]) for o in outputs), 0.0), 6)

    def attention(self, params: Params, example: Example, outputs: Sequence[Output]) -> Mapping[str, Attended]:
        """That of the encoder, the decoder, and of the decoder to the source, for the best translation."""
        assert self._vocabularies
        source, target = example.rows[0]["input_ids"], outputs[0]["ids"][0, : outputs[0]["lengths"][0]]
        batch = {"input_ids": source[None], "labels": target[None]}
        batch |= {"segment_ids": np.ones_like(source[None]), "target_segment_ids": np.ones_like(target[None])}
        found = seq2seq.apply(self._model, params, batch, self._ids.start, None, return_attention=True)
        sources, targets = (
            translators.pieces(vocabulary, ids)
            for vocabulary, ids in zip(self._vocabularies, (source, target), strict=True)
        )
        # The decoder looks from what it was fed, at what it was fed.
        fed = ["<s>", *targets[:-1]]
        kinds = {
            "encoder": (found.encoder_attention, sources, sources),
            "decoder": (found.decoder_attention, fed, fed),
            "cross": (found.cross_attention, targets, sources),
        }
        return {
            name: Attended(np.asarray(weights)[:, 0], queries, keys)
            for name, (weights, queries, keys) in kinds.items()
            if weights is not None
        }

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Held-out texts with their translations and the references, and the positions; see `Shows`."""
        for number, (example, outputs) in enumerate(infer(self.held_out())):
            seen = {"attention": self.attention(params, example, outputs)} if showing.is_shown(number, example) else {}
            record = self.record(example, outputs)
            yield {**record, "kind": "translation", "reference": example.source[1], **seen}
        if isinstance(self._model, EncoderDecoder):
            yield showing.mask(np.ones(20, np.int32), "left_to_right")
            yield from showing.positions(self._model.bind({"params": params}).source_places)

    def export(self, params: Params, folder: Path) -> None:
        """A folder that `transformers.MarianMTModel.from_pretrained` opens, with the vocabularies."""
        model = self._model.config
        if not isinstance(model, EncoderDecoderConfig):
            fix = "predict with the run itself"
            raise UserError("--mode=export", got="a recurrent model", expected="a Transformer", fix=fix)
        marian.save(folder, params, model, SpecialIds(self._ids.pad, self._ids.start, self._ids.end))
        self.save_vocabulary(folder)

    def save_vocabulary(self, folder: Path) -> None:
        """See `Task.save_vocabulary`."""
        assert self._vocabularies
        translators.save_vocabularies(self._vocabularies, folder)


def _model(config: Config, sizes: Sequence[int]) -> EncoderDecoder | RecurrentSeq2Seq:
    """The model for vocabularies of these sizes. Raises UserError if the config does not describe one."""
    names = ("source_vocab_size", "target_vocab_size")
    values = {**config.model, **{name: config.model[name] or size for name, size in zip(names, sizes, strict=True)}}
    if config.architecture == "recurrent":
        return RecurrentSeq2Seq(build(RecurrentConfig, values, "model"))
    return EncoderDecoder(build(EncoderDecoderConfig, values, "model"))
