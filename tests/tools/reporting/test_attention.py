"""The pictures, read back: which panels and words there are, and which cells are dark."""

import base64
import io
import logging
import types

import matplotlib.image
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting import attention, drawing
from bertjax.tools.reporting.attention import Attention, draw_attention, drawer
from tests.tools.reporting import svg

HREF = "{http://www.w3.org/1999/xlink}href"
SOURCE, TARGET = ["a", "$big$", "<dog>", "runs"], ["ein", "großer", "Hund"]


def random_weights(layers, heads, queries, keys):
    scores = np.random.default_rng(0).exponential(size=(layers, heads, queries, keys)) ** 4
    return scores / scores.sum(-1, keepdims=True)


def cross(layers=2, heads=3):
    return Attention(random_weights(layers, heads, 3, 4), TARGET, SOURCE)


def texts(path):
    return svg.texts(path.read_text())


def images(path):
    """The cells of each panel, as gray values. The last image of the file is the color bar."""
    found = []
    for image in svg.elements(path.read_text(), "image"):
        pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(image.get(HREF).split(",")[1])))
        found.append(pixels[..., :3].mean(-1))
    return found[:-1]


def test_all_layers_and_heads_with_the_words_once_a_panel(tmp_path):
    draw_attention(tmp_path / "a.svg", {"cross": cross()}, layers=None, heads=None)
    found = texts(tmp_path / "a.svg")
    assert {"cross, layer 0", "cross, layer 1", "head 0", "head 1", "head 2"} <= set(found)
    assert [found.count(word) for word in SOURCE] == [6] * 4
    assert [found.count(word) for word in TARGET] == [2] * 3  # on the left of each row
    assert len(images(tmp_path / "a.svg")) == 6


def test_a_color_bar_shows_the_scale_of_the_weights(tmp_path):
    draw_attention(tmp_path / "a.svg", {"cross": cross()}, layers=[0], heads=[0])
    found = texts(tmp_path / "a.svg")
    assert found.count("attention weight") == 1
    assert {"0.0", "1.0"} <= set(found)


def test_the_cells_are_the_weights_of_what_was_chosen(tmp_path):
    kind = cross()
    draw_attention(tmp_path / "a.svg", {"cross": kind}, layers=[-1], heads=[2, 0])
    assert [text for text in texts(tmp_path / "a.svg") if "head" in text or "layer" in text] == [
        "cross, layer 1",
        "head 2",
        "head 0",
    ]
    for picture, weights in zip(images(tmp_path / "a.svg"), kind.weights[1, [2, 0]], strict=True):
        assert picture.shape == weights.shape
        assert np.corrcoef(picture.ravel(), weights.ravel())[0, 1] < -0.9  # more is darker


def test_three_kinds_of_different_lengths_in_one_picture(tmp_path):
    kinds = {
        "encoder": Attention(random_weights(2, 2, 4, 4), SOURCE, SOURCE),
        "decoder": Attention(random_weights(1, 2, 3, 3), TARGET, TARGET),
        "cross": cross(1, 2),
    }
    draw_attention(tmp_path / "new" / "a.svg", kinds, layers=[-1], heads=None)
    found = texts(tmp_path / "new" / "a.svg")
    assert [text for text in found if "layer" in text] == ["encoder, layer 1", "decoder, layer 0", "cross, layer 0"]
    assert [picture.shape for picture in images(tmp_path / "new" / "a.svg")] == [(4, 4)] * 2 + [(3, 3)] * 2 + [
        (3, 4)
    ] * 2


def test_one_picture_after_the_other(tmp_path):
    draw = drawer(tmp_path / "a.svg", [0], [1])
    for number in (1, 2):
        draw(number, {"cross": tuple(cross())})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2.svg", "a.svg"]
    assert len(images(tmp_path / "a-2.svg")) == 1


def test_padding_is_not_drawn(tmp_path):
    whole = cross(1, 1)
    padded = whole._replace(weights=np.pad(whole.weights, ((0, 0), (0, 0), (0, 5), (0, 7))))
    for name, kind in (("a", whole), ("b", padded)):
        draw_attention(tmp_path / f"{name}.svg", {"cross": kind}, layers=None, heads=None)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_weights_give_the_same_bytes(tmp_path, ending):
    for name in ("a", "b"):
        draw_attention(tmp_path / f"{name}.{ending}", {"cross": cross(1, 1)}, layers=None, heads=None)
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert first == second
    assert b"Matplotlib" not in first or ending == "svg"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}"]


