"""Every config of a sweep, checked before anything runs."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax import modes
from bertjax.data.text.tokenizers import SPECIALS, WordPiece
from bertjax.errors import UserError
from bertjax.sweeps.definition import Sweep
from bertjax.sweeps.expansion import Recipes
from bertjax.sweeps.named_files import check_named_files


def check(sweep: Sweep, recipes: Recipes, request: modes.Request, find: Callable[[str], modes.Experiment]) -> None:
    """Checks each config once, as its run would, but for devices and the content of its text.

    Args:
      sweep: whose stages.
      recipes: whose configs.
      request: of a training.
      find: the experiment of a name.
    Raises:
      UserError: what is wrong with a config, or files that it names and that are not there; names the row.
    """
    done = set()
    with tempfile.TemporaryDirectory() as home:
        for stage in sweep.stages:
            for row in sweep.rows:
                recipe = recipes[row.name, stage.name]
                if recipe.content in done:
                    continue
                config = dict(recipe.config)
                if stage.init_from:
                    config["init_from"] = str(Path(home, recipes[row.name, stage.init_from].content))
                try:
                    resolved = modes.rehearse(request, config, find)
                    check_named_files(resolved["data"])
                except UserError as error:
                    raise error.within(f"row {row.name!r}, stage {stage.name}") from error
                done.add(recipe.content)
                if any(other.init_from == stage.name for other in sweep.stages):
                    _stand_in(Path(home, recipe.content), resolved)


def _stand_in(folder: Path, config: Mapping[str, Any]) -> None:
    """As much of a run's folder as `init_from` is asked for before weights are: what a later stage is checked with."""
    (folder / "checkpoints" / "0").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    vocab = (*SPECIALS, "a")  # one of special tokens alone would be refused
    WordPiece(vocab, lowercase=bool(config["data"]["lowercase"])).save(folder)
