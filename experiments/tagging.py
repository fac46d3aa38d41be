"""Tagging of words, such as named entities or parts of speech (Devlin et al. 2019, sections 4 and 5.3)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from bertjax.config import Constrained, build_all, build_part, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.fine_tuning import tag_schemes, tagged_words
from bertjax.data.fine_tuning.tag_schemes import PLAIN, SCHEMES
from bertjax.data.fine_tuning.tagged_words import BIO, Columns, Sentence, SentencesConfig, TaggedRows
from bertjax.data.prepared import VALID, PreparationConfig
from bertjax.data.readers.lines import RowError
from bertjax.data.rows.buckets import check_seq_len
from bertjax.data.rows.stored import Fields
from bertjax.data.text.tokenizers import Tokenizer, separate_punctuation
from bertjax.data.text.vocabulary_config import VocabularyConfig
from bertjax.errors import UserError
from bertjax.models.bert import BertConfig
from bertjax.models.heads import MIXINGS, BertFeatureTagger, BertForTokenClassification
from bertjax.models.losses import cross_entropy, is_best
from bertjax.scoring import tags
from bertjax.tasks import fine_tuning, inputs, pretrained
from bertjax.tasks.bert import BertTask, model_configs, read_tokenizer, stand_in_tokenizer, to_example
from bertjax.tasks.fine_tuning import FineTuningConfig, FineTuningData, FineTuningFacts, HeadConfig

_AUTO = "auto"
_FROZEN = ("^bert/", {"frozen": True})
_ENTITY_SCORES = ("precision", "recall", "f1")
_INPUTS = ("input_ids", "token_type_ids")
_LABELS = {"labels": np.int32, "label_weights": np.float32}
_SEQ_LEN = 128  # the default

Config = FineTuningConfig


@dataclasses.dataclass(frozen=True)
class TaggerConfig(HeadConfig):
    """The head on top of the encoder; see `BertForTokenClassification`, or `BertFeatureTagger` with `feature_layers`.

    Attributes:
      feature_layers: layers of a frozen BERT whose vectors the tagger reads; empty to train BERT.
      mixing: how the vectors of `feature_layers` are combined: "concatenation", "sum" or "weighted".
      lstm_layers: number of BiLSTM layers of `lstm_size` on the vectors of `feature_layers`.
    """

    feature_layers: tuple[int, ...]
    mixing: Annotated[str, one_of(*MIXINGS)]
    lstm_layers: int


@dataclasses.dataclass(frozen=True)
class RowsConfig(Constrained, prefix="data"):
    """How sentences become rows.

    Attributes:
      scheme: the scheme of entity tags in the files: "BIO", "IOB1", "IO" or "BIOES"; "plain" for tags of single words;
        "auto" to detect it from the tags. Entity tags are learned and predicted in BIO.
      labels: the tags to learn, in order. Default: those of the training sentences, or of `init_from` without any.
      seq_len: the maximum number of tokens of a row, including special tokens; longer sentences have
        several rows. Default: 128, or the model's number of positions if it is smaller.
      split_punctuation: whether punctuation marks are separate words in text to predict on. Otherwise words are
        separated by spaces only.
      packing: whether several sentences share a row of `seq_len` tokens in training.
      text_field: the column of the sentences in a table to predict on; "" if tables are not allowed.
    """

    scheme: Annotated[str, one_of(_AUTO, *SCHEMES, PLAIN)]
    labels: tuple[str, ...]
    seq_len: int
    split_punctuation: bool
    packing: bool = False
    text_field: str = ""


_DATA = (SentencesConfig, Columns, RowsConfig, VocabularyConfig, PreparationConfig)
FREE_AFTER_TRAINING = (
    "data.word_column",
    "data.tag_column",
    "data.scheme",
    "data.split_punctuation",
    "data.text_field",
    "data.seq_len",
)


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines. This includes the tags if there are no training sentences.

    With `model.feature_layers`, BERT is frozen by a parameter group before those of the config.

    Raises:
      UserError: if config keys contradict each other or the model in `init_from`.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN)
    data, optimizer = dict(config["data"]), dict(config["optimizer"])
    if config["init_from"] and not data.get("source"):
        data["labels"] = data.get("labels") or _known_tags(config["init_from"])
    if config["model"].get("feature_layers"):  # weight decay would change it even without gradients
        others = [group for group in optimizer["groups"] if group not in (_FROZEN, list(_FROZEN))]
        optimizer["groups"] = (_FROZEN, *others)
    return {**config, "data": data, "optimizer": optimizer}


def _known_tags(init_from: str) -> tuple[str, ...]:
    """The tags of the model in `init_from`; empty if there are none."""
    return pretrained.describe(Path(init_from)).labels if init_from else ()


class _Words(NamedTuple):
    """The words of an example, and where its rows contain them."""

    words: Sequence[str]
    positions: Sequence[np.ndarray]  # for each row, the position of the first piece of each word that it owns
    tags: Sequence[str]  # entity tags are in BIO; empty if unknown


def _example(words: Sequence[str], known: Sequence[str], tokenizer: Tokenizer, seq_len: int) -> Example:
    """The example of a sentence; `known` are its tags, if any."""
    windows = tagged_words.sentence_rows(words, tokenizer, seq_len)
    rows = [{name: row[name] for name in _INPUTS} for row in windows]
    return to_example(rows, _Words(words, [row["unit_starts"] for row in windows], known))


@dataclasses.dataclass(frozen=True)
class TaggingFacts(FineTuningFacts):
    """The facts of tagged sentences.

    Attributes:
      scheme: the scheme of the tags in the files; "auto" if there are no files.
    """

    scheme: str = _AUTO

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Facts.complete`; fills in tags, scheme, `checkpoint.best_metric` and lengths in updates."""
        rows, checkpoint = build_part(RowsConfig, config["data"], "data"), dict(config["checkpoint"])
        scheme = self.scheme if rows.scheme == _AUTO else rows.scheme
        if scheme == _AUTO:
            scheme = tag_schemes.recognize([self.labels or rows.labels])
        if checkpoint["best_metric"] is None:
            checkpoint["best_metric"] = "valid/accuracy" if scheme == PLAIN else "valid/f1"
        return super().complete({**config, "checkpoint": checkpoint, "data": {**config["data"], "scheme": scheme}})


