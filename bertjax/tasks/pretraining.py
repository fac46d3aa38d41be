"""Base classes of pretraining on prepared text: config, data and task.

The experiments of pretraining differ in what their models learn from the tokens to predict.
"""

import abc
import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float64

from bertjax.config import Composed, Flat, Size, always, build
from bertjax.contract import Batch, ConfigTree, Data, Metrics, Params, RowIndices, StagedTask
from bertjax.data.pretraining.batch_config import BatchConfig, InstanceRowsConfig
from bertjax.data.pretraining.batches import PretrainingBatches, dtype_of
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.pretraining.mixture import MixtureConfig, Phase, Preparations, RowOrder, check_epochs, mean_shares
from bertjax.data.pretraining.removal import Removal, RemovalConfig
from bertjax.data.pretraining.sentence_pairs import PairsConfig
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import load_named, saved_file
from bertjax.files import Fingerprint
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.tasks import bert, completion, pretrained
from bertjax.tasks.bert import BertTask, SampledTask
from bertjax.tasks.prepared_data import ExperimentConfig
from bertjax.tasks.targets import Sources

_log = logging.getLogger(__name__)

FREE_AFTER_TRAINING = (
    *("data.text_field", "data.lines", "data.valid_rows", "data.valid_single_segments", "data.valid_seed"),
    "masking.valid_rate",
)
_PREDICT_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclasses.dataclass(frozen=True)
class DataConfig(Composed, prefix="data"):
    """The keys of `data`."""

    corpus: Flat[CorpusConfig]
    pairs: Flat[PairsConfig]
    rows: Flat[InstanceRowsConfig]
    sources: Flat[MixtureConfig]
    removal: Flat[RemovalConfig]

    @property
    def schedule(self) -> tuple[Phase, ...]:
        """The phases of training."""
        return self.sources.schedule(self.rows.stages, self.pairs.seq_len)

    def check_source(self) -> None:
        """Raises UserError unless the keys name text to train on, or validation text and a vocabulary."""
        self.sources.check_source(self.corpus)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedTextConfig(ExperimentConfig):
    """The config keys of every experiment that trains on prepared text.

    Attributes:
      num_steps: number of updates. Default: those of the budget, in fine-tuning those of `num_epochs`. With
        `budget.hours`, they are not known until the run has ended.
      data: the text, and how it becomes rows.
    """

    num_steps: Size | None = always(None)
    data: DataConfig
    objective = "masked_lm"  # a key of tasks with several; not annotated here, or it would be a key of all

    @property
    @abc.abstractmethod
    def batches(self) -> BatchConfig:
        """Everything that determines a batch except the text and the step."""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int | None:
        """The number of tokens that the model predicts. None for those of the vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(PreparedTextConfig):
    """The config keys of every experiment that pretrains a BERT.

    Attributes:
      init_from: a folder of Hugging Face or sentence-transformers, a google-research checkpoint or a bertjax run to
        take weights, sizes and vocabulary from; or "".
      learned_positions: the number of positions that the model in `init_from` was trained on; later positions start as
        copies of these. 0 to take all positions unchanged.
      seed: seed of all random numbers, such as those of parameters, data order, masks and dropout.
      batch_size: rows of an update, over all devices and micro-batches, if they have `data.seq_len` tokens. A batch of
        shorter rows holds a multiple of this.
      model: the encoder.
      masking: see `MaskingConfig`.
    """

    learned_positions: int = always(0)
    model: bert.ModelConfig
    masking: MaskingConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        data = self.data
        most = model.max_positions
        data.check(data.seq_len <= most, "seq_len", f"at most model.max_positions={most}", fix="lower data.seq_len")
        has_table = bool(self.init_from) and model.positions == "learned"
        ok = 0 <= self.learned_positions <= most * has_table
        got = f"{self.learned_positions} with {self.init_from!r}"
        expected = f"0, or up to model.max_positions={most} if init_from names a model with learned positions"
        fix = "set it to the data.seq_len that the model was trained with, or to 0"
        self.check(ok, "learned_positions", expected, got=got, fix=fix)

    @property
    def vocab_size(self) -> int | None:
        return self.model.vocab_size

    @property
    def batches(self) -> BatchConfig:
        data = self.data
        rows = data.pairs, self.masking, data.rows
        sizes = self.batch_size, self.num_steps
        return BatchConfig(*rows, self.objective, self.model.direction, self.seed, *sizes, data.schedule)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in the sizes, casing and vocabulary that `init_from` determines, and the metric of the best checkpoints.

    Raises:
      UserError: if a size is missing, a key contradicts the folder, or `masking.max_predictions` cuts the rate.
    """
    resolved = completion.bert(config, published, seq_len=128)
    if resolved["checkpoint"]["best_metric"] is None:
        objective = config.get("objective", "masked_lm")
        resolved["checkpoint"] = {**resolved["checkpoint"], "best_metric": f"valid/{objective}_loss"}
    build(MaskingConfig, resolved["masking"], "masking").check_room(resolved["data"]["seq_len"])
    return resolved


