"""Records for a run's page: attention of BERT, position embeddings, and attention masks.

Shapes: L layers, N heads, S tokens of a row, P positions, H hidden size.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.contract import Attended, Example, Params
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.models.attention.mask import as_array, make_mask
from bertjax.models.bert import Bert, BertConfig, BertInputs

ATTENDED = 3  # examples whose attention is shown
_TOKENS = 64  # the maximum length of an example that fits the page
_POSITIONS = 128


def is_shown(number: int, example: Example) -> bool:
    """Returns whether to show an example's attention: only the first ones with one short row, in a single process."""
    is_short = len(example.rows) == 1 and len(example.rows[0]["input_ids"]) <= _TOKENS
    return number < ATTENDED and is_short and jax.process_count() == 1


def lengths(example: Example) -> dict[str, Any]:
    """Returns the number of "tokens" of an example and, if it has several rows, the "row_tokens" of each."""
    row_tokens = [len(row["input_ids"]) for row in example.rows]
    return {"tokens": sum(row_tokens), **({"row_tokens": row_tokens} if len(row_tokens) > 1 else {})}


def attention(
    number: int, example: Example, params: Params, config: BertConfig, tokenizer: EncoderTokenizer
) -> dict[str, dict[str, Attended]]:
    """Returns the attention weights of an example as a part of its record; nothing unless `is_shown`.

    Args:
      number: the number of the example, from 0.
      example: an example with BERT's inputs.
      params: the parameters of a model with a BERT named `bert`.
      config: the configuration of that BERT.
      tokenizer: its tokenizer.
    """
    if not is_shown(number, example):
        return {}
    (row,) = example.rows
    count = len(row["input_ids"])
    length = min(_TOKENS, config.max_positions)
    # Padded to one length, so that all examples share one compiled program.
    inputs = BertInputs(
        *(
            jnp.asarray(np.pad(array, (0, length - count))[None])
            for array in (row["input_ids"], row["token_type_ids"], np.ones(count, np.int32))
        )
    )
    weights = _weights(config, params["bert"], inputs)
    words = tokenizer.names(row["input_ids"].tolist())
    return {"attention": {"encoder": Attended(np.asarray(weights)[:, 0, :, :count, :count], words, words)}}


@functools.partial(jax.jit, static_argnums=0)
def _weights(config: BertConfig, params: Params, inputs: BertInputs) -> Float[Array, "L 1 N S S"]:
    model = Bert(dataclasses.replace(config, attention_backend="xla"))
    output = model.apply({"params": params}, inputs, deterministic=True, return_attention=True)
    return output.attention  # type: ignore[union-attr]


def positions(table: Float[Array, "P H"] | Float[np.ndarray, "P H"]) -> Iterator[dict[str, Any]]:
    """Yields two images, the embeddings of the first positions and their similarity. With several processes, none."""
    if jax.process_count() > 1:
        return
    values = np.asarray(table, np.float32)[:_POSITIONS]
    yield matrix("Position embeddings", "A row for each position, a column for each dimension.", values[:, :_POSITIONS])
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit = values / np.maximum(lengths, 1e-12)
    yield matrix("Similarity of positions", "The cosine of the embeddings of two positions.", unit @ unit.T)


def bert_positions(params: Params) -> Iterator[dict[str, Any]]:
    """Yields the images of `positions` for a model with a BERT named `bert`; none without learned positions."""
    table = params["bert"]["embeddings"].get("position_embeddings")
    return iter(()) if table is None else positions(table)


def mask(segments: Int[np.ndarray, " S"], direction: str) -> dict[str, Any]:
    """Returns an image of which token may attend to which; see `make_mask`."""
    allowed = as_array(make_mask(jnp.asarray(segments)[None], direction))
    caption = "Rows attend to the dark columns. Pale columns are other instances, padding or later tokens."
    return matrix("Attention mask of a row", caption, np.asarray(allowed)[0, 0])


def projection(vectors: Float[np.ndarray, "N F"]) -> Float[np.ndarray, "N 2"]:
    """Returns the coordinates of vectors on their first two principal axes, for a scatter plot.

    All axes together have a variance of 1, so that the variance of a column is the share of its axis. The largest
    coordinate of each axis is positive.
    """
    centered = vectors - vectors.mean(axis=0, dtype=np.float64)
    axes, lengths, _ = np.linalg.svd(centered, full_matrices=False)
    scale = np.sqrt(len(vectors)) / max(np.linalg.norm(lengths), 1e-12)
    points = np.zeros((len(vectors), 2))
    count = min(2, len(lengths))
    points[:, :count] = axes[:, :count] * lengths[:count] * scale
    return points * np.where(points.max(axis=0) < -points.min(axis=0), -1, 1)


def matrix(title: str, caption: str, values: np.ndarray) -> dict[str, Any]:
    """Returns the record of a matrix that the page draws as an image."""
    return {"kind": "matrix", "title": title, "caption": caption, "values": values}
