"""BERT pretraining: masked language model and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import contract
from bertjax.config import build_part, one_of
from bertjax.contract import Batch, ConfigTree, Example, Infer, Metrics, Output, Params, Sums
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.texts import MaskedTextCodec, Texts
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.decoding.denoising import DenoisingConfig, denoise
from bertjax.decoding.sampling import row_keys
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.models.bert import BertForPreTraining
from bertjax.models.losses import cross_entropy
from bertjax.tasks import bert, inputs, pretraining, samples
from bertjax.tasks.language_models import LANGUAGE_MODELS, LanguageModel, check_objective, language_models
from bertjax.tasks.pretraining import PretrainingConfig, PretrainingData, PretrainingTask
from bertjax.tasks.targets import causal_rows_first, is_evaluated, num_tokens, scored, source_of, targets
from bertjax.tasks.teachers import TeacherConfig

FREE_AFTER_TRAINING = (*pretraining.FREE_AFTER_TRAINING, "decoding")
_log = logging.getLogger(__name__)
_TOP = 5
_QUANTILES = 32  # of the lengths of texts that are generated from nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PretrainingConfig, TeacherConfig):
    """The config keys that this experiment reads.

    Attributes:
      objective: "masked_lm", or "causal_lm": every position predicts its neighbor in `model.direction`.
      decoding: how predictions replace [MASK]: by default, by a list of the likeliest tokens.
    """

    objective: Annotated[str, one_of(*LANGUAGE_MODELS)]
    decoding: DenoisingConfig = DenoisingConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        data = self.data
        ok = self.objective != "causal_lm" or not (model.direction == "both" or data.next_sentence)
        got = f"causal_lm with model.direction={model.direction} and data.next_sentence={data.next_sentence}"
        expected = "one direction, as otherwise each token would see its label, and no next-sentence prediction"
        fix = "set --config.model.direction=left_to_right --config.data.next_sentence=False"
        self.check(ok, "objective", expected, got=got, fix=fix)
        is_masked = self.objective == "masked_lm" and self.masking.causal_share < 1
        self.decoding.check(is_masked or not self.samples, "sampler", "none for a causal language model")

    @property
    def shift(self) -> int:
        """The offset from a token to the position that predicts it."""
        return LanguageModel(self.model, self.objective, self.masking.predict_at).shift

    def codec(self, tokenizer: EncoderTokenizer) -> MaskedTextCodec:
        columns = Columns("data.text_field", [self.data.text_field])
        lengths = self.decoding.lengths or () if self.samples else ()
        return MaskedTextCodec(
            tokenizer, self.model.max_positions, columns, shift=self.shift, lengths=lengths, seed=self.decoding.seed
        )

    @property
    def samples(self) -> bool:
        """Whether predictions are samples."""
        return self.decoding.sampler != "none"


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines.

    Raises:
      UserError: for another objective than that of its run, or masked tokens that are predicted at another position.
    """
    if published:
        check_objective(config["objective"], published)
        of_run = published.config.get("masking", {}) if published.is_run else {}
        predict_at = of_run.get("predict_at", "same")
        if predict_at == "previous" and config["masking"]["predict_at"] != predict_at:
            expected = f"{predict_at}, as in init_from={config['init_from']}"
            fix = f"set --config.masking.predict_at={predict_at}"
            raise UserError("config key masking.predict_at", got="same", expected=expected, fix=fix)
    return pretraining.resolve(config, published)


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Raises UserError if the config names no text."""
    built = build_part(Config, config)
    built.data.check_source()
    example, vocabulary = bert.example_config(config)
    if built.masking.distribution == "uniform" and not built.decoding.lengths:
        example["decoding"] = {**example.get("decoding", {}), "lengths": (built.data.seq_len,)}
    return example, vocabulary


class Data(PretrainingData[Config]):
    """Prepared text, in `data.prepared_dir`, by default in the folder."""

    def complete(self, config: ConfigTree) -> ConfigTree:
        """Fills in `decoding.lengths` of a run with uniform rates."""
        config = super().complete(config)
        if self._config.masking.distribution == "constant" or self._config.decoding.lengths:
            return config
        lengths = self._of("train", self._batch_config.phases[-1]).token_counts(_QUANTILES)
        return {**config, "decoding": {**config.get("decoding", {}), "lengths": lengths}}


class Task(PretrainingTask[Config]):
    """Predicts masked or next tokens, and the next sentence."""

    predicts_positions = True

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        model = config.model.encoder(vocabulary.vocab)
        predicts_next = config.data.next_sentence
        super().__init__(config, vocabulary, model, BertForPreTraining(model, predicts_next))
        self.architecture = "BertForPreTraining" if predicts_next else "BertForMaskedLM"
        self.exact = config.samples  # a sample would be another one if its logits were rounded differently

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder of transformers.

        A run with `masking.predict_at=previous` has the encoder alone: transformers would read masked tokens at the
        wrong position.
        """
        if self._config.masking.predict_at == "same":
            super().export(params, folder)
            return
        _log.warning("the masked-LM head is not exported: transformers predicts masked tokens at their own position")
        self.save({"bert": params["bert"]}, folder, "BertModel")

    def width(self) -> int:
        return self._config.decoding.num_samples if self._config.samples else 1

    def numbered(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Adds to each row, if it is sampled, how many equal inputs precede it, so that these have other samples."""
        if not self._config.samples:
            yield from examples
            return
        counts = Counter[bytes]()
        for example in examples:
            (row,) = example.rows
            key = hashlib.sha256(row["input_ids"].tobytes()).digest()
            fields = {"numbers": np.array(counts[key], np.uint32), "is_hidden": np.ones_like(row["masked_positions"])}
            counts[key] += 1
            yield example._replace(rows=[{**row, **fields}])

    @property
    def language_models(self) -> Sequence[LanguageModel]:
        return language_models(self._model_config, self._config.objective, self._config.masking)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The numbers of predicted tokens and of pairs; google-research/bert takes the mean over each.

        With causal rows, the means over hidden tokens and over causal rows have the shares of rows as weights, or both
        have the number of all predictions; see `MaskingConfig.causal_mean`.
        """
        names = {self._config.objective: "masked_weights", "next_sentence": "next_sentence_weights"}
        totals = {term: jnp.maximum(jnp.sum(batch[name]), 1) for term, name in names.items() if name in batch}
        if "causal_rows" not in batch:
            return totals
        if self._config.masking.causal_mean == "pooled":
            return {**totals, "causal_lm": totals["masked_lm"]}
        share = jnp.mean(batch["causal_rows"], dtype=jnp.float32)
        count = jnp.sum(batch["masked_weights"] * batch["causal_rows"][:, None])
        masked = jnp.maximum(jnp.sum(batch["masked_weights"]) - count, 1)
        return {"masked_lm": masked / (1 - share), "causal_lm": jnp.maximum(count, 1) / share}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Cross-entropies of the predicted tokens and of the next sentence; see `TrainingTask.loss`.

        The metric "masked_lm_bound" of weighted updates is the bound of the negative log-likelihood per token.
        """
        batch, first_rows = causal_rows_first(batch, self._phases)
        positions, labels, weights, is_causal, sources = targets(batch, self._phases)
        output = self.apply(params, batch, rng, positions, first_rows=first_rows)
        terms = {self._config.objective: weights}
        if "causal_rows" in batch:
            terms = {"masked_lm": weights * ~is_causal, "causal_lm": weights * is_causal}
        sums, metrics = scored(output.masked_lm_logits, labels, terms, self.sources(batch, sources))
        if output.next_sentence_logits is not None and "next_sentence_labels" in batch:
            of_pairs = batch["next_sentence_weights"]
            pairs = output.next_sentence_logits, batch["next_sentence_labels"], {"next_sentence": of_pairs}
            more = scored(*pairs, self.sources(batch, source_of(batch, of_pairs)))
            sums = {**sums, **more[0]}
            metrics = {**metrics, **more[1]}
        if self._config.masking.is_bound and not is_evaluated(batch):
            metrics = {name.replace("masked_lm_loss", "masked_lm_bound"): metric for name, metric in metrics.items()}
        return sums, {"tokens": num_tokens(batch), **metrics, **self.source_metrics(batch)}

    def predictions(self, output: Any, batch: Batch) -> bert.Predictions:
        return bert.Predictions(output.masked_lm_logits, batch["masked_weights"], "classification")

    def score_names(self) -> Sequence[str]:
        """Those of `loss` in evaluations, if they differ from those of updates."""
        if not self._config.masking.is_mixed:
            return ()
        terms = ("masked_lm", *(["next_sentence"] if self._config.data.next_sentence else []))
        return [f"{term}_{name}" for term in terms for name in ("loss", "accuracy")]

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The most probable tokens at each masked position [B, P, 5]; the probability of the next sentence [B].

        With "masked_labels", also their losses [B, P]. Rows of `numbered` have samples [B, n, P] instead, with the
        log_bounds [B, n] of `Denoised`.
        """
        if "is_hidden" in batch:
            return self._sampled(params, batch)
        output = self.apply(params, batch, None, batch["masked_positions"])
        # A published table may have more rows than its vocabulary has tokens, and a vocabulary ids without tokens.
        has_token = self._has_token
        distribution = jax.nn.softmax(output.masked_lm_logits)[..., : len(has_token)]
        top = min(_TOP, int(has_token.sum()))
        probabilities, tokens = jax.lax.top_k(jnp.where(has_token, distribution, -1.0), top)
        result = {"probabilities": probabilities, "tokens": tokens}
        if "masked_labels" in batch:
            result["losses"] = cross_entropy(output.masked_lm_logits, batch["masked_labels"])
        if output.next_sentence_logits is not None:
            result["is_next"] = jax.nn.softmax(output.next_sentence_logits)[:, 0, 0]
        return result

    @property
    def _has_token(self) -> np.ndarray:
        return np.array([token != "" for token in self._tokenizer.vocab])

    def _sampled(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        config = self._config.decoding
        ids = self._tokenizer
        special = (ids.pad_id, ids.unk_id, ids.cls_id, ids.sep_id, ids.mask_id)
        allowed = np.zeros(self._model_config.vocab_size, bool)
        allowed[: len(self._has_token)] = self._has_token
        allowed[np.array([token for token in special if token is not None])] = False
        keys = row_keys(config.seed, batch["input_ids"], batch["segment_ids"], batch["numbers"])
        keys = jax.vmap(lambda key: jax.random.split(key, config.num_samples))(keys).reshape(-1)
        rows = {name: jnp.repeat(array, config.num_samples, axis=0) for name, array in batch.items()}
        predicted = rows["masked_positions"]

        def predict(ids: jax.Array) -> jax.Array:
            output = self.apply(params, {**rows, "input_ids": ids}, None, predicted)
            return jnp.where(allowed, output.masked_lm_logits, -jnp.inf)

        positions = predicted - self._config.shift
        samples = denoise(predict, rows["input_ids"], positions, rows["is_hidden"] != 0, keys, config)
        shape = len(batch["input_ids"]), config.num_samples
        return {"samples": samples.tokens.reshape(*shape, -1), "log_bounds": samples.log_bounds.reshape(shape)}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The most probable tokens of each [MASK]. Positions count from [CLS], which is 0.

        `is_next_probability` is null without a second segment.
        """
        (texts, _), positions = example.source
        (output,) = outputs
        if "samples" in output:
            return {"text": "\t".join(texts), "samples": self._sample_records(example, output)}
        masks = [
            {
                "position": position,
                "tokens": self._tokenizer.names(tokens),
                "probabilities": [round(float(p), 6) for p in probabilities],
            }
            for position, tokens, probabilities in zip(
                positions, output["tokens"].tolist(), output["probabilities"].tolist(), strict=False
            )
        ]
        is_next = round(float(output["is_next"]), 6) if len(texts) > 1 and "is_next" in output else None
        return {"text": "\t".join(texts), "masks": masks, "is_next_probability": is_next}

    def _sample_records(self, example: Example, output: Output) -> list[dict[str, Any]]:
        """The texts of samples, with log bounds in nats, and the entropies in nats of their tokens' frequencies."""
        (row,) = example.rows
        positions = np.array(example.source.extra)
        records = []
        for tokens, log_bound in zip(output["samples"][:, : len(positions)], output["log_bounds"], strict=True):
            ids = row["input_ids"].copy()
            ids[positions] = tokens
            _, counts = np.unique(tokens, return_counts=True)
            shares = counts / counts.sum()
            entropy = -float((shares * np.log(shares)).sum())
            text = self._tokenizer.decode(ids.tolist())
            records.append({"text": text, "log_bound": round(float(log_bound), 4), "entropy": round(entropy, 4)})
        return records

    def record_fields(self) -> Sequence[str]:
        if self._config.samples:
            return ("text", "samples")
        return ("text", "masks", "is_next_probability")

    def samples(self, params: Params, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """An attention mask, and the samples of `BertTask`; see `TrainingTask.samples`."""
        segments = self.held_out_batch(data)["segment_ids"]
        lengths = np.sum(segments == 1, axis=1)  # 0 for rows that pad the batch
        # The row with the shortest first instance has the most room for others.
        fewest = np.argmin(np.where(lengths, lengths, np.inf))
        yield samples.mask(segments[fewest], self._model_config.direction)
        yield from super().samples(params, data, infer)

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        (row,) = example.rows
        source, labels, is_next = example.source
        record = self.record(Example([row], source), outputs)
        names = self._tokenizer.names(labels)
        losses = [round(loss, 4) for loss in outputs[0]["losses"][: len(names)].tolist()]
        masks = [
            {**mask, "label": name, "loss": loss}
            for mask, name, loss in zip(record["masks"], names, losses, strict=True)
        ]
        words = self._tokenizer.names(row["input_ids"].tolist())
        follows = {"is_next": is_next, "is_next_probability": record["is_next_probability"]}
        return {"kind": "masks", "masks": masks, "words": words, **follows, "loss": float(np.mean(losses))}

    def shown(self, data: contract.Data) -> Iterator[Example]:
        """The first instance of each row of a validation batch, the shortest first; skips those without masks."""
        batch = self.held_out_batch(data)
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
                positions = (asked[chosen] - self._config.shift).tolist()
                texts = Texts(("",) * (1 + is_pair))  # the record has the words
                labels = batch["masked_labels"][i, chosen].tolist()
                source = inputs.Source(texts, positions), labels, is_next
                masked = {"masked_positions": asked[chosen], "masked_labels": batch["masked_labels"][i, chosen]}
                yield Example([{**row, **masked}], source)