D = TypeVar("D", bound=PreparedTextConfig)
C = TypeVar("C", bound=PretrainingConfig)


class PretrainingData(Data, Generic[D]):
    """Prepared text, in `data.prepared_dir`, by default in the folder.

    Attributes:
      kind: the class of the batches.
    """

    kind: type[PretrainingBatches] = PretrainingBatches

    def __init__(self, config: D, folder: Path, published: Published | None) -> None:
        corpus = config.data.corpus
        sources = config.data.sources
        if not (corpus.source or sources.mixture) and saved_file(folder):  # evaluation of a run on other text
            corpus = dataclasses.replace(corpus, vocab_file=str(folder), add_tokens=(), add_words=0)
            folder = folder / "data"
        sources.check_source(corpus)
        self._config = config
        self._folder = folder
        self._batch_config = config.batches
        self._preparation = Preparations(sources.texts(corpus), mean_shares(config.data.schedule), folder)
        self._trains = bool(corpus.source or sources.mixture)
        home = Path(corpus.prepared_dir or folder).absolute()
        prepared = self._preparation.fingerprint, *sources.names
        self._comparison = Removal(config.data.removal, prepared, home, corpus.workers)
        self._removal = self._comparison if self._trains and config.data.removes else None
        self._batches: dict[tuple[tuple[str, ...], str, BatchConfig], PretrainingBatches] = {}

    @property
    def is_prepared(self) -> bool:
        return self._preparation.is_finished() and (not self._removal or self._removal.is_finished())

    @property
    def fingerprint(self) -> str:
        prepared = self._preparation.fingerprint
        return Fingerprint.of([prepared, self._removal.fingerprint], length=16) if self._removal else prepared

    def prepare(self) -> None:
        """Tokenizes the text, and finds the documents to leave out; see `Preparation.run` and `Removal.run`."""
        corpus = self._config.data.corpus
        if corpus.add_words:  # to resume without the folder in `init_from`
            load_named(corpus).save(self._folder / "source")
        self._preparation.run()
        if self._removal:
            self._removal.run(self._preparation.corpora())

    def review(self) -> None:
        """Finds the documents that `report` counts, if none are left out; with Beam, whose text is large, only then."""
        if self._config.data.beam.runner:
            _log.info("duplicates are not reported with data.beam: one machine would compare all documents")
        elif self._trains:
            self._comparison.run(self._preparation.corpora())

    @functools.cached_property
    def _corpora(self) -> Mapping[str, Corpus]:
        """The text of each source."""
        corpora = self._preparation.corpora()
        if self._removal:
            self._removal.apply(corpora)
        return corpora

    def complete(self, config: ConfigTree) -> ConfigTree:
        """Checks the epochs of the sources of a mixture; see `Data.complete`."""
        if self._config.data.mixture and self._config.num_steps:
            _ = self._epochs
        return config

    @functools.cached_property
    def _epochs(self) -> Mapping[str, float]:
        """The epochs of each source of a mixture in the whole run, counted in its first epoch.

        Raises:
          UserError: for more than `data.max_epochs`.
        """
        epochs = dict(zip(self._corpora, self._epochs_before(None).tolist(), strict=True))
        check_epochs(epochs, self._config.data.sources)
        return epochs

    def _epochs_before(self, length: int | None) -> Float64[np.ndarray, " sources"]:
        """Returns the epochs of each source in the phases with shorter rows than `length`; of all if that is None."""
        epochs = np.zeros(len(self._corpora))
        phases = self._batch_config.phases
        ends = [phase.begin for phase in phases[1:]] + [self._config.num_steps or 0]
        for phase, end in zip(phases, ends, strict=True):
            if length is None or phase.pairs.seq_len < length:
                batches = self._of("train", phase)
                rows = RowOrder(phase.weights).counts((end - phase.begin) * phase.batch_size)
                epochs += rows / batches.rows_per_epoch
        return epochs

    def report(self) -> Mapping[str, Any]:
        """The counts of the text, by source and split."""
        removal = self._comparison.report() if self._comparison.is_finished() else {}
        if not self._config.data.mixture:
            return {**next(iter(self._corpora.values())).counts, **removal}
        counts = {name: dict(corpus.counts) for name, corpus in self._corpora.items()}
        return {**counts, "epochs": {name: round(value, 3) for name, value in self._epochs.items()}, **removal}

    @property
    def vocabulary(self) -> EncoderTokenizer:
        return next(iter(self._corpora.values())).tokenizer

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        if split == "train":
            yield from self._training(start, rows)
            return
        for number, name in enumerate(self._corpora):
            for batch in self._of(split, self._batch_config.valid, name).evaluation(rows):
                is_mixture = self._config.data.mixture
                of_source = {"sources": np.full(len(batch["input_ids"]), number, np.int32)} if is_mixture else {}
                yield {**batch, **of_source}

    def _training(self, start: int, rows: RowIndices) -> Iterator[Batch]:
        phases = self._batch_config.phases
        if self._config.data.mixture and self._config.num_steps:
            _ = self._epochs  # with a budget, the number of updates is not known in `complete`
        for phase, after in itertools.zip_longest(phases, phases[1:]):
            times = phase.batch_size // self._config.batch_size
            first = max(start, phase.begin)
            phase_rows = (rows[:, None] * times + np.arange(times)).ravel()
            stop = () if after is None else (after.begin,)
            if after is None or first < after.begin:
                batches = self._of("train", phase).training(first, phase_rows, *stop)
                yield from self._with_epochs(batches, phase) if phase.weights else batches

    def _with_epochs(self, batches: Iterator[Batch], phase: BatchConfig) -> Iterator[Batch]:
        """Adds to the epochs of rows those in shorter rows."""
        before = self._epochs_before(phase.pairs.seq_len).astype(np.float32)
        for batch in batches:
            yield {**batch, "epochs": batch["epochs"] + before[batch["sources"]]}

    def _of(self, split: str, config: BatchConfig, *names: str) -> PretrainingBatches:
        """Returns the batches of sources, or of all."""
        key = names, split, config
        if key not in self._batches:
            corpora = {name: corpus for name, corpus in self._corpora.items() if not names or name in names}
            self._batches[key] = self.kind(corpora, split, config)
        return self._batches[key]

    def baselines(self) -> Mapping[str, float]:
        """The loss of predicting tokens by their frequency in the training text; the accuracy of the majority class.

        Classes are those of next-sentence prediction. In short rows and documents most second segments are random,
        because a chunk of one sentence always gets a random one. Those of a mixture are weighted means over sources.
        """
        costs = self.costs()
        sums = np.zeros((4, len(self._corpora)))
        for batch in self.batches("valid", 0, np.arange(self._config.batch_size)):
            words = batch["masked_weights"]
            pairs = batch.get("next_sentence_weights", np.zeros(1))
            losses = 0.0 if costs is None else costs[batch["masked_labels"]]
            random = batch.get("next_sentence_labels", 0)
            source = int(batch.get("sources", np.zeros(1, np.int32))[0])
            sums[:, source] += [np.sum(losses * words), words.sum(), np.sum(random * pairs), pairs.sum()]
        loss, words, random, pairs = sums
        weights = self._config.data.sources.weights or (1,)
        objective = self._config.objective

        def mean(values: np.ndarray) -> float:
            return float(np.average(values, weights=weights))

        majority = np.maximum(random, pairs - random) / np.maximum(pairs, 1)
        return {
            **({f"valid/{objective}_unigram_loss": mean(loss / words)} if costs is not None else {}),
            **({"valid/next_sentence_majority_accuracy": mean(majority)} if pairs.any() else {}),
        }

    def costs(self) -> np.ndarray | None:
        """The loss of predicting each token by its frequency in the training text; None without training text.

        In the training text of a mixture, sources have the weights of the last phase.
        """
        tokenizer = self.vocabulary
        weights = self._config.data.sources.weights
        total: np.ndarray = np.zeros(self._config.vocab_size or tokenizer.vocab_size)
        unigrams = [corpus.unigrams for corpus in self._corpora.values() if corpus.unigrams is not None]
        if not unigrams:
            return None
        most = max(map(np.sum, unigrams))
        batches = self._of("train", self._batch_config.valid)
        for number, source in enumerate(unigrams):
            counts = np.zeros_like(total)
            counts[: len(source)] = source
            if self._config.objective == "causal_lm":
                # Each instance also predicts its final special token: [SEP] or [CLS].
                counts[[tokenizer.sep_id, tokenizer.cls_id]] += batches.instances_per_epoch[number]
            total += counts * (weights[number] * most / counts.sum()) if weights else counts
        total += 1  # add-one smoothing, so that a token unseen in training has a finite loss
        return -np.log(total / total.sum())


