"""BERT pretraining: masked language model and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import contract
from bertjax.config import Size, build, build_part, one_of, part
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, StagedTask, Sums
from bertjax.data.fine_tuning.minimal_pairs import MinimalPairsConfig, Pair, Sentences, check_source, read
from bertjax.data.pretraining.batches import BatchConfig, InstanceRowsConfig, PretrainingBatches
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.pretraining.sentence_pairs import PairsConfig
from bertjax.data.readers.lines import RowError
from bertjax.data.rows.text_rows import segmented, text_row
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import saved_file
from bertjax.interop.published import Published
from bertjax.models.bert import BertForMaskedLM, BertForPreTraining, BertInputs, PreTrainingOutput
from bertjax.models.losses import cross_entropy, is_best
from bertjax.scoring.minimal_pairs import METRICS
from bertjax.tasks import bert, completion, inputs, minimal_pairs, pretrained, samples
from bertjax.tasks.bert import BertTask
from bertjax.tasks.minimal_pairs import OBJECTIVES
from bertjax.tasks.prepared_data import ExperimentConfig

FREE_AFTER_TRAINING = (
    *("data.text_field", "data.lines", "data.valid_rows", "data.valid_single_segments"),
    *("masking.valid_rate", "minimal_pairs"),
)
_NO_PAIRS = MinimalPairsConfig()
_TOP = 5
_PREDICT_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclasses.dataclass(frozen=True)
class DataConfig(CorpusConfig, PairsConfig, InstanceRowsConfig):
    """The keys of `data`."""


@dataclasses.dataclass(frozen=True)
class Config(ExperimentConfig):
    """The config keys that this experiment reads.

    Attributes:
      init_from: a Hugging Face folder, a google-research checkpoint or a bertjax run that determines sizes, vocabulary
        and weights; or "".
      learned_positions: the number of positions that the model in `init_from` was trained on; later positions start as
        copies of these. 0 to take all positions unchanged.
      seed: seed of parameters, data order, masks and dropout.
      num_steps: number of updates. Default: those of the budget.
      batch_size: rows of an update, over all devices and micro-batches, if they have `data.seq_len` tokens; see
        `data.stages`.
      objective: "masked_lm", or "causal_lm": every position predicts its neighbor in `model.direction`.
      model: the encoder.
      data: the text, and how it becomes rows.
      masking: see `MaskingConfig`.
      minimal_pairs: see `MinimalPairsConfig`.
    """

    learned_positions: int
    num_steps: Size | None
    objective: Annotated[str, one_of(*OBJECTIVES)]
    model: bert.ModelConfig
    data: DataConfig
    masking: MaskingConfig
    minimal_pairs: MinimalPairsConfig = _NO_PAIRS

    def __post_init__(self) -> None:
        super().__post_init__()
        model, data = self.model, self.data
        most = model.max_positions
        ok = self.objective != "causal_lm" or not (model.direction == "both" or data.next_sentence)
        got = f"causal_lm with model.direction={model.direction} and data.next_sentence={data.next_sentence}"
        expected = "one direction, as otherwise each token would see its label, and no next-sentence prediction"
        fix = "set --config.model.direction=left_to_right --config.data.next_sentence=False"
        self.check(ok, "objective", expected, got=got, fix=fix)
        data.check(data.seq_len <= most, "seq_len", f"at most model.max_positions={most}", fix="lower data.seq_len")
        has_table = bool(self.init_from) and model.positions == "learned"
        ok, got = 0 <= self.learned_positions <= most * has_table, f"{self.learned_positions} with {self.init_from!r}"
        expected = f"0, or up to model.max_positions={most} if init_from names a model with learned positions"
        fix = "set it to the data.seq_len that the model was trained with, or to 0"
        self.check(ok, "learned_positions", expected, got=got, fix=fix)

    @property
    def batches(self) -> BatchConfig:
        """Everything that determines a batch except the text and the step."""
        pairs, rows = part(PairsConfig, self.data), part(InstanceRowsConfig, self.data)
        sizes = self.batch_size, self.num_steps
        return BatchConfig(pairs, self.masking, rows, self.objective, self.model.direction, self.seed, *sizes)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in the sizes, casing and vocabulary that `init_from` determines.

    Raises:
      UserError: if a size is missing, a key contradicts the folder, or `masking.max_predictions` cuts the rate.
    """
    if published:
        minimal_pairs.check_objective(config["objective"], published)
    resolved = completion.bert(config, published, seq_len=128)
    build(MaskingConfig, resolved["masking"], "masking").check_room(resolved["data"]["seq_len"])
    return resolved


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Tokenizer]:
    """See `Trainable.example_config`. Raises UserError if the config names no text."""
    build_part(Config, config).data.check_source()
    return bert.example_config(config)


