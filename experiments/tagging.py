"""Tagging of words: named entities, parts of speech (Devlin et al. 2019, sections 4 and 5.3)."""

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from bertjax.config import Constrained, build_all, choice, one_of
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, Sums, Task
from bertjax.data.fine_tuning import tagged_words
from bertjax.data.fine_tuning.given_text import GivenText
from bertjax.data.fine_tuning.tagged_words import Columns, Sentence, SentencesConfig
from bertjax.data.readers.lines import RowError
from bertjax.data.rows.buckets import BucketedBatches, Rows, bucket_lengths, check_seq_len
from bertjax.data.rows.packed_rows import PackedBatches, count_rows, training_batches
from bertjax.data.text.given_vocabulary import VocabularyConfig, kept_vocabulary
from bertjax.data.text.tokenizers import WordPiece, separate_punctuation
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.models.bert import BertConfig
from bertjax.models.heads import MIXINGS, BertFeatureTagger, BertForTokenClassification
from bertjax.models.losses import cross_entropy, is_best
from bertjax.models.transformer import TENSOR_RULES
from bertjax.scoring import tags
from bertjax.tasks import fine_tuning, inputs, pretrained, samples
from bertjax.tasks.fine_tuning import FineTuningConfig, HeadConfig

_log = logging.getLogger(__name__)

_AUTO, _PLAIN = "auto", "plain"
_FROZEN = ("^bert/", {"frozen": True})
_ENTITY_SCORES = ("precision", "recall", "f1")
_INPUTS = ("input_ids", "token_type_ids")
_LABELS = {"labels": np.int32, "label_weights": np.float32}
# Sentences are held out by their numbers alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0
_SEQ_LEN = 128  # the default

Config = FineTuningConfig


@dataclasses.dataclass(frozen=True)
class TaggerConfig(HeadConfig):
    """What is on top of the encoder; see `BertForTokenClassification`, or `BertFeatureTagger` for the last three.

    Attributes:
      feature_layers: the layers of a BERT that is not trained, whose vectors the tagger reads; none to train BERT.
      mixing: how the vectors of `feature_layers` become one: "concatenation", "sum" or "weighted".
      lstm_layers: BiLSTMs of `lstm_size` on the vectors of `feature_layers`.
    """

    feature_layers: tuple[int, ...]
    mixing: Annotated[str, one_of(*MIXINGS)]
    lstm_layers: int


@dataclasses.dataclass(frozen=True)
class RowsConfig(Constrained, prefix="data"):
    """How sentences become rows.

    Attributes:
      scheme: how the tags tell where entities begin and end: "BIO", "IOB1", "IO" or "BIOES"; "plain" for tags of single
        words; "auto" to tell it by the tags in `source`. Tags of entities are learned and predicted in BIO.
      labels: the tags to learn, in order; none for those of the training sentences, or else of `init_from`.
      seq_len: tokens of a row at most, special ones included; longer sentences take several rows. Default: 128,
        or as many as the model has positions, if fewer.
      split_punctuation: whether punctuation marks are words of their own in text to predict on, whose words are
        otherwise what is between spaces.
      packing: whether several sentences share a row of `seq_len` tokens in training.
      text_field: the column of the sentences in a table to predict on; "" to refuse tables.
    """

    scheme: Annotated[str, one_of(_AUTO, *tags.SCHEMES, _PLAIN)]
    labels: tuple[str, ...]
    seq_len: int
    split_punctuation: bool
    packing: bool = False
    text_field: str = ""


_DATA = (SentencesConfig, Columns, RowsConfig, VocabularyConfig)
FREE_AFTER_TRAINING = (
    "data.word_column",
    "data.tag_column",
    "data.scheme",
    "data.split_punctuation",
    "data.text_field",
    "data.seq_len",
)


