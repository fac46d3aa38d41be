"""Checks every config of a sweep before its first run starts."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax import modes
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from bertjax.tools.sweeps.definition import Sweep
from bertjax.tools.sweeps.expansion import Recipes, in_stage
from bertjax.tools.sweeps.named_files import check_named_files


def check(sweep: Sweep, recipes: Recipes, request: modes.Request, find: Callable[[str], modes.Experiment]) -> None:
    """Checks each config once, like a run with this config, except for devices and the contents of data files.

    Args:
      sweep: the sweep.
      recipes: the configs of its stages and rows.
      request: the request, in mode train.
      find: returns the experiment of a name.
    Raises:
      UserError: for an invalid config, or if a file that it names does not exist. The message names the row.
    """
    done = set()
    with tempfile.TemporaryDirectory() as home:
        for stage in sweep.stages:
            for row in sweep.rows:
                recipe = recipes[row.name, stage.name]
                if recipe.digest in done:
                    continue
                config = dict(recipe.config)
                if stage.init_from:
                    config["init_from"] = str(Path(home, recipes[row.name, stage.init_from].digest))
                try:
                    resolved = modes.rehearse(request, config, find)
                    check_named_files(resolved["data"])
                except UserError as error:
                    raise in_stage(error, row, stage) from error
                done.add(recipe.digest)
                if any(other.init_from == stage.name for other in sweep.stages):
                    _stand_in(Path(home, recipe.digest), resolved)


def _stand_in(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes what `init_from` reads of a run's folder before weights, to check the stages that start from it."""
    (folder / "checkpoints" / "0").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    vocab = (*SPECIALS, "a")  # a vocabulary of only special tokens is refused
    WordPiece(vocab, lowercase=bool(config["data"]["lowercase"])).save(folder)
