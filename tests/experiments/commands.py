"""Commands of the experiments, run on one device, and the lines that they write."""

import dataclasses
import functools
import importlib
import json
import operator
from pathlib import Path

from bertjax.config import build
from tests import tiny


def sizes(layers, hidden, heads, intermediate, positions):
    """The config keys of a model's sizes."""
    names = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "max_positions")
    values = (layers, hidden, heads, intermediate, positions)
    return {f"model.{name}": value for name, value in zip(names, values, strict=True)}


SIZES = sizes(1, 32, 2, 32, 24)
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}


def tree_of(experiment, variant, values):
    """The config of an experiment with the given values, as `launch.py` passes it."""
    tree = importlib.import_module(f"bertjax.configs.{experiment}").get_config(variant)
    tree.update_from_flattened_dict(values)
    return json.loads(tree.to_json_best_effort())


@functools.cache
def values_of(experiment, variant):
    return importlib.import_module(f"bertjax.configs.{experiment}").get_config(variant).to_dict()


def settings_of(cls, experiment, path="data", variant="tiny", **changes):
    """A part of a config, with the values of an experiment's config file where they are not changed."""
    part = functools.reduce(operator.getitem, path.split("."), values_of(experiment, variant))
    return build(cls, {field.name: part[field.name] for field in dataclasses.fields(cls)} | changes, path)


def flags(values):
    return [f"--config.{key}={value}" for key, value in values.items()]


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def metrics_of(run):
    """The lines of the log but the time of evaluations, which is not known where all batches wait for a compilation."""
    return [line for line in lines_of(run / "metrics.jsonl") if "train/evaluation_row_seconds" not in line]


def done(*command, stdin=b""):
    """Runs a command, which must succeed."""
    outcome = tiny.run_on_one(*map(str, command), stdin=stdin.encode() if isinstance(stdin, str) else stdin)
    assert outcome.status is None, outcome.status
    return outcome


def trained(config, folder, values):
    """Trains in `run` of a folder. Returns this run and the command."""
    command = [f"--config=configs/{config}", f"--workdir={folder / 'run'}", *flags(values)]
    done(*command)
    return folder / "run", command


def published(experiment, text, run, mode, **values):
    """Evaluates or predicts with the run in `init_from`, and without the rest of its config."""
    values = {"init_from": run, "data.seq_len": 16, **values}
    return tiny.run_on_one(f"--mode={mode}", f"--config=configs/{experiment}.py", *flags(values), stdin=text)