def test_words_that_cannot_be_seen_are_escaped(tmp_path):
    words = ["", " ", "\n", "a\x00b", "▁a", "\ud800"]
    kind = Attention(random_weights(1, 1, 6, 6), words, words)
    draw_attention(tmp_path / "a.svg", {"self": kind}, layers=None, heads=None)
    assert {"''", "' '", r"'\n'", r"'a\x00b'", "▁a", r"'\ud800'"} <= set(texts(tmp_path / "a.svg"))


# Unassigned characters, so that no machine's fonts have them, between some that every font has.
@pytest.mark.parametrize("word", ["\U000e0fff", "x\U0002fe00\U0002fe01y"])
def test_characters_without_a_font_are_told(tmp_path, caplog, recwarn, monkeypatch, word):
    monkeypatch.setattr(attention, "_visible", str)
    kind = Attention(random_weights(1, 1, 2, 1), [word, "b"], ["c"])
    with caplog.at_level(logging.WARNING):
        for ending in ("png", "svg"):
            draw_attention(tmp_path / f"a.{ending}", {"self": kind}, layers=None, heads=None)
    assert "no installed font has" in caplog.text and not recwarn.list
    assert word in texts(tmp_path / "a.svg")  # the reader's fonts count
    caplog.clear()
    draw_attention(tmp_path / "b.png", {"self": kind._replace(queries=["a", "b"])}, layers=None, heads=None)
    assert not caplog.text
    assert matplotlib.image.imread(tmp_path / "a.png").size


def test_fonts_are_found_by_their_characters():
    library = drawing.load_matplotlib()
    assert drawing.fonts_for(library, "Größe ▁a") == ([drawing.BASE_FONT], "")
    families, missing = drawing.fonts_for(library, "ab\U000e0fff\U0002fe00")
    assert (families, missing) == ([drawing.BASE_FONT], "\U0002fe00\U000e0fff")


def test_a_font_that_has_what_the_first_one_lacks_is_taken(monkeypatch):
    have = {drawing.BASE_FONT: "ab", "One": "aㄱ", "Two": "ㄱㄴㄷ", "Three": "ㄹ", "Last Resort": "abㄱㄴㄷㄹㅁ"}
    library = drawing.load_matplotlib()
    entries = [types.SimpleNamespace(name=name, fname=name) for name in have]
    monkeypatch.setattr(library.font_manager.fontManager, "ttflist", entries)
    monkeypatch.setattr(library.font_manager, "findfont", str)
    monkeypatch.setattr(drawing, "_characters", lambda _, path: set(have[path]))
    assert drawing.fonts_for(library, "abㄱㄴㄷㄹㅁ") == ([drawing.BASE_FONT, "Two", "Three"], "ㅁ")


@pytest.mark.parametrize(
    ("name", "kind", "options", "message"),
    [
        ("a.jpg", cross(), {}, r"a\.jpg: got '\.jpg'; expected \.svg or \.png\. Fix: change the suffix"),
        ("a.png", cross(), {"layers": [2]}, "layers of 'cross': got 2; expected 0 to 1. Fix: use a number"),
        ("a.png", cross(), {"heads": [-4]}, "heads of 'cross': got -4; expected 0 to 2"),
        ("a.png", cross(), {"heads": []}, "got nothing to draw; expected a layer and a head. Fix: choose"),
        ("a.png", cross(), {"layers": []}, "got nothing to draw"),
        ("a.png", cross()._replace(queries=SOURCE), {}, "'cross': got 4 x 4 words; .* at most 3 x 4.*Fix: pass the"),
        ("a.png", cross()._replace(keys=[]), {}, "got 3 x 0 words; expected at least 1 x 1"),
        ("a.png", Attention(np.zeros((9, 99, 3, 40)), TARGET, ["w"] * 40), {}, "inches; expected at most 150 inches"),
    ],
)
def test_mistakes_are_told(tmp_path, name, kind, options, message):
    with pytest.raises(UserError, match=message):
        draw_attention(tmp_path / name, {"cross": kind}, **{"layers": None, "heads": None, **options})
    assert list(tmp_path.iterdir()) == []
