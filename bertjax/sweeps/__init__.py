"""Runs that belong together: ablations with their tables, and one config with several seeds.

`definition` is what a file of `configs/sweeps/` says, `expansion` its runs, `checking` and `folder` what is looked at
before they start, `running` and `processes` what starts them, `figures`, `results` and `tables` what came of them.
"""

from bertjax.sweeps.command import Options, run
from bertjax.sweeps.seeds import train_seeds

__all__ = ["Options", "run", "train_seeds"]
