"""Heat maps of attention: panels, words and colors."""

import base64
import re
import zlib

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting.attention import Attention, chart, draw_attention, drawer

SOURCE, TARGET = ["a", "$big$", "<dog>", "개"], ["ein", "großer", "Hund"]


def random_weights(layers, heads, queries, keys):
    scores = np.random.default_rng(0).exponential(size=(layers, heads, queries, keys)) ** 4
    return scores / scores.sum(-1, keepdims=True)


def cross(layers=2, heads=3):
    return Attention(random_weights(layers, heads, 3, 4), TARGET, SOURCE)


def panels(row):
    return row["data"]["values"]


def words(row, direction):
    """The labels of an axis, as the expression that Vega evaluates."""
    return row["spec"]["layer"][0]["encoding"][direction]["axis"]["labelExpr"]


def opacities(panel):
    """The opacities of the pixels of a panel, 0 to 255."""
    png = base64.b64decode(panel["image"].partition(",")[2])
    width = int.from_bytes(png[16:20])
    rows = zlib.decompress(png[png.index(b"IDAT") + 4 :])
    return np.frombuffer(rows, np.uint8).reshape(-1, 1 + 4 * width)[:, 4::4]


def test_cells_are_the_weights_of_the_chosen_layers_and_heads():
    kind = cross()
    (row,) = chart({"cross": kind}, layers=[-1], heads=[2, 0])["vconcat"]
    assert [(panel["row"], panel["head"]) for panel in panels(row)] == [("cross, layer 1", 2), ("cross, layer 1", 0)]
    for panel, weights in zip(panels(row), kind.weights[1, [2, 0]], strict=True):
        assert panel["max"] == weights.max()
        np.testing.assert_allclose(opacities(panel), 255 * weights / weights.max(), atol=0.5)
    assert words(row, "y") == '["ein", "gro\\u00dfer", "Hund"][datum.value]'
    assert words(row, "x") == '["a", "$big$", "<dog>", "\\uac1c"][datum.value]'


def test_padding_is_not_drawn():
    kind = cross(1, 1)
    padded = kind._replace(weights=np.pad(kind.weights, ((0, 0), (0, 0), (0, 5), (0, 7)), constant_values=1))
    assert chart({"cross": padded}, None, None) == chart({"cross": kind}, None, None)


def test_words_without_visible_characters_are_escaped():
    blank = ["", " ", "\n", "a\x00b", "▁a", "\ud800"]
    (row,) = chart({"self": Attention(random_weights(1, 1, 6, 6), blank, blank)}, None, None)["vconcat"]
    assert words(row, "x") == r"""["''", "' '", "'\\n'", "'a\\x00b'", "\u2581a", "'\\ud800'"][datum.value]"""


def test_files_of_all_kinds(tmp_path):
    kinds = {"encoder": Attention(random_weights(2, 2, 4, 4), SOURCE, SOURCE), "cross": cross()}
    draw = drawer(tmp_path / "a.svg", None, [1, 0])
    for number in (1, 2):
        draw(number, kinds)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2.svg", "a.svg"]
    svg = (tmp_path / "a-2.svg").read_text()
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert [texts.count(f"{name}, layer {layer}") for name in kinds for layer in (0, 1)] == [1] * 4
    assert svg.count("<image") == 8
    assert texts.count("개") == 2 + 8  # left of the encoder's rows, and above all panels
    assert [text[:11] for text in texts if ", max " in text] == ["head 1, max", "head 0, max"] * 4


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (cross(), {"layers": [2]}, "layers of 'cross': got 2; expected 0 to 1. Fix: use a number"),
        (cross(), {"heads": [-4]}, "heads of 'cross': got -4; expected 0 to 2"),
        (cross(), {"heads": []}, "got nothing to draw; expected a layer and a head. Fix: choose"),
        (cross(), {"layers": []}, "got nothing to draw"),
        (cross()._replace(queries=SOURCE), {}, "'cross': got 4 x 4 words; .* at most 3 x 4.*Fix: pass the"),
        (cross()._replace(keys=[]), {}, "got 3 x 0 words; expected at least 1 x 1"),
        (Attention(np.zeros((1, 99, 3, 40)), TARGET, ["w"] * 40), {}, "pixels; expected at most 14,400 pixels"),
    ],
)
def test_errors(tmp_path, kind, options, message):
    with pytest.raises(UserError, match=message):
        draw_attention(tmp_path / "a.png", {"cross": kind}, **{"layers": None, "heads": None, **options})
    assert list(tmp_path.iterdir()) == []
