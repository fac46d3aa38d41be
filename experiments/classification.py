"""Classification and regression of sentences and pairs of them (Devlin et al. 2019, section 4.1)."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import build_all, each, one_of
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, Sums, Task
from bertjax.data.fine_tuning import labeled_text
from bertjax.data.fine_tuning.given_text import GivenText
from bertjax.data.fine_tuning.labeled_text import LabeledText, LabeledTextConfig
from bertjax.data.readers import tables
from bertjax.data.rows.buckets import BucketedBatches, Rows, bucket_lengths, check_seq_len
from bertjax.data.rows.packed_rows import PackedBatches, count_rows, training_batches
from bertjax.data.rows.text_rows import text_row, truncate
from bertjax.data.text.given_vocabulary import VocabularyConfig, kept_vocabulary
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, squared_error
from bertjax.models.transformer import TENSOR_RULES
from bertjax.scoring import glue
from bertjax.tasks import fine_tuning, inputs, pretrained, samples
from bertjax.tasks.fine_tuning import FineTuningConfig, HeadConfig

_CORRELATIONS = ("pearson", "spearman")
_ENCODED_AT_ONCE = 1024
# Rows are held out by their numbers alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0
_SEQ_LEN = 128  # the default


@dataclasses.dataclass(frozen=True)
class Config(FineTuningConfig):
    """The keys of the config that this experiment reads.

    Attributes:
      objective: "classification", or "regression": one number for each row.
      class_weights: what the loss of a row counts by its class, in the order of `data.labels`; none for 1 each.
      metrics: held-out figures: "accuracy", "f1" (of class 1), "macro_f1", "matthews_correlation"; in regression
        "pearson", "spearman". See `bertjax.scoring.glue`.
    """

    objective: Annotated[str, one_of("classification", "regression")]
    class_weights: tuple[float, ...]
    metrics: Annotated[tuple[str, ...], each(one_of(*glue.METRICS))]

    def __post_init__(self) -> None:
        super().__post_init__()
        for metric in self.metrics:
            if (metric in _CORRELATIONS) != (self.objective == "regression"):
                raise UserError(
                    "config key metrics",
                    got=f"{metric} with objective={self.objective}",
                    expected="pearson and spearman for regression, the others for classification",
                    fix="set --config.metrics, or correct --config.objective",
                )


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """How texts become rows.

    Attributes:
      labels: the classes, in order; none for those of the training rows, or else of `init_from`.
      seq_len: tokens of a row at most, special ones included; longer texts are cut at their ends. Default: 128,
        or as many as the model has positions, if fewer.
      packing: whether several texts share a row of `seq_len` tokens in training.
    """

    labels: tuple[str, ...]
    seq_len: int
    packing: bool = False


_DATA = (LabeledTextConfig, RowsConfig, VocabularyConfig)
FREE_AFTER_TRAINING = (
    *("metrics", "data.text_columns", "data.label_column", "data.header", "data.separator"),
    "data.seq_len",
)


def resolve(config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
    """Fills in what `init_from` determines, the classes, and lengths in updates.

    Args:
      config: the whole of it.
      reads: whether rows are to be read for more than classes that nothing else tells.
    Raises:
      UserError: contradictions, and whatever is wrong with the rows.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN)
    text, rows, _ = build_all(_DATA, config["data"], "data")
    numeric = config["objective"] == "regression"
    known = _known_classes(config, trains=reads and bool(text.source)) if config["init_from"] else ()
    labels, count = rows.labels, 1
    if text.source and (reads or not (numeric or labels or known)):
        train, valid = _read(text, numeric)
        if not numeric:
            labels = labels or _class_names(train, text, known)
            labeled_text.check_labels(labeled_text.with_default_names([*train, *valid], labels), labels)
        count = len(train)
        if rows.packing:
            check_seq_len(rows.seq_len, config["model"]["max_positions"])
            encoded = _encoded(train, GivenText.of(config["data"], Path()).tokenizer(), rows.seq_len)
            count = count_rows(np.array([len(row["input_ids"]) for row in encoded]), rows.seq_len, packing=True)
    data = {**config["data"], "labels": labels or known}
    return fine_tuning.resolve_lengths({**config, "data": data}, count)


