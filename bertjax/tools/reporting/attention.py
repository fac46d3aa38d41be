"""Heat maps of attention weights between the words of a sentence, for chosen layers and heads.

>>> weights = np.asarray(output.cross_attention)[:, 0]  # of the first pair in a batch: [L, N, T, S]
>>> draw_attention("attention.png", {"cross": Attention(weights, target, source)}, layers=[-1], heads=None)
"""

import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.tools.reporting import drawing

_CELL, _SMALLEST, _LARGEST = 0.17, 1.2, 150.0  # inches: a cell, a panel, the figure
_LETTER = 0.08  # inches: approximate width of a character
_BAR = 0.7  # inches: the color bar with its labels
_DPI = 150
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bertjax", "text.parse_math": False, "font.size": 8.0}
# Replaces characters that no font has in a PNG. An SVG contains text, which the viewer's fonts draw.
_NO_FONT = "□"

_log = logging.getLogger(__name__)


class Attention(NamedTuple):
    """Attention weights of a sentence or a pair of sentences, with the words of the queries and keys."""

    weights: Float[np.ndarray, "L N T S"]  # T and S may include padding, which is not drawn
    queries: Sequence[str]  # at most T: rows
    keys: Sequence[str]  # at most S: columns


class _Panels(NamedTuple):
    """A row of the figure: one layer of one kind of attention."""

    title: str
    heads: Sequence[int]
    weights: Float[np.ndarray, "N T S"]  # of these heads
    queries: Sequence[str]
    keys: Sequence[str]


