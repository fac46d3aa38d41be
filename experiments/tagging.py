"""Tagging of words, such as named entities or parts of speech (Devlin et al. 2019, sections 4 and 5.3)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from bertjax.config import Flat, always, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.tagging import sentences, tag_schemes, tagged_words
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.tagging.sentences import Sentence
from bertjax.data.codecs.tagging.tag_schemes import PLAIN, SCHEMES
from bertjax.data.codecs.tagging.tagged_tables import TableFields
from bertjax.data.codecs.tagging.tagged_words import AUTO, BIO, SentencesConfig, TaggedCodec, Tags
from bertjax.data.rows.stored import Fields
from bertjax.data.splits import VALID
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import MIXINGS, BertFeatureTagger, BertForTokenClassification
from bertjax.models.losses import cross_entropy, is_best
from bertjax.scoring import tags
from bertjax.scoring.probabilities import softmax
from bertjax.tasks import bert, completion, fine_tuning

_FROZEN = ("^bert/", {"frozen": True})
_ENTITY_SCORES = ("precision", "recall", "f1")
_CHARACTER_SCORES = ("entity_macro_f1", "character_macro_f1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(fine_tuning.ClassifierConfig):
    """The encoder and its head: `BertForTokenClassification`, or `BertFeatureTagger` with `feature_layers`.

    Attributes:
      feature_layers: layers of a frozen BERT whose vectors the tagger reads; empty to train BERT.
      mixing: how the vectors of `feature_layers` are combined: "concatenation", "sum" or "weighted".
      lstm_layers: number of BiLSTM layers of `lstm_size` on the vectors of `feature_layers`.
    """

    feature_layers: tuple[int, ...] = always(())
    mixing: Annotated[str, one_of(*MIXINGS)] = always("concatenation")
    lstm_layers: int = always(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.lstm_size or not self.feature_layers, "lstm_size", "at least 1 with model.feature_layers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fine_tuning.DataConfig):
    """The keys of `data`.

    Attributes:
      scheme: the scheme of entity tags in the files: "BIO", "IOB1", "IO", "BIOES" or "BILOU"; "plain" for tags of
        single words; "auto" to detect it from the tags. Entity tags are learned and predicted in BIO.
      labels: the classes or tags, in order. Default: those of the training rows, or of `init_from` without training
        rows.
      seq_len: the maximum number of tokens of a row; longer texts are truncated, longer sentences to tag split.
        Default: 128, or the model's positions if fewer.
      packing: whether several examples share a row of `seq_len` tokens in training, each attending only to itself.
    """

    scheme: Annotated[str, one_of(AUTO, *SCHEMES, PLAIN)] = always("auto")
    rows: Flat[SentencesConfig]
    files: Flat[ColumnsConfig]
    tables: Flat[TableFields]
    labels: tuple[str, ...] = always(())
    seq_len: int = always(None)
    packing: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fine_tuning.ClassWeightsConfig):
    """The config keys that this experiment reads."""

    model: ModelConfig
    data: DataConfig

    def codec(self, tokenizer: EncoderTokenizer) -> TaggedCodec:
        data = self.data
        return TaggedCodec(data.rows, data.files, tokenizer, data.seq_len, data.tables)


FREE_AFTER_TRAINING = (
    *("data.word_column", "data.tag_column", "data.text_field", "data.tags_field", "data.sentence_field"),
    *("data.header", "data.separator", "data.split_punctuation", "data.scheme", "data.seq_len"),
)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines. This includes the tags if there are no training sentences.

    With `model.feature_layers`, BERT is frozen by a parameter group before those of the config.

    Raises:
      UserError: if config keys contradict each other or the model in `init_from`.
    """
    config = completion.bert(config, published, seq_len=128)
    data = dict(config["data"])
    optimizer = dict(config["optimizer"])
    if published and not data.get("source"):
        data["labels"] = data.get("labels") or published.labels
    if config["model"].get("feature_layers"):  # weight decay would change it even without gradients
        others = [group for group in optimizer["groups"] if group not in (_FROZEN, list(_FROZEN))]
        optimizer["groups"] = (_FROZEN, *others)
    return {**config, "data": data, "optimizer": optimizer}


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Has entity tags if the tags come from the training sentences."""
    labels = ("O", "B-X", "I-X") if config["data"]["source"] and not config["data"]["labels"] else ()
    return fine_tuning.example_config(_with_tags(config, config["data"]["scheme"], labels))


def _with_tags(config: Mapping[str, Any], scheme: str, labels: Sequence[str]) -> dict[str, Any]:
    """Fills in the tags, their scheme and `checkpoint.best_metric`.

    Args:
      config: the whole config.
      scheme: the scheme of the tags in the files; "auto" if there are no files.
      labels: the tags; empty to keep those of the config.
    """
    data = dict(config["data"])
    checkpoint = dict(config["checkpoint"])
    data["labels"] = labels or data["labels"]
    if data["scheme"] == AUTO:
        data["scheme"] = tag_schemes.recognize([data["labels"]]) if scheme == AUTO else scheme
    if checkpoint["best_metric"] is None:
        checkpoint["best_metric"] = "valid/accuracy" if data["scheme"] == PLAIN else "valid/f1"
    return {**config, "checkpoint": checkpoint, "data": data}


class Data(fine_tuning.FineTuningData[Config, Sentence]):
    """Sentences of tagged words."""

    @functools.cached_property
    def _tags(self) -> Tags:
        """The tags of the sentences. There must be sentences."""
        return Tags(self.read.facts, self._config.data.scheme)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The tags of the config, or else of the training sentences."""
        data = self._config.data
        if data.labels or not data.source:
            return data.labels
        return self._tags.labels(self._published.labels if self._published else ())

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UserError for tags or weights that do not fit the scheme or the tags to learn."""
        data = self._config.data
        scheme = data.scheme
        self._config.check_weights(self.labels)
        if data.source or data.valid_source:
            self._tags.check(self.labels)
            scheme = self._tags.scheme
        return super().complete(_with_tags(config, scheme, self.labels))

    @property
    def class_counts(self) -> Mapping[str, Mapping[str, int]]:
        """The words of each tag."""
        tables = self._tags.tables
        return {split: {tag: count for tag, (count, _) in table.items()} for split, table in tables.items()}

    def fields(self) -> Fields:
        """Returns the fields of the training rows; "labels" are indices in `labels`."""
        return self._tags.learned(self.prepared.fields, self.prepared.names, self.labels)

    def baselines(self) -> Mapping[str, float]:
        """Returns the accuracy of tagging every word with the most frequent validation tag."""
        counts = self.class_counts[VALID].values()
        return {"valid/majority_accuracy": max(counts) / sum(counts)}


class Task(fine_tuning.FineTuningTask[Config]):
    """Tags words."""

    architecture = "BertForTokenClassification"
    loss_name = "tagging"
    predicts_tokens = True
    _codec: TaggedCodec
    token_dtypes = MappingProxyType({"labels": np.int32, "label_weights": np.float32})

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        """Raises UserError unless there are two or more tags."""
        self.labels = config.data.labels
        tagged_words.check_labels(self.labels)
        super().__init__(config, vocabulary)

    def with_head(self, encoder: HeadConfig, config: Config) -> nn.Module:
        head = config.model
        num_labels = len(self.labels)
        if not head.feature_layers:
            return BertForTokenClassification(encoder, num_labels, head.classifier_dropout, head.lstm_size)
        of_layers = head.feature_layers, head.mixing, head.lstm_layers, head.lstm_size
        return BertFeatureTagger(encoder, num_labels, *of_layers, head.classifier_dropout)

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        """Returns the classifier or tagger, unless the published one has the same tags and features."""
        is_same = published.labels == self.labels and published.experiment in ("tagging", "features")
        head = self._config.model
        if head.feature_layers:
            features = {key: getattr(head, key) for key in ("mixing", "lstm_layers", "lstm_size")}
            features["feature_layers"] = list(head.feature_layers)  # as in config.json
            is_same &= features.items() <= published.config.get("model", {}).items()
        return () if is_same else ("tagger" if head.feature_layers else "classifier",)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the sum of the weights of the words, each counted in the row that owns it."""
        return {self.loss_name: jnp.maximum(jnp.sum(self._word_weights(batch)), 1e-6)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Returns the cross-entropy of each word's tag."""
        logits = self.apply(params, batch, rng)
        labels = batch["labels"]
        metrics = fine_tuning.metrics(batch, is_best(logits, labels), batch["label_weights"])
        return {self.loss_name: jnp.sum(cross_entropy(logits, labels) * self._word_weights(batch))}, metrics

    def predictions(self, output: Any, batch: Batch) -> bert.Predictions:
        return bert.Predictions(output, self._word_weights(batch), "classification")

    def _word_weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each token in the loss; 0 for all but the first pieces of the words that a row owns."""
        return self._config.weighted(batch["label_weights"], batch["labels"])

    def score_names(self) -> Sequence[str]:
        """Returns the accuracy and mean loss of words; for entity tags also precision, recall and F1 of all types.

        Entity tags of characters also have KLUE's metrics; see `tags.score_characters`.
        """
        of_characters = _CHARACTER_SCORES if self._codec.has_characters else ()
        return (*(() if self._is_plain else (*_ENTITY_SCORES, *of_characters)), "accuracy", "loss")

    @property
    def _is_plain(self) -> bool:
        return self._config.data.scheme == PLAIN

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns also F1 by type for entity tags. `class_weights` do not apply.

        The loss excludes words with tags not in `labels`.
        """
        predictions: list[list[str]] = []
        references: list[Sequence[str]] = []
        losses: list[float] = []
        for example, outputs in results:
            logits = self._word_logits(example, outputs)
            predictions.append(self._best(logits))
            references.append(self._tags(example))
            losses += self._losses(logits, references[-1])
        entities = {} if self._is_plain else tags.score(predictions, references)
        if entities and self._codec.has_characters:
            entities |= tags.score_characters(predictions, references, self.labels)
        accuracy = tags.token_accuracy(predictions, references)
        return {**entities, "accuracy": accuracy, "loss": float(sum(losses) / max(len(losses), 1))}

    def _losses(self, logits: Float[np.ndarray, "words C"], tags: Sequence[str]) -> list[float]:
        """Returns the cross-entropies of the words whose tag is one of `labels`."""
        number = {label: i for i, label in enumerate(self.labels)}
        targets = [(word, number[tag]) for word, tag in enumerate(tags) if tag in number]
        return [float(np.logaddexp.reduce(logits[word]) - logits[word, label]) for word, label in targets]

    def _tags(self, example: Example) -> Sequence[str]:
        """Returns the correct tags of the words, in the scheme that is learned."""
        tags_as_written = self._codec.gold(example.source.item)
        return tagged_words.in_scheme(tags_as_written, PLAIN if self._is_plain else BIO)

    def _word_logits(self, example: Example, outputs: Sequence[Output]) -> Float[np.ndarray, "words C"]:
        """Returns the logits of each word, each from the row that owns it, in the order of the sentence.

        Characters of one token have its logits. In those after the first, the larger logit of B and I of a type is
        that of I, because an entity that begins in the token continues.
        """
        rows = []
        for output, positions in zip(outputs, example.source.extra, strict=True):
            logits = output["logits"][positions].astype(np.float64)
            (continued,) = np.nonzero(np.diff(positions, prepend=-1) == 0)
            for columns in self._begin_and_inside if len(continued) else ():
                logits[continued[:, None], columns] = np.sort(logits[continued[:, None], columns])
            rows.append(logits)
        return np.concatenate(rows)

    @property
    def _begin_and_inside(self) -> list[tuple[int, int]]:
        """The outputs of B and I of each type of entity that has both."""
        number = {label: i for i, label in enumerate(self.labels)}
        pairs = [(label, tag_schemes.continued(label)) for label in self.labels]
        return [(number[begin], number[inside]) for begin, inside in pairs if inside != begin and inside in number]

    def _best(self, logits: Float[np.ndarray, "words C"]) -> list[str]:
        return [self.labels[i] for i in logits.argmax(axis=-1)]

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the words, the most probable tag of each, and the characters of the text where each starts and ends.

        With `data.units` "characters", the words are characters.

        For entity tags also the entities; the probability of one is the mean of the probabilities of its words' tags.
        """
        sentence = example.source.item
        text = self._codec.text(sentence)
        words = [word.rstrip() if self._codec.has_characters else word for word in sentence.words]
        starts, ends = map(list, zip(*sentences.offsets_of(words, text), strict=True))
        logits = self._word_logits(example, outputs)
        predicted = self._best(logits)
        record = {"words": words, "tags": predicted, "start": starts, "end": ends}
        if self._is_plain or not tag_schemes.are_chunk_tags(self.labels):
            return record
        probabilities = softmax(logits).max(axis=-1)
        entities = []
        for kind, first, last in tag_schemes.spans(predicted):
            start = starts[first]
            end = ends[last]
            probability = round(float(probabilities[first : last + 1].mean()), 6)
            entity = {"type": kind, "text": text[start:end], "start": start, "end": end, "probability": probability}
            entities.append(entity)
        return {**record, "entities": entities}

    def record_fields(self) -> Sequence[str]:
        return ("words", "tags", "start", "end", "entities")

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        record = self.record(example, outputs)
        reference = list(self._tags(example))
        losses = self._losses(self._word_logits(example, outputs), reference)
        sample = {**record, "kind": "tags", "reference": reference, "loss": float(np.mean(losses)) if losses else 0.0}
        if "entities" not in record:
            return sample
        spans = {"spans": tag_schemes.spans(record["tags"]), "reference_spans": tag_schemes.spans(reference)}
        return {**sample, **spans, "text": self._codec.text(example.source.item)}

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that `transformers.BertForTokenClassification.from_pretrained` opens.

        Raises:
          UserError: if the tagger reads features or has a BiLSTM, which that class does not support.
        """
        if self._config.model.feature_layers:
            got = "a tagger on the features of a frozen BERT"
            expected = "a tagger that transformers supports: model.feature_layers=() and model.lstm_size=0"
            fix = "predict with the run instead, --mode=predict --workdir=RUN"
            raise UserError("--mode=export", got=got, expected=expected, fix=fix)
        super().export(params, folder)
