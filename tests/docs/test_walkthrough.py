"""The walkthrough's pages: links lead to what they name, and pictures are those that the code draws."""

import re
from pathlib import Path

import pytest

from bertjax.errors import UserError

pytest.importorskip("matplotlib")
from docs import build_walkthrough as walkthrough

TEXTS = [page.read_text() for page in walkthrough.PAGES]
by_language = pytest.mark.parametrize("text", TEXTS, ids=["en", "ko"])


@by_language
def test_every_link_leads_to_the_line_of_its_name(text: str):
    assert len(walkthrough._LINK.findall(text)) > 30
    assert walkthrough.linked(text) == text, "run make docs"


def test_the_korean_page_links_all_names_of_the_english_one():
    english, korean = (set(walkthrough._LINK.findall(text)) for text in TEXTS)
    assert english <= korean


def test_a_link_that_rots_is_found():
    first = walkthrough._LINK.search(TEXTS[0]).group()
    assert walkthrough.linked(re.sub(r"#L\d+", "#L1", first)) == first
    with pytest.raises(UserError, match="no nothing in "):
        walkthrough.linked("[`nothing`](../../bertjax/models/bert.py#L1)")


@by_language
def test_all_pictures_are_there_and_shown(text: str):
    shown = set(re.findall(r"!\[[^\]]+\]\(\.\./pictures/walkthrough/(\w+)\.svg\)", text))
    assert shown == set(walkthrough.DRAWN) == {path.stem for path in walkthrough.PICTURES.glob("*.svg")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(walkthrough.DRAWN))
def test_a_picture_is_what_the_code_draws(name):
    """Its words and curves; digits behind the sixth may depend on the machine."""

    def read(svg: str) -> tuple[list[str], int]:
        return re.findall(r"<text [^>]*>([^<]*)</text>", svg), svg.count("<path")

    drawn = walkthrough.picture(walkthrough.DRAWN[name])
    assert read(drawn) == read(Path(walkthrough.PICTURES / f"{name}.svg").read_text())