class Data(contract.Data):
    """See `bertjax.contract.Data`. The prepared text is in `data.prepared_dir`, by default in the folder."""

    def __init__(self, config: Config, folder: Path, published: Published | None) -> None:
        """See `Evaluable`."""
        corpus = part(CorpusConfig, config.data)
        if not corpus.source and saved_file(folder):  # evaluation of a run on other text
            corpus, folder = dataclasses.replace(corpus, vocab_file=str(folder)), folder / "data"
        corpus.check_source()
        self._config, self._preparation = config, Preparation(corpus, folder)
        self._batch_config = config.batches
        self._batches: dict[tuple[str, BatchConfig], PretrainingBatches] = {}
        if config.minimal_pairs.source:
            check_source(config.minimal_pairs.source, "minimal_pairs.source")

    @property
    def is_prepared(self) -> bool:
        """See `Data.is_prepared`."""
        return self._preparation.is_finished()

    @property
    def fingerprint(self) -> str:
        """See `Data.fingerprint`."""
        return self._preparation.fingerprint

    def prepare(self) -> None:
        """Tokenizes the text; see `Preparation.run`. Checks the minimal pairs."""
        self._preparation.run()
        self.validation_examples()

    @functools.cached_property
    def _corpus(self) -> Corpus:
        return self._preparation.corpus()

    @property
    def vocabulary(self) -> Tokenizer:
        """See `Data.vocabulary`."""
        return self._corpus.tokenizer

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Data.batches`."""
        if split == "train":
            return self._training(start, rows)
        return self._of(split, self._batch_config.valid).evaluation(rows)

    def _training(self, start: int, rows: RowIndices) -> Iterator[Batch]:
        stages = self._batch_config.stages
        for stage, after in itertools.zip_longest(stages, stages[1:]):
            times = stage.batch_size // self._config.batch_size
            first, own = max(start, stage.begin), (rows[:, None] * times + np.arange(times)).ravel()
            if after is None:
                yield from self._of("train", stage).training(first, own)
            elif first < after.begin:
                yield from self._of("train", stage).training(first, own, after.begin)

    def _of(self, split: str, config: BatchConfig) -> PretrainingBatches:
        if (split, config) not in self._batches:
            self._batches[split, config] = PretrainingBatches(self._corpus, split, config)
        return self._batches[split, config]

    def validation_examples(self) -> Iterator[Example]:
        """The minimal pairs; see `Data.validation_examples`."""
        return minimal_pairs.examples(self._pairs, self._sentences) if self._config.minimal_pairs.source else iter(())

    @property
    def _sentences(self) -> Sentences:
        config, tokenizer = self._config, self._corpus.tokenizer
        return minimal_pairs.sentences(tokenizer, config.model, config.objective, config.minimal_pairs.method)

    @functools.cached_property
    def _pairs(self) -> Sequence[Pair]:
        pairs, on_bad_row = self._config.minimal_pairs, self._config.data.on_bad_row
        return read(pairs.source, "minimal_pairs.source", self._sentences, pairs.per_paradigm, on_bad_row)

    def baselines(self) -> Mapping[str, float]:
        """The loss of predicting tokens by their frequency in the training text; the accuracy of the majority class.

        Classes are those of next-sentence prediction. In short rows and documents most second segments are random,
        because a chunk of one sentence always gets a random one.
        """
        costs, found = self._costs(), np.zeros(4)
        for batch in self.batches("valid", 0, np.arange(self._config.batch_size)):
            words, pairs = batch["masked_weights"], batch.get("next_sentence_weights", np.zeros(1))
            losses = 0.0 if costs is None else costs[batch["masked_labels"]]
            random = batch.get("next_sentence_labels", 0)
            found += [np.sum(losses * words), words.sum(), np.sum(random * pairs), pairs.sum()]
        loss, words, random, pairs = found.tolist()
        objective = self._config.objective
        return {
            **({f"valid/{objective}_unigram_loss": loss / words} if costs is not None else {}),
            **({"valid/next_sentence_majority_accuracy": max(random, pairs - random) / pairs} if pairs else {}),
        }

    def _costs(self) -> np.ndarray | None:
        """The loss of predicting each token by its frequency in the training text; None without training text."""
        if self._corpus.unigrams is None:
            return None
        # Add-one smoothing, so that a token unseen in training has a finite loss.
        tokenizer = self._corpus.tokenizer
        counts = np.zeros(self._config.model.vocab_size or tokenizer.vocab_size) + 1
        counts[: len(self._corpus.unigrams)] += self._corpus.unigrams
        if self._config.objective == "causal_lm":
            # Each instance also predicts its final special token: [SEP] or [CLS].
            batches = self._of("train", self._batch_config.valid)
            counts[[tokenizer.sep_id, tokenizer.cls_id]] += batches.instances_per_epoch
        return -np.log(counts / counts.sum())


class Task(BertTask[Config], StagedTask):
    """See `bertjax.contract.TrainingTask`."""

    def __init__(self, config: Config, vocabulary: Tokenizer) -> None:
        """See `Experiment`."""
        self._text, self._batch_config = config.data, config.batches
        model, predicts_next = config.model.encoder(vocabulary.vocab), config.data.next_sentence
        super().__init__(config, vocabulary, model, BertForPreTraining(model, predicts_next), model.max_positions)
        # In float32, whatever the training's dtype. The kernels of cuDNN are for bfloat16 alone.
        self._scorer = BertForMaskedLM(dataclasses.replace(model, dtype="float32", attention_backend="auto"))
        self.architecture = "BertForPreTraining" if predicts_next else "BertForMaskedLM"

    def init(self, rng: jax.Array) -> Params:
        """See `TrainingTask.init`."""
        ids = jnp.zeros((1, 1), jnp.int32)
        rows = BertInputs(ids, ids, ids)
        return self._model.init(rng, rows, ids, deterministic=True, return_attention=False)["params"]

    def warm_start(self, params: Params, published: Published) -> Params:
        """See `TrainingTask.warm_start`."""
        params = super().warm_start(params, published)
        if learned := self._config.learned_positions:
            params = pretrained.extend_positions(params, learned, self._model_config.max_positions, "tile")
        return params

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """The shapes of each stage; see `TrainingTask.batch_specs`."""
        return [
            {
                name: jax.ShapeDtypeStruct(shape, jnp.float32 if name.endswith("weights") else jnp.int32)
                for name, shape in stage.shapes().items()
            }
            for stage in self._batch_config.stages
        ]

    def stage(self, update: int, num_steps: int) -> int:
        """See `StagedTask.stage`."""
        stages = dataclasses.replace(self._batch_config, num_steps=num_steps).stages
        return sum(stage.begin <= update for stage in stages) - 1

    def after_update(self, tree: Params, batch: Batch) -> Params:
        """Copies the positions that stages have reached to those that they have not; see `StagedTask.after_update`.

        The last stage then begins with positions that are trained: in the first stages, attention learns which tokens
        are near each other (docs/results.md). A model in `init_from` has learned `learned_positions`, or all of them.
        """
        longest, learned = self._batch_config.pairs.seq_len, batch["input_ids"].shape[1]
        if self._config.init_from:
            learned = max(learned, self._config.learned_positions or self._model_config.max_positions)
        return tree if learned >= longest else pretrained.copy_positions(tree, learned, longest)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The numbers of predicted tokens and of pairs; google-research/bert takes the mean over each."""
        weights = {self._config.objective: "masked_weights", "next_sentence": "next_sentence_weights"}
        return {term: jnp.maximum(jnp.sum(batch[name]), 1) for term, name in weights.items() if name in batch}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Cross-entropies of the predicted tokens and of the next sentence; see `TrainingTask.loss`."""
        output = self._apply(params, batch, rng)
        terms = {self._config.objective: (output.masked_lm_logits, batch["masked_labels"], batch["masked_weights"])}
        if output.next_sentence_logits is not None and "next_sentence_labels" in batch:
            labels, weights = batch["next_sentence_labels"], batch["next_sentence_weights"]
            terms["next_sentence"] = (output.next_sentence_logits, labels, weights)
        sums, metrics = {}, {"tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(()))}
        for name, (logits, labels, weights) in terms.items():
            sums[name] = jnp.sum(cross_entropy(logits, labels) * weights)
            right = jnp.sum(is_best(logits, labels) * weights)
            metrics[f"{name}_loss"] = (sums[name], jnp.sum(weights))
            metrics[f"{name}_accuracy"] = (right, jnp.sum(weights))
        return sums, metrics

    def score_names(self) -> Sequence[str]:
        """With minimal pairs, the metrics of `loss` and theirs; see `TrainingTask.score_names`."""
        if not self._config.minimal_pairs.source:
            return ()
        terms = [self._config.objective, *(["next_sentence"] if self._batch_config.valid.pairs.next_sentence else [])]
        return (*(f"{term}_{kind}" for term in terms for kind in ("loss", "accuracy")), *METRICS)

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The accuracies on minimal pairs, of all and of each phenomenon; see `scoring.minimal_pairs.accuracies`."""
        scores = minimal_pairs.score(results)
        return {name: value for name, value in scores.items() if name.count("/") < 3}  # without those of paradigms

    def example(self, texts: Sequence[str], where: str) -> Example:
        """See `BertPredictionTask.example`; of one text or two, with one or more [MASK]."""
        segments = [self._tokenizer.encode_with_masks(text) for text in texts]
        (row,) = segmented([text_row(segments, self._tokenizer)])
        ids = row["input_ids"].tolist()
        positions = [i for i, token in enumerate(ids) if token == self._tokenizer.mask_id]
        limit = self._model_config.max_positions
        if not positions or len(segments) > 2 or len(ids) > limit:
            raise RowError(
                where,
                got=f"{len(positions)} [MASK], {len(segments)} segment(s), {len(ids)} word pieces",
                expected=f"at least one [MASK], at most 2 segments with a tab between them in a line, and at "
                f"most {limit} word pieces with [CLS] and [SEP]",
                fix="correct the text",
            )
        asked = np.array(positions, np.int32) + np.int32(self._shift)
        return Example([{**row, "masked_positions": asked}], (texts, positions))

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """See `PredictionTask.examples_of`; a text of a table may have a tab between two segments, like a line."""
        data = self._config.data

        def make(texts: Sequence[str], where: str) -> Example:
            return self.example(texts[0].split("\t"), where)

        return inputs.of_table(path, "data.text_field", [data.text_field], make, data.on_bad_row, tabs=True)

    def predict_lengths(self) -> Sequence[int]:
        """See `TrainingTask.predict_lengths`."""
        limit = self._model_config.max_positions
        return [*(length for length in _PREDICT_LENGTHS if length < limit), limit]

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The most probable tokens at each masked position [B, P, 5]; the probability of the next sentence [B].

        For rows of minimal pairs, `minimal_pairs.infer`.
        """
        if "masked_labels" in batch:
            return minimal_pairs.infer(self._scorer, params, batch)
        output = self._apply(params, batch, None)
        top = min(_TOP, self._model_config.vocab_size)
        probabilities, tokens = jax.lax.top_k(jax.nn.softmax(output.masked_lm_logits), top)
        result = {"probabilities": probabilities, "tokens": tokens}
        if output.next_sentence_logits is not None:
            result["is_next"] = jax.nn.softmax(output.next_sentence_logits)[:, 0, 0]
        return result

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The most probable tokens of each [MASK]. Positions count from [CLS], which is 0.

        `is_next_probability` is null without a second segment.
        """
        (texts, positions), (output,) = example.source, outputs
        masks = [
            {
                "position": position,
                "tokens": list(map(self._name, tokens)),
                "probabilities": [round(float(p), 6) for p in probabilities],
            }
            for position, tokens, probabilities in zip(
                positions, output["tokens"].tolist(), output["probabilities"].tolist(), strict=False
            )
        ]
        is_next = round(float(output["is_next"]), 6) if len(texts) > 1 and "is_next" in output else None
        return {"text": "\t".join(texts), "masks": masks, "is_next_probability": is_next}

    def _name(self, token: int) -> str:
        # A published table may have a few more rows than its vocabulary has tokens.
        return self._tokenizer.names([token])[0] if token < self._tokenizer.vocab_size else f"[row {token}]"

    def samples(self, params: Params, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """An attention mask, and the samples of `BertTask`; see `TrainingTask.samples`."""
        segments = self._held_out_batch(data)["segment_ids"]
        lengths = np.sum(segments == 1, axis=1)  # 0 for rows that pad the batch
        # The row with the shortest first instance has the most room for others.
        fewest = np.argmin(np.where(lengths, lengths, np.inf))
        yield samples.mask(segments[fewest], self._model_config.direction)
        yield from super().samples(params, data, infer)

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        (row,), (texts, positions, labels, is_next) = example.rows, example.source
        record = self.record(Example([row], (texts, positions)), outputs)
        masks = [{**m, "label": self._name(label)} for m, label in zip(record["masks"], labels, strict=True)]
        words = self._tokenizer.names(row["input_ids"].tolist())
        follows = {"is_next": is_next, "is_next_probability": record["is_next_probability"]}
        return {"kind": "masks", "masks": masks, "words": words, **follows}

    def _held_out_batch(self, data: contract.Data) -> Batch:
        return next(data.batches("valid", 0, np.arange(self._config.batch_size)))

    def shown(self, data: contract.Data) -> Iterator[Example]:
        """The first instance of each row of a validation batch, the shortest first; skips those without masks."""
        batch = self._held_out_batch(data)
        lengths = np.sum(batch["segment_ids"] == 1, axis=1)
        for i in np.argsort(lengths, kind="stable"):
            row = {name: batch[name][i, : lengths[i]] for name in ("input_ids", "token_type_ids", "segment_ids")}
            asked = batch["masked_positions"][i]
            chosen = np.flatnonzero((batch["masked_weights"][i] > 0) & (asked < lengths[i]))
            if self._config.objective == "causal_lm":  # every token is predicted; show only some
                chosen = chosen[3::6]
            if len(chosen):
                is_pair = "next_sentence_labels" in batch and row["token_type_ids"].any()
                is_next = not batch["next_sentence_labels"][i, 0] if is_pair else None
                positions = (asked[chosen] - self._shift).tolist()
                texts = [""] * (1 + is_pair)  # the record has the words
                source = texts, positions, batch["masked_labels"][i, chosen].tolist(), is_next
                yield Example([{**row, "masked_positions": asked[chosen]}], source)

    def _apply(self, params: Params, batch: Batch, rng: jax.Array | None) -> PreTrainingOutput:
        output = self._model.apply(
            {"params": params},
            BertInputs.of(batch),
            batch["masked_positions"],
            deterministic=rng is None,
            return_attention=False,
            rngs={} if rng is None else {"dropout": rng},
        )
        return cast(PreTrainingOutput, output)

    @property
    def _shift(self) -> int:
        """The offset from a token to the position that predicts it: 0, or a neighbor in a causal model."""
        shifts = {"both": 0, "left_to_right": -1, "right_to_left": 1}
        return shifts[self._model_config.direction] if self._config.objective == "causal_lm" else 0
