"""Rebuilds the walkthrough: its pictures from the code that they are of, and the lines that its links lead to.

    python -m docs.build_walkthrough

The pages in English and Korean share pictures and links. The same code gives the same bytes.
"""

import ast
import functools
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bertjax.data.codecs.summarization import article_rows
from bertjax.data.codecs.summarization.article_rows import ArticleRowsConfig
from bertjax.data.pretraining import masking
from bertjax.data.pretraining.masking import Draw, MaskingConfig
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.models.attention.mask import as_array, make_mask
from bertjax.models.embeddings import sinusoids
from bertjax.models.losses import smoothed_cross_entropy
from bertjax.training.optimizers import OptimizerConfig, make_schedule

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs/explanation/walkthrough.md", ROOT / "docs/ko/walkthrough.md")
PICTURES = ROOT / "docs/pictures/walkthrough"
# A link to where a name is defined: [`Class.method`](../../bertjax/file.py#L12).
_LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<path>\.\./\.\./[\w./]+\.py)#L(?P<line>\d+)\)")
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bertjax", "font.size": 9.0, "axes.grid": False}
_BLUES: dict[str, Any] = {"cmap": "Blues", "interpolation": "none", "aspect": "auto"}


def main() -> None:
    """Writes the pictures and the pages."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWN.items():
        with completed(PICTURES / f"{name}.svg") as partial:
            partial.write_text(picture(draw))
    for page in PAGES:
        text = linked(page.read_text())
        with completed(page) as partial:
            partial.write_text(text)


def linked(text: str) -> str:
    """Returns the text of a page with links to the current lines of its names. Raises UserError for a missing name."""

    def current(link: re.Match[str]) -> str:
        lines = definitions(PAGES[0].parent / link["path"])
        if link["name"] not in lines:
            got = f"no {link['name']} in {link['path']}"
            raise UserError("the walkthrough", got=got, expected="names that the code has", fix="correct the link")
        return f"[`{link['name']}`]({link['path']}#L{lines[link['name']]})"

    return _LINK.sub(current, text)


@functools.cache
def definitions(path: Path) -> dict[str, int]:
    """The lines at which a file defines its classes and functions, and those of its classes."""

    def of(body: list[ast.stmt], prefix: str) -> dict[str, int]:
        lines: dict[str, int] = {}
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                lines[prefix + node.name] = node.lineno
            if isinstance(node, ast.ClassDef):
                lines |= of(node.body, f"{prefix}{node.name}.")
        return lines

    return of(ast.parse(path.read_text()).body, "")


def picture(draw: Callable[[Any], None]) -> str:
    """An SVG of what `draw` puts into a figure."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(7.0, 2.6), layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def draw_softmax(figure: Any) -> None:
    """Weights of one query as its scores grow, as they do with the head's size unless they are divided by its root."""
    scores = np.random.default_rng(0).normal(size=12)
    for panel, (size, title) in zip(figure.subplots(1, 3, sharey=True), _SCALES.items(), strict=True):
        panel.bar(range(12), np.asarray(jax.nn.softmax(jnp.asarray(scores) * size)), color="C0")
        panel.set_title(title)
        panel.set_xlabel("key")


_SCALES = {1.0: "scores / √D", 8.0: "scores, D = 64", 16.0: "scores, D = 256"}


def draw_masks(figure: Any) -> None:
    """Who may look at whom: in a padded row, in a decoder, in a row of three instances."""
    rows = {
        "padded": ([1] * 9 + [0] * 3, "both"),
        "left to right": ([1] * 12, "left_to_right"),
        "packed": ([1] * 4 + [2] * 5 + [3] * 3, "both"),
    }
    for panel, (title, (segments, direction)) in zip(figure.subplots(1, 3), rows.items(), strict=True):
        panel.imshow(
            np.asarray(as_array(make_mask(jnp.array([segments]), direction)))[0, 0], vmin=0, vmax=1.4, **_BLUES
        )
        panel.set_title(title)
        panel.set_xlabel("key")
        panel.set_ylabel("query")


def draw_sinusoids(figure: Any) -> None:
    """The table, and how alike its rows are."""
    table = sinusoids(64, 64, "interleaved")
    left, right = figure.subplots(1, 2)
    left.imshow(table, cmap="RdBu", interpolation="none", aspect="auto")
    left.set(title="positions as sinusoids", xlabel="number", ylabel="position")
    right.plot(np.arange(64), table @ table[32] / 32)
    right.set(title="cosine to position 32", xlabel="position")


