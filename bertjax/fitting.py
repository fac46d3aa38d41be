"""`bertjax.train`: trains a run from Python, as `--mode=train` does. Imports JAX only when it is called."""

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.model import Model


def train(config: Any, workdir: str | os.PathLike[str], *, report: bool = True) -> "Model":
    """Starts or resumes a run, shows its progress on standard error, and returns its model.

    >>> from bertjax.configs import classification
    >>> config = classification.get_config("mrpc")
    >>> config.data.source = "train.tsv"
    >>> train(config, "runs/mrpc")  # doctest: +SKIP

    Args:
      config: the config of an experiment, such as `get_config` of a file in `bertjax.configs` returns it; or a dict.
      workdir: the run's folder. A run that is in it resumes.
      report: whether to write report.html, which needs the extra `report`.
    Returns:
      The model, as `bertjax.load(workdir)` returns it.
    Raises:
      UserError: for an invalid config, text or folder.
      KeyboardInterrupt: after Ctrl-C or SIGTERM, when a checkpoint is saved. The same call resumes.
    """
    from bertjax import modes
    from bertjax.experiments import find
    from bertjax.loading import load
    from bertjax.progress import lines_shown
    from bertjax.training import compilation, platforms

    config_tree = _tree(config)
    folder = os.fspath(workdir)
    platforms.leave_out_tpu()
    platforms.check_devices()
    request = modes.Request(mode="train", workdir=folder, report=report)
    with lines_shown(), compilation.kept_programs():
        if modes.run(request, config_tree, find) is modes.Outcome.STOPPED:
            raise KeyboardInterrupt(f"saved a checkpoint in {folder}; the same call resumes")
    return load(folder)


def _tree(config: Any) -> dict[str, Any]:
    """Returns a config as config.json holds it. Raises UserError for an object that it cannot hold."""
    from bertjax.errors import UserError

    try:
        tree: Any = json.loads(json.dumps(getattr(config, "to_dict", lambda: config)(), default=os.fspath))
    except TypeError as error:
        raise UserError("config", got=error, expected="values that JSON can hold", fix="convert them") from error
    if not isinstance(tree, dict) or "experiment" not in tree:
        got = f"an object of type {type(config).__name__}"
        expected = "the config of an experiment"
        fix = "pass bertjax.configs.classification.get_config(), for example, with your values"
        raise UserError("config", got=got, expected=expected, fix=fix)
    return tree
