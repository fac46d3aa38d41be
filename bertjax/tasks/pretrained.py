"""Starts a model with a BERT from the weights in `init_from`."""

import functools
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bertjax.config import choice
from bertjax.contract import Params
from bertjax.data.text.normalization import CONTINUATION
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop.huggingface import PROBLEM_TYPES
from bertjax.interop.published import Published
from bertjax.tasks.objectives import OBJECTIVES

_log = logging.getLogger(__name__)

_OF_TEXTS = ("classification", "reranker", "features")  # experiments with a classifier of texts
_TABLES = ("word_embeddings", "output_embeddings", "target_embeddings")  # parameters with a row for each token


def problem_of(published: Published) -> str | None:
    """Returns the problem of the objective that weights state, or the objective if it is of no classifier."""
    objective = OBJECTIVES.get(published.objective or "")
    return objective.problem if objective else published.objective


def is_alike(published: Published, is_multi_label: bool) -> bool:
    """Returns whether a classifier of texts, unless it states no objective, gives one class or any number of them."""
    problem_type = problem_of(published)
    return problem_type not in PROBLEM_TYPES or (problem_type == "multi_label") == is_multi_label


def has_classes(
    published: Published, labels: Sequence[str], is_multi_label: bool = False, experiment: str = "classification"
) -> bool:
    """Returns whether the classifier of a model can predict these classes, or a number if there are none.

    It must have the same names in the same order, or the same number of classes without names; and be a classifier of
    texts or, for another `experiment` that extends classification, of that experiment.
    """
    has_head = published.experiment in (_OF_TEXTS if experiment in _OF_TEXTS else (experiment,))
    if not has_head or not is_alike(published, is_multi_label):
        return False
    if not labels:  # a regression model has no class name, or a meaningless one
        return published.num_classes < 2
    if problem_of(published) == "regression":  # of several numbers
        return False
    if published.labels or published.num_classes != len(labels):
        return published.labels == tuple(labels)
    _log.warning("%s has no class names; assuming %s", published.path, ", ".join(labels))
    return True


class NewTokens(NamedTuple):
    """Tokens that a published vocabulary lacks.

    Attributes:
      first: the id of the first one, the size of the published vocabulary.
      replaced: the published tokens that each of them replaces, in the order of the new ids.
    """

    first: int
    replaced: Sequence[Sequence[int]]

    @classmethod
    def of(cls, published: EncoderTokenizer, tokenizer: EncoderTokenizer) -> "NewTokens | None":
        """Returns the tokens that an extended tokenizer has after the published ones; None if there are none.

        A token with nothing but unknown text replaces all published tokens alike.
        """
        first = published.vocab_size
        names = tokenizer.names(range(first, tokenizer.vocab_size))
        continues = tokenizer.is_continuation[first:]
        texts = [name.removeprefix(CONTINUATION) if c else f" {name}" for name, c in zip(names, continues, strict=True)]
        pieces = [[piece for piece in ids if piece != published.unk_id] for ids in published.encode_batch(texts)]
        return cls(first, [ids or range(first) for ids in pieces]) if texts else None


def warm_start(
    params: Params,
    published: Published,
    reinitialized: Sequence[str] = (),
    positions: str = "",
    tokens: NewTokens | None = None,
) -> Params:
    """Replaces parameters by published weights, and logs the modules that have none.

    Args:
      params: the random parameters of a model with a BERT named `bert`.
      published: the weights.
      reinitialized: modules that keep their random initialization even if there are weights of that name.
      positions: how to fill a position table that is longer than the weights', see `extend_positions`; "" if that is an
        error.
      tokens: the tokens that the published vocabulary lacks. Their rows are the means of those of the tokens that they
        replace (Koto et al. 2021, IndoBERTweet), so that no new token is likelier than the likeliest of these.
    Raises:
      UserError: if weights are missing, damaged, or have other shapes.
    """
    if tokens:
        rows = jnp.arange(published.model["vocab_size"])
        short = _map_vocabulary(lambda table: _rows(table, rows), params)
        started = warm_start(short, published, reinitialized, positions)
        return _map_vocabulary(functools.partial(_with_tokens, tokens), params, short, started)
    wanted = {name: tree for name, tree in params.items() if name not in reinitialized}
    if positions and "position_embeddings" in params["bert"]["embeddings"]:
        learned = min(published.model["max_positions"], len(_positions(params)))
        wanted = _with_positions(wanted, _rows(_positions(wanted), jnp.arange(learned)))
        started = {**params, **_load(wanted, published, reinitialized)}
        return extend_positions(started, learned, len(_positions(params)), positions)
    return {**params, **_load(wanted, published, reinitialized)}


