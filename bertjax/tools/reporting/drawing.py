"""Loads Matplotlib, and finds fonts for the characters of a text."""

import importlib
from typing import Any

from bertjax.errors import UserError

BASE_FONT = "DejaVu Sans"  # comes with Matplotlib: Latin, Greek, Cyrillic, Arabic, ...; neither Han nor Hangul
# This font draws every character as a numbered box.
_BOXES = "Last Resort"


def load_matplotlib() -> Any:
    """Returns Matplotlib, for use without a display. Raises UserError if it is not installed."""
    try:
        for module in ("figure", "font_manager"):
            importlib.import_module(f"matplotlib.{module}")
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise UserError(
            "Matplotlib",
            got=str(error),
            expected="an installed Matplotlib, which only pictures need",
            fix="pip install -e '.[report]'",
        ) from error


def fonts_for(matplotlib: Any, text: str) -> tuple[list[str], str]:
    """Returns the installed font families that a text needs, best first, and the characters that no font has."""
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
    """Returns the characters of a font file."""
    return set(map(chr, fonts.get_font(path).get_charmap()))
