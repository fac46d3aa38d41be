"""Translation with an encoder-decoder model (Vaswani et al. 2017; Bahdanau et al. 2015)."""

import dataclasses
import functools
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from bertjax import contract
from bertjax.config import Composed, Count, Flat, always, build_part, each, one_of
from bertjax.contract import Example, Infer, Output, Params
from bertjax.data.codecs.translation.batches import PairRows, StreamBatches
from bertjax.data.codecs.translation.dates import DatesConfig
from bertjax.data.codecs.translation.parallel_text import Pair, ParallelTextConfig
from bertjax.data.codecs.translation.rows import PairCodec, TranslationRowsConfig
from bertjax.data.codecs.translation.text import DateCounts, TranslationText
from bertjax.data.prepared import PreparationConfig
from bertjax.data.readers.sources import DATES
from bertjax.data.rows.buckets import BucketedBatches, BucketsConfig, bucket_lengths, budget_sizes
from bertjax.data.rows.packed_rows import PackedBatches, row_capacity
from bertjax.data.splits import TRAIN, VALID
from bertjax.data.text import form, subword_vocabularies, subwords
from bertjax.data.text.form import Form, form_of
from bertjax.data.text.subword_vocabularies import SubwordConfig, Vocabularies
from bertjax.decoding.config import DecodingConfig
from bertjax.files import Fingerprint, completed
from bertjax.interop.published import Published
from bertjax.interop.vocabularies import SavedVocabularies, open_vocabularies
from bertjax.models.encoder_decoder import EncoderDecoder
from bertjax.progress import log_once
from bertjax.scoring import translation as scoring
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import inputs, samples, seq2seq, translators
from bertjax.tasks.prepared_data import ExperimentConfig, PreparedData
from bertjax.tasks.text_to_text import TextToTextTask

_DONE = "vocabularies.json"  # written last


@dataclasses.dataclass(frozen=True)
class DataConfig(Composed, prefix="data"):
    """The keys of `data`."""

    files: Flat[ParallelTextConfig]
    dates: Flat[DatesConfig]
    date_counts: Flat[DateCounts]
    vocabulary: Flat[SubwordConfig]
    rows: Flat[TranslationRowsConfig]
    preparation: Flat[PreparationConfig]
    buckets: Flat[BucketsConfig]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig, seq2seq.SmoothingConfig):
    """The config keys that this experiment reads.

    Attributes:
      init_from: a bertjax run or the folder of an encoder-decoder of transformers to start from; or "".
      task: the entry of `task_specific_params` in config.json of the folder in `init_from` whose generation settings
        and source prefix apply, such as "summarization"; "" for none.
      seed: seed of all random numbers, such as those of parameters, data order, masks and dropout.
      batch_size: rows of an update, over all devices and micro-batches, if they have `data.seq_len` tokens. A batch of
        shorter rows holds a multiple of this.
      architecture: "transformer" or "recurrent".
      model: the sizes and options of either.
      start_token: the decoder's first input: the vocabulary's "begin", "pad" (as in Marian, whose vocabulary has no
        "begin") or "end" (as in fairseq).
      decoding: how translations are generated.
      metrics: validation and test metrics, see docs/reference/metrics.md. References are normalized as the target's
        vocabulary normalizes all text.
      rouge: the settings of ROUGE.
      num_scored: validation pairs that are translated at each evaluation; 0 for all. The loss is that of all within
        `data.seq_len`.
    """

    architecture: Annotated[str, one_of("transformer", "recurrent")] = always(None)
    model: translators.TransformerKeys | translators.RecurrentKeys
    data: DataConfig
    start_token: Annotated[str, one_of("begin", "pad", "end")] = always(None)
    decoding: DecodingConfig
    task: str = ""
    metrics: Annotated[tuple[str, ...], each(one_of(*scoring.SCORES, *scoring.ROUGE))] = always(("bleu", "chrf"))
    rouge: RougeConfig = RougeConfig()
    num_scored: Count = always(500)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_one_length = self.data.files.source != DATES or not self.data.rows.target_len
        self.data.rows.check(is_one_length, "target_len", "0 with generated dates")
        is_recurrent = isinstance(self.model, translators.RecurrentKeys)
        self.check(is_recurrent == (self.architecture == "recurrent"), "architecture", "that of the keys of model")
        translators.check_positions(self)

    @property
    def text(self) -> TranslationText:
        """The parallel text. Raises UserError for sources that are missing or contradict each other."""
        return TranslationText(self.data.files, self.data.dates, self.data.date_counts, self.seed)

    def codec(self, vocabularies: Vocabularies) -> PairCodec:
        """Returns the kind of the rows, for prediction."""
        data = self.data
        scores_targets = self.decoding.method == "forced"
        refuses_long = data.on_long_line == "refuse"
        return PairCodec(vocabularies, data.rows, data.files, scores_targets=scores_targets, refuses_long=refuses_long)


