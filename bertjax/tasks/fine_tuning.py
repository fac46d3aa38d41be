"""What all fine-tuning has in common: its config, lengths in epochs, and models and rows of BERT's three inputs."""

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config import Constrained, Count, DropoutRate, Seed, Size, build_all
from bertjax.contract import Batch, Example, Params
from bertjax.data.rows.buckets import bucket_lengths, examples_in
from bertjax.data.text.vocabularies import is_bare
from bertjax.errors import UserError
from bertjax.models.bert import BertConfig, BertInputs

_log = logging.getLogger(__name__)
_MOST_PADDING = 128  # embeddings without a token, which some have to fill up a multiple of that
_INPUTS = ("input_ids", "token_type_ids", "segment_ids")
# Keys of `model` for what knows nothing of packed rows.
_NOT_PACKED = ("lstm_size", "feature_layers")


@dataclasses.dataclass(frozen=True)
class WarmStartConfig(Constrained):
    """The keys of the config that every experiment reads which trains a BERT further.

    Attributes:
      experiment: the name of its file.
      init_from: a Hugging Face folder, a checkpoint of Google's or a run of ours to begin with; or "".
      seed: of parameters, the order of rows, dropout, and whatever else is drawn.
      batch_size: rows of an update, over all devices and micro-batches.
      model: fields of `BertConfig` and of the head.
      data: which rows, and how they are encoded.
    """

    experiment: str
    init_from: str
    seed: Seed
    batch_size: Size
    model: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(WarmStartConfig):
    """The keys of those that count epochs; see `resolve_lengths`.

    Attributes:
      num_epochs: how often training goes through the rows, where `num_steps` is not set.
      warmup_fraction: which fraction of the updates is warm-up, where `optimizer.warmup_steps` is not set.
    """

    num_epochs: float
    warmup_fraction: float


@dataclasses.dataclass(frozen=True)
class HeadConfig(Constrained, prefix="model"):
    """What classifies on top of the encoder; see `bertjax.models.heads`.

    Attributes:
      classifier_dropout: on what the classifier reads.
      lstm_size: width of each direction of a BiLSTM on top of the encoder; 0 for none.
    """

    classifier_dropout: DropoutRate
    lstm_size: Count


