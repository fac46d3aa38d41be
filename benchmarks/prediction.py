"""What a plan would predict of the updates that a benchmark measures, read from their compiled programs.

So a run on a GPU checks the predictions: no update may be faster than its bound, and the memory should agree.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from bertjax.contract import Batch
from bertjax.tools.planning import gpus, hlo
from bertjax.tools.planning.costs import step_costs
from bertjax.tools.planning.roofline import seconds_in_turn

HEADER = ["ms an update (bounds)", "GB moved (predicted)", "GiB used (predicted)"]
_UPDATE = "jit_step"  # the name of the compiled update


class Prediction(NamedTuple):
    """The predictions for the update of one batch shape on one device.

    Attributes:
      batch: the shapes of the batch's arrays by name.
      hbm_bytes: bytes read from and written to main memory.
      memory_bytes: arguments, temporary arrays and results.
      seconds: the lower bound of the time if all instructions overlap; None if this device's specification is unknown.
      seconds_in_turn: the lower bound of the time if they run one after another; None likewise.
    """

    batch: Mapping[str, tuple[int, ...]]
    hbm_bytes: int
    memory_bytes: int
    seconds: float | None
    seconds_in_turn: float | None


def predictions() -> list[Prediction]:
    """Returns the predictions for all compiled updates that JAX still holds, most bytes first."""
    programs = jax.devices()[0].client.live_executables()
    found = [_predict(each) for each in programs if each.hlo_modules()[0].name == _UPDATE]
    return sorted(found, key=lambda each: -each.hbm_bytes)


def _predict(program: Any) -> Prediction:
    text, sizes = program.hlo_modules()[0].to_string(), program.get_compiled_memory_stats()
    costs, chip = step_costs(text, 1), gpus.chip_of(_kind())
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return Prediction(
        batch=_batch(text),
        hbm_bytes=costs.hbm_bytes,
        memory_bytes=sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + results,
        seconds=chip and max(costs.flops / chip.peak_flops, costs.hbm_bytes / chip.hbm_bandwidth),
        seconds_in_turn=chip and seconds_in_turn(costs, chip),
    )


def _batch(text: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the program's arguments that are arrays of the batch."""
    program = hlo.parse(text)
    parameters = (i for i in program.computations[program.entry].instructions.values() if i.opcode == "parameter")
    named = ((re.search(r"op_name=\"batch\[\\?'(\w+)", each.rest), each) for each in parameters)
    return {found[1]: each.results[0].dims for found, each in named if found}


def _kind() -> str:
    return jax.devices()[0].device_kind


def peak_bytes() -> int:
    """Returns the largest memory that was in use on the device since the start; 0 if the device does not report it."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def compare(batches: Sequence[Batch], seconds: float, peak_before: int) -> dict[str, Any]:
    """Returns measured and predicted values of updates; only the measured ones and the error if predictions fail.

    Args:
      batches: the batches of the updates.
      seconds: the measured time of all updates.
      peak_before: the result of `peak_bytes` before the updates. The device reports no later peak unless it is larger.
    """
    peak = peak_bytes()
    found = {"update_seconds": seconds / len(batches), "memory_bytes": peak if peak > peak_before else None}
    try:
        known = predictions()
        each = [next(p for p in known if p.batch.items() <= _shapes(batch).items()) for batch in batches]
    except Exception as error:  # the measurement is kept
        return {**found, "prediction_error": f"{type(error).__name__}: {error}"[:300]}
    return {
        **found,
        "predicted_seconds": statistics.mean(p.seconds for p in each) if each[0].seconds else None,
        "predicted_seconds_in_turn": statistics.mean(p.seconds_in_turn for p in each) if each[0].seconds else None,
        "predicted_hbm_bytes": statistics.mean(p.hbm_bytes for p in each),
        "predicted_memory_bytes": max(p.memory_bytes for p in each),
    }


def _shapes(batch: Batch) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in batch.items()}


def cells(result: Mapping[str, Any]) -> list[str]:
    """Returns the cells of a table row for the columns of `HEADER`, given the result of `compare` or none."""
    if "update_seconds" not in result:
        return [""] * len(HEADER)
    if "prediction_error" in result:
        return [f"{1e3 * result['update_seconds']:.1f}", "", result["prediction_error"][:60]]
    bound, in_turn, memory = (
        result[name] for name in ("predicted_seconds", "predicted_seconds_in_turn", "memory_bytes")
    )
    return [
        f"{1e3 * result['update_seconds']:.1f}" + (f" ({1e3 * bound:.1f}, {1e3 * in_turn:.1f})" if bound else ""),
        f"{result['predicted_hbm_bytes'] / 1e9:.3g}",
        (f"{memory / 2**30:.2f}" if memory else "-") + f" ({result['predicted_memory_bytes'] / 2**30:.2f})",
    ]
