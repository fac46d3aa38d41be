"""What the updates of pretraining predict: the positions that the head reads, and the losses of their tokens."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from bertjax import meshes
from bertjax.contract import Batch, Metrics, Sums
from bertjax.data.pretraining.batch_config import BatchConfig
from bertjax.data.pretraining.noise import is_power_of_two, most_predictions
from bertjax.models.attention.mask import CausalRows
from bertjax.models.losses import cross_entropy, is_best
from bertjax.progress import log_once


def causal_rows_first(batch: Batch, phases: Mapping[int, BatchConfig]) -> tuple[Batch, CausalRows | None]:
    """Returns a batch with the causal rows of each device first, if their number is always the same.

    Kernels with one direction then compute them apart. Sums over rows do not depend on their order.
    """
    rows, size = batch["input_ids"].shape
    phase = phases[size]
    share = phase.masking.causal_share
    groups = meshes.row_groups(rows)
    block = rows // groups & -(rows // groups)
    is_fixed = not phase.masking.causal_stages and is_power_of_two(phase.batch_size // rows)
    if not (0 < share < 1 and is_fixed and share * block % 1 == 0) or is_evaluated(batch):
        return batch, None
    order = jnp.argsort(-batch["causal_rows"].reshape(groups, -1), axis=1)

    def sort(x: Array) -> Array:
        grouped = x.reshape(*order.shape, -1)
        return jnp.take_along_axis(grouped, order[..., None], axis=1).reshape(x.shape)

    return jax.tree.map(sort, dict(batch)), CausalRows(groups, round(share * rows / groups))


class Targets(NamedTuple):
    """The predictions of groups of rows, G = B for one row in each."""

    positions: Array  # [G, K] int: in the rows of the group, which follow one another
    labels: Array  # [G, K] int
    weights: Array  # [G, K] float32
    is_causal: Array  # [G, K] bool: whether the row is causal
    sources: Array | None  # [G, K] int: the source of the row; None without a mixture


def targets(batch: Batch, phases: Mapping[int, BatchConfig]) -> Targets:
    """Returns the predictions of a micro-batch.

    If their number differs between the rows, a group is the rows of a device, and K is the bound of their predictions:
    the head then reads about half of all positions at uniform rates.

    Args:
      batch: rows of every device.
      phases: the settings of a phase of training by the length of its rows.
    """
    weights = batch["masked_weights"]
    rows, size = batch["input_ids"].shape
    causal_rows = batch.get("causal_rows", jnp.zeros(rows, jnp.int32))
    is_causal = jnp.broadcast_to(causal_rows[:, None] != 0, weights.shape)
    by_row = Targets(batch["masked_positions"], batch["masked_labels"], weights, is_causal, source_of(batch, weights))
    phase = phases[size]
    if not phase.masking.is_mixed or is_evaluated(batch):
        return by_row
    groups = meshes.row_groups(rows)
    of_group = rows // groups
    most = of_group * size
    if is_power_of_two(phase.batch_size // rows):  # micro-batches of every 2^b-th row
        most = most_predictions(phase.masking, phase.capacity, of_group)
    if most == of_group * size:
        reason = f"the {of_group} rows of a device and micro-batch, or the numbers of these, are no power of two"
        log_once(f"the head reads all positions: {reason}, or most rows are causal")
    starts = jnp.arange(rows)[:, None] % of_group * size
    fields = by_row._replace(positions=by_row.positions + starts)
    grouped = jax.tree.map(lambda field: field.reshape(groups, -1), fields)
    places = jax.vmap(lambda weight: jnp.flatnonzero(weight, size=most, fill_value=0))(grouped.weights)
    is_real = jnp.arange(most) < jnp.sum(grouped.weights > 0, axis=1, keepdims=True)
    chosen = jax.tree.map(lambda field: jnp.take_along_axis(field, places, axis=1), grouped)
    return chosen._replace(weights=chosen.weights * is_real)


def source_of(batch: Batch, weights: Array) -> Array | None:
    """Returns the number of the source of each prediction, given their weights [B, P]; None without a mixture."""
    return jnp.broadcast_to(batch["sources"][:, None], weights.shape) if "sources" in batch else None


def is_evaluated(batch: Batch) -> bool:
    """Returns whether a batch of a run with mixed rows is one of its evaluations, which are not mixed."""
    return bool(batch["masked_weights"].shape[1] < batch["input_ids"].shape[1])


class Sources(NamedTuple):
    """The sources of predictions or rows of a mixture.

    Attributes:
      numbers: the number of each source [*n].
      names: the names of the sources.
      weights: in evaluations, the weights of the sources in the mean over them; otherwise empty.
    """

    numbers: Array
    names: tuple[str, ...]
    weights: tuple[int, ...]

    def sums(self, values: Array) -> Array:
        """Returns the sum of the values [*n] of each source."""
        is_of = self.numbers.reshape(-1, 1) == jnp.arange(len(self.names))
        return jnp.sum(values.reshape(-1, 1) * is_of, axis=0, dtype=jnp.float32)

    def metrics(self, name: str, sums: Array, counts: Array) -> Metrics:
        """Returns the metric "SOURCE/NAME" of each source."""
        return {f"{source}/{name}": (sums[i], counts[i]) for i, source in enumerate(self.names)}


def scored(
    logits: Float32[Array, "*n V"],
    labels: Int[Array, "*n"],
    weights: Mapping[str, Array],
    sources: Sources | None = None,
) -> tuple[Sums, Metrics]:
    """Returns the sums of cross-entropies, and the loss and the accuracy of each term.

    Args:
      logits: the logits of predictions.
      labels: the correct tokens or classes.
      weights: the weights of the predictions [*n], by the name of the term.
      sources: the sources of the predictions; None without a mixture.
    """
    # With flat rows, as in the head, XLA merges the reductions.
    logits = logits.reshape(-1, logits.shape[-1])
    labels = labels.ravel()
    losses = cross_entropy(logits, labels)
    is_right = is_best(logits, labels)
    sums = {}
    metrics: Metrics = {}
    for term, of_term in weights.items():
        of_term = of_term.ravel()
        values = {"loss": losses * of_term, "accuracy": is_right * of_term}
        sums[term] = jnp.sum(values["loss"])
        metrics |= {f"{term}_{name}": (jnp.sum(value), jnp.sum(of_term)) for name, value in values.items()}
        if sources:
            counts = sources.sums(of_term)
            metrics |= sources.metrics(f"{term}_loss", sources.sums(values["loss"]), counts)
            if sources.weights:
                factors = np.array(sources.weights, np.float32) * (len(sources.names) / sum(sources.weights))
                means = {name: (sources.sums(value) * factors, counts) for name, value in values.items()}
                metrics |= {f"{term}_{name}": mean for name, mean in means.items()}
    return sums, metrics


def num_tokens(batch: Batch) -> tuple[Array, Array]:
    """Returns the metric "tokens" of a batch."""
    return jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(())