FREE_AFTER_TRAINING = (
    *("task", "decoding", "metrics", "rouge", "num_scored", "data.seq_len", "data.on_long_line"),
    *("data.source_column", "data.target_column"),
    *("data.header", "data.separator", "data.source_prefix", "data.target_prefix"),
)


resolve = translators.complete


def open_vocabulary(config: Config, published: Published) -> SavedVocabularies:
    """Returns the vocabularies of a run or of weights."""
    return open_vocabularies(published.path) if published.is_run else published.vocabularies


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], SavedVocabularies]:
    """The vocabulary has a few characters. Raises UserError for missing sources."""
    _ = build_part(Config, config).text
    joint = subwords.characters("abcd")
    return dict(config), SavedVocabularies(joint, joint)


class Data(PreparedData[Config, Pair]):
    """Pairs of texts. The vocabularies are in the folder.

    Training and validation pairs of files are prepared. Dates and, without training pairs, validation pairs are not.
    """

    def __init__(self, config: Config, folder: Path, published: Published | None) -> None:
        seq2seq.check_generates(config.decoding)
        scoring.check_installed(config.metrics)
        super().__init__(config, folder, published)
        self._text = config.text
        self._subwords = config.data.vocabulary

    @property
    def prepares(self) -> bool:
        return TRAIN in self._text.texts

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        if self._published or self._subwords.vocab_file:
            vocabularies: Any = self._make_vocabularies().fingerprint
        else:
            vocabularies = dataclasses.asdict(self._subwords)
        return Fingerprint.of([self._text.fingerprint(), vocabularies])

    @property
    def has_vocabulary(self) -> bool:
        done = self._folder / _DONE
        return done.exists() and self.fingerprint.is_of(json.loads(done.read_text())["fingerprint"])

    def write_vocabulary(self) -> None:
        """Writes the vocabularies of `init_from`, given ones, or ones trained on the training pairs."""
        if not self.has_vocabulary:
            (self._folder / _DONE).unlink(missing_ok=True)
            self._make_vocabularies().save(self._folder)
            with completed(self._folder / _DONE) as path:
                path.write_text(json.dumps({"fingerprint": self.fingerprint}) + "\n")

    def _make_vocabularies(self) -> SavedVocabularies:
        if self._published:
            return open_vocabulary(self._config, self._published)
        texts = self._text.pairs
        sides = subword_vocabularies.make(self._subwords, lambda: ((pair.source, pair.target) for pair in texts(TRAIN)))
        return SavedVocabularies(*sides)

    @functools.cached_property
    def vocabulary(self) -> SavedVocabularies:
        is_published = self._published and self._folder == self._published.path
        return self._published.vocabularies if self._published and is_published else open_vocabularies(self._folder)

    @functools.cached_property
    def codec(self) -> PairCodec:
        """The kind of the rows; the folder must have the vocabularies. Validation and test texts are split if long."""
        texts = {split: self._text.texts[split] for split in (TRAIN, VALID)} if self.prepares else {}
        codec = self._config.codec(self.vocabulary)
        return dataclasses.replace(codec, texts=texts, scores_targets=False, refuses_long=False)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UserError if validation pairs are bad or all too long."""
        _ = self.valid_batches  # reports bad pairs before a model is trained or loaded
        references = [pair.target for pair in self._pairs(VALID)]
        metrics = self._config.metrics
        of_letters = scoring.letters_warning(metrics, references, self._config.rouge)
        for warning in filter(None, (scoring.tokenizer_warning(metrics, references), of_letters)):
            log_once(warning, logging.WARNING)
        self.warn_of_form(self._forms, self.vocabulary.source)
        return super().complete(config)

    @functools.cached_property
    def _forms(self) -> Mapping[str, Form]:
        """The form of the source texts of validation and test, by split; none of dates."""
        splits = () if self._text.is_dates else (VALID, "test") if self._text.has_test else (VALID,)
        return {split: form_of(pair.source for pair in self._pairs(split)) for split in splits}

    def baselines(self) -> Mapping[str, float]:
        """Returns the form of texts to summarize."""
        return form.metrics(self._forms) if set(self._config.metrics) & set(scoring.ROUGE) else {}

    @functools.cached_property
    def rows(self) -> PairRows:
        return PairRows(self.prepared.fields, self._config.data.rows.target_len or None)

    @functools.cached_property
    def valid_batches(self) -> BucketedBatches:
        if self._text.is_dates:
            PairRows.of(self.codec.rows(self._pairs(VALID))).check_fits(self._config.data.seq_len)
        target_len = self._config.data.rows.target_len or None
        return self.bucketed(PairRows.of(self.codec.fitting(self._pairs(VALID), VALID), target_len))

    def _pairs(self, split: str) -> Iterator[Pair]:
        return self.prepared.held_out(split) if split == VALID and self.prepares else self._text.pairs(split)

    @functools.cached_property
    def train(self) -> BucketedBatches | PackedBatches | StreamBatches:
        """Raises UserError if all pairs are too long."""
        config = self._config
        length = config.data.seq_len
        codec = self.codec
        if self._text.is_dates:
            return StreamBatches(lambda start: codec.rows(self._text.dates(start)), length, config.batch_size)
        report = self.prepared.report
        left_out = sum(report.get("left_out", {}).values())  # rows that were prepared by an earlier version lack it
        codec.report_too_long(left_out or report.get("pairs_truncated", 0), report["rows"][TRAIN] + left_out, TRAIN)
        if config.data.packing:
            return PackedBatches(self.rows, row_capacity(length, length // 2), config.batch_size, config.seed)
        return self.bucketed(self.rows)

    def examples(self, split: str) -> Iterator[Example]:
        """The first `num_scored` validation pairs and all test pairs, to be translated."""
        count = self._config.num_scored if split == VALID else 0
        pairs = self._pairs(split) if split == VALID or self._text.has_test else iter(())
        examples = inputs.encoded(self.codec, itertools.islice(pairs, count or None))
        return seq2seq.numbered(examples, self._config.decoding)


class Task(TextToTextTask):
    """Translates texts, or scores given translations."""

    loss_name = "translation"

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        size = self._config.batch_size
        rows = self._codec.config
        length = rows.seq_len
        is_dates = self._codec.files.source == DATES
        names = ["input_ids", "segment_ids", "labels", "target_segment_ids"]
        lengths = bucket_lengths(length, self._config.data.row_lengths)
        shapes = list(zip(budget_sizes(lengths, size), lengths, strict=True))
        if rows.packing and not is_dates:
            names += ["position_ids", "target_position_ids"]
        if rows.packing or is_dates:
            shapes = [(size, length)]
        most = rows.lengths[1]
        widths = dict.fromkeys(("labels", "target_segment_ids", "target_position_ids"), most)
        return [
            {name: jax.ShapeDtypeStruct((size, min(width, widths.get(name, width))), np.int32) for name in names}
            | {"weights": jax.ShapeDtypeStruct((size,), np.float32)}
            for size, width in shapes
        ]

    def score_names(self) -> Sequence[str]:
        """The metrics of the config, and those of the loss on reference translations."""
        return (*scoring.names(self._config.metrics), *seq2seq.METRICS)

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The metrics of the config, in percent. The target's vocabulary first normalizes the references.

        The model cannot generate what its vocabulary cannot represent, such as capitals if text is lowercased. The
        metrics' signatures state the normalization if it changes a reference. The lines of a reference stay, because
        they are the sentences of a summary.
        """
        vocabulary = self._vocabularies.target
        hypotheses = [self._translation(outputs, 0)[0] for _, outputs in results]
        texts_of_pairs = [list(self._codec.gold(example.source.item)) for example, _ in results]
        references = [list(map(self._normalized, texts)) for texts in texts_of_pairs]
        normalization = vocabulary.normalization if texts_of_pairs != references else ""
        for name in scoring.SIGNED & set(self._config.metrics):
            signature = scoring.signature(name, references, normalization)
            log_once(f"{name} of {len(results)} translations is {signature}")
        return scoring.score(self._config.metrics, hypotheses, references, self._config.rouge)

    def _normalized(self, reference: str) -> str:
        return "\n".join(map(self._vocabularies.target.normalized, reference.split("\n")))

    def samples(self, params: Params, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Validation texts with translations and references, an attention mask, and positions."""
        for number, (example, outputs) in enumerate(infer(data.validation_examples())):
            seen = {"attention": self.attention(params, example, outputs)} if samples.is_shown(number, example) else {}
            yield {**self._sample(example, outputs), **seen}
        if isinstance(self._model, EncoderDecoder):
            yield samples.mask(np.ones(20, np.int32), "left_to_right")
            table = self._model.bind({"params": params}).source_position_table
            yield from iter(()) if table is None else samples.positions(table)

    def errors(self, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        for example, outputs in infer(data.validation_examples()):
            yield {**self._sample(example, outputs), **samples.lengths(example)}

    def _sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        record = self.record(example, outputs)
        references = list(map(self._vocabularies.target.normalized, self._codec.gold(example.source.item)))
        loss = 100 - scoring.score(["chrf"], [record["translation"]], [references])["chrf"]
        return {**record, "kind": "translation", "reference": references[0], "loss": loss}
