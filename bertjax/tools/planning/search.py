"""Search for the mesh, number of micro-batches and rematerialization with which a run is fastest on the given devices.

All candidates keep the global batch, so without dropout the updates are the same. With dropout, the masks depend on the
number of micro-batches. Rough estimates of memory and time select the candidates to compile, and the plans of the
compiled ones determine the best.
"""

import itertools
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from bertjax.errors import UserError
from bertjax.tools.planning.chips import Target
from bertjax.tools.planning.plan_record import describe, plan
from bertjax.training.flops import Build, count_positions, largest_spec, update_flops, with_plain_attention
from bertjax.training.sharding import SPLIT_BY_TENSOR, MeshConfig, make_mesh

_log = logging.getLogger(__name__)

NUM_COMPILED = 6
_MAX_TENSOR = 8
_MAX_ACCUMULATION = 64
_REMATS = ("none", "norms", "full")
# The estimate of memory for the backward pass is too high, because the compiler fuses operations. Candidates are
# excluded only if their estimate exceeds the memory by this factor.
_SLACK = 2.0


class Candidate(NamedTuple):
    """Values of config keys that do not change the updates."""

    data: int
    fsdp: int
    tensor: int
    accumulation_steps: int
    remat: str | None  # None for a model without this key

    def overrides(self) -> dict[str, Any]:
        """Returns the values by dotted config key."""
        values = {f"mesh.{axis}": getattr(self, axis) for axis in ("data", "fsdp", "tensor")}
        values["accumulation_steps"] = self.accumulation_steps
        return values if self.remat is None else {**values, "model.remat": self.remat}

    def flags(self) -> str:
        """Returns the values as command line flags."""
        return " ".join(f"--config.{key}={value}" for key, value in self.overrides().items())


class Sizes(NamedTuple):
    """Sizes of a model, with or without rematerialization, for estimates."""

    state_bytes: int  # bytes of parameters and optimizer state
    parameter_bytes: int
    row_bytes: float  # bytes stored for the backward pass, per row of a batch
    flops: float  # operations of an update
    exchanged_bytes: float  # bytes of activations per row that a tensor axis adds up, in both passes


def search(config: Mapping[str, Any], build: Build, target: Target) -> dict[str, Any]:
    """Returns the plan of the fastest candidate that fits.

    Args:
      config: the config of the run.
      build: makes the task and the settings from a config.
      target: the devices.
    Returns:
      The record from `plan`, with the command line flags as `overrides`. Its key `search` has the number of
      `candidates` and the results of those `compiled`. If none fits, the record is that of the candidate with the least
      memory.
    Raises:
      UserError: if no mesh divides the batch over the devices.
    """
    count = len(target.devices)
    options = list(candidates(config, count))
    if not options:
        raise UserError(
            "config key batch_size",
            got=config["batch_size"],
            expected=f"a multiple of {count}, the number of devices",
            fix=f"make it a multiple of {count}, or choose a smaller --topology",
        )
    sizes = {remat: measure(config, build, remat, target) for remat in {candidate.remat for candidate in options}}
    estimates = {
        candidate: estimate(candidate, sizes[candidate.remat], config["batch_size"], target) for candidate in options
    }
    may_fit = [candidate for candidate in options if estimates[candidate][0] <= _SLACK * target.chip.hbm_bytes]
    smallest = min(options, key=estimates.__getitem__)
    promising = sorted(may_fit or [smallest], key=lambda candidate: estimates[candidate][1])
    _log.info("%d candidates, %d of which may fit; at most %d are compiled", len(options), len(may_fit), NUM_COMPILED)
    records: dict[Candidate, dict[str, Any]] = {}
    refused = math.inf  # the lowest memory estimate of a candidate that did not fit
    for candidate in promising:
        if estimates[candidate][0] >= refused or len(records) == NUM_COMPILED:
            continue
        records[candidate] = plan(with_values(config, candidate), build, target)
        _log.info("%s: %s", candidate.flags(), _verdict(records[candidate]))
        if not records[candidate]["fits"]:
            refused = min(refused, estimates[candidate][0])
    return _best(records, len(options))


def _best(records: Mapping[Candidate, dict[str, Any]], num_candidates: int) -> dict[str, Any]:
    def order(candidate: Candidate) -> tuple[bool, float, int]:
        record = records[candidate]
        return not record["fits"], record["step_seconds"] or 0.0, record["bytes_per_device"]["total"]

    best = min(records, key=order)
    for line in describe(records[best]):
        _log.info("%s", line)
    _log.info("%s: %s", "best" if records[best]["fits"] else "none fits; the closest is", best.flags())
    compiled = [
        {"overrides": candidate.flags(), "total_bytes": record["bytes_per_device"]["total"]}
        | {key: record[key] for key in ("fits", "step_seconds", "bound")}
        for candidate, record in records.items()
    ]
    return {**records[best], "overrides": best.flags(), "search": {"candidates": num_candidates, "compiled": compiled}}


