"""Shared code of all encoder-decoder models: inputs, loss, generation and scoring of given targets.

Shapes: B batch, S source length, T target length, V target vocabulary, n hypotheses.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertjax.config import Constrained, always, at_least, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums, TrainingTask
from bertjax.decoding.beam_search import beam_search
from bertjax.decoding.config import DecodingConfig, length_limits
from bertjax.decoding.forced import score_targets
from bertjax.decoding.hypotheses import Hypotheses
from bertjax.decoding.sampling import row_keys, sample
from bertjax.errors import UserError
from bertjax.models.decoder import Beams
from bertjax.models.encoder_decoder import EncoderDecoder, Seq2SeqInputs, Seq2SeqOutput
from bertjax.models.losses import cross_entropy, is_best, smoothed_cross_entropy
from bertjax.models.recurrent_seq2seq import RecurrentSeq2Seq
from bertjax.tasks import inputs

# Metrics of `loss` for given targets.
METRICS = ("nll", "perplexity", "token_accuracy")


class TargetIds(NamedTuple):
    """Special tokens of the target's vocabulary."""

    start: int  # the decoder's first input
    end: int
    pad: int
    unk: int | None = None  # None if every text can be encoded


@dataclasses.dataclass(frozen=True)
class SmoothingConfig(Constrained):
    """The settings of label smoothing; see `losses.smoothed_cross_entropy`.

    Attributes:
      label_smoothing: the probability taken from the label and given to other words; 0 for no smoothing.
      smoothing_denominator: which words share the probability of `label_smoothing`: "V", all, as torch; "V-1", all but
        the label, as fairseq; "V-2", all but label and padding, as PreSumm.
    """

    label_smoothing: Annotated[float, at_least(0, below=1)] = always(0.1)
    smoothing_denominator: Annotated[str, one_of("V", "V-1", "V-2")] = always("V-2")


def count(flags: Bool[Array, "*n"]) -> Float[Array, ""]:
    """Returns the number of true flags as a float."""
    return jnp.sum(flags, dtype=jnp.float32)


def decoder_inputs(labels: Int[Array, "B T"], segments: Int[Array, "B T"], start_id: int) -> Int[Array, "B T"]:
    """Returns the decoder's inputs to predict `labels`: in each segment a start token, then all labels but the last."""
    previous = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)))
    is_first = segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(is_first, start_id, previous)


def apply(
    model: nn.Module, params: Params, batch: Batch, start_id: int, rng: Array | None, return_attention: bool
) -> Seq2SeqOutput:
    """Returns the model's output for given targets. Dropout is off if `rng` is None.

    Args:
      model: a model with the methods of `Seq2Seq`.
      params: its parameters.
      batch: the fields of `Seq2SeqInputs` except `target_ids`, which follow from `labels` [B, T] in the batch.
      start_id: the decoder's first input.
      rng: for dropout, or None.
      return_attention: whether the output includes the attention weights.
    """
    target_ids = decoder_inputs(batch["labels"], batch["target_segment_ids"], start_id)
    output: Any = model.apply(
        {"params": params},
        Seq2SeqInputs.of(batch)._replace(target_ids=target_ids),
        deterministic=rng is None,
        return_attention=return_attention,
        rngs={} if rng is None else {"dropout": rng},
    )
    assert isinstance(output, Seq2SeqOutput)
    return output


def loss(
    logits: Float[Array, "B T V"], batch: Batch, config: SmoothingConfig, pad_id: int
) -> tuple[Float[Array, ""], Metrics]:
    """Returns the sum of the labels' losses, and metrics.

    The metrics are "tokens", the number of target tokens, and `METRICS`: "nll" is the loss without smoothing; for
    "perplexity" see `metric_log.means`.

    Args:
      logits: the logits of the word after each target token.
      batch: `labels` and `target_segment_ids` [B, T]; padding has no loss.
      config: the label smoothing.
      pad_id: the padding, which gets no probability from smoothing with the denominator "V-2".
    """
    # The output layer computes logits [B T, V]. In this shape, XLA merges the reductions over the vocabulary.
    logits = logits.reshape(-1, logits.shape[-1])
    labels = batch["labels"].ravel()
    is_token = batch["target_segment_ids"].ravel() != 0
    losses = smoothed_cross_entropy(logits, labels, config.label_smoothing, config.smoothing_denominator, pad_id)
    nll = jnp.sum(cross_entropy(logits, labels) * is_token)
    num_tokens = count(is_token)
    metrics = {
        "tokens": (num_tokens, jnp.ones(())),
        "nll": (nll, num_tokens),
        "perplexity": (nll, num_tokens),
        "token_accuracy": (count(is_best(logits, labels) & is_token), num_tokens),
    }
    return jnp.sum(losses * is_token), metrics


