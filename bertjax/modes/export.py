"""`--mode=export`."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bertjax import distributed
from bertjax.errors import UserError, did_you_mean
from bertjax.model import Model
from bertjax.modes.tools import tool
from bertjax.runs import run_folder

_log = logging.getLogger(__name__)

_FIELDS = ("language", "license", "base_model", "datasets")  # of model cards, without a source in a run


def card_fields(assignments: Iterable[str]) -> dict[str, list[str]]:
    """Returns the values of each field of the model card that the command line sets.

    >>> card_fields(["language=ko", "language=en", "license=apache-2.0"])
    {'language': ['ko', 'en'], 'license': ['apache-2.0']}

    Raises:
      UserError: for an assignment without a value, or an unknown field.
    """
    fields: dict[str, list[str]] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name not in _FIELDS or not value.strip():
            expected = f"NAME=VALUE, where NAME is {', '.join(_FIELDS[:-1])} or {_FIELDS[-1]}"
            fix = "write --card=language=ko, for example"
            fix = fix if name in _FIELDS else did_you_mean(name, _FIELDS, fix)
            raise UserError("--card", got=repr(assignment), expected=expected, fix=fix)
        fields.setdefault(name, []).append(value.strip())
    return fields


def export(
    model: Model, folder: Path, run: Path | None, fields: Mapping[str, Sequence[str]], *, is_final: bool
) -> None:
    """Exports a model with a model card, and logs where it is and what opens it.

    Args:
      model: the model.
      folder: the folder. A README.md in it is kept.
      run: the run of the model; None for weights in `init_from`.
      fields: see `card_fields`.
      is_final: whether the checkpoint is that of `checkpoint.final`, which the test split was scored with.
    Raises:
      UserError: for a model that the task cannot export, or a damaged file of the run.
    """
    model.export(folder)
    if not distributed.is_first_process():
        return
    file = folder / "config.json"  # which the export of another package may not have
    names = json.loads(file.read_text(encoding="utf-8")).get("architectures") if file.exists() else None
    opened = f'bertjax.load("{folder}") opens it'
    if (folder / "modules.json").exists():
        opened += f', and SentenceTransformer("{folder}") of sentence-transformers'
    elif names:  # transformers has no BertSum
        name = f'{"AutoModel" if names[0].startswith("BertSum") else names[0]}.from_pretrained("{folder}")'
        opened += f", and {name} of transformers" + " the encoder" * names[0].startswith("BertSum")
    _log.info("exported to %s: %s", folder, opened)
    card = folder / "README.md"
    if card.exists():
        _log.warning("%s is kept: delete it and export again for a new model card", card)
    else:
        config = run_folder.load_config(run) if run else model.config  # that of the model is adapted to the devices
        tool("model card")(card, run, config, model.checkpoint, is_final=is_final, fields=fields)
