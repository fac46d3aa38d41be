"""The libraries that pages are made with: Jinja for their HTML, Vega for curves that can be looked into."""

import functools
import importlib
from pathlib import Path
from typing import Any

from bertjax.errors import UserError

_TEMPLATES = Path(__file__).with_name("templates")
# What the page's script uses of the bundle, which is in a scope of its own otherwise.
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
_VERSION = "6.4"  # of Vega-Lite, which says the version of Vega that goes with it


def template(name: str) -> Any:
    """A template of ours; Jinja escapes all values in it. Raises UserError if Jinja is not installed."""
    jinja = _load("jinja2")
    loader = jinja.FileSystemLoader(_TEMPLATES)
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return jinja.Environment(loader=loader, undefined=jinja.ChainableUndefined, **options).get_template(name)


def source(name: str) -> Any:
    """A style sheet or a script of ours, as it stands."""
    return _load("markupsafe").Markup((_TEMPLATES / name).read_text())


def trusted(text: str) -> Any:
    """Text that may stand in a page as it is."""
    return _load("markupsafe").Markup(text)


@functools.cache
def vega() -> Any:
    """Vega as a script, from the package that brings it; takes a second or two. Raises UserError if it is not there."""
    text: str = _load("vl_convert").javascript_bundle(_SNIPPET, vl_version=_VERSION)
    # In a page, "</script" would end the element wherever it stands.
    return trusted(text.replace("</script", "<\\/script"))


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            "the libraries of reports",
            got=str(error),
            expected="Jinja and vl-convert, which only reports need",
            fix="pip install -e '.[report]'",
        ) from error
