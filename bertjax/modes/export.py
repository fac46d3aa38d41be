"""`--mode=export`."""

import json
import logging
from pathlib import Path

from bertjax import distributed
from bertjax.model import Model

_log = logging.getLogger(__name__)


def export(model: Model, folder: Path) -> None:
    """Exports a model, and logs where it is and what opens it.

    Raises:
      UserError: for a model that the task cannot export.
    """
    model.export(folder)
    if not distributed.is_first_process():
        return
    file = folder / "config.json"  # which the export of another package may not have
    names = json.loads(file.read_text(encoding="utf-8")).get("architectures") if file.exists() else None
    opened = f'bertjax.load("{folder}") opens it'
    if names:  # transformers has no BertSum
        name = f'{"AutoModel" if names[0].startswith("BertSum") else names[0]}.from_pretrained("{folder}")'
        opened += f", and {name} of transformers" + " the encoder" * names[0].startswith("BertSum")
    _log.info("exported to %s: %s", folder, opened)
