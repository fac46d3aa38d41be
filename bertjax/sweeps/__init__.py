"""Runs that belong together: ablations with their tables, and one config with several seeds.

`definition` is what a file of `configs/sweeps/` says, `expansion` its runs, `checking` and `folder` what is looked at
before they start, `running` and `processes` what starts them, `figures`, `results` and `tables` what came of them.
"""

from bertjax.sweeps.command import Options, run
from bertjax.sweeps.figures import Evaluation, Figure, evaluation, summarize
from bertjax.sweeps.seeds import as_json, parse_seeds, table, train_seeds

__all__ = [
    "Evaluation",
    "Figure",
    "Options",
    "as_json",
    "evaluation",
    "parse_seeds",
    "run",
    "summarize",
    "table",
    "train_seeds",
]
