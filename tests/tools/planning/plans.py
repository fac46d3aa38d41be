"""Configs and devices of the tests of plans. As a program, makes plans for TPUs and GPUs."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bertjax.configs import bert_pretraining as config_file
from bertjax.contract import TrainingTask
from bertjax.experiments import find
from bertjax.modes import stages
from bertjax.tools.planning import planner
from bertjax.tools.planning.chips import Chip, Link, Target
from bertjax.training.config import TrainingConfig

CHIP = Chip(peak_flops=1e9, hbm_bytes=2**30, hbm_bandwidth=1e9, links={"link": 1e7}, clock=0.0, source="nowhere")
LAYERS, HIDDEN, LENGTH, VOCAB, ROWS, PREDICTED = 2, 128, 32, 1000, 16, 6
VALUES = {
    "batch_size": ROWS,
    "checkpoint.best_metric": "",
    "num_steps": 1000,
    "model.hidden_size": HIDDEN,
    "model.intermediate_size": 4 * HIDDEN,
    "model.max_positions": 48,
    "model.scan_layers": True,
    "data.source": "/there/is/no/such/file",
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "data.seq_len": LENGTH,
    "data.stages": (),
    "data.packing": False,
    "data.vocab_size": VOCAB,
    "masking.max_predictions": PREDICTED,
}


def target_of(bandwidth: float = 1e7, link: Callable[[str, Sequence[Any]], Link] | None = None) -> Target:
    """Returns eight CPU devices, with links of one bandwidth unless `link` returns others."""
    return Target("here", CHIP, jax.devices(), link or (lambda kind, group: Link("link", bandwidth)))


def config(**values: Any) -> dict[str, Any]:
    """Returns the config of a small model, with values by dotted key; `__` stands for a dot."""
    tree = config_file.get_config("tiny")
    tree.update_from_flattened_dict({**VALUES, **{key.replace("__", "."): value for key, value in values.items()}})
    return stages._for_plan(json.loads(tree.to_json()))


def build(tree: Mapping[str, Any]) -> tuple[TrainingTask, TrainingConfig]:
    """Returns the task and the settings of a config."""
    complete = stages.Resolved(find(tree["experiment"]), dict(tree)).example()
    return complete.task, complete.settings


def main(cases: str, output: str) -> None:
    """Writes the plans of (topology, config values) cases, which are JSON."""
    plans = [planner.run(topology, False, config(**values), build) for topology, values in json.loads(cases)]
    Path(output).write_text(json.dumps(plans))


if __name__ == "__main__":
    main(*sys.argv[1:])
