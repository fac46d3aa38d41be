"""Sharding of parameters and batches over one mesh with axes (data, fsdp, tensor)."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int64

from bertjax.config import always
from bertjax.contract import Params
from bertjax.errors import UserError

# Keys of `model` whose values are split over the tensor axis.
SPLIT_BY_TENSOR = ("num_heads", "num_key_value_heads", "intermediate_size")
Rules = Sequence[tuple[str, tuple[str | None, ...]]]
# Sharding smaller arrays is not worth the communication.
_MIN_FSDP_SIZE = 2**14


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each axis of the mesh; -1 for all remaining devices.

    Attributes:
      data: devices that rows of a batch are split over; parameters are replicated.
      fsdp: devices that rows, parameters and optimizer state are split over; parameters are gathered for each use.
      tensor: devices that attention heads and feed-forward layers are split over.
    """

    data: int = always(-1)
    fsdp: int = always(1)
    tensor: int = always(1)


def mesh_shape(config: MeshConfig, count: int) -> tuple[int, int, int]:
    """Returns the sizes of the mesh's axes for `count` devices. Raises UserError if they do not fit."""
    shape = list(dataclasses.astuple(config))
    if shape.count(-1) == 1:
        rest = math.prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = count // max(rest, 1)
    if min(shape) < 1 or math.prod(shape) != count:
        raise UserError(
            "config keys mesh.{data,fsdp,tensor}",
            got=f"{dataclasses.astuple(config)} for {count} device(s)",
            expected="sizes whose product is the number of devices (one of them may be -1)",
            fix=f"set --config.mesh.data={count} and the others to 1",
        )
    data, fsdp, tensor = shape
    return data, fsdp, tensor


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device]) -> Mesh:
    """Returns the mesh over `devices`, those of all processes. Raises UserError if they do not fit the config."""
    shape = mesh_shape(config, len(devices))
    placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(placed, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def check_split(config: Mapping[str, Any], count: int) -> None:
    """Raises UserError if the tensor axis, for `count` devices, does not divide the model's sizes that it splits.

    Other sizes need not be divisible: if the fsdp axis does not divide a dimension, such as the vocabulary size,
    another dimension is split.
    """
    *_, tensor = mesh_shape(MeshConfig(**config["mesh"]), count)
    for key in SPLIT_BY_TENSOR:
        size = config["model"].get(key)
        if size and size % tensor:
            raise UserError(
                "config key mesh.tensor",
                got=f"{tensor} for model.{key}={size}",
                expected=f"a divisor of {size}, which is split over this axis",
                fix="lower --config.mesh.tensor",
            )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of batches: rows over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def check_rows(mesh: Mesh, rows: int, key: str = "batch_size") -> None:
    """Raises UserError unless the rows, which a config key sets, are a multiple of the devices that share them."""
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % shards:
        raise UserError(
            f"config key {key} (divided by accumulation_steps)",
            got=rows,
            expected=f"a multiple of {shards}, the devices that rows are split over (mesh.data * mesh.fsdp)",
            fix=f"make {key} a multiple of {shards} * accumulation_steps, or split rows over fewer devices",
        )


def local_rows(mesh: Mesh, batch_size: int) -> Int64[np.ndarray, " rows"]:
    """Returns the indices of the rows of a global batch on this process's devices, ascending.

    On a pod they may not be one contiguous block.

    Raises:
      UserError: see `check_rows`.
    """
    check_rows(mesh, batch_size)
    held = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    spans = sorted({span[0].indices(batch_size)[:2] for span in held if span is not None})
    return np.concatenate([np.arange(*span) for span in spans])


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Sends this process's rows to its devices. Returns global arrays with the rows of all processes."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()}


def tree_shardings(shapes: Any, mesh: Mesh, rules: Rules) -> Any:
    """Returns the shardings of a tree of parameters, or of optimizer state whose paths contain those of parameters.

    Args:
      shapes: a tree of arrays or `ShapeDtypeStruct`s.
      mesh: the mesh.
      rules: pairs (path pattern, mesh axis or None of each of the last dimensions). The first match is used.
    """

    def sharding(name: str, leaf: Any) -> NamedSharding:
        spec: list[str | None] = [None] * leaf.ndim
        axes = next((axes for pattern, axes in rules if re.search(pattern, name)), ())
        for dimension, axis in zip(range(leaf.ndim - len(axes), leaf.ndim), axes, strict=True):
            # An axis of one device splits nothing, and would block the dimension for the fsdp axis.
            if axis and mesh.shape[axis] > 1 and dimension >= 0 and leaf.shape[dimension] % mesh.shape[axis] == 0:
                spec[dimension] = axis
        free = [d for d in range(leaf.ndim) if spec[d] is None and leaf.shape[d] % mesh.shape["fsdp"] == 0]
        if free and mesh.shape["fsdp"] > 1 and leaf.size >= _MIN_FSDP_SIZE:
            spec[max(free, key=lambda d: leaf.shape[d])] = "fsdp"
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree.map(sharding, path_names(shapes), shapes)


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """Returns the shapes as `ShapeDtypeStruct`s with the given shardings."""
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings)


def path_names(params: Params) -> Params:
    """Returns the tree of `params` with each leaf replaced by its path, such as "encoder/layers/output/kernel"."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
    )
