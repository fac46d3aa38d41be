"""Memory and time of a run on TPUs or GPUs, from its training step compiled ahead of time without the hardware."""

import importlib.metadata
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from bertjax.contract import TaughtTask, TrainingTask
from bertjax.errors import UserError
from bertjax.tools.planning import breakdown
from bertjax.tools.planning.chips import Target
from bertjax.tools.planning.costs import Costs, step_costs
from bertjax.tools.planning.roofline import collective_table, roofline, seconds_in_turn
from bertjax.training import sharding
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig
from bertjax.training.flops import (
    Build,
    count_positions,
    largest_spec,
    teacher_flops,
    training_flops,
    with_plain_attention,
)

_log = logging.getLogger(__name__)

Spec = Mapping[str, jax.ShapeDtypeStruct]
_GIB = 2**30
_NEEDED = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM|Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm")
_ASSUMPTIONS = (
    "the step time is the largest of three times: matrix products at the bfloat16 peak, main memory at full bandwidth, "
    "and links between devices; they overlap fully, so this is a lower bound, and most real steps are slower",
    "memory traffic is the bytes that the compiled instructions read and write, each once",
    "kernels and other instructions for which the compiler has no estimate take the longer of two times: products at "
    "half the peak, and main memory at full bandwidth",
    "tokens are positions of the batch, including padding; the input pipeline is fast enough; the days do not include "
    "checkpoints, evaluation and restarts",
)
_OF_TEACHERS = (
    "the memory includes the teacher's parameters; the time and the operations of its outputs are not included"
)


class Compiled(NamedTuple):
    """The result of compiling a training step."""

    text: str  # the program; "" if it exceeds the device's memory
    sizes: dict[str, int]  # bytes per device, by part
    seconds: float


def plan(config: Mapping[str, Any], build: Build, target: Target) -> dict[str, Any]:
    """Returns the memory and time of training on TPUs or GPUs. Runs no computation and reads no file.

    Args:
      config: the config of the run.
      build: makes the task and the settings from a config. If batches have several shapes, the largest is used.
      target: the devices.
    Returns:
      A record:
      - `fits`, `mesh`, `parameters`, `flops_per_step`;
      - memory: `hbm_bytes` of a device, and `bytes_per_device` by part;
      - costs per device and step: `per_device`, and `collectives` by kind and link;
      - lower bounds of times: `seconds` by resource; the largest is `step_seconds`, and its resource is `bound`;
      - `step_seconds_in_turn`, a larger lower bound: that of a step whose instructions and collectives do not overlap;
      - `compiler_seconds`, the TPU compiler's estimate without communication;
      - `breakdown`, bytes, operations and the compiler's estimate by part of the model and kind of computation;
      - `utilization` of the peak, `tokens_per_second`, `days`, `device_hours`;
      - the specification of the `device`, and the `assumptions`.
      Times are None if the program does not fit.
    Raises:
      UserError: if the config does not fit the devices.
    """
    task, settings = build(config)
    if settings.parallel != "jit":
        expected = "jit, since pmap cannot split parameters over devices"
        raise UserError(
            "config key parallel", got=settings.parallel, expected=expected, fix="set --config.parallel=jit"
        )
    assembled = steps.assemble(task, settings, target.devices)
    spec = largest_spec(task)
    compiled = _compile(task, settings, assembled, spec, target.compiler_options)
    total = compiled.sizes["total"]
    plain = with_plain_attention(config)
    counted = task if plain == config else build(plain)[0]
    record = {
        "fits": bool(compiled.text) and total <= target.chip.hbm_bytes,
        "topology": target.name,
        "devices": len(target.devices),
        "mesh": dict(assembled.mesh.shape),
        "batch_size": settings.batch_size,
        "accumulation_steps": settings.accumulation_steps,
        "num_steps": settings.num_steps,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(assembled.shapes.params)),
        "hbm_bytes": target.chip.hbm_bytes,
        "bytes_per_device": compiled.sizes,
        "flops_per_step": training_flops(counted, spec) - teacher_flops(counted, spec),
        "tokens_per_step": count_positions(spec),
    }
    costs = step_costs(compiled.text, len(target.devices)) if compiled.text else None
    facts = _facts(target, compiled)
    facts["assumptions"] += [_OF_TEACHERS] if "teacher" in compiled.sizes else []
    return {**record, **_times(record, costs, target, assembled.mesh), **facts}


def _compile(
    task: TrainingTask, settings: TrainingConfig, assembled: steps.Assembly, spec: Spec, options: Mapping[str, Any]
) -> Compiled:
    """Compiles the same update as training."""
    mesh, optimizer, _, shapes, shardings = assembled
    update = steps.jit_update(task, optimizer, mesh, shardings, settings)
    sizes = {
        "parameters": _bytes_on_one(shapes.params, shardings.params),
        "optimizer": _bytes_on_one(shapes.opt_state, shardings.opt_state),
        "batch": sum(x.size * x.dtype.itemsize for x in spec.values()) // (mesh.shape["data"] * mesh.shape["fsdp"]),
    }
    argument_bytes = sum(sizes.values())
    if isinstance(task, TaughtTask) and not task.stores:
        of_teacher = jax.eval_shape(task.teacher.init, jax.random.key(0))
        placed = sharding.tree_shardings(of_teacher, mesh, task.teacher.partition_rules())
        sizes["teacher"] = _bytes_on_one(of_teacher, placed)
    _log.info("compiling for %d devices, mesh %s", mesh.size, dict(mesh.shape))
    began = time.monotonic()
    try:
        with jax.set_mesh(mesh):
            lowered = update.lower(shapes, dict(spec), steps.make_numbers(settings)(0, 1))
            program = lowered.compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        temporary = _temporary(str(error), argument_bytes)
        if temporary is None:
            raise
        sizes |= {"temporary": temporary, "total": sum(sizes.values()) + temporary}
        return Compiled("", sizes, time.monotonic() - began)
    analysis = program.memory_analysis()
    sizes |= {
        "temporary": analysis.temp_size_in_bytes,
        "padding": max(analysis.argument_size_in_bytes - argument_bytes, 0),
        "output": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "program": analysis.generated_code_size_in_bytes,
    }
    sizes["total"] = sum(sizes.values())
    text = program.as_text()
    seconds = time.monotonic() - began
    _log.info("compiled in %.1f s; counting the costs of its instructions", seconds)
    return Compiled(text, sizes, seconds)


