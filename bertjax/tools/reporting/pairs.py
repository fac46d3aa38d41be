"""Lays out the accuracies on minimal pairs as a bar for each phenomenon."""

import re
from collections.abc import Mapping
from typing import Any

from bertjax.tools.reporting import titles

# The metrics of phenomena and, in `--mode=evaluate`, of paradigms are details.
_DETAIL = re.compile(r"pairs/.+/")
_ACCURACY = re.compile(r"(?P<split>valid|test)/pairs/(?:(?P<group>[^/]+)/)?accuracy")


def is_detail(metric: str) -> bool:
    """Returns whether a metric is one of a group of minimal pairs. The split may be omitted."""
    return _DETAIL.search(metric) is not None


def bars(metrics: Mapping[str, float]) -> dict[str, Any] | None:
    """Returns the bars of all pairs and of each phenomenon, in percent; None without minimal pairs.

    Each has the interval of its accuracy. Runs of earlier versions lack the number of pairs and the accuracy of the
    shorter sentences.

    Args:
      metrics: the metrics of a run, as "valid/NAME".
    """
    rows = []
    for name, value in metrics.items():
        if match := _ACCURACY.fullmatch(name):
            title = (match["group"] or "all pairs").replace("_", " ")
            low, high = (100 * metrics.get(f"{name}_{end}", value) for end in ("low", "high"))
            total, shorter = (metrics.get(name.removesuffix("accuracy") + end) for end in ("total", "shorter_accuracy"))
            text = f"{100 * value:.1f} % ({low:.1f} to {high:.1f})" + (f", n = {total:,.0f}" if total else "")
            row = {"title": title, "split": titles.SPLITS[match["split"]], "value": 100 * value, "text": text}
            rows.append({**row, "low": low, "width": high - low, "shorter": shorter and 100 * shorter})
    return {"rows": rows} if rows else None
