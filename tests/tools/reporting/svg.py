"""Reads pictures back."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

SVG = "{http://www.w3.org/2000/svg}"


def elements(svg: str, tag: str) -> Iterator[ET.Element]:
    """The elements of a picture with a tag."""
    return ET.fromstring(svg).iter(f"{SVG}{tag}")


def texts(svg: str) -> list[str]:
    """All texts of a picture."""
    return ["".join(text.itertext()) for text in elements(svg, "text")]