def _bytes_on_one(shapes: Any, shardings: Any) -> int:
    """The bytes of a tree on one device."""
    sizes = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(where.shard_shape(x.shape), x.dtype), shapes, shardings)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(sizes))


def _temporary(message: str, argument_bytes: int) -> int | None:
    """The bytes that a rejected program needs in addition to its arguments; None for another error message."""
    match = _NEEDED.search(message)
    if not match:
        return None
    number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    needed = int(float(number) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[unit])
    return needed if match[1] else max(needed - argument_bytes, 0)


def _times(record: Mapping[str, Any], costs: Costs | None, target: Target, mesh: Any) -> dict[str, Any]:
    """The times of a step and of the run; all None if the program does not fit."""
    if costs is None:
        names = ("per_device", "collectives", "seconds", "step_seconds", "step_seconds_in_turn", "compiler_seconds")
        return dict.fromkeys((*names, "breakdown", "bound", "utilization", "tokens_per_second", "days", "device_hours"))
    seconds = roofline(costs, target, mesh)
    bound = max(seconds, key=seconds.__getitem__)
    step_seconds = seconds[bound]
    run = step_seconds * record["num_steps"]
    peak = target.chip.peak_flops * record["devices"]
    return {
        "per_device": {
            "flops": costs.flops,
            "hbm_bytes": costs.hbm_bytes,
            "uncounted_loops": costs.uncounted_loops,
            "unknown_kernels": costs.unknown_kernels,
        },
        "collectives": collective_table(costs, target, mesh),
        "seconds": seconds,
        "step_seconds": step_seconds,
        "step_seconds_in_turn": seconds_in_turn(costs, target.chip) + seconds["interconnect"],
        "compiler_seconds": breakdown.compiler_seconds(costs, target.chip),
        "breakdown": breakdown.break_down(costs, target.chip),
        "bound": bound,
        "utilization": record["flops_per_step"] / step_seconds / peak,
        "tokens_per_second": record["tokens_per_step"] / step_seconds,
        "days": run / 86400,
        "device_hours": run * record["devices"] / 3600,
    }


def _facts(target: Target, compiled: Compiled) -> dict[str, Any]:
    chip = target.chip
    packages = [name for name in ("jax", *target.compilers) if _is_installed(name)]
    return {
        "device": {
            "peak_flops": chip.peak_flops,
            "hbm_bandwidth": chip.hbm_bandwidth,
            "links": dict(chip.links),
            "source": chip.source,
        },
        "assumptions": [*_ASSUMPTIONS, *target.assumptions],
        "compile_seconds": round(compiled.seconds, 1),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def describe(record: Mapping[str, Any]) -> list[str]:
    """Returns a readable summary of a plan, as lines."""
    sizes = record["bytes_per_device"]
    parts = ", ".join(
        f"{name} {size / _GIB:.2f}" for name, size in sizes.items() if name != "total" and size > _GIB / 200
    )
    lines = [
        f"{record['topology']}, {record['devices']} device{'s' * (record['devices'] > 1)}, mesh {record['mesh']}: "
        + ("fits" if record["fits"] else "does not fit"),
        f"memory per device: {sizes['total'] / _GIB:.2f} of {record['hbm_bytes'] / _GIB:.2f} GiB ({parts})",
    ]
    if record["seconds"] is None:
        return lines
    times = ", ".join(f"{name} {1e3 * value:.1f}" for name, value in record["seconds"].items())
    lines.append(
        f"a step takes at least {1e3 * record['step_seconds']:.1f} ms, bound by {record['bound']} ({times} ms); "
        f"{record['utilization']:.0%} of peak"
    )
    lines.append(f"without any overlap, at least {1e3 * record['step_seconds_in_turn']:.1f} ms")
    if record["compiler_seconds"]:
        lines.append(f"the compiler's own estimate, without communication: {1e3 * record['compiler_seconds']:.1f} ms")
    for kind, rows in record["collectives"].items():
        for link, row in rows.items():
            size = f"{row['bytes'] / 2**20:,.1f} MiB in {1e3 * row['seconds']:.1f} ms"
            lines.append(f"{kind} over {link}: {row['count']} per step, {size}")
    hours = f"{record['device_hours']:,.0f} device hours"
    run = f"{record['num_steps']:,} steps in {record['days']:.2f} days, {hours}, at best"
    return [*lines, f"{record['tokens_per_second']:,.0f} tokens per second, {run}", *breakdown.describe(record)]
