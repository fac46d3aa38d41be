"""The examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "bertjax"
# Their examples name values and files that exist only for a user.
ILLUSTRATED = {
    *("config", "data.readers.feature_files", "loading", "tools.reporting.attention"),
    *(f"interop.{name}" for name in ("formats.reading", "formats.tensorflow_checkpoint", "huggingface", "published")),
    "interop.encoder_decoders",
    *(f"interop.families.{name}" for name in ("google", "modernbert", "presumm")),
}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
}


@pytest.mark.parametrize("name", sorted(MODULES - ILLUSTRATED))
def test_examples(name):
    found = doctest.testmod(importlib.import_module(f"bertjax.{name}".removesuffix(".")))
    assert found.attempted and not found.failed
