"""What pictures with words in them need: the drawing library, and fonts that have the words' characters."""

import importlib
from typing import Any

from bertjax.errors import UserError

BASE_FONT = "DejaVu Sans"  # comes with Matplotlib: Latin, Greek, Cyrillic, Arabic, ...; neither Han nor Hangul
# Has a numbered box for every code point there is.
_BOXES = "Last Resort"


def load_matplotlib() -> Any:
    """Returns Matplotlib with what draws without a screen. Raises UserError if it is not installed."""
    try:
        for module in ("figure", "font_manager"):
            importlib.import_module(f"matplotlib.{module}")
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise UserError(
            "the drawing library",
            got=str(error),
            expected="Matplotlib, which only pictures need",
            fix="pip install -e '.[report]'",
        ) from error


def fonts_for(matplotlib: Any, text: str) -> tuple[list[str], str]:
    """Returns the families of installed fonts to draw text with, best first, and the characters that none has."""
    fonts = matplotlib.font_manager
    families, missing = [BASE_FONT], set(text) - _characters(fonts, fonts.findfont(BASE_FONT))
    files = {entry.name: entry.fname for entry in fonts.fontManager.ttflist if not entry.name.startswith(_BOXES)}
    found = {name: missing & _characters(fonts, files[name]) for name in sorted(files)} if missing else {}
    while any(found.values()):
        best = max(found, key=lambda name: len(found[name]))
        families.append(best)
        missing -= found[best]
        found = {name: characters & missing for name, characters in found.items()}
    return families, "".join(sorted(missing))


def _characters(fonts: Any, path: str) -> set[str]:
    """The characters that a font file has."""
    return set(map(chr, fonts.get_font(path).get_charmap()))