def generate(
    model: nn.Module,
    params: Params,
    batch: Batch,
    config: DecodingConfig,
    ids: TargetIds,
    seed: int,
    continues: Bool[Array, " V"] | None = None,
) -> Mapping[str, Array]:
    """Generates the `n_best` targets of each source: ids [B, n, T], lengths and scores [B, n].

    T is `config.max_length`, or the limit of a source of S tokens if that is smaller.

    Args:
      model, params: as in `apply`.
      batch: the source fields of `Seq2SeqInputs`, one source per row; `numbers` [B] if `numbered` added them.
      config: the settings of the search or the sampling.
      ids: special tokens.
      seed: seed of sampling. Samples depend only on the seed, the source and its number, not on the batch or the
        devices.
      continues: which ids continue the previous word; see `beam_search`. Sampling ignores it.
    """
    variables = {"params": params}
    sources = batch["input_ids"]
    segments = batch["segment_ids"]
    # The cache need not be longer than the limit of the longest source. `length_limits` rounds, so `ceil` is enough.
    limit = max(1, math.ceil(config.max_ratio * sources.shape[1]) + config.max_extra)
    config = dataclasses.replace(config, max_length=min(config.max_length, limit))
    min_lengths, max_lengths = length_limits(config, jnp.sum(segments != 0, axis=1))
    memory = model.apply(variables, Seq2SeqInputs.of(batch), deterministic=True, method="encode")

    def start(length: int) -> Any:
        return model.apply(variables, memory, width(config), length, method="start")

    def step(tokens: Array, cache: Any, beams: Beams) -> tuple[Array, Any]:
        return model.apply(variables, tokens, cache, beams, method="step")

    arguments: dict[str, Any] = {
        "start_ids": jnp.full(len(sources), ids.start, jnp.int32),
        "min_lengths": min_lengths,
        "max_lengths": max_lengths,
        "config": config,
        "eos_id": ids.end,
        "pad_id": ids.pad,
        "unk_id": ids.unk,
    }
    if config.method == "sampling":
        keys = row_keys(seed, sources, segments, batch.get("numbers"))
        return _outputs(sample(step, start, keys, **arguments))
    outputs = _outputs(beam_search(step, start, **arguments, continues=continues))
    return {**outputs, "limits": max_lengths} if config.force_eos else outputs


def width(config: DecodingConfig) -> int:
    """Returns the number of beams or samples per source that decoding processes at once."""
    return {"sampling": config.n_best, "beam_search": config.num_beams, "forced": 1}[config.method]


def score_given(
    model: nn.Module, params: Params, batch: Batch, config: DecodingConfig, ids: TargetIds
) -> Mapping[str, Array]:
    """Scores given targets. Returns the fields that `generate` returns: ids [B, 1, T], lengths and scores [B, 1].

    Args:
      model, params, batch: as in `apply`.
      config: the settings that determine scores.
      ids: special tokens.
    """
    logits = apply(model, params, batch, ids.start, None, return_attention=False).logits
    lengths = jnp.sum(batch["target_segment_ids"] != 0, axis=1)
    return _outputs(score_targets(logits, batch["labels"], lengths, config, ids.end))


class Seq2SeqTask(inputs.CodecInputs, TrainingTask):
    """A task whose model is an encoder-decoder.

    Attributes:
      loss_name: the name of the loss.
    """

    decodes = True
    loss_name: str
    _model: Any
    _decoding: DecodingConfig
    _ids: TargetIds

    def init(self, rng: jax.Array) -> Params:
        ids = jnp.zeros((1, 1), jnp.int32)
        rows = Seq2SeqInputs(ids, ids, ids, ids)
        return self._model.init(rng, rows, deterministic=True, return_attention=False)["params"]

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The number of target tokens."""
        return {self.loss_name: jnp.maximum(count(batch["target_segment_ids"] != 0), 1)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The label-smoothed cross-entropy, and the metrics of `loss`; see `TrainingTask.loss`."""
        output = apply(self._model, params, batch, self._ids.start, rng, return_attention=False)
        total, metrics = loss(output.logits, batch, self._config, self._ids.pad)
        return {self.loss_name: total}, metrics

    def width(self) -> int:
        return width(self._decoding)

    def is_complete(self, output: Output, rank: int) -> bool:
        """Returns whether a target of `generate` has an end token; others were truncated at their maximum length.

        Where the last possible token is always the end token, a target of the maximum length counts as truncated.

        Args:
          output: the output for one row.
          rank: which of its n targets, from 0.
        """
        length = output["lengths"][rank]
        is_cut = "limits" in output and length >= output["limits"]
        return bool(output["ids"][rank, length - 1] == self._ids.end and not is_cut)


def check_generates(config: DecodingConfig) -> None:
    """Raises UserError if the decoding method only scores given targets."""
    if config.method == "forced":
        fix = "set forced only with --mode=predict"
        expected = "beam_search or sampling, because targets have to be generated"
        raise UserError("config key decoding.method", got=config.method, expected=expected, fix=fix)


def _outputs(hypotheses: Hypotheses) -> Mapping[str, Array]:
    return {"ids": hypotheses.ids, "lengths": hypotheses.lengths, "scores": hypotheses.scores}


def numbered(examples: Iterable[Example], config: DecodingConfig) -> Iterator[Example]:
    """Yields the examples. If sampling depends on the line, adds to each row its number among all rows as `numbers`."""
    if config.method != "sampling" or not config.sample_by_line:
        yield from examples
        return
    numbers = itertools.count()
    for example in examples:
        yield example._replace(rows=[{**row, "numbers": np.array(next(numbers), np.uint32)} for row in example.rows])


def with_attention(model: EncoderDecoder | RecurrentSeq2Seq) -> EncoderDecoder | RecurrentSeq2Seq:
    """Returns the model with an attention backend that returns weights. Recurrent models have no backends."""
    if isinstance(model, RecurrentSeq2Seq):
        return model
    return EncoderDecoder(dataclasses.replace(model.config, attention_backend="xla"))