def with_layers(params: Params, empty: Params, weights: Params, places: Sequence[int]) -> Params:
    """Replaces parameters by those of another model, and the layers of the encoder by some of its layers.

    Args:
      params: the random parameters of a model with a BERT named `bert`.
      empty: the other model's parameters before its weights were loaded.
      weights: its parameters; those without weights are those in `empty`.
      places: for each layer of `params`, its row in the stacked layers of `weights`.
    Raises:
      UserError: if the encoders differ in a shape.
    """
    has_weights = traverse_util.flatten_dict(jax.tree.map(operator.is_not, empty, weights), sep="/")
    values = traverse_util.flatten_dict(weights, sep="/")
    result = {}
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        value = values.get(path, leaf)
        if path.startswith("bert/encoder/layers/") and len(leaf) == len(places):  # else groups share parameters
            value = value[jnp.array(places)]
        if path.startswith("bert/") and value.shape != leaf.shape:
            got = f"{path} of shape {leaf.shape}"
            fix = "omit the sizes of model other than num_layers, or distillation.init_layers"
            expected = f"{value.shape}, as in the teacher"
            raise UserError("config key distillation.init_layers", got=got, expected=expected, fix=fix)
        result[path] = value if has_weights.get(path) and value.shape == leaf.shape else leaf
    tree: Params = traverse_util.unflatten_dict(result, sep="/")
    return tree


def _load(wanted: Params, published: Published, reinitialized: Sequence[str]) -> Params:
    """Returns the wanted parameters, with the published weights where there are any."""
    params, missing = published.load(wanted)
    path = published.path
    for name in (*missing, *reinitialized):
        _log.warning("module %s keeps its random initialization: %s has no weights for it in this task", name, path)
    return params


def extend_positions(params: Params, learned: int, max_positions: int, how: str) -> Params:
    """Extends the position table of a model with a BERT named `bert` by copies of its first rows.

    Args:
      params: the parameters of the model.
      learned: the number of rows, from the first on, to keep.
      max_positions: the number of rows after the extension.
      how: "repeat_last": all new rows are copies of the last one, as in PreSumm. "tile": the new rows repeat all kept
        rows, so that attention to nearby tokens works at any position from the start (as Longformer begins: Beltagy et
        al. 2020, section 5).
    Raises:
      UserError: for an unknown `how`, or fewer positions than are kept.
    """
    choice(how, ("repeat_last", "tile"), "positions")
    if learned > max_positions:
        expected = f"at least {learned}, the positions of the pretrained model"
        fix = "raise it; a model with more positions can also process shorter rows"
        raise UserError("config key model.max_positions", got=max_positions, expected=expected, fix=fix)
    rows = jnp.arange(max_positions)
    rows = jnp.minimum(rows, learned - 1) if how == "repeat_last" else rows % learned
    return _with_positions(params, _rows(_positions(params), rows))


def copy_positions(tree: Params, learned: int, count: int) -> Params:
    """Replaces rows of the position table, and of the optimizer's moments of it, by copies of the first rows, in order.

    Args:
      tree: parameters, the state of an optimizer, or both. Without a position table, nothing changes.
      learned: the number of rows, from the first on, to keep and copy.
      count: the number of rows that they fill. Later rows do not change.
    """

    def copied(path: tuple[Any, ...], leaf: Any) -> Any:
        if getattr(path[-1], "key", None) != "position_embeddings":
            return leaf
        rows = jnp.tile(leaf[:learned], (-(-count // learned), 1))
        return jnp.concatenate([rows[:count], leaf[count:]])

    return jax.tree_util.tree_map_with_path(copied, tree)


def _map_vocabulary(change: Callable[..., Any], *trees: Params) -> Params:
    """Applies a function to the parameters that have a row for each token, and keeps the others of the last tree."""

    def changed(path: tuple[Any, ...], *leaves: Any) -> Any:
        names = tuple(getattr(key, "key", None) for key in path)
        is_bias = names == ("bias",) or names[-2:] == ("masked_lm", "bias")  # of the decoder, of the masked-LM head
        return change(*leaves) if is_bias or names[-1] in _TABLES else leaves[-1]

    return jax.tree_util.tree_map_with_path(changed, *trees)


def _with_tokens(tokens: NewTokens, table: Any, short: Any, started: Any) -> Any:
    """Returns weights with rows of new tokens; `table` if there are no weights, so that `short` did not change."""
    if started is short:
        return table

    first, replaced = tokens
    count = len(replaced)
    sizes = np.array(list(map(len, replaced)), np.float32)
    pieces = np.concatenate(replaced)
    owners = np.repeat(np.arange(count), sizes.astype(int))

    def extended(rows: Any) -> Any:
        sums = jax.ops.segment_sum(rows[pieces], owners, count)
        means = sums / sizes.reshape(-1, *[1] * (rows.ndim - 1))
        padding = rows[first + count :]
        return jnp.concatenate([rows[:first], means, padding])[: len(table)]

    return jax.jit(extended)(started)


def _positions(params: Params) -> Any:
    return params["bert"]["embeddings"]["position_embeddings"]


def _with_positions(params: Params, table: Any) -> Params:
    embeddings = {**params["bert"]["embeddings"], "position_embeddings": table}
    return {**params, "bert": {**params["bert"], "embeddings": embeddings}}


def _rows(table: Any, rows: jax.Array) -> jax.Array:
    # Compiled, so that indexing also works for a table that is sharded over processes.
    return jax.jit(lambda table: table[rows])(table)
