"""What a sweep keeps in its folder: which rows it has and how they were made, so that another one is told from it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.runs.run_folder import differences
from bertjax.sweeps.expansion import Before, Recipes, Run, identity

_FILE = "sweep.json"


def names(workdir: Path) -> Mapping[str, str]:
    """The folders that runs have been given before, by what they hold; see `expansion.identity`."""
    found: Mapping[str, str] = _read(workdir)["names"]
    return found


def recorded(workdir: Path) -> Before:
    """Returns the content and the config that a folder was started with, by row and stage; see `Recipe.content`."""
    kept = _read(workdir)
    return {
        (row, stage): (content, kept["configs"][content])
        for row, of in kept["rows"].items()
        for stage, content in of.items()
    }


def first_seed(workdir: Path, seeds: Sequence[int]) -> int:
    """The seed of stages of one seed: the first of these, or of those that the folder was begun with."""
    kept = _read(workdir)["first_seed"]
    return seeds[0] if kept is None else int(kept)


def check(workdir: Path, recipes: Recipes) -> None:
    """Compares with the sweep that a folder is of; rows, stages and seeds may join.

    Raises:
      UserError: rows or stages that the folder has and the sweep has not, or has with another config.
    """
    before = _read(workdir)
    wrong = []
    for row, stages in before["rows"].items():
        for stage, content in stages.items():
            where, recipe = f"row {row!r}, stage {stage}", recipes.get((row, stage))
            if recipe is None:
                wrong.append(f"{where}: there, not in this sweep")
            elif recipe.content != content:
                old = before["configs"][content]
                parts = differences(old, recipe.config) or _apart(old, recipe.config)
                wrong.append(f"{where}: " + ("; ".join(parts) or "it begins with another run"))
    if wrong:
        raise UserError(
            f"--workdir={workdir}",
            got="another sweep: " + " | ".join(wrong),
            expected="an empty folder, or one of the same sweep, which rows, stages and seeds may be added to",
            fix="choose another --workdir",
        )


def save(workdir: Path, spec: str, recipes: Recipes, runs: tuple[Run, ...], first_seed: int) -> None:
    """Writes down what the folder is of."""
    rows: dict[str, dict[str, str]] = {}
    for (row, stage), recipe in recipes.items():
        rows.setdefault(row, {})[stage] = recipe.content
    given = {identity(recipes[key.row, key.stage], key.seed): run.name for run in runs for key in run.keys}
    kept = {
        "sweep": spec,
        "first_seed": first_seed,
        "rows": rows,
        "names": {**names(workdir), **given},
        "configs": {recipe.content: recipe.config for recipe in recipes.values()},
    }
    workdir.mkdir(parents=True, exist_ok=True)
    with completed(workdir / _FILE) as partial:
        partial.write_text(json.dumps(kept, indent=1) + "\n")


def _read(workdir: Path) -> dict[str, Any]:
    path = workdir / _FILE
    if not path.exists():
        return {"first_seed": None, "rows": {}, "names": {}, "configs": {}}
    try:
        kept = json.loads(path.read_text())
        return {"first_seed": kept.get("first_seed"), **{key: dict(kept[key]) for key in ("rows", "names", "configs")}}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            str(path),
            got=f"a file that cannot be read ({error})",
            expected="what a sweep has written down of itself",
            fix="delete it, and start the same sweep again",
        ) from error


def _apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How checkpoints are kept and chosen, and how long runs are: the figures depend on both."""
    one, two = (
        {key: each.get(key) for key in ("num_epochs", "warmup_fraction")}
        | {f"checkpoint.{key}": value for key, value in each.get("checkpoint", {}).items()}
        for each in (old, new)
    )
    return [
        f"{key}: {one.get(key)!r} there, {two.get(key)!r} now"
        for key in sorted(one.keys() | two.keys())
        if one.get(key) != two.get(key)
    ]
