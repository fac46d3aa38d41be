"""`sweep.json` in a sweep's folder: its rows and how they were made, to detect a different sweep."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.runs.run_folder import differences
from bertjax.tools.sweeps.expansion import Before, Recipes, Run, identity

_FILE = "sweep.json"


def names(workdir: Path) -> Mapping[str, str]:
    """Returns the names of existing run folders, by `expansion.identity`."""
    return dict(_read(workdir)["names"])


def recorded(workdir: Path) -> Before:
    """Returns the digest and the config recorded in the folder, by row and stage; see `Recipe.digest`."""
    record = _read(workdir)
    return {
        (row, stage): (digest, record["configs"][digest])
        for row, of in record["rows"].items()
        for stage, digest in of.items()
    }


def first_seed(workdir: Path, seeds: Sequence[int]) -> int:
    """Returns the seed of stages with one seed: the recorded one, or else the first of `seeds`."""
    seed = _read(workdir)["first_seed"]
    return seeds[0] if seed is None else int(seed)


def check(workdir: Path, recipes: Recipes) -> None:
    """Compares a sweep with the one recorded in its folder. New rows, stages and seeds are allowed.

    Raises:
      UserError: if a recorded row or stage is missing in the sweep, or has a different config.
    """
    before = _read(workdir)
    wrong = []
    for row, stages in before["rows"].items():
        for stage, digest in stages.items():
            where = f"row {row!r}, stage {stage}"
            recipe = recipes.get((row, stage))
            if recipe is None:
                wrong.append(f"{where}: recorded, but not in this sweep")
            elif recipe.digest != digest:
                old = before["configs"][digest]
                parts = differences(old, recipe.config) or _differences(old, recipe.config)
                wrong.append(f"{where}: " + ("; ".join(parts) or "it starts from another run"))
    if wrong:
        raise UserError(
            f"--workdir={workdir}",
            got="a different sweep: " + " | ".join(wrong),
            expected="an empty folder, or the folder of the same sweep (rows, stages and seeds can be added)",
            fix="choose another --workdir",
        )


def save(workdir: Path, spec: str, recipes: Recipes, runs: tuple[Run, ...], first_seed: int) -> None:
    """Records the sweep in its folder."""
    rows: dict[str, dict[str, str]] = {}
    for (row, stage), recipe in recipes.items():
        rows.setdefault(row, {})[stage] = recipe.digest
    new_names = {identity(recipes[key.row, key.stage], key.seed): run.name for run in runs for key in run.keys}
    record = {
        "sweep": spec,
        "first_seed": first_seed,
        "rows": rows,
        "names": {**names(workdir), **new_names},
        "configs": {recipe.digest: recipe.config for recipe in recipes.values()},
    }
    workdir.mkdir(parents=True, exist_ok=True)
    with completed(workdir / _FILE) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")


def _read(workdir: Path) -> dict[str, Any]:
    path = workdir / _FILE
    if not path.exists():
        return {"first_seed": None, "rows": {}, "names": {}, "configs": {}}
    try:
        data = json.loads(path.read_text())
        return {"first_seed": data.get("first_seed"), **{key: dict(data[key]) for key in ("rows", "names", "configs")}}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            str(path),
            got=f"an unreadable file ({error})",
            expected="the data that a sweep writes",
            fix="delete it, and start the same sweep again",
        ) from error


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lists differing values of `checkpoint`, of the run's length in epochs and of early stopping."""
    keys = ("num_epochs", "warmup_fraction", *(("evaluate_every",) if new.get("evaluate_patience") else ()))
    one, two = (
        {key: config.get(key) for key in keys}
        | {"evaluate_patience": config.get("evaluate_patience", 0)}
        | {f"checkpoint.{key}": value for key, value in config.get("checkpoint", {}).items()}
        for config in (old, new)
    )
    return [
        f"{key}: {one.get(key)!r} before, {two.get(key)!r} now"
        for key in sorted(one.keys() | two.keys())
        if one.get(key) != two.get(key)
    ]