def read_facts(config: Config, folder: Path) -> TaggingFacts:
    """See `Experiment.read_facts`."""
    return TaggingFacts(read_tokenizer(config, folder))


def stand_in_facts(config: Config) -> TaggingFacts:
    """See `Trainable.stand_in_facts`. Uses placeholder entity tags if the tags come from the training sentences."""
    is_open = config.data["source"] and not config.data["labels"]
    return TaggingFacts(stand_in_tokenizer(), ("O", "B-X", "I-X") if is_open else ())


class TaggingData(FineTuningData[Config, Sentence]):
    """See `bertjax.contract.Data`."""

    def __init__(self, config: Config, folder: Path) -> None:
        """See `Trainable.build_data`."""
        self._text, self._columns, self._settings, *_ = build_all(_DATA, config.data, "data")
        super().__init__(config, folder, self._settings.seq_len, self._settings.packing)

    @functools.cached_property
    def recipe(self) -> TaggedRows:
        """See `FineTuningData.recipe`."""
        return TaggedRows(self._text, self._columns, self.tokenizer, self._seq_len)

    @property
    def _has_files(self) -> bool:
        return bool(self._text.source or self._text.valid_source)

    @functools.cached_property
    def _scheme(self) -> str:
        """The scheme of the tags in the files; "auto" if there are no files to detect it from."""
        stated = self._settings.scheme
        if not self._has_files:
            return stated
        scheme = tagged_words.detected_scheme(self.read.facts) if stated == _AUTO else stated
        tagged_words.check_scheme(self.read.facts, scheme)
        return scheme

    @property
    def _target(self) -> str:
        """The scheme that tags are learned in."""
        return PLAIN if self._scheme == PLAIN else BIO

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """See `FineTuningData.labels`; the tags of the config, or else of the training sentences."""
        labels = self._settings.labels
        if labels or not self._text.source:
            return labels
        return tagged_words.label_names(self.read.facts, self._target, _known_tags(self._config.init_from))

    @functools.cached_property
    def facts(self) -> TaggingFacts:
        """See `Data.facts`. Raises UserError for tags that do not fit the scheme or the tags to learn."""
        facts = TaggingFacts(**vars(super().facts), scheme=self._scheme)
        if self._has_files:
            tagged_words.check_tags(self.read.facts, self._target, self.labels)
            tagged_words.check_held_out(self.read.facts, self._target, self.labels)
        return facts

    def report(self) -> Mapping[str, Any]:
        """See `Data.report`; "classes" are the words of each tag."""
        if not self._trains:
            return {}
        tables = self.read.facts[self._target]
        counts = {split: {tag: count for tag, (count, _) in table.items()} for split, table in tables.items()}
        return {**super().report(), "classes": counts}

    def fields(self) -> Fields:
        """See `FineTuningData.fields`; with "labels" and "label_weights"."""
        return tagged_words.with_labels(self.prepared.train, self.read.facts, self._target, self.labels)

    @functools.cached_property
    def _held_out(self) -> list[Example]:
        return [self._example(sentence) for sentence in self.read.valid()]

    def _example(self, sentence: Sentence) -> Example:
        known = tuple(tagged_words.in_scheme(sentence.tags, self._target))
        return _example(sentence.words, known, self.tokenizer, self._seq_len)

    def held_out(self) -> Iterator[Example]:
        """See `Data.held_out`; an example is a sentence."""
        return iter(self._held_out)

    def baselines(self) -> Mapping[str, float]:
        """The accuracy of tagging every word with the most frequent validation tag."""
        counts = [count for count, _ in self.read.facts[self._target][VALID].values()]
        return {"valid/majority_accuracy": max(counts) / sum(counts)}


