"""The pages of the documentation, with their links and headings."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
GUIDES = (ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md")), ROOT / "docs/ko/index.md")
# Code is no Markdown, and has no links.
_CODE = re.compile(r"^(`{3,})\w.*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")


def links(page: Path) -> list[tuple[Path, str]]:
    """The file and the anchor ("" for none) of each link of a page to a file of the project."""
    matches = _LINK.findall(_CODE.sub("", page.read_text()))
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in matches]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST name them."""
    text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    counts = Counter(_slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {slug if number == 0 else f"{slug}-{number}" for slug in counts for number in range(counts[slug])}


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
