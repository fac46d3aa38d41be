"""The documentation: its links lead somewhere, and its site builds without a warning and loads nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_links_lead_to_files_and_headings(page: Path):
    for path, anchor in pages.links(page):
        assert path.exists(), path
        if path.suffix == ".md" and anchor:
            assert anchor in pages.anchors(path), f"{path}#{anchor}"


def test_the_readme_is_short():
    assert len((pages.ROOT / "README.md").read_text().splitlines()) <= 200


def test_pages_that_the_code_names_exist():
    folders = ("bertjax", "configs", "experiments", "benchmarks", "docs")
    files = [path for folder in folders for path in (pages.ROOT / folder).rglob("*.py")]
    named = {page for path in files for page in re.findall(r"\bdocs/[\w/]+\.md", path.read_text())}
    assert len(named) > 3
    assert [page for page in sorted(named) if not (pages.ROOT / page).exists()] == []


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_makes_no_request(tmp_path: Path):
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "docs", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert 'href="contributing.html"' in (tmp_path / "site/index.html").read_text()
    assert 'href="explanation/testing.html"' in (tmp_path / "site/contributing.html").read_text()
    assert '<html class="no-js" lang="ko"' in (tmp_path / "site/ko/index.html").read_text()
    for page in tmp_path.rglob("*.html"):
        assert not re.search(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(?:https?:)?//", page.read_text()), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()), style
