"""Replaced-token detection: a discriminator learns which tokens a generator has replaced (Clark et al. 2020, ELECTRA).

The generator is a small masked language model. Its samples replace the masked tokens.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax import contract
from bertjax.config import Constrained, above, always, at_least, build_part, one_of
from bertjax.contract import Batch, Example, Infer, Metrics, Output, Params, RowIndices, Sums
from bertjax.data import random
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.texts import TextCodec
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop import families
from bertjax.interop.published import Published
from bertjax.models.bert import BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.replaced_tokens import DISENTANGLED, BertForReplacedTokens, Corrupted, corrupt, sample, with_changes
from bertjax.tasks import bert, pretraining, samples
from bertjax.tasks.pretraining import PretrainingConfig, PretrainingData, PretrainingTask
from bertjax.tasks.targets import num_tokens, scored, source_of

_log = logging.getLogger(__name__)

FREE_AFTER_TRAINING = pretraining.FREE_AFTER_TRAINING
resolve = pretraining.resolve
open_vocabulary = bert.open_vocabulary
# The embeddings that generator and discriminator have in common, by `generator.embeddings`.
_SHARED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "shared": ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm"),
        "disentangled": DISENTANGLED,
        "separate": (),
    }
)
_KINDS = ("original", "replaced")


@dataclasses.dataclass(frozen=True)
class GeneratorConfig(Constrained, prefix="generator"):
    """The generator. Keys of `model` that are not listed here are those of the discriminator.

    Attributes:
      width: hidden size, heads and feed-forward size, as a fraction of the discriminator's (ELECTRA: 1/4 to 1/3), with
        embeddings of the discriminator's size; 0 for a discriminator alone, which can only predict.
      depth: layers, as a fraction of the discriminator's (ELECTRA: 1; DeBERTa-v3: 1/2, with width 1).
      embeddings: "shared", all but the map to the hidden size, as in ELECTRA; "disentangled", the discriminator adds
        learned changes to the generator's, which get no gradient from it (He et al. 2023, DeBERTa-v3); or "separate".
      temperature: the divisor of the logits that tokens are sampled from.
    """

    width: Annotated[float, at_least(0, at_most=1)] = always(0.25)
    depth: Annotated[float, above(0, at_most=1)] = always(1.0)
    embeddings: Annotated[str, one_of(*_SHARED)] = always("shared")
    temperature: Annotated[float, above(0)] = always(1.0)

    def of(self, model: HeadConfig) -> HeadConfig:
        """Returns the config of the generator of a discriminator."""
        scaled = ("hidden_size", "num_heads", "num_key_value_heads", "intermediate_size")
        model_sizes = {name: size for name in scaled if (size := getattr(model, name, 0))}
        sizes: dict[str, Any] = {name: max(1, round(self.width * size)) for name, size in model_sizes.items()}
        hidden = sizes["hidden_size"]
        heads = sizes["num_heads"]
        expected = f"a fraction of model.hidden_size={model.hidden_size} that its heads divide"
        self.check(hidden % heads == 0, "width", expected, got=f"{self.width}: {heads} heads for {hidden}")
        layers = max(1, round(self.depth * model.num_layers))
        embedding_size = 0 if model.word_size == hidden else model.word_size
        return dataclasses.replace(model, num_layers=layers, embedding_size=embedding_size, **sizes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PretrainingConfig):
    """The config keys that this experiment reads.

    Attributes:
      generator: the model that replaces tokens.
      discriminator_weight: the weight of the discriminator's loss; that of the generator's is 1.
    """

    generator: GeneratorConfig
    discriminator_weight: Annotated[float, at_least(0)] = always(50.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "False, because there are no labels of pairs"
        fix = "set --config.data.next_sentence=False"
        self.data.check(not self.data.next_sentence, "next_sentence", expected, fix=fix)
        is_plain = self.masking.predict_at == "same" and not any(self.masking.causal_shares)
        self.masking.check(is_plain, "predict_at", "same, and no causal rows, because hidden tokens are replaced")

    def codec(self, tokenizer: EncoderTokenizer) -> TextCodec:
        most = self.model.max_positions
        return TextCodec(tokenizer, most, Columns("data.text_field", [self.data.text_field]))

    def check_generator(self) -> None:
        """Raises UserError without a generator, which training and evaluation need."""
        self.generator.check(self.generator.width > 0, "width", "above 0, except to predict")


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Raises UserError if the config names no text or has no generator."""
    built = build_part(Config, config)
    built.data.check_source()
    built.check_generator()
    return bert.example_config(config)