class PretrainingTask(BertTask[C], SampledTask, StagedTask):
    """A task that pretrains a BERT on prepared text."""

    def __init__(self, config: C, vocabulary: EncoderTokenizer, bert: HeadConfig, model: nn.Module) -> None:
        self._batch_config = config.batches
        self._phases = {phase.pairs.seq_len: phase for phase in self._batch_config.phases}
        super().__init__(config, vocabulary, bert, model, bert.max_positions)

    def warm_start(self, params: Params, published: Published) -> Params:
        params = super().warm_start(params, published)
        if learned := self._config.learned_positions:
            params = pretrained.extend_positions(params, learned, self._model_config.max_positions, "tile")
        return params

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """The shapes of each length of rows; see `TrainingTask.batch_specs`."""
        return [
            {name: jax.ShapeDtypeStruct(shape, dtype_of(name)) for name, shape in phase.shapes().items()}
            for phase in self._phases.values()
        ]

    def stage(self, update: int, num_steps: int) -> int:
        phases = dataclasses.replace(self._batch_config, num_steps=num_steps).phases
        last = next(phase for phase in reversed(phases) if phase.begin <= update)
        return self._batch_config.lengths.index(last.pairs.seq_len)

    def after_update(self, tree: Params, batch: Batch) -> Params:
        """Copies the positions that stages have reached to those that they have not; see `StagedTask.after_update`.

        The last phase then begins with positions that are trained: in the first phases, attention learns which tokens
        are near each other (docs/results.md). A model in `init_from` has learned `learned_positions`, or all of them.
        """
        longest = self._batch_config.pairs.seq_len
        learned = batch["input_ids"].shape[1]
        if self._config.init_from:
            learned = max(learned, self._config.learned_positions or self._model_config.max_positions)
        return tree if learned >= longest else pretrained.copy_positions(tree, learned, longest)

    def sources(self, batch: Batch, numbers: Array | None) -> Sources | None:
        """Returns the sources with these numbers; None without a mixture."""
        mixture = self._config.data.sources
        if numbers is None:
            return None
        return Sources(numbers, mixture.names, () if "epochs" in batch else mixture.weights)

    def source_metrics(self, batch: Batch) -> Metrics:
        """Returns the share of tokens and the epochs of each source in an update on a mixture."""
        sources = self.sources(batch, batch.get("sources"))
        if sources is None or "epochs" not in batch:
            return {}
        tokens = jnp.sum(batch["segment_ids"] != 0, axis=1, dtype=jnp.float32)
        all_tokens = jnp.full(len(sources.names), jnp.sum(tokens))
        rows = sources.sums(jnp.ones_like(batch["epochs"]))
        epochs = sources.metrics("epochs", sources.sums(batch["epochs"]), rows)
        return {**sources.metrics("token_share", sources.sums(tokens), all_tokens), **epochs}

    def predict_lengths(self) -> Sequence[int]:
        limit = self._model_config.max_positions
        return [*(length for length in _PREDICT_LENGTHS if length < limit), limit]

    def held_out_batch(self, data: Data) -> Batch:
        """Returns the first validation batch."""
        return next(data.batches("valid", 0, np.arange(self._config.batch_size)))