def drawer(
    path: Path, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> Callable[[int, Mapping[str, Any]], None]:
    """Returns a function that draws the attention of example 1 to `path`, of example 2 to "NAME-2.svg", and so on."""

    def draw(number: int, kinds: Mapping[str, Any]) -> None:
        place = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        draw_attention(place, {name: Attention(*parts) for name, parts in kinds.items()}, layers=layers, heads=heads)

    return draw


def draw_attention(
    path: str | Path, kinds: Mapping[str, Attention], *, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> None:
    """Writes a figure with a row of panels for each kind and layer, and a column for each head.

    A cell is the attention weight of the query in its row for the key in its column. All panels use one color scale,
    from white at 0 to dark blue at 1. Equal weights and equal fonts give files with equal bytes. In a PNG, characters
    that no installed font has are drawn as boxes; the figure and a log line report them.

    Args:
      path: a path that ends in .svg or .png.
      kinds: the attention weights of each kind, by the name in the figure, such as "encoder", "decoder" and "cross".
      layers: the layers to draw, numbered from 0, or from the end if negative; None for all.
      heads: the heads to draw, numbered like `layers`; None for all.
    Raises:
      UserError: if the suffix is not .svg or .png, there is nothing to draw, there are more words than weights, a
        layer or head does not exist, the figure is too large, or Matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise UserError(f"{path}", got=repr(path.suffix), expected=".svg or .png", fix="change the suffix")
    rows = [panels for name, kind in kinds.items() for panels in _rows(name, kind, layers, heads)]
    if not any(row.heads for row in rows):
        raise UserError("attention", got="nothing to draw", expected="a layer and a head", fix="choose at least one")
    size = _size(rows)
    matplotlib = drawing.load_matplotlib()
    families, missing = drawing.fonts_for(matplotlib, "".join("".join((*row.queries, *row.keys)) for row in rows))
    if missing:
        shown = missing[:40] + ("..." if len(missing) > 40 else "")
        _log.warning("%s: no installed font has %s; install one, such as Noto Sans CJK", path, shown)
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not the user's style
        matplotlib.rcParams.update({**_SETTINGS, "font.family": families})
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # logged above
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        _fill(figure, rows, missing if path.suffix == ".png" else "")
        _save(figure, path)


def _rows(name: str, kind: Attention, layers: Sequence[int] | None, heads: Sequence[int] | None) -> list[_Panels]:
    """Returns the rows of a kind of attention, without the weights of padding."""
    num_layers, num_heads, *lengths = kind.weights.shape
    words = (len(kind.queries), len(kind.keys))
    if not (0 < words[0] <= lengths[0] and 0 < words[1] <= lengths[1]):
        raise UserError(
            f"attention {name!r}",
            got=f"{words[0]} x {words[1]} words",
            expected=f"at least 1 x 1, and at most {lengths[0]} x {lengths[1]}, the shape of the weights",
            fix="pass the query words, then the key words, of the sentence that has these weights",
        )
    chosen = _chosen(f"heads of {name!r}", num_heads, heads)
    return [
        _Panels(
            f"{name}, layer {layer}",
            chosen,
            np.asarray(kind.weights[layer, chosen, : words[0], : words[1]], np.float32),
            [_visible(word) for word in kind.queries],
            [_visible(word) for word in kind.keys],
        )
        for layer in _chosen(f"layers of {name!r}", num_layers, layers)
    ]


def _chosen(what: str, count: int, requested: Sequence[int] | None) -> list[int]:
    """Returns the requested layers or heads, numbered from 0."""
    if requested is None:
        return list(range(count))
    for number in requested:
        if not -count <= number < count:
            fix = "use a number in this range; negative numbers count from the end"
            raise UserError(f"attention, {what}", got=number, expected=f"0 to {count - 1}", fix=fix)
    return [number % count for number in requested]


def _visible(word: str) -> str:
    """Returns a word, quoted and escaped if it is blank or has control characters, which are invalid in an SVG."""
    return word if word.isprintable() and word.strip() else repr(word)


def _size(rows: Sequence[_Panels]) -> tuple[float, float]:
    """Returns width and height in inches, including the words and the color bar."""
    letters = max(len(word) for row in rows for word in (*row.queries, *row.keys))
    width = max(len(row.heads) * max(_SMALLEST, _CELL * len(row.keys)) for row in rows) + _LETTER * letters + 0.8 + _BAR
    height = sum(max(_SMALLEST, _CELL * len(row.queries)) + _LETTER * letters + 0.4 for row in rows) + 0.4
    if max(width, height) > _LARGEST:
        raise UserError(
            "picture of attention",
            got=f"{width:.0f} x {height:.0f} inches",
            expected=f"at most {_LARGEST:.0f} inches wide and high",
            fix="choose fewer layers and heads, or a shorter sentence",
        )
    return width, height


def _fill(figure: Any, rows: Sequence[_Panels], missing: str) -> None:
    """Draws all panels and the color bar. Missing characters become boxes."""
    boxes = str.maketrans(dict.fromkeys(missing, _NO_FONT))
    heights = [max(_SMALLEST, _CELL * len(row.queries)) for row in rows]
    columns = max(len(row.heads) for row in rows)
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for row, panels in zip(rows, axes, strict=True):
        for panel, head, weights in zip(panels, row.heads, row.weights, strict=False):
            image = panel.imshow(weights, vmin=0, vmax=1, cmap="Blues", interpolation="none", aspect="auto")
            panel.set_title(f"head {head}")
            panel.set_xticks(range(len(row.keys)), [word.translate(boxes) for word in row.keys], rotation=90)
            panel.set_yticks(range(len(row.queries)), [word.translate(boxes) for word in row.queries])
            panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
            panel.tick_params(labelleft=panel is panels[0])
        panels[0].set_ylabel(row.title)
        for panel in panels[len(row.heads) :]:
            panel.set_axis_off()
    figure.colorbar(image, ax=list(axes[0]), label="attention weight")
    if missing:
        figure.supxlabel(f"{_NO_FONT}: not in any installed font", fontsize="medium")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image_format = path.suffix[1:]
    metadata = {"Date": None, "Creator": None} if image_format == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=image_format, dpi=_DPI, metadata=metadata)
    with completed(path) as partial:
        partial.write_bytes(buffer.getvalue())