class Data(PretrainingData[Config]):
    """Prepared text. Batches have `sampling_uniforms` [B, P], the random numbers of the samples."""

    def __init__(self, config: Config, folder: Path, published: Published | None) -> None:
        config.check_generator()
        super().__init__(config, folder, published)

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """Yields batches with random numbers.

        One depends on the seed, the update, the row of its batch, and the position; in an evaluation on
        the row of the split, so that it does not change with the size of batches.
        """
        is_training = split == "train"
        seed = self._config.seed if is_training else self._batch_config.valid.seed
        for number, batch in enumerate(super().batches(split, start, rows), start if is_training else 0):
            positions = batch["masked_positions"].astype(np.int64)
            times = len(positions) // len(rows)
            update, before = (number, 0) if is_training else (0, number * self._config.batch_size)
            of_rows = before + (rows[:, None] * times + np.arange(times)).reshape(-1, 1)
            places = np.broadcast_to(of_rows, positions.shape).ravel(), 1, positions.ravel()
            words = random.bits(seed, random.Stream.SAMPLING, update, *places)
            # The upper 24 bits are a float32 below 1.
            uniforms = (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
            yield {**batch, "sampling_uniforms": uniforms.reshape(positions.shape)}

    def baselines(self) -> Mapping[str, float]:
        """Those of `PretrainingData`, and those of the share of tokens that a unigram generator would replace.

        They are the loss and the accuracy of a discriminator that knows only this share.
        """
        costs = self.costs()
        if costs is None:
            return super().baselines()
        totals = np.zeros(2)
        for batch in self.batches("valid", 0, np.arange(self._config.batch_size)):
            unchanged = np.exp(-costs[batch["masked_labels"]])
            totals += np.sum((1 - unchanged) * batch["masked_weights"]), np.sum(batch["segment_ids"] != 0)
        share = totals[0] / totals[1]
        entropy = -share * np.log(share) - (1 - share) * np.log1p(-share)
        baselines = {"valid/replaced_entropy_loss": entropy, "valid/replaced_majority_accuracy": max(share, 1 - share)}
        return {**super().baselines(), **{name: float(value) for name, value in baselines.items()}}


class Task(PretrainingTask[Config]):
    """Trains a discriminator with a generator. The parameters `bert` are those of the discriminator."""

    architecture = "BertForPreTraining"

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        model = config.model.encoder(vocabulary.vocab)
        super().__init__(config, vocabulary, model, BertForReplacedTokens(model))
        self._has_generator = config.generator.width > 0
        self._generator_config = config.generator.of(model) if self._has_generator else model
        self._generator = BertForPreTraining(self._generator_config, predicts_next=False)

    def init(self, rng: jax.Array) -> Params:
        """`generator` lacks shared embeddings, and `changes` are 0."""
        params = super().init(rng)
        ids = jnp.zeros((1, 1), jnp.int32)
        if not self._has_generator:
            return params
        rows = BertInputs(ids, ids, ids)
        own_rng = jax.random.fold_in(rng, 1)
        generator = self._generator.init(own_rng, rows, ids, deterministic=True)["params"]
        shared = _SHARED[self._config.generator.embeddings]
        tables = params["bert"]["embeddings"]
        unshared = {name: tree for name, tree in generator["bert"]["embeddings"].items() if name not in shared}
        encoder = {name: tree for name, tree in generator["bert"].items() if name != "embeddings"}
        params["generator"] = {**generator, "bert": {**encoder, **({"embeddings": unshared} if unshared else {})}}
        if self._config.generator.embeddings == "disentangled":
            changes = {name: jnp.zeros_like(table) for name, table in tables.items() if name in shared}
            params["changes"] = {"embeddings": changes}
        return params

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        """The generator and what belongs to it, unless `init_from` is a run."""
        if published.is_run or not self._has_generator:
            return ()
        return ("generator", "changes") if self._config.generator.embeddings == "disentangled" else ("generator",)

    def inference_params(self, params: Params) -> Params:
        """Both models have all their embeddings."""
        if "changes" not in params:
            return params
        return jax.jit(lambda params: {**with_changes(params), "generator": self._of_generator(params)})(params)

    def _of_generator(self, params: Params) -> Params:
        """The parameters of the generator, with the shared embeddings."""
        generator = params["generator"]
        names = _SHARED[self._config.generator.embeddings]
        shared = {name: tree for name, tree in params["bert"]["embeddings"].items() if name in names}
        embeddings = {**shared, **generator["bert"].get("embeddings", {})}
        return {**generator, "bert": {**generator["bert"], "embeddings": embeddings}}

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        return [{**spec, "sampling_uniforms": spec["masked_weights"]} for spec in super().batch_specs()]

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The numbers of masked tokens and of all tokens that are not padding."""
        counts = {"masked_lm": batch["masked_weights"], "replaced": batch["segment_ids"] != 0}
        return {term: jnp.maximum(jnp.sum(weights), 1) for term, weights in counts.items()}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropies of the generator's and the discriminator's predictions; see `TrainingTask.loss`."""
        words = self._generate(params, batch, rng)
        of_words = batch["masked_weights"]
        sources = self.sources(batch, source_of(batch, of_words))
        sums, metrics = scored(words, batch["masked_labels"], {"masked_lm": of_words}, sources)
        corrupted = self._corrupted(words, batch)
        real = batch["segment_ids"] != 0
        logits = self.apply(params, {**batch, "input_ids": corrupted.input_ids}, rng)
        replaced = corrupted.is_replaced & real
        predicted = (logits > 0) & real
        loss = jnp.sum((jax.nn.softplus(logits) - logits * replaced) * real)
        sums["replaced"] = self._config.discriminator_weight * loss
        hits = jnp.sum(replaced & predicted, dtype=jnp.float32)
        tokens = num_tokens(batch)
        num_replaced = jnp.sum(replaced, dtype=jnp.float32)
        num_predicted = jnp.sum(predicted, dtype=jnp.float32)
        return sums, {
            "tokens": tokens,
            **metrics,
            "replaced_loss": (loss, tokens[0]),
            "replaced_accuracy": (jnp.sum((replaced == predicted) & real, dtype=jnp.float32), tokens[0]),
            "replaced_precision": (hits, num_predicted),
            "replaced_recall": (hits, num_replaced),
            "replaced_share": (num_replaced, tokens[0]),
            **self.source_metrics(batch),
        }

    def apply(self, params: Params, batch: Batch, rng: jax.Array | None, *arguments: Any) -> Array:
        """The logit of each token that it is replaced, [B, S]."""
        return super().apply(with_changes(params), batch, rng, *arguments)

    def _generate(self, params: Params, batch: Batch, rng: jax.Array | None) -> Array:
        """The generator's logits of all words at each masked position, [B, P, V]."""
        output = self._generator.apply(
            {"params": self._of_generator(params)},
            BertInputs.of(batch),
            batch["masked_positions"],
            deterministic=rng is None,
            rngs={} if rng is None else {"dropout": jax.random.fold_in(rng, 1)},
        )
        return output.masked_lm_logits  # type: ignore[union-attr]

    def _corrupted(self, logits: Array, batch: Batch) -> Corrupted:
        """The rows with samples from the generator's logits, through which no gradient passes."""
        # A published table may have more rows than its vocabulary has tokens.
        has_token = np.arange(logits.shape[-1]) < self._tokenizer.vocab_size
        logits = jnp.where(has_token, jax.lax.stop_gradient(logits), -jnp.inf)
        sampled = sample(logits, batch["sampling_uniforms"], self._config.generator.temperature)
        masked = batch["masked_positions"], batch["masked_labels"], batch["masked_weights"]
        return corrupt(batch["input_ids"], *masked, sampled)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The probability of each token that it is replaced [B, S]; of masked rows, after the generator replaced some.

        Of masked rows also the tokens that were read, and whether each is replaced.
        """
        more = {}
        if "masked_positions" in batch:
            more = self._corrupted(self._generate(params, batch, None), batch)._asdict()
            batch = {**batch, "input_ids": more["input_ids"]}
        return {"probabilities": jax.nn.sigmoid(self.apply(params, batch, None)), **more}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The tokens, and the probability of each that it is replaced."""
        (row,) = example.rows
        (output,) = outputs
        tokens = self._tokenizer.names(row["input_ids"].tolist())
        probabilities = [round(value, 6) for value in output["probabilities"][: len(tokens)].tolist()]
        return {"text": "\t".join(example.source.item.texts), "tokens": tokens, "probabilities": probabilities}

    def record_fields(self) -> Sequence[str]:
        return ("text", "tokens", "probabilities")

    def samples(self, params: Params, data: contract.Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields validation examples without attention."""
        for example, outputs in infer(self.shown(data)):
            yield self.sample(example, outputs)
        yield from samples.bert_positions(params)

    def shown(self, data: contract.Data) -> Iterator[Example]:
        """The rows of a validation batch, masked."""
        batch = self.held_out_batch(data)
        for i in np.flatnonzero(batch["segment_ids"].any(axis=1)):
            yield Example(
                [{name: array[i] for name, array in batch.items()}], int((batch["segment_ids"][i] == 1).sum())
            )

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record of the first instance of a row."""
        (output,) = outputs
        count = example.source
        predicted = output["probabilities"][:count] > 0.5
        true = output["is_replaced"][:count]
        kinds = ([_KINDS[int(flag)] for flag in row] for row in (predicted, true))
        words = self._tokenizer.names(output["input_ids"][:count].tolist())
        right = np.where(true, output["probabilities"][:count], 1 - output["probabilities"][:count])
        loss = -float(np.log(np.maximum(right, np.finfo(np.float32).tiny)).mean())
        return {"kind": "tags", "words": words, **dict(zip(("tags", "reference"), kinds, strict=True)), "loss": loss}

    def export(self, params: Params, folder: Path) -> None:
        """Writes the discriminator, and the generator into the subfolder `generator`.

        If ELECTRA has the discriminator's structure, `ElectraForPreTraining` opens it. Otherwise the folder has the
        encoder alone, in the form of its family.
        """
        config, family = self._of_electra(self._model_config)
        params = self.inference_params(params)
        names = ("bert", "discriminator") if family == "electra" else ("bert",)
        architecture = self.architecture if family == "electra" else "BertModel"
        if architecture == "BertModel":
            _log.warning("the discriminator's head is not exported: transformers has none like this encoder")
        self.save({name: params[name] for name in names}, folder, architecture, config=config, family=family)
        if self._has_generator:
            config, family = self._of_electra(self._generator_config)
            words = self._of_generator(params)
            inside = folder / "generator"
            try:
                self.save(words, inside, "BertForMaskedLM", config=config, family=family)
            except UserError as error:
                _log.warning("the generator is not exported: %s", error)

    def _of_electra(self, config: HeadConfig) -> tuple[HeadConfig, str]:
        """The config of the same ELECTRA and its family; or unchanged and "" if ELECTRA has no such encoder."""
        fixed = families.find("electra").fixed
        # A discriminator ignores these keys.
        same = dataclasses.replace(config, head="pooler", pooling="cls", pooler_activation=fixed["pooler_activation"])
        is_same = all(getattr(same, key) == value for key, value in fixed.items())
        return (same, "electra") if is_same else (config, "")
