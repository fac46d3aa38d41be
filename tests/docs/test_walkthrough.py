"""The walkthrough: its links lead to what they name, and its pictures are those that the code draws."""

import re
from pathlib import Path

import pytest

from bertjax.errors import UserError

pytest.importorskip("matplotlib")
from docs import build_walkthrough as walkthrough

TEXT = walkthrough.PAGE.read_text()


def test_every_link_leads_to_the_line_of_its_name():
    assert len(walkthrough._LINK.findall(TEXT)) > 30
    assert walkthrough.linked(TEXT) == TEXT, "run make docs"


def test_a_link_that_rots_is_found():
    first = walkthrough._LINK.search(TEXT).group()
    assert walkthrough.linked(re.sub(r"#L\d+", "#L1", first)) == first
    with pytest.raises(UserError, match="no nothing in "):
        walkthrough.linked("[`nothing`](../../bertjax/models/bert.py#L1)")


def test_all_pictures_are_there_and_shown():
    shown = set(re.findall(r"!\[[^\]]+\]\(\.\./pictures/walkthrough/(\w+)\.svg\)", TEXT))
    assert shown == set(walkthrough.DRAWN) == {path.stem for path in walkthrough.PICTURES.glob("*.svg")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(walkthrough.DRAWN))
def test_a_picture_is_what_the_code_draws(name):
    """Its words and curves; digits behind the sixth may depend on the machine."""

    def read(svg: str) -> tuple[list[str], int]:
        return re.findall(r"<text [^>]*>([^<]*)</text>", svg), svg.count("<path")

    drawn = walkthrough.picture(walkthrough.DRAWN[name])
    assert read(drawn) == read(Path(walkthrough.PICTURES / f"{name}.svg").read_text())
