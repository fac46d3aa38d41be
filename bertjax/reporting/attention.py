"""Pictures of attention: what each word of a sentence looks at, in chosen layers and heads, with the words beside it.

>>> weights = np.asarray(output.cross_attention)[:, 0]  # of a batch's first pair: [L, N, T, S]
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
from bertjax.reporting import drawing

_CELL, _SMALLEST, _LARGEST = 0.17, 1.2, 150.0  # inches: a word's row or column, a panel, the whole picture
_LETTER = 0.08  # inches, about, at the size of the words
_DPI = 150
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bertjax", "text.parse_math": False, "font.size": 8.0}
# Stands for a character that no font has. In an SVG text stays text, and the reader's own fonts count.
_NO_FONT = "□"

_log = logging.getLogger(__name__)


class Attention(NamedTuple):
    """Attention weights of one sentence or pair of sentences, and the words that they belong to."""

    weights: Float[np.ndarray, "L N T S"]  # T and S may count padding, which is not drawn
    queries: Sequence[str]  # the words that look, up to T: rows
    keys: Sequence[str]  # the words that are looked at, up to S: columns


class _Panels(NamedTuple):
    """A row of the picture: one layer of one kind."""

    title: str
    heads: Sequence[int]
    weights: Float[np.ndarray, "N T S"]  # of these heads
    queries: Sequence[str]
    keys: Sequence[str]


def drawer(
    path: Path, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> Callable[[int, Mapping[str, Any]], None]:
    """What draws the attention of one example after the other: the second goes to "NAME-2.svg", and so on."""

    def draw(number: int, kinds: Mapping[str, Any]) -> None:
        place = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        draw_attention(place, {name: Attention(*parts) for name, parts in kinds.items()}, layers=layers, heads=heads)

    return draw


def draw_attention(
    path: str | Path, kinds: Mapping[str, Attention], *, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> None:
    """Writes a picture with a row of panels for each kind and layer, and a column for each head.

    The darker a cell, the more its row's word looks at its column's, from white at 0 to dark blue at 1 in all panels.
    The same weights give the same bytes where the same fonts are installed. Characters that no installed font has are
    boxes in a PNG, which the log and the picture tell.

    Args:
      path: ends in .svg or .png.
      kinds: by the name to draw each under, such as "encoder", "decoder" and "cross", or "attention" alone.
      layers: which of each kind's, numbered from 0, or from the end if negative; None for all.
      heads: likewise.
    Raises:
      UserError: another file ending, nothing to draw, more words than weights, a layer or head that there is not,
        a picture too large to be looked at, or Matplotlib is not there.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise UserError(
            f"{path}", got=repr(path.suffix), expected=".svg or .png", fix="let the name end in one of them"
        )
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
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update({**_SETTINGS, "font.family": families})
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # told above
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        _fill(figure, rows, missing if path.suffix == ".png" else "")
        _save(figure, path)


def _rows(name: str, kind: Attention, layers: Sequence[int] | None, heads: Sequence[int] | None) -> list[_Panels]:
    """The rows of one kind, with the weights of its words alone."""
    num_layers, num_heads, *lengths = kind.weights.shape
    words = (len(kind.queries), len(kind.keys))
    if not (0 < words[0] <= lengths[0] and 0 < words[1] <= lengths[1]):
        raise UserError(
            f"attention {name!r}",
            got=f"{words[0]} x {words[1]} words",
            expected=f"at least one on each side, and at most the {lengths[0]} x {lengths[1]} of its weights",
            fix="give the words of the rows first, then those of the columns, of the sentence that the weights are of",
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


def _chosen(what: str, count: int, asked: Sequence[int] | None) -> list[int]:
    """The numbers asked for, from 0."""
    if asked is None:
        return list(range(count))
    for number in asked:
        if not -count <= number < count:
            fix = "choose among these; negative numbers count from the end"
            raise UserError(f"attention, {what}", got=number, expected=f"0 to {count - 1}", fix=fix)
    return [number % count for number in asked]


def _visible(word: str) -> str:
    """The word, in quotes and escaped if it is blank or has control characters, some of which an SVG may not have."""
    return word if word.isprintable() and word.strip() else repr(word)


def _size(rows: Sequence[_Panels]) -> tuple[float, float]:
    """Returns width and height in inches, with room for the words on the left and on top of each row of panels."""
    letters = max(len(word) for row in rows for word in (*row.queries, *row.keys))
    width = max(len(row.heads) * max(_SMALLEST, _CELL * len(row.keys)) for row in rows) + _LETTER * letters + 0.8
    height = sum(max(_SMALLEST, _CELL * len(row.queries)) + _LETTER * letters + 0.4 for row in rows) + 0.4
    if max(width, height) > _LARGEST:
        raise UserError(
            "picture of attention",
            got=f"{width:.0f} x {height:.0f} inches",
            expected=f"at most {_LARGEST:.0f} on a side",
            fix="choose fewer layers and heads, or a shorter sentence",
        )
    return width, height


def _fill(figure: Any, rows: Sequence[_Panels], missing: str) -> None:
    """Draws all panels, with boxes in place of the missing characters."""
    boxes = str.maketrans(dict.fromkeys(missing, _NO_FONT))
    heights = [max(_SMALLEST, _CELL * len(row.queries)) for row in rows]
    columns = max(len(row.heads) for row in rows)
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for row, panels in zip(rows, axes, strict=True):
        for panel, head, weights in zip(panels, row.heads, row.weights, strict=False):
            panel.imshow(weights, vmin=0, vmax=1, cmap="Blues", interpolation="none", aspect="auto")
            panel.set_title(f"head {head}")
            panel.set_xticks(range(len(row.keys)), [word.translate(boxes) for word in row.keys], rotation=90)
            panel.set_yticks(range(len(row.queries)), [word.translate(boxes) for word in row.queries])
            panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
            panel.tick_params(labelleft=panel is panels[0])
        panels[0].set_ylabel(row.title)
        for panel in panels[len(row.heads) :]:
            panel.set_axis_off()
    if missing:
        figure.supxlabel(f"{_NO_FONT}: no font has it", fontsize="medium")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image_format = path.suffix[1:]
    metadata = {"Date": None, "Creator": None} if image_format == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=image_format, dpi=_DPI, metadata=metadata)
    with completed(path) as partial:
        partial.write_bytes(buffer.getvalue())
