"""`bertjax.load`: published weights or a trained run as a Python object.

Imports JAX only when it is called, so that `import bertjax` is fast and starts no device.
"""

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bertjax.errors import UserError, naming_arguments

if TYPE_CHECKING:
    from bertjax.model import Model

# The variant of an experiment's config file that serves published weights; "" where it is not listed.
_VARIANTS = {"features": "sentence"}


@naming_arguments()
def load(
    folder: str | os.PathLike[str],
    experiment: str = "",
    *,
    checkpoint: str | int = "final",
    config: Mapping[str, Any] = MappingProxyType({}),
) -> "Model":
    """Loads a model.

    >>> bert = load("bert-base-uncased")  # doctest: +SKIP
    >>> bert.predict(["Paris is the [MASK] of France."])  # doctest: +SKIP
    >>> load("runs/news", config={"decoding.num_beams": 8}).predict([article])  # doctest: +SKIP

    Args:
      folder: everything that the config key `init_from` accepts: a run, a folder of transformers, of
        sentence-transformers or of Marian, a checkpoint of google-research/bert, or a .pt file of PreSumm.
      experiment: the task, a name in `experiments/` or one that an installed package registers. Default: the task that
        the run or the weights were trained for; "features" for an encoder without a head.
      checkpoint: which checkpoint of a run: "latest", "best", a step, or a mean such as "last:5"; "final" for that of
        the config key `checkpoint.final`.
      config: values by dotted config key that differ from those of the run, or from the defaults of
        `configs/<experiment>.py` for published weights. An installed package registers the file of its experiment in
        the entry-point group `bertjax.configs`.
    Raises:
      UserError: for a folder that does not exist, holds no model or lacks weights of the task, and for invalid config
        keys or values.
    """
    from bertjax import modes
    from bertjax.experiments import find
    from bertjax.interop.published import open_weights
    from bertjax.model import Model
    from bertjax.training import platforms

    _check(folder, experiment, config)
    platforms.leave_out_tpu()
    platforms.check_devices()
    path = Path(folder)
    published = open_weights(path)
    name = experiment or published.experiment
    is_run = published.is_run and name == published.experiment
    required = published.required if name == published.experiment else {}
    new_config = None if is_run else _config(name, {**required, **config, "init_from": str(path)})
    workdir = str(path) if is_run else ""
    checkpoint = str(checkpoint)
    request = modes.Request(mode="predict", workdir=workdir, checkpoint=checkpoint, overrides=config)
    resolved = modes.resolve(request, new_config, find, published)
    complete = resolved.to_predict()
    return Model(complete.task, complete.settings, complete.config, path if is_run else None, checkpoint, published)


def _check(folder: Any, experiment: Any, config: Any) -> None:
    """Raises UserError for arguments of wrong types."""
    kinds: dict[str, tuple[Any, Any, str]] = {
        "folder": (folder, (str, os.PathLike), "a path"),
        "experiment": (experiment, str, "a name in experiments/"),
        "config": (config, Mapping, 'a dict, such as {"data.seq_len": 64}'),
    }
    for name, (value, kind, expected) in kinds.items():
        if not isinstance(value, kind):
            raise UserError(
                name, got=f"an object of type {type(value).__name__}", expected=expected, fix=f"pass {expected}"
            )
    for key, value in config.items():
        if not isinstance(key, str) or isinstance(value, Mapping):
            got = f"{key!r}: {value!r}"
            expected = "values by dotted key"
            raise UserError("config", got=got, expected=expected, fix='write it as {"data.seq_len": 64}')


def _config(experiment: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment's config file with other values, by dotted key.

    Raises:
      UserError: for an unknown experiment, or one of an installed package that registers no config file.
    """
    from bertjax.experiments import built_in, find, registered
    from bertjax.modes.config_values import place

    find(experiment)
    if experiment in built_in():
        file = importlib.import_module(f"bertjax.configs.{experiment}")
    elif entry := registered("bertjax.configs").get(experiment):
        file = entry.load()
    else:
        expected = "an entry point of this name in the group bertjax.configs"
        raise UserError(f"experiment {experiment}", got="no config file", expected=expected, fix="register it")
    config: dict[str, Any] = json.loads(file.get_config(_VARIANTS.get(experiment, "")).to_json())
    for key, value in values.items():
        subtree, name = place(config, key)
        subtree[name] = value
    return config
