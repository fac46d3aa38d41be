"""Loads the libraries of reports: Jinja for HTML, and Vega, in vl-convert, for charts in pages and in files."""

import functools
import importlib
from pathlib import Path
from typing import Any

from bertjax.errors import UserError

TEMPLATES = Path(__file__).with_name("templates")
# Makes the function of the bundle that the page's script calls a global.
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
VEGA_LITE = "6.4"  # the version; it determines that of Vega


def template(name: str) -> Any:
    """Returns a template of this package. Jinja escapes all values. Raises UserError if Jinja is not installed."""
    jinja = load("jinja2")
    loader = jinja.FileSystemLoader(TEMPLATES)
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return jinja.Environment(loader=loader, undefined=jinja.ChainableUndefined, **options).get_template(name)


def source(name: str) -> Any:
    """Returns a style sheet or a script of this package, unescaped."""
    return load("markupsafe").Markup((TEMPLATES / name).read_text())


def trusted(text: str) -> Any:
    """Marks a text as safe, so that Jinja does not escape it."""
    return load("markupsafe").Markup(text)


@functools.cache
def vega() -> Any:
    """Returns Vega as a script, in about two seconds. Raises UserError if the package `vl_convert` is not installed."""
    text: str = load("vl_convert").javascript_bundle(_SNIPPET, vl_version=VEGA_LITE)
    # In an HTML page, "</script" ends the element even inside a string.
    return trusted(text.replace("</script", "<\\/script"))


def check() -> None:
    """Raises UserError if a library is missing, for commands that write a page after long work."""
    for name in ("jinja2", "vl_convert"):
        load(name)


def load(name: str) -> Any:
    """Returns an imported library. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            "the libraries of reports",
            got=str(error),
            expected="installed Jinja and vl-convert, which only reports need",
            fix="pip install -e '.[report]'",
        ) from error