def draw_schedule(figure: Any) -> None:
    """Noam's learning rate, beside BERT's."""
    panel, steps = figure.subplots(), np.arange(0, 20_001, 50)
    values: dict[str, Any] = {
        "name": "adamw",
        "learning_rate": 1.0,
        "weight_decay": 0.0,
        "no_decay": "$^",
        "beta1": 0.9,
        "beta2": 0.98,
        "eps": 1e-9,
        "bias_correction": True,
        "clip_norm": 0.0,
        "layer_decay": 1.0,
        "frozen_layers": 0,
        "groups": (),
    }
    for schedule, warmup in (("inverse_sqrt", 4000), ("inverse_sqrt", 2000), ("linear", 2000)):
        config = OptimizerConfig(**values, schedule=schedule, warmup_steps=warmup)
        rates = [*map(make_schedule(config, 20_000), steps.tolist())]
        panel.plot(steps, rates, label=f"{schedule}, {warmup:,} steps of warm-up")
    panel.set(xlabel="step", ylabel="learning rate, of its peak")
    panel.legend(frameon=False)


def draw_smoothing(figure: Any) -> None:
    """The targets that the loss stands for: the softmax minus its gradient."""
    logits, label = jnp.zeros(8), jnp.int32(3)
    panels = figure.subplots(1, 3, sharey=True)
    for panel, denominator in zip(panels, ("V", "V-1", "V-2"), strict=True):

        def loss(x: jax.Array, denominator: str = denominator) -> jax.Array:
            return smoothed_cross_entropy(x, label, 0.3, denominator, padding_id=0)

        panel.bar(range(8), np.asarray(jax.nn.softmax(logits) - jax.grad(loss)(logits)))
        panel.set(title=f"smoothing 0.3, {denominator}", xlabel="word (0 is padding, 3 the label)")


def draw_masking(figure: Any) -> None:
    """What becomes of the tokens to be predicted, and where they stand, over many instances."""
    count, length, size = 4000, 64, 1000
    config = MaskingConfig(
        rate=0.15,
        mask_fraction=0.8,
        random_fraction=0.1,
        keep_fraction=0.1,
        max_predictions=10,
        whole_word=False,
        mode="dynamic",
        dupe_factor=1,
    )
    ids = np.random.default_rng(0).integers(5, size, (count, length)).astype(np.int32)
    draw = Draw(0, 0, np.arange(count), np.zeros(count, np.int64))
    lengths, inner = np.full(count, length), np.ones((count, length), bool)
    inner[:, [0, -1]] = False
    flags = np.zeros(size, bool)
    made = masking.mask_tokens(ids, inner, lengths, config, is_continuation=flags, mask_id=4, draw=draw)
    real = made.weights > 0
    seen = np.take_along_axis(made.input_ids, made.positions, axis=1)[real]
    labels = made.labels[real]
    shares = [np.mean(seen == 4), np.mean((seen != 4) & (seen != labels)), np.mean(seen == labels)]
    left, right = figure.subplots(1, 2)
    left.bar(["[MASK]", "another", "as it is"], [100 * share for share in shares])
    left.set(title=f"{real.sum():,} tokens to be predicted", ylabel="%")
    right.hist(made.positions[real], bins=np.arange(length + 1) - 0.5)
    right.set(title="where they stand", xlabel="position")


def draw_segments(figure: Any) -> None:
    """A row of an article: token types take turns, and each sentence has a [CLS]."""
    words = ["a", "cat", "sleeps", "and", "the", "dog", "sings", "."]
    tokenizer = WordPiece([*SPECIALS, *words], lowercase=True)
    config = ArticleRowsConfig(seq_len=32, long_articles="cut", window_overlap=0, interval_segments=True, words="bert")
    article = ["A cat sleeps.", "The dog sings and sings.", "A dog sleeps.", "And the cat sings."]
    (row,) = article_rows.rows(article, tokenizer, config)
    panel = figure.subplots()
    shown = np.stack([row.inputs["sentence_starts"], row.inputs["token_type_ids"]])
    panel.imshow(shown, vmin=0, vmax=1.6, **_BLUES)
    panel.set_yticks([0, 1], ["[CLS] of a sentence", "token type"])
    tokens = [tokenizer.vocab[token] for token in row.inputs["input_ids"]]
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)


DRAWN = {
    "softmax": draw_softmax,
    "masks": draw_masks,
    "sinusoids": draw_sinusoids,
    "schedule": draw_schedule,
    "smoothing": draw_smoothing,
    "masking": draw_masking,
    "segments": draw_segments,
}


if __name__ == "__main__":
    main()