build_data = TaggingData


class Tagging(BertTask[Config]):
    """See `bertjax.contract.Task`."""

    architecture = "BertForTokenClassification"

    def __init__(self, config: Config, facts: TaggingFacts) -> None:
        """See `Experiment.build_task`."""
        self._text, _, self._rows, *_ = build_all(_DATA, config.data, "data")
        bert, self._head = model_configs(config, TaggerConfig, facts.tokenizer.vocab)
        check_seq_len(self._rows.seq_len, bert.max_positions)
        fine_tuning.check_packing(self._rows.packing, config.model)
        self.labels = self._rows.labels
        tagged_words.check_labels(self.labels)
        model = _model(bert, len(self.labels), self._head)
        super().__init__(config, facts.tokenizer, bert, model, self._rows.seq_len)

    def reinitialized_modules(self, folder: Path) -> Sequence[str]:
        """The classifier or tagger, unless the one in the folder has the same tags and features."""
        found = pretrained.describe(folder)
        is_same = found.labels == self.labels and found.task in ("", "tagging")
        if self._head.feature_layers:
            theirs = found.config.get("model", {})
            of_tagger = {key: theirs.get(key) for key in ("feature_layers", "mixing", "lstm_layers", "lstm_size")}
            of_tagger["feature_layers"] = tuple(of_tagger["feature_layers"] or ())
            is_same = is_same and of_tagger.items() <= dataclasses.asdict(self._head).items()
        return () if is_same else ("tagger" if self._head.feature_layers else "classifier",)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        rows = self._rows
        return fine_tuning.training_specs(self._config.batch_size, rows.seq_len, rows.packing, _LABELS, {})

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The number of words, each counted in the row that owns it."""
        return {"tagging": jnp.maximum(jnp.sum(batch["label_weights"]), 1)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy of each word's tag; see `Task.loss`."""
        logits, labels = self.apply(params, batch, rng), batch["labels"]
        weights = batch["label_weights"]
        metrics = {
            "tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(())),
            "accuracy": (jnp.sum(is_best(logits, labels) * weights), jnp.sum(weights)),
        }
        return {"tagging": jnp.sum(cross_entropy(logits, labels) * weights)}, metrics

    def score_names(self) -> Sequence[str]:
        """The accuracy and mean loss of words; for entity tags also precision, recall and F1 over all types."""
        return (*(() if self._rows.scheme == PLAIN else _ENTITY_SCORES), "accuracy", "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`; for entity tags also F1 by type. The loss excludes words with tags not in `labels`."""
        number = {label: i for i, label in enumerate(self.labels)}
        predictions, references, losses = [], [], []
        for example, outputs in results:
            logits = _word_logits(example, outputs)
            predictions.append([self.labels[i] for i in logits.argmax(axis=-1)])
            references.append(example.source.tags)
            known = [(word, number[tag]) for word, tag in enumerate(references[-1]) if tag in number]
            losses += [np.logaddexp.reduce(logits[word]) - logits[word, label] for word, label in known]
        entities = {} if self._rows.scheme == PLAIN else tags.score(predictions, references)
        accuracy = tags.token_accuracy(predictions, references)
        return {**entities, "accuracy": accuracy, "loss": float(sum(losses) / max(len(losses), 1))}

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """An example for each line: a sentence, split at spaces and, with `data.split_punctuation`, at punctuation."""
        return inputs.of_lines(lines, self._of_text, self._text.on_bad_row)

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """An example for each sentence in `data.text_field` of a table; see `Task.examples_of`."""
        return inputs.of_table(path, "data.text_field", (self._rows.text_field,), self._of_text, self._text.on_bad_row)

    def _of_text(self, texts: Sequence[str], where: str) -> Example:
        (text,) = texts
        tagged_words.check_is_text(text, where)
        words = (separate_punctuation(text) if self._rows.split_punctuation else text).split()
        if not words:
            raise RowError(where, "an empty line", "words", "delete the line")
        return _example(words, (), self._tokenizer, self._rows.seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of each token, [B, S, C]."""
        return {"logits": self.apply(params, batch, None)}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The words, and the most probable tag of each."""
        best = _word_logits(example, outputs).argmax(axis=-1)
        return {"words": list(example.source.words), "tags": [self.labels[i] for i in best]}

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        return {**self.record(example, outputs), "kind": "tags", "reference": list(example.source.tags)}

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that `transformers.BertForTokenClassification.from_pretrained` opens.

        Raises:
          UserError: if the tagger reads features or has a BiLSTM, which that class does not support.
        """
        if self._head.feature_layers:
            raise UserError(
                "--mode=export",
                got="a tagger on the features of a frozen BERT",
                expected="a tagger that transformers supports: model.feature_layers=() and model.lstm_size=0",
                fix="predict with the run instead, --mode=predict --workdir=...",
            )
        super().export(params, folder)


build_task = Tagging


def _model(config: BertConfig, num_labels: int, head: TaggerConfig) -> nn.Module:
    if not head.feature_layers:
        return BertForTokenClassification(config, num_labels, head.classifier_dropout, head.lstm_size)
    return BertFeatureTagger(
        config,
        num_labels,
        head.feature_layers,
        head.mixing,
        head.lstm_layers,
        head.lstm_size,
        head.classifier_dropout,
    )


def _word_logits(example: Example, outputs: Sequence[Output]) -> Float[np.ndarray, "words C"]:
    """The logits of each word, each from the row that owns it, in the order of the sentence."""
    owned = zip(outputs, example.source.positions, strict=True)
    return np.concatenate([output["logits"][positions] for output, positions in owned]).astype(np.float64)
