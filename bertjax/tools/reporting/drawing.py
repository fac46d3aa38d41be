"""Renders Vega-Lite specifications as SVG and PNG files, in the colors of report pages."""

import functools
import json
import logging
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.tools.reporting import libraries

_SCALE = 2  # pixels of a PNG per unit of the specification
_UNASSIGNED = "\U0010ffff"  # no font has it

_log = logging.getLogger(__name__)


def _colors(theme: str) -> dict[str, str]:
    """Returns the colors of the "light" or "dark" theme by name, from the style sheet of pages."""
    css = (libraries.TEMPLATES / "page.css").read_text()
    block = css.partition(f":root[data-theme={theme}] {{")[2].partition("}")[0]
    return dict(re.findall(r"--(\w+): (#\w+);", block))


LIGHT = _colors("light")
DARK = _colors("dark")


def config(colors: Mapping[str, str]) -> dict[str, Any]:
    """Returns the look of charts, for Vega and Vega-Lite, from the colors of a theme."""
    ink = colors["ink"]
    line = colors["line"]
    # Texts are measured in a narrow font. The reader's may be wider, so paddings are larger than by default.
    text = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal", "labelFontSize": 11}
    return {
        "aria": False,  # descriptions of single points would double the size
        "axis": {**text, "gridColor": line, "domainColor": line, "tickColor": line},
        "header": {**text, "labelFontSize": 12, "labelPadding": 20},
        "legend": {**text, "columnPadding": 25},
        "mark": {"color": colors["c0"]},
        "padding": 20,
        "range": {"category": [colors[f"c{number}"] for number in range(8)]},
        "rule": {"color": ink},
        "text": {"color": ink, "fontSize": 11},
        "title": {"color": ink, "fontWeight": "normal", "anchor": "start", "offset": 15},
        "view": {"stroke": line},
    }


def check(path: Path) -> None:
    """Raises UserError if the suffix of a path is not .svg or .png, or vl-convert is not installed."""
    if path.suffix not in (".svg", ".png"):
        raise UserError(str(path), got=repr(path.suffix), expected=".svg or .png", fix="change the suffix")
    libraries.load("vl_convert")


def write(path: Path, chart: Mapping[str, Any]) -> None:
    """Writes a chart. Equal charts give files with equal bytes.

    An SVG has the dark theme where the reader prefers it, and its texts are drawn by the reader's sans-serif font. A
    PNG has the light theme. Characters that no installed font has are boxes in a PNG, and a warning names them.

    Args:
      path: a path that ends in .svg or .png. Its folder is created.
      chart: a Vega-Lite specification without schema, background and config. Its colors are those of `LIGHT`.

    Raises:
      UserError: see `check`.
    """
    check(path)
    converter = libraries.load("vl_convert")
    themed = {**chart, "background": LIGHT["panel"], "config": config(LIGHT)}
    # No base URL is allowed, so that nothing is requested.
    svg: str = converter.vegalite_to_svg(json.dumps(themed), vl_version=libraries.VEGA_LITE, allowed_base_urls=[])
    data = svg.replace(">", f">{_dark_style()}", 1).encode()
    if path.suffix == ".png":
        data = converter.svg_to_png(svg, scale=_SCALE)
        texts = ET.fromstring(svg).itertext()
        missing = "".join(filter(_is_missing, sorted(set("".join(texts)))))
        if missing:
            _log.warning("%s: no installed font has %.40s; install one, such as Noto Sans CJK", path, missing)
    path.parent.mkdir(parents=True, exist_ok=True)
    with completed(path) as partial:
        partial.write_bytes(data)


def _dark_style() -> str:
    """Returns a style sheet that replaces the light colors, which are attributes, where the reader prefers dark."""
    rules = [
        f'[{attribute}="{color}"]{{{attribute}:{DARK[name]}}}'
        for name, color in LIGHT.items()
        for attribute in ("fill", "stroke")
    ]
    return f"<style>@media(prefers-color-scheme:dark){{{''.join(rules)}image{{filter:brightness(1.9)}}}}</style>"


def _is_missing(character: str) -> bool:
    """Returns whether the renderer draws a character like one that no font has."""
    return not character.isspace() and _picture(character) == _picture(_UNASSIGNED)


@functools.cache
def _picture(character: str) -> bytes:
    """Returns a PNG of a character."""
    text = f'<text y="20" font-family="sans-serif">&#{ord(character)};</text>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="30" height="30">{text}</svg>'
    png: bytes = libraries.load("vl_convert").svg_to_png(svg)
    return png
