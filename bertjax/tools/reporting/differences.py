"""The examples that two runs predict differently, with a test of the difference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.scoring import paired
from bertjax.tools.reporting import samples
from bertjax.tools.reporting.error_counts import mcnemar
from bertjax.tools.reporting.errors import FILE, WORST, is_right
from bertjax.tools.reporting.runs import read_lines
from bertjax.tools.reporting.tables import number, table

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def of_runs(runs: Mapping[str, Path]) -> dict[str, Any] | None:
    """Returns the examples that two runs predict differently; None if they share no predictions.

    Examples are equal if their texts and golds are. Where predictions are right or wrong, the test is McNemar's, exact;
    else the interval of the mean difference of losses.

    Args:
      runs: the folders of two runs, by name.
    Raises:
      UserError: if a line of a file is malformed.
    """
    paths = [folder / FILE for folder in runs.values()]
    if not all(path.exists() for path in paths):
        return None
    ours, theirs = ({record["digest"]: record for record in read_lines(path, names=("digest",))} for path in paths)
    shared = [(record, theirs[digest]) for digest, record in ours.items() if digest in theirs]
    pairs = [pair for pair in shared if None not in (pair[0]["loss"], pair[1]["loss"])]
    if not pairs:
        return None
    is_binary = is_right(pairs[0][0]) is not None
    unlike = [pair for pair in pairs if not is_binary or is_right(pair[0]) != is_right(pair[1])]
    farthest = sorted(unlike, key=lambda pair: -abs(_difference(pair)))[:WORST]
    rows = [{"cells": [number(_difference(pair)), *map(_cell, pair)]} for pair in farthest]
    result = _mcnemar(pairs, list(runs)) if is_binary else _mean(pairs)
    others = len(ours) + len(theirs) - 2 * len(shared)
    note = f"{result} Both runs predict {len(pairs):,} examples" + (
        f", and one of them {others:,} more." if others else "."
    )
    return {"kind": pairs[0][0]["kind"], "note": note, **table(("difference of losses", *runs), rows)}


def _difference(pair: Pair) -> float:
    return float(pair[0]["loss"] - pair[1]["loss"])


def _cell(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"sample": samples.view(record, f"{FILE}, digest {record['digest']}"), "value": None}


def _mcnemar(pairs: Sequence[Pair], names: Sequence[str]) -> str:
    """Returns the result of McNemar's test, with the four numbers of examples."""
    right = np.array([[bool(is_right(record)) for record in pair] for pair in pairs])
    only = [int(np.sum(right[:, side] & ~right[:, 1 - side])) for side in (0, 1)]
    both = int(right.all(axis=1).sum())
    neither = len(pairs) - both - sum(only)
    counts = ", ".join(f"only {name} {count:,}" for count, name in zip(only, names, strict=True))
    return f"Right: both {both:,}, {counts}, neither {neither:,}. McNemar's exact test: p = {mcnemar(*only):.2g}."


def _mean(pairs: Sequence[Pair]) -> str:
    losses = np.array([[record["loss"] for record in pair] for pair in pairs])
    mean, low, high, _ = paired.difference(losses[:, 0], losses[:, 1])
    return f"Mean difference of losses: {mean:.3g} ({paired.CONFIDENCE} % interval {low:.3g} to {high:.3g})."