def resolve(config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
    """Fills in what `init_from` determines, the scheme, the tags, what tells the best checkpoint, lengths in updates.

    A BERT that gives features is frozen, before any group of parameters that the config has.

    Args:
      config: the whole of it.
      reads: whether sentences are to be read for more than tags that nothing else tells.
    Raises:
      UserError: contradictions, and whatever is wrong with the sentences.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN)
    text, columns, rows, _ = build_all(_DATA, config["data"], "data")
    known = pretrained.describe(Path(config["init_from"])).labels if config["init_from"] else ()
    labels, scheme, count = rows.labels, rows.scheme, 1
    if (text.source or text.valid_source) and (reads or not (labels or known)):
        train, valid = _read(text, columns)
        if scheme == _AUTO:
            tagged = (train or valid) if text.valid_source else [*train, *valid]
            scheme = _recognized([sentence.tags for sentence in tagged])
        if train:
            labels = labels or _label_names(_in_bio(train, scheme), scheme, known)
            tokenizer = GivenText.of(config["data"], Path()).tokenizer()
            windows = [row for each in train for row in tagged_words.rows(each.words, tokenizer, rows.seq_len)]
            count = count_rows(np.array([len(row["input_ids"]) for row in windows]), rows.seq_len, rows.packing)
    labels = labels or known
    scheme = (tags.recognize([labels]) or _PLAIN) if scheme == _AUTO else scheme
    checkpoint, optimizer = dict(config["checkpoint"]), dict(config["optimizer"])
    if config["model"].get("feature_layers"):  # without gradients weight decay alone would change it
        others = [group for group in optimizer["groups"] if group not in (_FROZEN, list(_FROZEN))]
        optimizer["groups"] = (_FROZEN, *others)
    if checkpoint["best_metric"] is None:
        checkpoint["best_metric"] = "valid/accuracy" if scheme == _PLAIN else "valid/f1"
    data = {**config["data"], "labels": labels, "scheme": scheme}
    return fine_tuning.resolve_lengths(
        {**config, "checkpoint": checkpoint, "optimizer": optimizer, "data": data}, count
    )


def _recognized(sentences: tags.Sentences) -> str:
    """The scheme of all tags of a file. Raises UserError if they look like those of entities, but some do not."""
    found = tags.recognize(sentences) or _PLAIN
    names = sorted({tag for sentence in sentences for tag in sentence})
    strange = [tag for tag in names if tag[:2] not in ("O", "B-", "I-", "E-", "S-")]
    if found == _PLAIN and strange and any(tag[:2] in ("B-", "I-") for tag in names):
        raise UserError(
            "config key data.scheme=auto",
            got=f"tags of entities, and among them {', '.join(strange[:5])}",
            expected="O, and B, I, E and S with a hyphen and a type; or no B- and I- at all",
            fix="correct data.tag_column, convert the tags to BIO, or set --config.data.scheme=plain",
        )
    _log.info("the tags are recognized as scheme %s: %s", found, ", ".join(names))
    return found


@functools.lru_cache(maxsize=1)
def _read(config: SentencesConfig, columns: Columns) -> tuple[list[Sentence], list[Sentence]]:
    """The training sentences and the held-out ones, which `resolve` reads before the task does."""
    return tagged_words.read_splits(config, columns, _SPLIT_SEED)


def _in_bio(sentences: Sequence[Sentence], scheme: str) -> list[Sentence]:
    """The sentences with tags of entities in BIO. Raises UserError for a tag that the scheme does not have."""
    if scheme == _PLAIN:
        return list(sentences)
    letters = list(tags.SCHEMES[scheme])
    for sentence in sentences:
        for tag in sentence.tags:
            if tag != "O" and tag.partition("-")[0] not in letters:
                raise UserError(
                    f"{sentence.where}, the sentence that begins there",
                    got=f"tag {tag!r}",
                    expected=f"tags of scheme {scheme}: O and " + ", ".join(f"{letter}-TYPE" for letter in letters),
                    fix="write all files in one scheme, and set --config.data.scheme if it is another",
                )
    return [sentence._replace(tags=tuple(tags.convert(sentence.tags, scheme))) for sentence in sentences]


def _label_names(sentences: Sequence[Sentence], scheme: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The tags to learn, in BIO both of each type; in the order `known` if they are those. Raises UserError for one."""
    names = sorted({tag for sentence in sentences for tag in sentence.tags})
    if scheme != _PLAIN:
        types = sorted({tag[2:] for tag in names if tag != "O"})
        names = ["O", *(f"{letter}-{kind}" for kind in types for letter in "BI")]
    if len(names) < 2:
        raise UserError(
            "tags of the training sentences",
            got=f"{names[0]!r} at every word of {len(sentences)} sentences",
            expected="two or more",
            fix="check that config.data.tag_column is the one meant, or add sentences with other tags",
        )
    return known if set(known) == set(names) else tuple(names)


def preparation(config: Config, workdir: Path) -> GivenText:
    """The sentences that training needs; their vocabulary is kept in the run's folder."""
    return GivenText.of(config.data, workdir / "data")


def make(config: Config, vocab_dir: Path | None, prepared: Path | None) -> "Tagging":
    """The task.

    Args:
      config: its settings.
      vocab_dir: see `kept_vocabulary`.
      prepared: any folder if the task is to train; without it the sentences are not read.
    """
    tokenizer = kept_vocabulary(vocab_dir, config.data["lowercase"])
    return Tagging(config, tokenizer, reads=prepared is not None)


class _Words(NamedTuple):
    """What the rows of an example have been made of."""

    words: Sequence[str]
    positions: Sequence[np.ndarray]  # for each row, the first pieces of the words that it owns
    tags: Sequence[str]  # in BIO if of entities; none if they are not known


class Tagging(Task):
    """See `bertjax.contract.Task`."""

    def __init__(self, config: Config, tokenizer: WordPiece, reads: bool) -> None:
        """Args: settings; the vocabulary; whether to read. Raises UserError if they do not fit together."""
        self._config, self._tokenizer = config, tokenizer
        self._text, self._columns, self._rows, _ = build_all(_DATA, config.data, "data")
        self._model_config, head = fine_tuning.model_configs(config, TaggerConfig, tokenizer.vocab)
        check_seq_len(self._rows.seq_len, self._model_config.max_positions)
        fine_tuning.check_packing(self._rows.packing, config.model)
        self._labels = self._rows.labels
        tagged_words.check_labels(self._labels)
        self._number = {label: i for i, label in enumerate(self._labels)}
        self._head, self._model = head, _model(self._model_config, len(self._labels), head)
        self._train: BucketedBatches | PackedBatches | None = None
        self._held_out: list[Example] = []
        if reads:
            self._read_rows()

    def _read_rows(self) -> None:
        choice(self._rows.scheme, (*tags.SCHEMES, _PLAIN), "data.scheme")  # `resolve` recognizes others
        train, valid = (_in_bio(sentences, self._rows.scheme) for sentences in _read(self._text, self._columns))
        tagged_words.check_tags(train, self._labels)
        tagged_words.check_held_out(valid, self._labels)
        if train:
            rows, config = Rows(self._encoded(train)), self._config
            self._train = training_batches(rows, self._rows.seq_len, self._rows.packing, config.batch_size, config.seed)
        self._held_out = [self._example(sentence.words, sentence.tags) for sentence in valid]

    def _encoded(self, sentences: Sequence[Sentence]) -> Iterator[dict[str, np.ndarray]]:
        """The rows of all sentences as arrays: `input_ids`, `token_type_ids`, `labels`, `label_weights`."""
        for sentence in sentences:
            numbers = np.array([self._number[tag] for tag in sentence.tags])
            windows = tagged_words.rows(sentence.words, self._tokenizer, self._rows.seq_len)
            for row in tagged_words.with_labels(windows, numbers):
                yield {name: row[name] for name in (*_INPUTS, *_LABELS)}

    def _example(self, words: Sequence[str], given: Sequence[str]) -> Example:
        windows = tagged_words.rows(words, self._tokenizer, self._rows.seq_len)
        inputs = [{name: row[name] for name in _INPUTS} for row in windows]
        positions = [row["unit_starts"] for row in windows]
        return fine_tuning.example(inputs, _Words(words, positions, given))

    def init(self, rng: jax.Array) -> Params:
        """See `Task.init`."""
        return fine_tuning.init(self._model, rng)

    def warm_start(self, params: Params) -> Params:
        """See `Task.warm_start`; a classifier of other tags is not taken over, and no tagger on other features."""
        if not self._config.init_from:
            return params
        folder = Path(self._config.init_from)
        found = pretrained.describe(folder)
        is_same = found.labels == self._labels and found.task in ("", "tagging")
        if self._head.feature_layers:
            theirs = found.config.get("model", {})
            of_tagger = {key: theirs.get(key) for key in ("feature_layers", "mixing", "lstm_layers", "lstm_size")}
            of_tagger["feature_layers"] = tuple(of_tagger["feature_layers"] or ())
            is_same = is_same and of_tagger.items() <= dataclasses.asdict(self._head).items()
        name = "tagger" if self._head.feature_layers else "classifier"
        return pretrained.warm_start(params, folder, () if is_same else (name,))

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Task.partition_rules`."""
        return TENSOR_RULES

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        rows = self._rows
        return fine_tuning.training_specs(self._config.batch_size, rows.seq_len, rows.packing, _LABELS, {})

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Task.batches`."""
        if split != "train":
            return iter(())
        assert self._train, "a task that has read no sentences to train on is only used"
        return self._train.training(start, rows)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The words: those that a row owns, so that each word of a sentence counts once."""
        return {"tagging": jnp.maximum(jnp.sum(batch["label_weights"]), 1)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy of each word's tag; see `Task.loss`."""
        logits, labels = fine_tuning.apply(self._model, params, batch, rng), batch["labels"]
        weights = batch["label_weights"]
        metrics = {
            "tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(())),
            "accuracy": (jnp.sum(is_best(logits, labels) * weights), jnp.sum(weights)),
        }
        return {"tagging": jnp.sum(cross_entropy(logits, labels) * weights)}, metrics

    def baselines(self) -> Mapping[str, float]:
        """What the most frequent held-out tag scores, given to all words."""
        counts = Counter(tag for example in self._held_out for tag in example.source.tags)
        return {"valid/majority_accuracy": max(counts.values()) / counts.total()}

    def held_out(self) -> Iterator[Example]:
        """See `Task.held_out`; a sentence each."""
        return iter(self._held_out)

    def score_names(self) -> Sequence[str]:
        """Of entities, the scores of `tags.score` that do not depend on types; the accuracy and mean loss of words."""
        return (*(() if self._rows.scheme == _PLAIN else _ENTITY_SCORES), "accuracy", "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`; of entities also F1 by type. The loss leaves out words with tags that are not learned."""
        predictions, references, losses = [], [], []
        for example, outputs in results:
            logits = _word_logits(example, outputs)
            predictions.append([self._labels[i] for i in logits.argmax(axis=-1)])
            references.append(example.source.tags)
            known = [(word, self._number[tag]) for word, tag in enumerate(references[-1]) if tag in self._number]
            losses += [np.logaddexp.reduce(logits[word]) - logits[word, number] for word, number in known]
        entities = {} if self._rows.scheme == _PLAIN else tags.score(predictions, references)
        accuracy = tags.token_accuracy(predictions, references)
        return {**entities, "accuracy": accuracy, "loss": float(sum(losses) / max(len(losses), 1))}

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """A sentence in each line; its words are those between spaces, and punctuation if so configured."""
        return inputs.of_lines(lines, self._of_text, self._text.on_bad_row)

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """The sentences in `data.text_field` of a table; see `Task.examples_of`."""
        return inputs.of_table(path, "data.text_field", (self._rows.text_field,), self._of_text, self._text.on_bad_row)

    def _of_text(self, texts: Sequence[str], where: str) -> Example:
        (text,) = texts
        tagged_words.check_is_text(text, where)
        words = (separate_punctuation(text) if self._rows.split_punctuation else text).split()
        if not words:
            raise RowError(where, "an empty line", "words", "delete the line")
        return self._example(words, ())

    def predict_lengths(self) -> Sequence[int]:
        """See `Task.predict_lengths`."""
        return bucket_lengths(self._rows.seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of each token, [B, S, C]."""
        return {"logits": fine_tuning.apply(self._model, params, batch, None)}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The words, and the likeliest tag of each."""
        best = _word_logits(example, outputs).argmax(axis=-1)
        return {"words": list(example.source.words), "tags": [self._labels[i] for i in best]}

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Held-out sentences with their tags and the right ones; see `Task.samples`."""
        for number, (example, outputs) in enumerate(infer(self.held_out())):
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer.vocab)
            yield {**self.record(example, outputs), "kind": "tags", "reference": list(example.source.tags), **seen}
        yield from samples.bert_positions(params)

    def export(self, params: Params, folder: Path) -> None:
        """A folder that `transformers.BertForTokenClassification.from_pretrained` opens.

        Raises:
          UserError: a tagger on features, or one with a BiLSTM, which that class is not.
        """
        if self._head.feature_layers:
            raise UserError(
                "--mode=export",
                got="a tagger on the features of a BERT that is not trained",
                expected="a tagger that transformers has: model.feature_layers=() and model.lstm_size=0",
                fix="predict with the run itself, --mode=predict --workdir=...",
            )
        huggingface.save(folder, params, self._model_config, "BertForTokenClassification", self._labels)
        self._tokenizer.save(folder, self._model_config.max_positions)

    def save_vocabulary(self, folder: Path) -> None:
        """See `Task.save_vocabulary`."""
        self._tokenizer.save(folder)


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
