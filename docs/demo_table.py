"""Prints the table of the runs of `make demo`, as in README: `python -m docs.demo_table runs/demo`."""

import sys
from pathlib import Path

import bertjax
from bertjax.tools.reporting import goodput
from bertjax.tools.reporting.runs import read_run

TEXT = "A subclass should [MASK] this method."
_MODELS = {"untrained": "untrained", "bert": "BERT", "modern": "modern encoder"}


def table(folder: Path) -> str:
    """Returns the training time, the losses and the three likeliest words at a mask of each run in a folder."""
    rows = [("model", "seconds", "masked-LM loss", "unigram loss", TEXT)]
    for name, title in _MODELS.items():
        run = read_run(folder / name)
        last, spent = run.last_metrics(), goodput.breakdown(run)
        seconds = f"{spent['seconds']:.0f}" if spent and name != "untrained" else ""
        losses = (f"{last[f'valid/masked_lm_{loss}'][1]:.2f}" for loss in ("loss", "unigram_loss"))
        (record,) = bertjax.load(run.folder).predict([TEXT])
        rows.append((title, seconds, *losses, ", ".join(record["masks"][0]["tokens"][:3])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
