"""Trains any task on any devices. As a program, it trains all tasks as one of several processes."""

import argparse
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertjax import distributed, experiments
from bertjax.modes import stages
from bertjax.training import loop, sharding
from bertjax.training.compilation import Compilations
from bertjax.training.sharding import path_names
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, sizes, tree_of

STEPS = 5
# All arrays of these models are small, so a smaller limit is needed to split any.
MIN_FSDP_SIZE = 64
_SMALL = {
    "num_steps": STEPS,
    "batch_size": 32,
    "data.seq_len": 32,
    "data.valid_fraction": 0.2,
    **sizes(1, 32, 2, 64, 48),
    **NO_DROPOUT,
    "optimizer.warmup_steps": 0,  # with warm-up, the first update has learning rate 0
    "optimizer.learning_rate": 1e-3,
}
_OF_TASKS = {
    "bert_pretraining": {
        "data.stages": (),
        "data.packing": False,
        "data.lines": "sentence",
        "data.vocab_size": 128,
        "data.workers": 1,
        "optimizer.schedule": "linear",
        "optimizer.bias_correction": False,
    },
    # The gradient of key biases is only rounding error, which Adam would scale to full updates at the paper's eps of
    # 1e-9.
    "translation": {"model.num_decoder_layers": 1, "decoding.max_length": 48, "optimizer.eps": 1e-6},
    # Dropout is on, because its masks depend on rows only.
    "embeddings": {
        "data.text_columns": ("query", "positive", "negatives"),
        "data.row_multiple": 16,
        **dict.fromkeys(NO_DROPOUT, 0.1),
        "optimizer.eps": 1e-6,
    },
    "bertsum_ext": {
        "data.window_overlap": 8,
        "model.scorer": "transformer",
        "model.scorer_heads": 2,
        "model.scorer_intermediate": 64,
        "model.scorer_dropout": 0.0,
    },
}
# A task with the data and the values of another one.
_OTHERS = dict.fromkeys(("denoising", "replaced_tokens"), "bert_pretraining")
_VARIANTS = {"translation": "dates"}
TASKS = tuple(_OF_TASKS)


class Result(NamedTuple):
    """The result of the updates.

    Attributes:
      losses: the loss of each update.
      first: the parameters after the first update, on the host.
      last: the parameters after the last update.
      bytes_per_device: bytes of parameters and optimizer state on each of this process's devices.
      expected_bytes: the bytes that each device should hold with this mesh.
    """

    losses: list[float]
    first: Any
    last: Any
    bytes_per_device: list[int]
    expected_bytes: int


def write_data(task: str, folder: Path) -> dict[str, Any]:
    """Writes small data for a task and returns the config keys that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    if task == "bert_pretraining":
        return {"data.source": str(tiny.write_text(folder / "text.txt", documents=60))}
    writers = {"bertsum_ext": tiny.write_articles, "embeddings": tiny.write_related}
    return writers[task](folder) if task in writers else {}


@mock.patch.object(sharding, "_MIN_FSDP_SIZE", MIN_FSDP_SIZE)
def train(task: str, data: Mapping[str, Any], folder: Path, mesh: tuple[int, int, int], devices: int) -> Result:
    """Trains a task on the first devices of all processes.

    Args:
      task: the name of the experiment.
      data: the config keys from `write_data`.
      folder: the folder for prepared data.
      mesh: sizes of the axes data, fsdp and tensor.
      devices: the number of devices.
    """
    axes = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
    values = {**_SMALL, **_OF_TASKS[_OTHERS.get(task, task)], **data, **axes}
    resolved = stages.of_config(experiments.find(task), tree_of(task, _VARIANTS.get(task, "tiny"), values))
    data = resolved.data(folder / "run")
    distributed.on_first_process(data.prepare)
    made = resolved.complete(data)
    losses, first, update = [], None, None
    with Compilations() as compiled:
        trainer = loop.Trainer(made.task, made.settings, jax.devices()[:devices])
        for update in trainer.updates(data.batches, trainer.fresh(), compiled):
            losses.append(float(update.report.metrics["loss"][0]))
            first = on_host(update.state.params) if first is None else first
    state = update.state.params, update.state.opt_state
    return Result(losses, first, on_host(update.state.params), bytes_per_device(state), expected_bytes(state, mesh))


def on_host(params: Any) -> Any:
    """The parameters of all processes, as numpy arrays."""
    return jax.tree.map(np.asarray, multihost_utils.process_allgather(params, tiled=True))


def bytes_per_device(state: Any) -> list[int]:
    """The bytes of a state on each of this process's devices."""
    held: dict[Any, int] = {}
    for leaf in jax.tree.leaves(state):
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return list(held.values())


def expected_bytes(state: Any, mesh: tuple[int, int, int]) -> int:
    """The expected bytes per device. `tensor` splits heads and feed-forward layers, `fsdp` all but tiny arrays."""
    _, fsdp, tensor = mesh
    total = 0
    for name, leaf in zip(jax.tree.leaves(path_names(state)), jax.tree.leaves(state), strict=True):
        free, parts = list(leaf.shape), 1
        if tensor > 1 and re.search(
            r"attention/(query|key|value)/|(gate|intermediate)/|(attention|layers)/output/kernel$", name
        ):
            free.pop(-2 if "output" in name else -1)
            parts = tensor
        if leaf.size >= MIN_FSDP_SIZE and any(size % fsdp == 0 for size in free):
            parts *= fsdp
        total += leaf.nbytes // parts
    return total


def main() -> None:
    """Trains all tasks as one of several processes, and writes the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mesh", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("data", type=json.loads, help="of each task")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--distributed")
    parser.add_argument("--coordinator_address")
    parser.add_argument("--num_processes", type=int)
    parser.add_argument("--process_id", type=int)
    args = parser.parse_args()
    distributed.initialize(args.distributed, args.coordinator_address, args.num_processes, args.process_id)
    results = {
        task: tuple(train(task, data, args.folder / task, args.mesh, jax.device_count()))
        for task, data in args.data.items()
    }
    args.output.write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
