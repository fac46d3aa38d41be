"""The likelihood of text under a language model, in bits per byte.

For a causal model it is exact. For a masked one it is estimated from above: the mean over all orders in which an
instance's tokens could be predicted one by one, of the negative log-likelihood (Hoogeboom et al. 2022), estimated by
hiding k of n tokens, with k uniform on 1..n and all sets of k equally likely, and n / k as the weight of each hidden
token. Draws depend on the text alone, so evaluations and models share them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.contract import Example, Output
from bertjax.data import random
from bertjax.data.pretraining.masking import Draw, MaskingConfig, mask_tokens
from bertjax.data.readers.sources import Document
from bertjax.data.rows.stored import Row
from bertjax.data.rows.text_rows import segmented, text_row
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.tasks.language_models import LanguageModel

NUM_BANDS = 4
# Above this share of unknown tokens, the text that the ids stand for is not that which was read.
MOST_UNKNOWN = 0.001
_SEED = 0


class Instance(NamedTuple):
    """A part of a document that is predicted on its own.

    Attributes:
      document: the number of the document.
      start: the number of its tokens before the instance.
      ids: the tokens, without special tokens.
      num_bytes: of the first instance of a document, the bytes, in UTF-8, of the text that all of its ids decode to;
        of others 0. Decoded alone, a part would lose a space, or have a piece of a letter.
      num_unknown: how many of them are unknown.
    """

    document: int
    start: int
    ids: list[int]
    num_bytes: int
    num_unknown: int


def instances(documents: Iterable[Document], tokenizer: EncoderTokenizer, seq_len: int) -> Iterator[Instance]:
    """Yields the parts of documents, each of as many tokens as a row of `seq_len` has room for."""
    room = seq_len - tokenizer.template.num_special(1)
    for number, document in enumerate(documents):
        ids = [token for line in tokenizer.encode_batch(document.lines) for token in line]
        num_bytes = len(tokenizer.decode(ids).encode())
        for start in range(0, len(ids), room):
            part = ids[start : start + room]
            unknown = part.count(tokenizer.unk_id) if tokenizer.unk_id is not None else 0
            yield Instance(number, start, part, 0 if start else num_bytes, unknown)


def example(instance: Instance, models: Sequence[LanguageModel], tokenizer: EncoderTokenizer, draws: int) -> Example:
    """Returns the rows of an instance for each language model: `draws` masked ones, or a single causal one.

    With several models, rows have "causal_rows".
    """
    (row,) = segmented([text_row([instance.ids], tokenizer)])
    rows: list[Row] = []
    for model in models:
        is_causal = model.objective == "causal_lm"
        of_model = [_causal(row, model, tokenizer)] if is_causal else _masked(row, instance, model, tokenizer, draws)
        kind = {"causal_rows": np.array(is_causal, np.int32)} if len(models) > 1 else {}
        rows += [{**fields, **kind} for fields in of_model]
    return Example(rows, instance)


def _causal(row: Row, model: LanguageModel, tokenizer: EncoderTokenizer) -> Row:
    positions = _candidates(row, tokenizer)
    shifted = positions + np.int32(model.shift)
    return {**row, "masked_positions": shifted, "masked_labels": row["input_ids"][positions]}


def _candidates(row: Row, tokenizer: EncoderTokenizer) -> np.ndarray:
    first = len(tokenizer.template.start)
    count = len(row["input_ids"]) - tokenizer.template.num_special(1)
    return np.arange(first, first + count, dtype=np.int32)


def _masked(
    row: Row, instance: Instance, model: LanguageModel, tokenizer: EncoderTokenizer, draws: int
) -> Iterator[Row]:
    """Yields rows that hide shares of the tokens, one in each `draws`-th of (0, 1]."""
    where = np.full(draws, instance.document), np.full(draws, instance.start)
    shift = random.uniform(random.bits(_SEED, random.Stream.RATES, 1, where[0], 1, where[1])[0])
    ids = np.tile(row["input_ids"], (draws, 1))
    candidates = np.zeros(ids.shape, bool)
    candidates[:, _candidates(row, tokenizer)] = True
    config = MaskingConfig(
        mask_fraction=1.0,
        random_fraction=0.0,
        keep_fraction=0.0,
        distribution="uniform",
        loss_weight="inverse_rate",
        predict_at=model.predict_at,
    )
    for number in range(draws):
        hidden = mask_tokens(
            ids[number : number + 1],
            candidates[number : number + 1],
            np.array([ids.shape[1]]),
            config,
            is_continuation=tokenizer.is_continuation,
            mask_id=tokenizer.mask_id,
            draw=Draw(_SEED, number, *(part[:1] for part in where)),
            rates=(number + 1 - shift) / draws,
        )
        count = int((hidden.weights > 0).sum())
        fields = {f"masked_{name}": getattr(hidden, name)[0, :count] for name in ("positions", "labels")}
        yield {**row, "input_ids": hidden.input_ids[0], **fields}


def score(
    results: Sequence[tuple[Example, Sequence[Output]]], models: Sequence[LanguageModel], draws: int
) -> dict[str, float]:
    """Returns the metrics of all instances, from the outputs "log_probabilities" of their rows.

    "bits_per_byte" and "nats_per_token", the first also with the standard errors "_draws_error" and "_documents_error";
    the shares "likelihood/unknown" and the number of "likelihood/draws"; and the mean loss of hidden tokens by the
    share of them, "likelihood/rate_0.25" for those up to it. Figures of a second, causal model begin with "causal_".
    There are no bits per byte if too many tokens are unknown.
    """
    sources: list[Instance] = [example.source for example, _ in results]
    unknown = sum(source.num_unknown for source in sources) / sum(len(source.ids) for source in sources)
    metrics = {"likelihood/unknown": unknown, "likelihood/draws": float(draws)}
    first = 0
    for model in models:
        count = 1 if model.objective == "causal_lm" else draws
        parts = [
            [output["log_probabilities"][: row["masked_labels"].size].astype(np.float64) for row, output in rows]
            for rows in (list(zip(ex.rows, outputs, strict=True))[first : first + count] for ex, outputs in results)
        ]
        prefix = "causal_" if first else ""
        metrics |= {f"{prefix}{name}": value for name, value in _figures(sources, parts, unknown).items()}
        if count > 1:
            metrics |= _by_rate(sources, parts)
        first += count
    return metrics


def _figures(sources: Sequence[Instance], parts: list[list[np.ndarray]], unknown: float) -> dict[str, float]:
    """The figures of a model, from the log-probabilities of the rows of each instance."""
    weights = [len(source.ids) for source in sources]
    losses = np.array(
        [[-part.mean() * weight for part in of_instance] for weight, of_instance in zip(weights, parts, strict=True)]
    )
    nats = losses.mean(axis=1)
    figures = {"nats_per_token": float(nats.sum() / sum(weights))}
    if unknown > MOST_UNKNOWN:
        return figures
    sizes = np.array([source.num_bytes for source in sources], np.float64)
    scale = 1 / (math.log(2) * sizes.sum())
    figures["bits_per_byte"] = float(nats.sum() * scale)
    draws = losses.shape[1]
    if draws > 1:
        # Draws hide different shares of the tokens, so their variance is an upper bound of that of the mean.
        figures["bits_per_byte_draws_error"] = float(np.sqrt((losses.var(axis=1, ddof=1) / draws).sum()) * scale)
    totals: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(2))
    for source, of_instance, size in zip(sources, nats, sizes, strict=True):
        totals[source.document] += of_instance, size
    per_document = np.array(list(totals.values()))
    if (count := len(per_document)) > 1:
        residuals = per_document[:, 0] - per_document[:, 1] * nats.sum() / sizes.sum()
        spread = math.sqrt((residuals**2).sum() * count / (count - 1))
        figures["bits_per_byte_documents_error"] = float(spread * scale)
    return figures


def _by_rate(sources: Sequence[Instance], parts: list[list[np.ndarray]]) -> dict[str, float]:
    sums = np.zeros((NUM_BANDS, 2))
    for source, of_instance in zip(sources, parts, strict=True):
        for part in of_instance:
            band = math.ceil(len(part) / len(source.ids) * NUM_BANDS) - 1
            sums[band] += -part.sum(), len(part)
    return {
        f"likelihood/rate_{(band + 1) / NUM_BANDS:g}": float(total / count)
        for band, (total, count) in enumerate(sums)
        if count
    }
