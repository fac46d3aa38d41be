"""What a run would need and take on a slice that is not here: the update of training, compiled for it ahead of time."""

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
    "a step takes as long as the largest of its times for matrix products at the bfloat16 peak, for main memory at "
    "full bandwidth, and for links between chips, all at the same time: no step is faster, and most are slower",
    "memory traffic is what the compiled instructions read and write, each once",
    "collectives go in rings over all links of the dimensions that a group spans, in both directions where the ends of "
    "a dimension are linked",
    "tokens are positions of the batch, padding included; the input keeps up; checkpoints, evaluation and restarts are "
    "not in the days",
)


class Compiled(NamedTuple):
    """What came of compiling."""

    text: str  # of the program; "" if it needs more memory than there is
    sizes: dict[str, int]  # bytes of a chip, by part
    seconds: float


def plan(task: Task, settings: TrainingConfig, where: Slice) -> dict[str, Any]:
    """What training would need and take; nothing is computed and no file is read.

    Args:
      task: what is trained; it needs no data.
      settings: how; of several shapes of batches the largest counts.
      where: the slice.
    Returns:
      a record: `fits`; the `mesh`; `hbm_bytes` of a chip and `bytes_per_chip` by part; `parameters`; `flops_per_step`;
      what a chip does in a step (`per_chip`), with `collectives` by kind; `seconds` by resource, the largest of which
      is `step_seconds` and names what it is `bound` by; `step_seconds_in_turn` if the links work when the chip does
      not; `compiler_seconds`, what TPU's compiler estimates for all but communication; the `utilization` of the peak,
      `tokens_per_second`, `days`, `chip_hours`; the facts of the `chip` and the `assumptions`. Times are None if it
      does not fit.
    Raises:
      UserError: task, settings and slice do not go together.
    """
    if settings.parallel != "jit":
        expected = "jit, which lays parameters out over a slice"
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
    """Returns the number of positions of a batch, padding included."""
    return max(x.size for x in spec.values())


def _compile(task: Task, settings: TrainingConfig, assembled: steps.Assembly, spec: Spec) -> Compiled:
    """Compiles the update, as training does."""
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
    """What one device holds of a tree."""
    sizes = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(where.shard_shape(x.shape), x.dtype), shapes, shardings)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(sizes))


def _temporary(message: str, known: int) -> int | None:
    """Bytes beside arguments that a program was refused for, by the compiler's message; None if it says nothing."""
    found = _NEEDED.search(message)
    if not found:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    needed = int(float(number) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[unit])
    return needed if found[1] else max(needed - known, 0)


def _times(record: Mapping[str, Any], costs: Costs | None, where: Slice, mesh: Any) -> dict[str, Any]:
    """The times of a step and of the run; None for each where nothing was compiled."""
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
    """The same in a few lines, for people."""
    sizes = record["bytes_per_chip"]
    parts = ", ".join(
        f"{name} {size / _GIB:.2f}" for name, size in sizes.items() if name != "total" and size > _GIB / 200
    )
    lines = [
        f"{record['topology']}, {record['chips']} chips, mesh {record['mesh']}: "
        + ("fits" if record["fits"] else "does not fit"),
        f"memory of a chip: {sizes['total'] / _GIB:.2f} of {record['hbm_bytes'] / _GIB:.2f} GiB ({parts})",
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
        lines.append(f"{kind}: {each['count']} a step, {each['bytes'] / 2**20:,.1f} MiB")
    run = f"{record['num_steps']:,} steps in {record['days']:.2f} days, {record['chip_hours']:,.0f} chip hours, at best"
    return [*lines, f"{record['tokens_per_second']:,.0f} tokens a second, {run}"]