def _verdict(record: Mapping[str, Any]) -> str:
    memory = f"{record['bytes_per_device']['total'] / 2**30:.2f} of {record['hbm_bytes'] / 2**30:.2f} GiB"
    if not record["fits"]:
        return f"does not fit, {memory}"
    return f"fits, {memory}; {1e3 * record['step_seconds']:.1f} ms, bound by {record['bound']}"


def candidates(config: Mapping[str, Any], count: int) -> Iterator[Candidate]:
    """Yields all candidates whose mesh axes divide the devices, rows, attention heads and feed-forward size."""
    model = config["model"]
    batch_size = config["batch_size"]
    rematerialized = _REMATS if "remat" in model else (None,)
    divisors = [size for size in range(1, count + 1) if count % size == 0]
    for fsdp, tensor in itertools.product(divisors, divisors):
        splits = all((model.get(key) or tensor) % tensor == 0 for key in SPLIT_BY_TENSOR)
        if count % (fsdp * tensor) or tensor > _MAX_TENSOR or not splits:
            continue
        data = count // (fsdp * tensor)
        parts = 1
        while parts <= _MAX_ACCUMULATION and batch_size % (data * fsdp * parts) == 0:
            yield from (Candidate(data, fsdp, tensor, parts, remat) for remat in rematerialized)
            parts *= 2


def with_values(config: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """Returns the config with a candidate's values."""
    result = dict(config)
    for name, value in candidate.overrides().items():
        parent, _, key = name.rpartition(".")
        if parent:
            result[parent] = {**result[parent], key: value}
        else:
            result[key] = value
    return result


def measure(config: Mapping[str, Any], build: Build, remat: str | None, target: Target) -> Sizes:
    """Returns the sizes of a model, from its loss traced for a device of the target."""
    # A loop of JAX stores the parameters that a rematerialized layer reads again, but XLA removes these arrays.
    changes = {"scan_layers": False} | ({} if remat is None else {"remat": remat})
    model = {**config["model"], **changes}
    config = {**config, "model": model}
    task, settings = build(config)
    params = jax.eval_shape(task.init, jax.random.key(0))
    spec = largest_spec(task)
    rows = next(iter(spec.values())).shape[0]

    def kept(params: Any, batch: Any) -> Any:
        key = jax.random.key(0, impl=settings.rng)
        return jax.vjp(lambda p: sum(task.loss(p, batch, key)[0].values()), params)[1]

    device = make_mesh(MeshConfig(1, 1, 1), target.devices[:1]).abstract_mesh
    with jax.sharding.use_abstract_mesh(device):
        residuals = jax.tree.leaves(jax.eval_shape(kept, params, dict(spec)))
    parameter_bytes = _bytes(jax.tree.leaves(params))
    row_bytes = max(_bytes(residuals) - parameter_bytes, 0) / rows
    flops = update_flops(build(with_plain_attention(config))[0], spec)
    positions = count_positions(spec) / rows
    width = 2 if model.get("dtype") == "bfloat16" else 4
    # One sum after attention and one after the feed-forward network, in the forward and the backward pass.
    exchanged = 4 * positions * (model.get("hidden_size") or 0) * (model.get("num_layers") or 0) * width
    return Sizes(3 * parameter_bytes, parameter_bytes, row_bytes, flops, exchanged)


def _bytes(leaves: list[Any]) -> int:
    return sum(math.prod(x.shape) * (x.dtype.itemsize if hasattr(x.dtype, "itemsize") else 8) for x in leaves)


def estimate(candidate: Candidate, sizes: Sizes, batch_size: int, target: Target) -> tuple[float, float]:
    """Returns rough estimates of the bytes per device and the seconds of a step.

    The bytes are those of parameters, Adam's moments, gradients, and arrays stored for the backward pass of a
    micro-batch. The seconds are the longer of computation and communication plus a tenth of the shorter, because they
    overlap only partly.
    """
    data, fsdp, tensor, parts, _ = candidate
    splits = fsdp * tensor
    rows = batch_size / (data * fsdp * parts)
    memory = (sizes.state_bytes + sizes.parameter_bytes) / splits + rows * sizes.row_bytes / tensor
    mesh = make_mesh(MeshConfig(data, fsdp, tensor), target.devices).devices
    along_data, along_fsdp, along_tensor = (
        target.link("all-reduce", list(group)).bandwidth for group in (mesh[:, 0, 0], mesh[0, :, 0], mesh[0, 0])
    )
    gradients = 2 * sizes.parameter_bytes / splits * _share(data) / along_data
    gathered = 3 * sizes.parameter_bytes / tensor * _share(fsdp) / along_fsdp
    summed = 2 * rows * sizes.exchanged_bytes * _share(tensor) / along_tensor
    communicating = parts * (gradients + gathered + summed)
    computing = sizes.flops / (target.chip.peak_flops * len(target.devices))
    return memory, max(computing, communicating) + 0.1 * min(computing, communicating)


def _share(size: int) -> float:
    return (size - 1) / size
