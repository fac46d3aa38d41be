"""Memory and time of a run on a TPU slice, from its training step compiled ahead of time without the hardware."""

import importlib.metadata
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.contract import Task
from bertjax.errors import UserError
from bertjax.planning.chips import Slice
from bertjax.planning.costs import Costs, step_costs
from bertjax.planning.flops import training_flops
from bertjax.planning.roofline import collective_table, roofline
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig

_log = logging.getLogger(__name__)

Spec = Mapping[str, jax.ShapeDtypeStruct]
_GIB = 2**30
_NEEDED = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM|Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm")
_ASSUMPTIONS = (
    "the step time is the largest of three times: matrix products at the bfloat16 peak, main memory at full bandwidth, "
    "and links between chips; they overlap fully, so this is a lower bound, and most real steps are slower",
    "memory traffic is the bytes that the compiled instructions read and write, each once",
    "collectives use rings over all links of the dimensions that a group spans, in both directions if the ends of a "
    "dimension are linked",
    "tokens are positions of the batch, including padding; the input pipeline is fast enough; the days do not include "
    "checkpoints, evaluation and restarts",
)


class Compiled(NamedTuple):
    """The result of compiling a training step."""

    text: str  # the program; "" if it exceeds the chip's memory
    sizes: dict[str, int]  # bytes per chip, by part
    seconds: float


def plan(task: Task, settings: TrainingConfig, where: Slice) -> dict[str, Any]:
    """Returns the memory and time of training on a slice. Runs no computation and reads no file.

    Args:
      task: the task. It needs no data.
      settings: the settings. If batches have several shapes, the largest is used.
      where: the slice.
    Returns:
      A record:
      - `fits`, `mesh`, `parameters`, `flops_per_step`;
      - memory: `hbm_bytes` of a chip, and `bytes_per_chip` by part;
      - costs per chip and step: `per_chip`, and `collectives` by kind;
      - lower bounds of times: `seconds` by resource; the largest is `step_seconds`, and its resource is `bound`;
      - `step_seconds_in_turn`, the step time without overlap of computation and communication;
      - `compiler_seconds`, the TPU compiler's estimate without communication;
      - `utilization` of the peak, `tokens_per_second`, `days`, `chip_hours`;
      - the specification of the `chip`, and the `assumptions`.
      Times are None if the program does not fit.
    Raises:
      UserError: if task, settings and slice do not fit together.
    """
    if settings.parallel != "jit":
        expected = "jit, since pmap cannot split parameters over a slice"
        raise UserError(
            "config key parallel", got=settings.parallel, expected=expected, fix="set --config.parallel=jit"
        )
    assembled = steps.assemble(task, settings, where.devices)
    spec = max(task.batch_specs(), key=lambda each: sum(x.size for x in each.values()))
    compiled = _compile(task, settings, assembled, spec)
    total = compiled.sizes["total"]
    record = {
        "fits": bool(compiled.text) and total <= where.chip.hbm_bytes,
        "topology": where.name,
        "chips": len(where.devices),
        "mesh": dict(assembled.mesh.shape),
        "batch_size": settings.batch_size,
        "accumulation_steps": settings.accumulation_steps,
        "num_steps": settings.num_steps,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(assembled.shapes.params)),
        "hbm_bytes": where.chip.hbm_bytes,
        "bytes_per_chip": compiled.sizes,
        "flops_per_step": training_flops(task, spec),
        "tokens_per_step": count_positions(spec),
    }
    costs = step_costs(compiled.text, len(where.devices)) if compiled.text else None
    return {**record, **_times(record, costs, where, assembled.mesh), **_facts(where, compiled)}


def count_positions(spec: Spec) -> int:
    """Returns the number of positions of a batch, including padding."""
    return max(x.size for x in spec.values())


def _compile(task: Task, settings: TrainingConfig, assembled: steps.Assembly, spec: Spec) -> Compiled:
    """Compiles the same update as training."""
    mesh, optimizer, _, shapes, shardings = assembled
    update = steps.jit_update(task, optimizer, mesh, shardings, settings)
    sizes = {
        "parameters": _bytes_on_one(shapes.params, shardings.params),
        "optimizer": _bytes_on_one(shapes.opt_state, shardings.opt_state),
        "batch": sum(x.size * x.dtype.itemsize for x in spec.values()) // (mesh.shape["data"] * mesh.shape["fsdp"]),
    }
    known = sum(sizes.values())
    _log.info("compiling for %d devices, mesh %s", mesh.size, dict(mesh.shape))
    began = time.monotonic()
    try:
        with jax.set_mesh(mesh):
            program = update.lower(shapes, dict(spec), np.int32(0), steps.seed_of(settings)).compile()
    except jax.errors.JaxRuntimeError as error:
        temporary = _temporary(str(error), known)
        if temporary is None:
            raise
        sizes |= {"temporary": temporary, "total": known + temporary}
        return Compiled("", sizes, time.monotonic() - began)
    analysis = program.memory_analysis()
    sizes |= {
        "temporary": analysis.temp_size_in_bytes,
        "padding": max(analysis.argument_size_in_bytes - known, 0),
        "output": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "program": analysis.generated_code_size_in_bytes,
    }
    sizes["total"] = sum(sizes.values())
    text = program.as_text()
    return Compiled(text, sizes, time.monotonic() - began)