def _known_classes(config: Mapping[str, Any], trains: bool) -> tuple[str, ...]:
    """The names of the classes that `init_from` tells. Raises UserError if it is to be used as it is, and cannot be."""
    found = pretrained.describe(Path(config["init_from"]))
    if found.tells_several and not trains:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a model that tells several classes or numbers of a text (problem_type in its config.json)",
            expected="one that tells one",
            fix="name another, or train with this one on rows in data.source, which begins with its encoder alone",
        )
    return () if found.tells_several or config["objective"] == "regression" else found.labels


def _class_names(rows: Sequence[LabeledText], text: LabeledTextConfig, known: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of training rows; in the order of `init_from` if it has the same ones, as its weights have it."""
    names = labeled_text.label_names(rows, tables.class_names(text.source, "data.source", text.label_column))
    by_default = {row.label for row in labeled_text.with_default_names(rows, known)}
    return known if set(known) in (set(names), by_default) else names


@functools.lru_cache(maxsize=1)
def _read(config: LabeledTextConfig, numeric: bool) -> tuple[list[LabeledText], list[LabeledText]]:
    """The training rows and the held-out rows, which `resolve` reads before the task does."""
    return labeled_text.read_splits(config, numeric, _SPLIT_SEED)


def preparation(config: Config, workdir: Path) -> GivenText:
    """The rows that training needs; their vocabulary is kept in the run's folder."""
    return GivenText.of(config.data, workdir / "data")


def _encoded(rows: Iterable[LabeledText], tokenizer: WordPiece, seq_len: int) -> Iterator[dict[str, np.ndarray]]:
    """Each text, or pair, as `input_ids` and `token_type_ids`."""
    rows = iter(rows)
    while part := list(itertools.islice(rows, _ENCODED_AT_ONCE)):
        first = tokenizer.encode_batch([row.first for row in part])
        second = tokenizer.encode_batch([row.second or "" for row in part])
        for row, a, b in zip(part, first, second, strict=True):
            yield text_row(truncate([a] if row.second is None else [a, b], seq_len), tokenizer)


def make(config: Config, vocab_dir: Path | None, prepared: Path | None) -> "Classification":
    """The task.

    Args:
      config: its settings.
      vocab_dir: see `kept_vocabulary`.
      prepared: any folder if the task is to train; without it the rows are not read.
    """
    tokenizer = kept_vocabulary(vocab_dir, config.data["lowercase"])
    return Classification(config, tokenizer, reads=prepared is not None)


class Classification(Task):
    """See `bertjax.contract.Task`."""

    def __init__(self, config: Config, tokenizer: WordPiece, reads: bool) -> None:
        """Args: settings; the vocabulary; whether to read rows. Raises UserError if they do not fit together."""
        self._config, self._tokenizer = config, tokenizer
        self._text, self._rows, _ = build_all(_DATA, config.data, "data")
        self._model_config, head = fine_tuning.model_configs(config, HeadConfig, tokenizer.vocab)
        check_seq_len(self._rows.seq_len, self._model_config.max_positions)
        if len(self._text.text_columns) == 2:
            fine_tuning.check_two_segments(self._model_config)
        fine_tuning.check_packing(self._rows.packing, config.model)
        self._labels, self._numeric = self._rows.labels, config.objective == "regression"
        if config.objective == "regression":
            _check_no_labels(config, self._labels)
        else:
            _check_labels(config, self._labels)
        num_labels = 1 if self._numeric else len(self._labels)
        self._model = BertForSequenceClassification(
            self._model_config, num_labels, head.classifier_dropout, head.lstm_size
        )
        self._train: BucketedBatches | PackedBatches | None = None
        self._held_out: list[Example] = []
        if reads:
            self._read_rows()

    def _read_rows(self) -> None:
        train, valid = _read(self._text, self._numeric)
        if not self._numeric:
            train, valid = (labeled_text.with_default_names(rows, self._labels) for rows in (train, valid))
            labeled_text.check_labels(valid, self._labels)
        if train:
            rows, config = Rows(self._encoded(train)), self._config
            self._train = training_batches(rows, self._rows.seq_len, self._rows.packing, config.batch_size, config.seed)
        self._held_out = [Example([row], None) for row in self._encoded(valid)]

    def _encoded(self, rows: Iterable[LabeledText]) -> Iterator[dict[str, np.ndarray]]:
        """Each row as arrays: `input_ids`, `token_type_ids`, `labels`."""
        number = {label: np.array(i, np.int32) for i, label in enumerate(self._labels)}
        rows, encoded_rows = itertools.tee(rows)
        for row, encoded in zip(rows, _encoded(encoded_rows, self._tokenizer, self._rows.seq_len), strict=True):
            if row.label is not None:
                encoded["labels"] = np.array(row.label, np.float32) if self._numeric else number[str(row.label)]
            yield encoded

    def init(self, rng: jax.Array) -> Params:
        """See `Task.init`."""
        return fine_tuning.init(self._model, rng)

    def warm_start(self, params: Params) -> Params:
        """See `Task.warm_start`; a classifier of other classes is not taken over, one without names is if as many."""
        if not self._config.init_from:
            return params
        folder = Path(self._config.init_from)
        return pretrained.warm_start(
            params, folder, () if pretrained.has_classes(folder, self._labels) else ("classifier",)
        )

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Task.partition_rules`."""
        return TENSOR_RULES

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        label, rows = np.float32 if self._numeric else np.int32, self._rows
        return fine_tuning.training_specs(self._config.batch_size, rows.seq_len, rows.packing, {}, {"labels": label})

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Task.batches`."""
        if split != "train":
            return iter(())
        assert self._train, "a task that has read no rows to train on is only used"
        return self._train.training(start, rows)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The texts, each as much as its class counts."""
        return {self._config.objective: jnp.maximum(jnp.sum(self._row_weights(batch)), 1e-6)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy, or the squared error, of each text; see `Task.loss`."""
        logits = fine_tuning.apply(self._model, params, batch, rng)
        labels = batch["labels"]
        weights, count = batch["weights"], jnp.sum(batch["weights"])
        each = squared_error(logits[..., 0], labels) if self._numeric else cross_entropy(logits, labels)
        metrics = {"tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(()))}
        if not self._numeric:
            metrics["accuracy"] = jnp.sum(is_best(logits, labels) * weights), count
        return {self._config.objective: jnp.sum(each * self._row_weights(batch))}, metrics

    def _row_weights(self, batch: Batch) -> jax.Array:
        """How much each text counts; nothing where a place is left, or a row only fills up the batch."""
        if not self._config.class_weights:
            return jnp.asarray(batch["weights"])
        return batch["weights"] * jnp.asarray(self._config.class_weights)[batch["labels"]]

    def baselines(self) -> Mapping[str, float]:
        """What the mean of the held-out numbers, or their most frequent class for all, scores."""
        labels = np.array([example.rows[0]["labels"] for example in self._held_out])
        if self._numeric:
            return {"valid/mean_loss": float(labels.var())}
        return {"valid/majority_accuracy": float(np.bincount(labels).max() / len(labels))}

    def held_out(self) -> Iterator[Example]:
        """See `Task.held_out`."""
        for example in self._held_out:
            (row,) = example.rows
            inputs = {name: array for name, array in row.items() if name != "labels"}
            yield fine_tuning.example([inputs], row["labels"])

    def score_names(self) -> Sequence[str]:
        """The metrics of the config, and the mean loss."""
        return (*self._config.metrics, "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`; the classes count alike."""
        logits = np.stack([outputs[0]["logits"] for _, outputs in results]).astype(np.float64)
        labels = np.array([example.source for example, _ in results])
        predictions = logits[:, 0] if self._numeric else logits.argmax(axis=1)
        if self._numeric:
            losses = (predictions - labels) ** 2
        else:
            losses = -np.log(_softmax(logits)[np.arange(len(labels)), labels])
        return {**glue.score(self._config.metrics, predictions, labels), "loss": float(losses.mean())}

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """A text in each line, or two with a tab between them where `data.text_columns` has two."""

        def make(line: Sequence[str], where: str) -> Example:
            return self._example(labeled_text.texts_of_line(line[0], where, self._text.text_columns), where)

        return inputs.of_lines(lines, make, self._text.on_bad_row)

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """The texts in `data.text_columns` of a table; see `Task.examples_of`."""
        text, key = self._text, "data.text_columns"
        return inputs.of_table(path, key, text.text_columns, self._example, text.on_bad_row, text.header)

    def _example(self, texts: Sequence[str], where: str) -> Example:
        ids = truncate(self._tokenizer.encode_batch(texts), self._rows.seq_len)
        return fine_tuning.example([text_row(ids, self._tokenizer)], None)

    def predict_lengths(self) -> Sequence[int]:
        """See `Task.predict_lengths`."""
        return bucket_lengths(self._rows.seq_len)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of each row, [B, C]."""
        return {"logits": fine_tuning.apply(self._model, params, batch, None)}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The likeliest class and the probabilities of all, or the number."""
        (output,) = outputs
        if self._numeric:
            return {"score": round(float(output["logits"][0]), 6)}
        probabilities = _softmax(output["logits"].astype(np.float64))
        each = {label: round(float(p), 6) for label, p in zip(self._labels, probabilities, strict=True)}
        return {"label": self._labels[int(probabilities.argmax())], "probabilities": each}

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Held-out rows with what is predicted and what is right; see `Task.samples`."""
        vocab = self._tokenizer.vocab
        for number, (example, outputs) in enumerate(infer(self.held_out())):
            first, *second = samples.texts(example.rows[0], vocab)
            shown = {"kind": "label", "text": first, "second": " ".join(second)}
            right = float(example.source) if self._numeric else self._labels[int(example.source)]
            seen = samples.attention(number, example, params, self._model_config, vocab)
            yield {**shown, **self.record(example, outputs), "reference": right, **seen}
        yield from samples.bert_positions(params)

    def export(self, params: Params, folder: Path) -> None:
        """A folder that `transformers.BertForSequenceClassification.from_pretrained` opens."""
        labels = self._labels or None
        huggingface.save(folder, params, self._model_config, "BertForSequenceClassification", labels)
        self._tokenizer.save(folder, self._model_config.max_positions)

    def save_vocabulary(self, folder: Path) -> None:
        """See `Task.save_vocabulary`."""
        self._tokenizer.save(folder)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _check_no_labels(config: Config, labels: Sequence[str]) -> None:
    """Raises UserError if there are classes, or weights of them, where a number is to be predicted."""
    if labels or config.class_weights:
        raise UserError(
            "config key objective",
            got=f"regression with {len(labels)} labels and {len(config.class_weights)} class_weights",
            expected="neither: it predicts a number",
            fix="leave them out, or set --config.objective=classification",
        )


def _check_labels(config: Config, labels: Sequence[str]) -> None:
    """Raises UserError unless there are classes to tell apart, a weight for each if for any, and a fitting metric."""
    if not labels:
        raise UserError(
            "config key data.source",
            got="nothing, and no classes from elsewhere",
            expected="rows to train on, or a classifier in init_from to predict with",
            fix="set --config.data.source=FILE, or --config.init_from to the folder of a classifier; where that has no "
            "names for its classes, name them in their order in --config.data.labels",
        )
    if len(set(labels)) < max(2, len(labels)):
        raise UserError(
            "config key data.labels",
            got=", ".join(labels),
            expected="two or more, each once",
            fix="leave it out, to take those of the training rows, or give each class one name",
        )
    weights = config.class_weights
    if weights and not (len(weights) == len(labels) and min(weights) >= 0 and 0 < sum(weights) < np.inf):
        raise UserError(
            "config key class_weights",
            got=weights,
            expected=f"a number of 0 or more for each of {', '.join(labels)}, not all of them 0; or none",
            fix="give the weights in that order",
        )
    if "f1" in config.metrics and len(labels) > 2:
        raise UserError(
            "config key metrics",
            got=f"f1 with {len(labels)} classes",
            expected="two classes, of which it is the second's F1",
            fix="use macro_f1",
        )
