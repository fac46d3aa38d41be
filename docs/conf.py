"""Settings of the documentation site, which `make site` builds with Sphinx and MyST.

The site makes no request: theme, fonts and search index are files of the site. The front page is the README. Links from
a page to a line of the code lead to highlighted copies of the code.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "bertjax"
html_title = project
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
smartquotes = False  # flags have two hyphens
extensions = ["myst_nb"]
nb_execution_mode = "off"  # the notebooks contain their outputs
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "code": "code:{{path}}#L-{{fragment}}"}
exclude_patterns = ["pictures"]

# The start of a link in the README to a file of the project.
_FILE = re.compile(r"\]\((?!\w+:|#)(docs/)?")
# A link to a line of the code: ](../../bertjax/file.py#L12).
_CODE = re.compile(r"\]\((?:\.\./)+([\w./]+)\.py#L(\d+)\)")


def setup(app: Sphinx) -> None:
    """Adds the README, the language of Korean pages, and a page for each file of code that a page links."""
    app.connect("source-read", _add_readme)
    app.connect("source-read", _mark_code)
    app.connect("doctree-resolved", _link_code)
    app.connect("html-collect-pages", _code_pages)
    app.connect("html-page-context", _set_language)


def _add_readme(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "index":
        readme = ROOT / "README.md"
        app.env.note_dependency(readme)
        text = readme.read_text().replace("](CONTRIBUTING.md)", "](docs/contributing.md)")
        source[0] = _FILE.sub(lambda link: "](" if link[1] else "](path:../", text) + source[0]


def _mark_code(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _CODE.sub(r"](code:\1#\2)", source[0])


def _link_code(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for link in doctree.findall(nodes.reference):
        scheme, _, target = link.get("refuri", "").partition(":")
        if scheme == "code":
            path, _, line = target.partition("#")
            link["refuri"] = f"{app.builder.get_relative_uri(page, f'code/{path}')}#{line}"


def _code_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields the name, context and template of each page of code."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L")
    pages = [app.env.doc2path(page).read_text() for page in app.env.found_docs]
    for path in sorted({path for text in pages for path, _ in _CODE.findall(text)}):
        code = highlight((ROOT / f"{path}.py").read_text(), PythonLexer(), formatter)
        yield f"code/{path}", {"title": f"{path}.py", "body": f"<h1>{path}.py</h1>{code}"}, "page.html"


def _set_language(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if page.startswith("ko/"):
        context["language"] = "ko"
