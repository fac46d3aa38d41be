"""Minimal pairs (Warstadt et al. 2020): an acceptable and an unacceptable sentence, scored by a language model.

A masked language model scores a sentence by its pseudo-log-likelihood: the sum over its tokens of the log-probability
of the token where it is masked (Salazar et al. 2020). A causal model scores it by its log-likelihood. [CLS] and [SEP]
are not counted.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.contract import Batch, Example, Output, Params, View
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.minimal_pairs import Pair, SentenceCodec
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.models.bert import BertForMaskedLM, BertInputs
from bertjax.models.losses import cross_entropy
from bertjax.scoring.minimal_pairs import ScoredPair, accuracies
from bertjax.tasks.language_models import LanguageModel


class FloatModel(View):
    """A language model in float32, whatever the dtype of training."""

    def __init__(self, model: LanguageModel, lengths: Sequence[int]) -> None:
        # The kernels of cuDNN are for bfloat16 alone.
        config = dataclasses.replace(model.encoder, dtype="float32", attention_backend="auto")
        self._model = BertForMaskedLM(config)
        self._lengths = lengths

    def predict_lengths(self) -> Sequence[int]:
        return self._lengths

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        return infer(self._model, params, batch)


def codec(
    tokenizer: EncoderTokenizer, model: LanguageModel, method: str, columns: Columns | None = None
) -> SentenceCodec:
    """Returns the codec of sentences for a language model."""
    most = model.encoder.max_positions
    return SentenceCodec(tokenizer, most, method, model.objective == "causal_lm", model.shift, columns)


def examples(pairs: Iterable[Pair], codec: SentenceCodec) -> Iterator[Example]:
    """Yields the example of each pair: the rows of the good and of the bad sentence."""
    for pair in pairs:
        yield Example([*codec.rows(pair.good), *codec.rows(pair.bad)], pair)


def infer(model: nn.Module, params: Params, batch: Batch) -> dict[str, jax.Array]:
    """Returns the `log_probabilities` [B, P], float32, of the labels in rows of `SentenceCodec.rows`.

    Args:
      model: a `BertForMaskedLM`.
      params: its parameters.
      batch: the rows.
    """
    positions, labels = (
        jnp.reshape(batch[name], (len(batch["input_ids"]), -1)) for name in ("masked_positions", "masked_labels")
    )
    with jax.default_matmul_precision("highest"):  # by default, GPUs and TPUs multiply float32 in fewer bits
        logits = model.apply({"params": params}, BertInputs.of(batch), positions, deterministic=True)
    return {"log_probabilities": -cross_entropy(cast(jax.Array, logits), labels)}


def log_probabilities(rows: Sequence[Mapping[str, np.ndarray]], outputs: Sequence[Output]) -> np.ndarray:
    """Returns the log-probability of each token that the rows predict, in order, from the outputs of `infer`."""
    both = zip(rows, outputs, strict=True)
    parts = [output["log_probabilities"][: row["masked_labels"].size] for row, output in both]
    return np.concatenate(parts).astype(np.float64)


def labels(rows: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Returns the tokens whose log-probabilities the rows of a sentence predict, in order."""
    return np.concatenate([np.ravel(row["masked_labels"]) for row in rows])


def score(results: Iterable[tuple[Example, Sequence[Output]]]) -> dict[str, float]:
    """Returns the accuracies; see `scoring.minimal_pairs.accuracies`."""
    pairs = []
    for example, outputs in results:
        pair = example.source
        values = log_probabilities(example.rows, outputs)
        counts = sum(map(len, pair.good)), sum(map(len, pair.bad))
        sums = float(values[: counts[0]].sum()), float(values[counts[0] :].sum())
        pairs.append(ScoredPair(pair.groups, sums, counts))
    return accuracies(pairs)
