"""BERT-family research in JAX: pretraining, fine-tuning, translation and summarization.

>>> import bertjax
>>> bert = bertjax.load("FOLDER")  # published weights or a run  # doctest: +SKIP
>>> bert.predict(["Paris is the [MASK] of France."])  # doctest: +SKIP
"""

from pathlib import Path

from bertjax.errors import UserError
from bertjax.fitting import train
from bertjax.loading import load

__all__ = ["load", "train"]

for _folder in map(Path(__file__).with_name, ("experiments", "configs")):
    if not _folder.is_dir():  # some programs unpack a symbolic link as a text file
        raise UserError(
            str(_folder),
            got="no folder",
            expected=f"a symbolic link to ../{_folder.name}",
            fix="clone with git where symbolic links are enabled, or unpack with unzip or tar",
        )
