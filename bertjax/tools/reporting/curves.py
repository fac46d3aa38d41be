"""Draws the learning curves of one or several runs as an SVG file.

    python -m bertjax.tools.reporting.curves --output=docs/pictures/phases.svg 'length 128=runs/phase1' ...

If a run starts from another run (`init_from`), its curves follow those of that run. Equal run folders give files with
equal bytes.
"""

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.errors import UserError, as_user_error
from bertjax.files import completed
from bertjax.tools.reporting import drawing
from bertjax.tools.reporting.runs import Run, continued, named, read_run

AXES = {"step": "step", "tokens": "training tokens, without padding and sources"}
# The metric of each panel, by its title. "{objective}" stands for the objective of the run.
_PANELS = {
    "loss of predicted tokens (nats)": "{objective}_loss",
    "accuracy on predicted tokens": "{objective}_accuracy",
    "next-sentence accuracy": "next_sentence_accuracy",
    "loss of replaced tokens (nats)": "replaced_loss",
    "loss of target tokens (nats)": "nll",
    "accuracy on target tokens": "token_accuracy",
    "BLEU": "bleu",
}
# The style and the name of the baseline of a panel's metric.
_BASELINES = {
    "{objective}_loss": ("unigram", "{objective}_unigram_loss"),
    "next_sentence_accuracy": ("majority", "next_sentence_majority_accuracy"),
    "replaced_loss": ("entropy", "replaced_entropy_loss"),
}
# The panels of runs without these metrics.
_OTHERS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "F1": "f1",
    "micro F1": "micro_f1",
    "macro F1": "macro_f1",
    "exact match": "exact_match",
    "Pearson correlation": "pearson",
    "Spearman correlation": "spearman",
    "Matthews correlation": "matthews_correlation",
    "ROUGE-1, F1": "rouge1",
    "ROUGE-2, F1": "rouge2",
    "ROUGE-L of sentences, F1": "rougeLsum",
}
_WIDTH, _PANEL_HEIGHT = 7.5, 2.6  # inches
# Text is stored as text, and ids are hashed with a fixed salt, so that equal figures have equal bytes.
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bertjax", "font.size": 9.0, "axes.grid": True, "grid.alpha": 0.3}
_STYLES = {
    "valid": {"linestyle": "-", "linewidth": 1.6, "marker": ".", "label": "validation"},
    "train": {"linestyle": "-", "linewidth": 0.8, "alpha": 0.45, "marker": ".", "markersize": 2, "label": "training"},
    "unigram": {"linestyle": "--", "linewidth": 1.0, "label": "unigram"},
    "majority": {"linestyle": ":", "linewidth": 1.0, "label": "majority class"},
    "entropy": {"linestyle": "-.", "linewidth": 1.0, "label": "entropy of the share"},
}