def _bytes_on_one(shapes: Any, shardings: Any) -> int:
    """The bytes of a tree on one device."""
    sizes = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(where.shard_shape(x.shape), x.dtype), shapes, shardings)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(sizes))


def _temporary(message: str, known: int) -> int | None:
    """The bytes that a rejected program needs in addition to its arguments; None for another error message."""
    found = _NEEDED.search(message)
    if not found:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    needed = int(float(number) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[unit])
    return needed if found[1] else max(needed - known, 0)


def _times(record: Mapping[str, Any], costs: Costs | None, where: Slice, mesh: Any) -> dict[str, Any]:
    """The times of a step and of the run; all None if the program does not fit."""
    if costs is None:
        names = ("per_chip", "collectives", "seconds", "step_seconds", "step_seconds_in_turn", "compiler_seconds")
        return dict.fromkeys((*names, "bound", "utilization", "tokens_per_second", "days", "chip_hours"))
    seconds = roofline(costs, where, mesh)
    bound = max(seconds, key=seconds.__getitem__)
    step_seconds = seconds[bound]
    run = step_seconds * record["num_steps"]
    peak = where.chip.peak_flops * record["chips"]
    return {
        "per_chip": {"flops": costs.flops, "hbm_bytes": costs.hbm_bytes, "uncounted_loops": costs.uncounted_loops},
        "collectives": collective_table(costs),
        "seconds": seconds,
        "step_seconds": step_seconds,
        "step_seconds_in_turn": max(seconds["compute"], seconds["memory"]) + seconds["interconnect"],
        "compiler_seconds": costs.cycles / where.chip.clock if where.chip.clock and costs.cycles else None,
        "bound": bound,
        "utilization": record["flops_per_step"] / step_seconds / peak,
        "tokens_per_second": record["tokens_per_step"] / step_seconds,
        "days": run / 86400,
        "chip_hours": run * record["chips"] / 3600,
    }


def _facts(where: Slice, compiled: Compiled) -> dict[str, Any]:
    chip = where.chip
    versions = {name: importlib.metadata.version(name) for name in ("jax", "libtpu") if _is_installed(name)}
    return {
        "chip": {
            "peak_flops": chip.peak_flops,
            "hbm_bandwidth": chip.hbm_bandwidth,
            "link_bandwidth": chip.link_bandwidth,
            "links": 2 * chip.dimensions,
            "source": chip.source,
        },
        "assumptions": list(_ASSUMPTIONS),
        "compile_seconds": round(compiled.seconds, 1),
        "versions": versions,
    }


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def describe(record: Mapping[str, Any]) -> list[str]:
    """Returns a readable summary of a plan, as lines."""
    sizes = record["bytes_per_chip"]
    parts = ", ".join(
        f"{name} {size / _GIB:.2f}" for name, size in sizes.items() if name != "total" and size > _GIB / 200
    )
    lines = [
        f"{record['topology']}, {record['chips']} chips, mesh {record['mesh']}: "
        + ("fits" if record["fits"] else "does not fit"),
        f"memory per chip: {sizes['total'] / _GIB:.2f} of {record['hbm_bytes'] / _GIB:.2f} GiB ({parts})",
    ]
    if record["seconds"] is None:
        return lines
    times = ", ".join(f"{name} {1e3 * value:.1f}" for name, value in record["seconds"].items())
    lines.append(
        f"a step takes at least {1e3 * record['step_seconds']:.1f} ms, bound by {record['bound']} ({times} ms); "
        f"{record['utilization']:.0%} of peak"
    )
    if record["compiler_seconds"]:
        lines.append(f"the compiler's own estimate, without communication: {1e3 * record['compiler_seconds']:.1f} ms")
    for kind, each in record["collectives"].items():
        lines.append(f"{kind}: {each['count']} per step, {each['bytes'] / 2**20:,.1f} MiB")
    run = f"{record['num_steps']:,} steps in {record['days']:.2f} days, {record['chip_hours']:,.0f} chip hours, at best"
    return [*lines, f"{record['tokens_per_second']:,.0f} tokens per second, {run}"]
