"""Heat maps of attention weights between the words of a sentence, for chosen layers and heads.

>>> weights = np.asarray(output.cross_attention)[:, 0]  # of the first pair in a batch: [L, N, T, S]
>>> draw_attention("attention.png", {"cross": Attention(weights, target, source)}, layers=[-1], heads=None)
"""

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.tools.reporting import drawing

_CELL = 17
_SMALLEST = 120  # width and height of a panel
_LARGEST = 14_400  # width and height of all panels, without their words


class Attention(NamedTuple):
    """Attention weights of a sentence or a pair of sentences, with the words of the queries and keys."""

    weights: Float[np.ndarray, "L N T S"]  # T and S may include padding, which is not drawn
    queries: Sequence[str]  # at most T: rows
    keys: Sequence[str]  # at most S: columns


def drawer(
    path: Path, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> Callable[[int, Mapping[str, Any]], None]:
    """Returns a function that draws the attention of example 1 to `path`, of example 2 to "NAME-2.svg", and so on.

    The attention that the function gets has the fields of `Attention`. Raises the errors of `drawing.check`.
    """
    drawing.check(path)

    def draw(number: int, kinds: Mapping[str, Any]) -> None:
        numbered = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        attention = {name: Attention(*fields) for name, fields in kinds.items()}
        draw_attention(numbered, attention, layers=layers, heads=heads)

    return draw


def draw_attention(
    path: str | Path, kinds: Mapping[str, Attention], *, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> None:
    """Writes a figure with a row of panels for each kind and layer, and a column for each head.

    A cell is the attention weight of the query in its row for the key in its column. The color scale of a head ends at
    its maximum, which stands below its panel. `drawing.write` describes the files.

    Args:
      path: a path that ends in .svg or .png.
      kinds: the attention weights of each kind, by the name in the figure, such as "encoder", "decoder" and "cross".
      layers: the layers to draw, numbered from 0, or from the end if negative; None for all.
      heads: the heads to draw, numbered like `layers`; None for all.

    Raises:
      UserError: if the suffix is not .svg or .png, there is nothing to draw, there are more words than weights, a
        layer or head does not exist, the figure is too large, or vl-convert is not installed.
    """
    drawing.write(Path(path), chart(kinds, layers, heads))


def chart(kinds: Mapping[str, Attention], layers: Sequence[int] | None, heads: Sequence[int] | None) -> dict[str, Any]:
    """Returns the figure of `draw_attention` as a Vega-Lite specification. Raises its errors."""
    rows = [_panels(name, kind, layers, heads) for name, kind in kinds.items()]
    if not any(row["data"]["values"] for row in rows):
        raise UserError("attention", got="nothing to draw", expected="a layer and a head", fix="choose at least one")
    return {"title": "Attention. Full color is the maximum of a head.", "vconcat": rows}


def _panels(name: str, kind: Attention, layers: Sequence[int] | None, heads: Sequence[int] | None) -> dict[str, Any]:
    """Returns the panels of a kind of attention, without the weights of padding."""
    num_layers, num_heads, max_queries, max_keys = kind.weights.shape
    num_queries = len(kind.queries)
    num_keys = len(kind.keys)
    if not (0 < num_queries <= max_queries and 0 < num_keys <= max_keys):
        raise UserError(
            f"attention {name!r}",
            got=f"{num_queries} x {num_keys} words",
            expected=f"at least 1 x 1, and at most {max_queries} x {max_keys}, the shape of the weights",
            fix="pass the query words, then the key words, of the sentence that has these weights",
        )
    rows = {layer: f"{name}, layer {layer}" for layer in _chosen(f"layers of {name!r}", num_layers, layers)}
    columns = _chosen(f"heads of {name!r}", num_heads, heads)
    width = max(_SMALLEST, _CELL * num_keys)
    height = max(_SMALLEST, _CELL * num_queries)
    if max(len(columns) * width, len(rows) * height) > _LARGEST:
        raise UserError(
            f"picture of attention {name!r}",
            got=f"{len(columns) * width:,} x {len(rows) * height:,} pixels",
            expected=f"at most {_LARGEST:,} pixels wide and high",
            fix="choose fewer layers and heads, or a shorter sentence",
        )
    panels = [
        {"row": row, "head": head, **_heat_map(kind.weights[layer, head, :num_queries, :num_keys])}
        for layer, row in rows.items()
        for head in columns
    ]
    words = {"x": _words(kind.keys, orient="top", labelAngle=-90), "y": _words(kind.queries)}
    image = {"type": "image", "width": width, "height": height, "aspect": False, "align": "left", "baseline": "top"}
    caption = {"type": "text", "text": {"expr": "'head ' + datum.head + ', max ' + format(datum.max, '.2f')"}}
    marks = [
        {"mark": {**image, "smooth": False}, "encoding": {**words, "url": {"field": "image"}}},
        {"mark": caption, "encoding": {"x": {"value": width / 2}, "y": {"value": height + 10}}},
    ]
    return {
        "data": {"values": panels},
        "facet": {
            "row": {"field": "row", "sort": list(rows.values()), "header": {"title": None, "labelOrient": "left"}},
            "column": {"field": "head", "sort": columns, "header": None},
        },
        "spec": {"width": width, "height": height, "layer": marks},
        "resolve": {"axis": {"x": "independent"}},
    }


def _chosen(what: str, count: int, requested: Sequence[int] | None) -> list[int]:
    """Returns the requested layers or heads, numbered from 0."""
    if requested is None:
        return list(range(count))
    for number in requested:
        if not -count <= number < count:
            fix = "use a number in this range; negative numbers count from the end"
            raise UserError(f"attention, {what}", got=number, expected=f"0 to {count - 1}", fix=fix)
    return list(dict.fromkeys(number % count for number in requested))


def _words(words: Sequence[str], **options: Any) -> dict[str, Any]:
    """Returns the encoding of an axis with a band for each word. Bands have numbers, since words may repeat."""
    labels = json.dumps([_visible(word) for word in words])
    axis = {"title": None, "domain": False, "ticks": False, "labelOverlap": False, "labelLimit": 0}
    return {
        **{"datum": 0, "type": "ordinal", "bandPosition": 0},
        "scale": {"type": "band", "domain": list(range(len(words))), "padding": 0},
        "axis": {**axis, "labelExpr": f"{labels}[datum.value]", **options},
    }


def _visible(word: str) -> str:
    """Returns a word, quoted and escaped if it is blank or has control characters, which are invalid in an SVG."""
    return word if word.isprintable() and word.strip() else repr(word)


def _heat_map(weights: Float[np.ndarray, "T S"]) -> dict[str, Any]:
    """Returns the maximum of a head, and a PNG with a pixel for each weight, as a data URI.

    All pixels have one color. Their opacity is the weight, so that the background shows at 0.
    """
    largest = float(weights.max())
    color = bytes.fromhex(drawing.LIGHT["accent"][1:])
    pixels = np.full((*weights.shape, 4), (*color, 0), np.uint8)
    pixels[..., 3] = np.rint(255 * weights / (largest or 1))
    height, width = weights.shape
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 6, 0, 0, 0])  # 8 bits for red, green, blue and alpha
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: unfiltered
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks.items():
        png += len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)
    return {"max": largest, "image": f"data:image/png;base64,{base64.b64encode(png).decode()}"}
