"""Files of charts: bytes, fonts, themes and errors."""

import json
import logging
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting import drawing

ROOT = Path(__file__).parents[3]


def bar(label):
    encoding = {"y": {"field": "label", "type": "nominal"}, "color": {"value": drawing.LIGHT["c0"]}}
    return {"data": {"values": [{"label": label}]}, "mark": "bar", "encoding": encoding}


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_files_are_deterministic(tmp_path, suffix):
    drawing.write(tmp_path / f"a{suffix}", bar("a"))
    script = "import json, pathlib, sys; from bertjax.tools.reporting import drawing; "
    script += "drawing.write(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))"
    command = [sys.executable, "-c", script, str(tmp_path / "new" / f"b{suffix}"), json.dumps(bar("a"))]
    subprocess.run(command, check=True, cwd=ROOT)
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / "new" / f"b{suffix}").read_bytes()


def test_svg_has_text_and_both_themes(tmp_path):
    drawing.write(tmp_path / "a.svg", bar("개 <b>"))
    root = ET.parse(tmp_path / "a.svg").getroot()
    fonts = {
        "".join(text.itertext()): text.get("font-family") for text in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert fonts["개 <b>"] == "sans-serif"
    rules = root.find("{http://www.w3.org/2000/svg}style").text
    assert rules.startswith("@media(prefers-color-scheme:dark)")
    assert f'[fill="{drawing.LIGHT["c0"]}"]{{fill:{drawing.DARK["c0"]}}}' in rules
    painted = {element.get("fill") for element in root.iter()}
    assert {drawing.LIGHT["c0"], drawing.LIGHT["panel"], drawing.LIGHT["ink"]} <= painted


def test_png_warns_of_characters_without_a_font(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        drawing.write(tmp_path / "a.svg", bar("a\U0002fe00"))
        drawing.write(tmp_path / "b.png", bar("Größe ▁a"))
        assert not caplog.text
        drawing.write(tmp_path / "c.png", bar("a\U0002fe00\u0378"))
    assert "c.png: no installed font has \u0378\U0002fe00; install" in caplog.text


def test_unknown_suffix(tmp_path):
    with pytest.raises(UserError, match=r"a\.pdf: got '\.pdf'; expected \.svg or \.png\. Fix: change the suffix"):
        drawing.write(tmp_path / "a.pdf", bar("a"))


def test_missing_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError, match=re.escape("pip install -e '.[report]'")):
        drawing.check(tmp_path / "a.svg")
