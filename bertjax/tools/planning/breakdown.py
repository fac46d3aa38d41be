"""Where a step's bytes and time go: by part of the model, and by kind of computation."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.tools.planning.chips import Chip
from bertjax.tools.planning.costs import Costs, Work

Row = dict[str, Any]
# Kernels seldom exceed this share of the peak; those of attention alternate between products and softmax.
_KERNEL_UTILIZATION = 0.5
_MIN_SHARE = 0.005  # kinds below this share of the bytes and of the time are not printed


def compiler_seconds(costs: Costs, chip: Chip) -> float | None:
    """Returns the TPU compiler's estimate of a step's computation; None for other compilers.

    The compiler estimates no time for kernels and some other instructions. Theirs is the longer of two times: bytes at
    full bandwidth, and operations at half the peak.
    """
    if not chip.clock or not costs.cycles:
        return None
    return sum(work.times * _seconds(work, chip) for work in costs.works)


def _seconds(work: Work, chip: Chip) -> float:
    if work.cycles is not None:
        return work.cycles / chip.clock
    return max(work.flops / (_KERNEL_UTILIZATION * chip.peak_flops), work.hbm_bytes / chip.hbm_bandwidth)


def break_down(costs: Costs, chip: Chip) -> list[Row]:
    """Returns the costs of a step by part and kind; most bytes first.

    A row has `part`, `kind`, `flops`, `hbm_bytes` and `compiler_seconds`, whose sum is that of `compiler_seconds`.
    """
    rows: dict[tuple[str, str], Row] = {}
    has_estimate = compiler_seconds(costs, chip) is not None
    for work in costs.works:
        empty = {"flops": 0.0, "hbm_bytes": 0, "compiler_seconds": 0.0 if has_estimate else None}
        row = rows.setdefault((work.part, work.kind), {"part": work.part, "kind": work.kind, **empty})
        row["flops"] += work.times * work.flops
        row["hbm_bytes"] += work.times * work.hbm_bytes
        if has_estimate:
            row["compiler_seconds"] += work.times * _seconds(work, chip)
    return sorted(rows.values(), key=lambda row: row["hbm_bytes"], reverse=True)


def totals(rows: Sequence[Row], by: str) -> dict[str, Row]:
    """Returns the sums of rows by "part" or "kind", most bytes first."""
    sums: dict[str, Row] = {}
    for row in rows:
        total = sums.setdefault(row[by], {"flops": 0.0, "hbm_bytes": 0, "compiler_seconds": 0.0})
        for key in total:
            total[key] += row[key] or 0
    return dict(sorted(sums.items(), key=lambda item: -item[1]["hbm_bytes"]))


def describe(record: Mapping[str, Any]) -> list[str]:
    """Returns the lines of a table: bytes and the compiler's time by part, then by kind; and what is not counted."""
    rows = record["breakdown"]
    seconds = record["compiler_seconds"]
    all_bytes = sum(row["hbm_bytes"] for row in rows)
    lines = [f"{'':20}{'GB':>8}{'of bytes':>10}" + (f"{'ms':>8}{'of time':>9}" if seconds else "")]
    for by in ("part", "kind"):
        lines.append(f"by {by}:")
        for name, total in totals(rows, by).items():
            share = total["hbm_bytes"] / all_bytes
            of_time = total["compiler_seconds"] / (seconds or 1)
            if max(share, of_time) >= _MIN_SHARE:
                time = f"{1e3 * total['compiler_seconds']:8.1f}{of_time:9.1%}" if seconds else ""
                lines.append(f"  {name:18}{total['hbm_bytes'] / 1e9:8.2f}{share:10.1%}{time}")
    if unknown := record["per_device"]["unknown_kernels"]:
        lines.append(f"kernels with unknown operations: {unknown} executions; only their bytes are counted")
    return lines
