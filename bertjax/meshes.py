"""The devices that a model is compiled for: those of the current mesh, or the default device if there is none."""

import re
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

_AMPERE = 8.0  # compute capability
_ROWS = ("data", "fsdp")
OF_ROWS = PartitionSpec(_ROWS)  # of arrays [B, ...]
OF_WIDTH = PartitionSpec(_ROWS, None, "tensor")  # of arrays [B, S, N D]
OF_HEADS = PartitionSpec(_ROWS, "tensor")  # of arrays [B, N, ...]


def platform() -> str:
    """Returns "cpu", "tpu" or "cuda"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    kind = str(device.device_kind)
    return "cpu" if kind == "cpu" else "tpu" if kind.startswith("TPU") else "cuda"


def is_ampere_or_newer() -> bool:
    """Returns whether this machine's GPU, if it has one, is from NVIDIA and new enough for flash attention."""
    if jax.default_backend() != "gpu":  # a plan
        return True
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    return bool(re.fullmatch(r"[\d.]+", capability)) and float(capability) >= _AMPERE


def num_devices() -> int:
    """Returns the number of devices of the mesh; 1 without a mesh."""
    mesh = _shared()
    return 1 if mesh.empty else int(mesh.size)


def divides(rows: int, heads: int) -> bool:
    """Returns whether the mesh divides these numbers of rows and heads."""
    mesh = _shared()
    if not _is_split(mesh):
        return num_devices() == 1
    return rows % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0 and heads % mesh.shape["tensor"] == 0


def row_groups(rows: int) -> int:
    """Returns the number of groups of consecutive rows that the mesh places on its devices; 1 if it does not divide."""
    mesh = _shared()
    groups = mesh.shape["data"] * mesh.shape["fsdp"] if _is_split(mesh) else 1
    return groups if rows % groups == 0 else 1


def heads_of_device(heads: int) -> int:
    """Returns the number of heads on each device, if the mesh divides them."""
    mesh = _shared()
    return heads // mesh.shape["tensor"] if _is_split(mesh) else heads


def on_each_device(function: Callable[..., Any], specs: tuple[Any, ...], result: Any) -> Callable[..., Any]:
    """Returns the function applied to each device's rows and heads, for programs that XLA cannot partition.

    Args:
      function: a function of arrays that treats each row and head alone.
      specs: how each argument is split: `OF_ROWS`, `OF_HEADS` or `OF_WIDTH`.
      result: how the result is split.
    """
    if not _is_split(_shared()):
        return function
    return jax.shard_map(function, in_specs=specs, out_specs=result, check_vma=False)


def _shared() -> Any:
    """The mesh whose devices share the program's arrays: empty inside `pmap`, where each device has its own."""
    mesh = jax.sharding.get_abstract_mesh()
    is_manual = all(kind == AxisType.Manual for kind in mesh.axis_types)
    return jax.sharding.AbstractMesh((), ()) if is_manual else mesh


def _is_split(mesh: Any) -> bool:
    return mesh.size > 1 and {*_ROWS, "tensor"} <= {*mesh.axis_names}
