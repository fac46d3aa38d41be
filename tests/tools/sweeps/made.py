"""Makes sweeps, and run folders without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.config import build
from bertjax.configs.sweeps import parts
from bertjax.tools.sweeps.definition import Sweep

# The configs of the rows' config files, which replace the loader of `launch.py`.
BASE = {
    "seed": 0,
    "init_from": "",
    "size": 1,
    "data": {"source": "text", "valid": ""},
    "checkpoint": {"final": "latest"},
}


def values(**changed: Any) -> dict[str, Any]:
    """Returns the values of a sweep file with two stages and three rows; the last two rows share the first stage."""
    return {
        "stages": [
            parts.stage("pretrain", "pretrain.py"),
            parts.stage("task", "task.py", {"data.valid": "{workdir}/x"}, "pretrain"),
        ],
        "rows": [
            parts.row("base", {}, {"score": 50.0}),
            parts.row("No A", {"pretrain.size": 2}),
            parts.row("No A & B", {"pretrain.size": 2, "task.size": 3}, {"score": 45.0}),
        ],
        "base": "base",
        "seeds": (0, 1),
        "metrics": [parts.metric("score", "task", "valid/f1", "percent", digits=1)],
        "source": "nowhere",
        "needs": {},
        **changed,
    }


def sweep(**changed: Any) -> Sweep:
    return build(Sweep, values(**changed), "sweep")


def load(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns a config of `BASE` with the values of flags, which are numbers or texts."""
    config = json.loads(json.dumps(BASE))
    config["file"] = arguments[0].removeprefix("--config=")
    for argument in arguments[1:]:
        name, _, value = argument.removeprefix("--config.").partition("=")
        *path, key = name.split(".")
        tree = config
        for part in path:
            tree = tree[part]
        tree[key] = int(value) if value.isdigit() else value
    return config


def write_run(folder: Path, metrics: Mapping[str, float]) -> None:
    """Writes the folder of a finished run of 4 updates, each of 30 seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = {"best_metric": "", "best_mode": "max", "final": "latest"}
    config = {"experiment": "any", "num_steps": 4, "checkpoint": checkpoint}
    (folder / "config.json").write_text(json.dumps(config))
    train = {"step": 4, "train/step_seconds": 30.0, "train/tokens_per_second": 10.0}
    lines = [train, {"step": 4, **metrics}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "checkpoints" / "4").mkdir(parents=True, exist_ok=True)
