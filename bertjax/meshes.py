"""The devices that a model is compiled for: those of the current mesh, or the default device if there is none."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

_ROWS = ("data", "fsdp")
OF_ROWS = PartitionSpec(_ROWS)  # of arrays [B, ...]
OF_WIDTH = PartitionSpec(_ROWS, None, "tensor")  # of arrays [B, S, N D]
OF_HEADS = PartitionSpec(_ROWS, "tensor")  # of arrays [B, N, ...]


def platform() -> str:
    """Returns "cpu", "tpu" or "cuda"."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    kind = str(mesh.abstract_device.device_kind)
    return "cpu" if kind == "cpu" else "tpu" if kind.startswith("TPU") else "cuda"


def num_devices() -> int:
    """Returns the number of devices of the mesh; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else int(mesh.size)


def divides(rows: int, heads: int) -> bool:
    """Returns whether the mesh divides these numbers of rows and heads."""
    mesh = jax.sharding.get_abstract_mesh()
    if not _is_split(mesh):
        return num_devices() == 1
    return rows % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0 and heads % mesh.shape["tensor"] == 0


def heads_of_device(heads: int) -> int:
    """Returns the number of heads on each device, if the mesh divides them."""
    mesh = jax.sharding.get_abstract_mesh()
    return heads // mesh.shape["tensor"] if _is_split(mesh) else heads


def on_each_device(function: Callable[..., Any], specs: tuple[Any, ...], result: Any) -> Callable[..., Any]:
    """Returns the function applied to each device's rows and heads, for programs that XLA cannot partition.

    Args:
      function: a function of arrays that treats each row and head alone.
      specs: how each argument is split: `OF_ROWS`, `OF_HEADS` or `OF_WIDTH`.
      result: how the result is split.
    """
    if not _is_split(jax.sharding.get_abstract_mesh()):
        return function
    return jax.shard_map(function, in_specs=specs, out_specs=result, check_vma=False)


def _is_split(mesh: Any) -> bool:
    return mesh.size > 1 and {*_ROWS, "tensor"} <= {*mesh.axis_names}
