"""Clusters of NVIDIA GPUs: published specifications, and the devices of a cluster, by JAX's plugin and without a GPU.

The plugin, which the extra `gpu` installs, compiles for a GPU from a description of it.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import topologies

from bertjax.errors import UserError
from bertjax.tools.planning.chips import Chip, Link, Target
from bertjax.training import platforms

_PER_HOST = 8  # GPUs that NVLink connects
_MAX_HOSTS = 512
_MEMORY_FRACTION = 0.75  # JAX's default
_MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # the second is the older name
_RINGS = ("all-reduce", "all-gather", "reduce-scatter")
_COMPILERS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
_AUTOTUNING_OFF = {"xla_gpu_autotune_level": 0}  # it measures on a GPU


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
      peak_flops, hbm_bandwidth, source: see `Chip`.
      nvlink: bytes per second that a GPU sends to the others of its host.
      network: bytes per second that a GPU sends to other hosts.
      system: the system of eight GPUs that has this network.
      description: the fields of the compiler's description that differ between kinds.
    """

    peak_flops: float
    hbm_bandwidth: float
    nvlink: float
    network: float
    system: str
    source: str
    description: Mapping[str, Any]


# Data sheets publish the peak with sparsity, which is twice the dense one, and NVLink's bandwidth in both directions.
# NVIDIA's DGX systems have one network adapter per GPU: 400 Gb/s, or 200 Gb/s for the A100. The descriptions have the
# values of XLA's own, xla/backends/gpu/target_config/specs/{a100_sxm_80,h100_sxm,h200,b200}.txtpb in openxla/xla.
_HOPPER = {
    "cuda_compute_capability": "{ major: 9 }",
    "core_count": 132,
    "fpus_per_core": 128,
    "clock_rate_ghz": 1.98,
    "l2_cache_size": 52_428_800,
    "shared_memory_per_core": 233_472,
    "shared_memory_per_block_optin": 232_448,
}
GPUS = {
    "a100": Gpu(
        peak_flops=312e12,
        hbm_bandwidth=2039e9,
        nvlink=300e9,
        network=25e9,
        system="DGX A100",
        source="https://www.nvidia.com/en-us/data-center/a100/",
        description={
            "name": '"NVIDIA A100-SXM4-80GB"',
            "cuda_compute_capability": "{ major: 8 }",
            "core_count": 108,
            "fpus_per_core": 64,
            "clock_rate_ghz": 1.41,
            "l2_cache_size": 41_943_040,
            "shared_memory_per_core": 167_936,
            "shared_memory_per_block_optin": 166_912,
            "memory_bandwidth": 2_039_040_000_000,
            "device_memory_size": 85_100_068_864,
        },
    ),
    "h100": Gpu(
        peak_flops=989.4e12,
        hbm_bandwidth=3350e9,
        nvlink=450e9,
        network=50e9,
        system="DGX H100",
        source="https://www.nvidia.com/en-us/data-center/h100/",
        description={
            "name": '"NVIDIA H100 80GB HBM3"',
            **_HOPPER,
            "memory_bandwidth": 3_352_320_000_000,
            "device_memory_size": 84_942_979_072,
        },
    ),
    "h200": Gpu(
        peak_flops=989.4e12,
        hbm_bandwidth=4800e9,
        nvlink=450e9,
        network=50e9,
        system="DGX H200",
        source="https://www.nvidia.com/en-us/data-center/h200/",
        description={
            "name": '"NVIDIA H200 141GB HBM3e"',
            **_HOPPER,
            "memory_bandwidth": 4_800_000_000_000,
            "device_memory_size": 151_397_597_184,
        },
    ),
    "b200": Gpu(
        peak_flops=2250e12,
        hbm_bandwidth=8000e9,
        nvlink=900e9,
        network=50e9,
        system="DGX B200",
        source="https://www.nvidia.com/en-us/data-center/dgx-b200/",
        description={
            "name": '"NVIDIA B200"',
            "cuda_compute_capability": "{ major: 10 }",
            "core_count": 148,
            "fpus_per_core": 128,
            "clock_rate_ghz": 1.965,
            "l2_cache_size": 132_644_864,
            "shared_memory_per_core": 233_472,
            "shared_memory_per_block_optin": 232_448,
            "memory_bandwidth": 7_672_320_000_000,
            "device_memory_size": 191_514_411_008,
        },
    ),
}
_OF_EVERY_GPU = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "shared_memory_per_block": 49_152,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65_535,
    "block_dim_limit_z": 65_535,
    "registers_per_core_limit": 65_536,
    "registers_per_block_limit": 65_536,
}


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raises UserError unless a shape is a number of GPUs on one host, or of hosts and of GPUs on each."""
    if len(shape) <= 2:
        hosts, count = (1, *shape)[-2:]
        if 0 < hosts <= _MAX_HOSTS and 0 < count <= _PER_HOST:
            return
    whole_hosts, rest = divmod(shape[0], _PER_HOST)
    close = f"Did you mean '{name}:{whole_hosts}x{_PER_HOST}'?" if 1 < whole_hosts <= _MAX_HOSTS and not rest else ""
    raise UserError(
        "--topology",
        got=f"'{name}:{'x'.join(map(str, shape))}'",
        expected=f"{name}:GPUS or {name}:HOSTSxGPUS, with at most {_PER_HOST} GPUs on a host and {_MAX_HOSTS} hosts",
        fix=close or f"write {name}:{_PER_HOST} for one host, or {name}:4x{_PER_HOST} for four",
    )


def find(name: str, shape: Sequence[int]) -> Target:
    """Returns the cluster of a kind of GPU and of a shape that `check_shape` accepts. Uses no GPU.

    Raises:
      UserError: if JAX's plugin for NVIDIA GPUs is missing or does not fit JAX, or the part of the memory that programs
        may use is not a number from 0 to 1.
    """
    gpu = GPUS[name]
    hosts, count = (1, *shape)[-2:]
    chip = _chip(gpu)
    if not any(plugin.startswith("xla_cuda") for plugin in platforms.installed_plugins()):
        raise _without_plugin("no plugin of JAX for NVIDIA GPUs")
    try:
        devices = topologies.get_topology_desc(
            "", platform="cuda", target_config=describe(gpu), topology=f"1x{hosts}x{count}"
        ).devices
    except NotImplementedError as error:
        raise _without_plugin(f"a plugin that JAX {jax.__version__} does not load") from error
    return Target(
        name=f"{name}:{'x'.join(map(str, shape))}",
        chip=chip,
        devices=devices,
        link=lambda kind, group: link(chip, kind, group),
        assumptions=_assumptions(gpu),
        compiler_options=_AUTOTUNING_OFF,
        compilers=_COMPILERS,
    )


def _chip(gpu: Gpu) -> Chip:
    return Chip(
        peak_flops=gpu.peak_flops,
        hbm_bytes=int(gpu.description["device_memory_size"] * memory_fraction()),
        hbm_bandwidth=gpu.hbm_bandwidth,
        links={"NVLink": gpu.nvlink, "network": gpu.network},
        clock=0.0,
        source=gpu.source,
    )


def _without_plugin(got: str) -> UserError:
    expected = "jax-cuda12-plugin, which compiles for NVIDIA GPUs (no GPU needed)"
    return UserError("--mode=plan", got=got, expected=expected, fix="pip install -e '.[gpu]'")


def memory_fraction() -> float:
    """Returns the part of a GPU's memory that programs may use, from the variable of JAX if it is set.

    Raises:
      UserError: if it is not a number from 0 to 1.
    """
    name, text = next(((name, os.environ[name]) for name in _MEMORY_VARIABLES if os.environ.get(name)), ("", ""))
    try:
        fraction = float(text or _MEMORY_FRACTION)
        if 0 < fraction <= 1:
            return fraction
    except ValueError:
        pass
    raise UserError(name, got=repr(text), expected="a number from 0 to 1", fix=f"export {name}=0.9")


def describe(gpu: Gpu) -> str:
    """Returns the description of a GPU for the compiler, a GpuTargetConfigProto as text."""
    device = " ".join(f"{field}: {value}" for field, value in {**_OF_EVERY_GPU, **gpu.description}.items())
    rest = f"dnn_version_info {{ major: 9 minor: 10 }} device_description_str: {gpu.description['name']}"
    return f'gpu_device_info {{ {device} }} platform_name: "CUDA" {rest}'


def _assumptions(gpu: Gpu) -> tuple[str, ...]:
    return (
        f"a program may use {memory_fraction():.0%} of a GPU's memory; {_MEMORY_VARIABLES[0]} changes this",
        "the GPUs of a host communicate over NVLink, each with all others at full bandwidth",
        f"hosts communicate over a network with a port per GPU, of {8 * gpu.network / 1e9:.0f} Gb/s as in a "
        f"{gpu.system}; rings use the ports of all their GPUs",
        "float32 matrix products use TF32, whose peak is half of the bfloat16 peak; the bound does not include this",
        "the program is compiled without autotuning, which needs a GPU and may choose other matrix product kernels",
    )


def link(chip: Chip, kind: str, group: Sequence[Any]) -> Link:
    """Returns what the GPUs of a group communicate over: NVLink on one host, otherwise the network.

    Args:
      chip: the specification of the GPU.
      kind: the kind of the collective.
      group: the devices of the group.
    """
    per_host = Counter(device.process_index for device in group)
    if len(per_host) == 1:
        return Link("NVLink", chip.links["NVLink"])
    fewest = min(per_host.values())
    size = len(group)
    if kind in _RINGS:  # every ring enters and leaves each host once, and the rings share the ports
        return Link("network", min(fewest * chip.links["network"], chip.links["NVLink"]))
    return Link("network", chip.links["network"] * (size - 1) / (size - fewest))  # only this part leaves the host