def resolve_lengths(config: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """Fills in what a config leaves open: `num_steps`, the warm-up, and when to evaluate and to save.

    These become `num_epochs`, the fraction `warmup_fraction` of that, and once an epoch.

    Args:
      config: with those keys.
      num_rows: of an epoch.
    Raises:
      UserError: a run of no update, or a fraction that is none.
    """
    if not 0 < config["num_epochs"] < math.inf:
        got, expected = config["num_epochs"], "a number above 0"
        raise UserError("config key num_epochs", got=got, expected=expected, fix="use 3.0, as BERT does")
    if not 0 <= config["warmup_fraction"] <= 1:
        got = config["warmup_fraction"]
        raise UserError("config key warmup_fraction", got=got, expected="0 to 1", fix="use 0.1, as BERT does")
    steps_per_epoch = -(-num_rows // max(config["batch_size"], 1))
    resolved = {**config, "optimizer": dict(config["optimizer"]), "checkpoint": dict(config["checkpoint"])}
    _fill(resolved, "num_steps", max(1, round(config["num_epochs"] * steps_per_epoch)))
    _fill(resolved["optimizer"], "warmup_steps", round(config["warmup_fraction"] * resolved["num_steps"]))
    _fill(resolved, "evaluate_every", max(1, min(steps_per_epoch, resolved["num_steps"])))
    _fill(resolved["checkpoint"], "save_every", max(1, resolved["evaluate_every"]))
    return resolved


def _fill(tree: dict[str, Any], key: str, value: int) -> None:
    """Sets what is not set; a 0 is, and is told of where it is read."""
    if tree[key] is None:
        tree[key] = value


@runtime_checkable
class HasModel(Protocol):
    """The config of an experiment with a BERT, which may have nothing to train."""

    @property
    def init_from(self) -> str:
        """A folder with weights, or ""."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Fields of `BertConfig` and of what is on top of it."""


def model_configs(config: HasModel, head: type, vocab: Sequence[str]) -> tuple[BertConfig, Any]:
    """The encoder's configuration, and that of the head on top of it.

    Args:
      config: whose `model` has the fields of both.
      head: the dataclass of the head.
      vocab: the vocabulary, as large as the model's where `model.vocab_size` does not say another size.
    Raises:
      UserError: a key that neither knows or that is missing, or a value out of range.
    """
    size = len(vocab)
    values = {**config.model, "vocab_size": config.model.get("vocab_size") or size, "next_sentence": False}
    bert, found = build_all((BertConfig, head), values, "model")
    if size > bert.vocab_size:
        raise UserError(
            "config key data.vocab_file",
            got=f"{size} tokens",
            expected=f"at most {bert.vocab_size}, model.vocab_size",
            fix="restore the vocabulary that the weights in init_from were trained with"
            if config.init_from
            else "leave out --config.model.vocab_size, which follows from the vocabulary",
        )
    if bert.vocab_size - size > _MOST_PADDING and not is_bare(vocab):
        _log.warning(
            "data.vocab_file has %d tokens for %d embeddings: is it that of the weights?", size, bert.vocab_size
        )
    return bert, found


def check_two_segments(config: BertConfig) -> None:
    """Raises UserError for a BERT without a token type for each of two texts."""
    if config.type_vocab_size < 2:
        raise UserError(
            "config key model.type_vocab_size",
            got=config.type_vocab_size,
            expected="at least 2, a token type for each of two segments",
            fix="begin with a BERT that has them",
        )


def init(model: nn.Module, rng: jax.Array) -> Params:
    """Fresh parameters of a model that takes BERT's inputs."""
    ids = jnp.zeros((1, 1), jnp.int32)
    return model.init(rng, BertInputs(ids, ids, ids), deterministic=True)["params"]


def apply(model: nn.Module, params: Params, batch: Batch, rng: jax.Array | None) -> Any:
    """Returns the output of a model that takes BERT's inputs; without `rng`, dropout is off."""
    rngs = {} if rng is None else {"dropout": rng}
    return model.apply({"params": params}, BertInputs.of(batch), deterministic=rng is None, rngs=rngs)


def batch_specs(
    shapes: Iterable[tuple[int, int]], of_tokens: Mapping[str, Any], of_rows: Mapping[str, Any]
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and type of each field of a batch; see `Task.batch_specs`.

    Args:
      shapes: rows and lengths that a batch may have, see `shapes`.
      of_tokens: types of what tokens have beside BERT's inputs.
      of_rows: types of what rows have.
    """
    of_tokens = {**dict.fromkeys(_INPUTS, np.int32), **of_tokens}
    of_rows = {**of_rows, "weights": np.float32}
    return [
        {name: jax.ShapeDtypeStruct(shape, kind) for name, kind in of_tokens.items()}
        | {name: jax.ShapeDtypeStruct(shape[:1], kind) for name, kind in of_rows.items()}
        for shape in shapes
    ]


def training_specs(
    batch_size: int, length: int, packing: bool, of_tokens: Mapping[str, Any], of_examples: Mapping[str, Any]
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and type of each field of `packed_rows.training_batches`; see `Task.batch_specs`.

    Args:
      batch_size, length, packing: as there.
      of_tokens: types of what tokens have beside BERT's inputs.
      of_examples: types of what examples have.
    """
    if not packing:
        return batch_specs(shapes(batch_size, length), of_tokens, of_examples)
    of_tokens = {**dict.fromkeys((*_INPUTS, "position_ids"), np.int32), **of_tokens}
    of_examples = {**of_examples, "cls_positions": np.int32, "weights": np.float32}
    places = batch_size, examples_in(length)
    return [
        {name: jax.ShapeDtypeStruct((batch_size, length), kind) for name, kind in of_tokens.items()}
        | {name: jax.ShapeDtypeStruct(places, kind) for name, kind in of_examples.items()}
    ]


def check_packing(packing: bool, model: Mapping[str, Any]) -> None:
    """Raises UserError if rows are to be packed for a model that reads on from one example into the next.

    Args:
      packing: whether they are.
      model: the config's.
    """
    wrong = [f"model.{key}={model[key]}" for key in _NOT_PACKED if model.get(key)]
    if packing and wrong:
        raise UserError(
            "config key data.packing",
            got=f"True with {', '.join(wrong)}",
            expected="False, or a classifier on BERT itself: a BiLSTM reads on from one example of a row into the next",
            fix="leave out --config.data.packing, or that",
        )


def shapes(batch_size: int, seq_len: int) -> list[tuple[int, int]]:
    """As many rows of each bucket's length."""
    return [(batch_size, length) for length in bucket_lengths(seq_len)]


def example(rows: Sequence[Mapping[str, np.ndarray]], source: Any) -> Example:
    """An example whose rows have BERT's inputs, `segment_ids` among them."""
    return Example([{**row, "segment_ids": np.ones(len(row["input_ids"]), np.int32)} for row in rows], source)