def learning_curves(runs: Mapping[str, Path], against: str) -> str:
    """Returns the learning curves of runs as an SVG document.

    For pretraining, the panels are the loss and accuracy of predicted tokens, with the unigram baseline, and the
    next-sentence accuracy, with the majority class. For translation they are loss, accuracy and BLEU, and for other
    tasks the loss and the scores. A panel without data is omitted. The id of a line is `RUN/METRIC`. If the run starts
    from another run, the number of its phase follows: `RUN/METRIC/1`, `RUN/METRIC/2`.

    Args:
      runs: the folders of the runs, by their names in the figure.
      against: the horizontal axis, a key of `AXES`.

    Raises:
      UserError: if a folder is not a run, no run has a metric to draw, or Matplotlib is not installed.
    """
    chains = {name: continued(read_run(folder)) for name, folder in runs.items()}
    every = [run for chain in chains.values() for run in chain]
    own, others = (
        {label: metric for label, metric in table.items() if any(_has(run, metric) for run in every)}
        for table in (_PANELS, _OTHERS)
    )
    panels = own or others
    if not panels:
        raise UserError(
            "runs " + ", ".join(map(str, runs.values())),
            got="none of the metrics to draw",
            expected="losses or accuracies in metrics.jsonl",
            fix="train until metrics.jsonl has its first line",
        )
    matplotlib = drawing.load_matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's style
        matplotlib.rcParams.update(_SETTINGS)
        figure = matplotlib.figure.Figure(figsize=(_WIDTH, _PANEL_HEIGHT * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for panel, (label, metric) in zip(axes, panels.items(), strict=True):
            panel.set_ylabel(label)
            for number, (name, chain) in enumerate(chains.items()):
                _draw(panel, name, chain, metric, against, f"C{number % 10}")
        axes[-1].set_xlabel(AXES[against])
        _add_legend(figure, axes, chains)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # Matplotlib writes spaces at line ends, which Git reports as errors.
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Draws the runs that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, help="the SVG file to write")
    parser.add_argument("--against", choices=AXES, default="step")
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN_FOLDER")
    args = parser.parse_args(arguments)
    try:
        svg = learning_curves(named(args.runs), args.against)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with completed(args.output) as partial:
            partial.write_text(svg)
    except (UserError, OSError) as error:
        sys.exit(f"error: {as_user_error(error, str(args.output)) or error}")


def _has(run: Run, metric: str) -> bool:
    name = metric.format(objective=run.objective)
    return bool(run.series(f"valid/{name}") or run.series(f"train/{name}"))


def _draw(panel: Any, name: str, chain: Sequence[Run], metric: str, against: str, color: str) -> None:
    """Draws a metric of the runs of a chain, one after another."""
    start = 0.0
    for phase, run in enumerate(chain, start=1):
        suffix = f"/{phase}" if len(chain) > 1 else ""
        steps, positions = _axis(run, against)
        if phase > 1:
            panel.axvline(start, color=color, linewidth=0.6, alpha=0.6, gid=f"{name}/begins{suffix}")
        for split in ("train", "valid"):
            points = run.series(f"{split}/{metric.format(objective=run.objective)}")
            if points and (split == "valid" or metric != "loss" or run.losses_compare):
                x = start + np.interp([step for step, _ in points], steps, positions)
                gid = f"{name}/{split}/{metric.format(objective=run.objective)}{suffix}"
                panel.plot(x, [value for _, value in points], color=color, gid=gid, **_STYLES[split])
        end = start + positions[-1]
        style, baseline = _BASELINES.get(metric, ("", ""))
        for _, level in run.series(f"valid/{baseline.format(objective=run.objective)}"):
            panel.plot([start, end], [level, level], color=color, gid=f"{name}/{style}{suffix}", **_STYLES[style])
        start = end


def _axis(run: Run, against: str) -> tuple[list[int], list[float]]:
    """Returns steps of a run, and their positions on the horizontal axis relative to the start of the run."""
    if against == "step":
        return [0, run.num_steps], [0.0, float(run.num_steps)]
    seen = run.tokens_seen()
    if len(seen) == 1:
        raise UserError(
            f"run {run.folder}",
            got="no train/tokens_per_second with train/step_seconds",
            expected="both, to count tokens",
            fix="use --against=step",
        )
    return [step for step, _ in seen], [tokens for _, tokens in seen]


def _add_legend(figure: Any, panels: Sequence[Any], chains: Mapping[str, Sequence[Run]]) -> None:
    """Adds a legend above the panels: a color for each run, and a line style for each split."""
    drawn = {line.get_label() for panel in panels for line in panel.get_lines()}
    handles = [panels[0].plot([], [], color=f"C{n % 10}", label=name)[0] for n, name in enumerate(chains)]
    for style in _STYLES.values():
        if style["label"] in drawn:
            handles += panels[0].plot([], [], **{**style, "color": "black"})
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 4), frameon=False)


if __name__ == "__main__":
    main(sys.argv[1:])
