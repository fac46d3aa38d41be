"""Sweeps: ablations with their tables, and one config trained with several seeds.

`definition` reads a file of `configs/sweeps/`. `expansion` makes the list of its runs. `checking` and `folder` check
them before the first run starts. `running` and `processes` run them. `evaluations`, `results` and `tables` read and
present their metrics.
"""

from bertjax.tools.sweeps.command import Options, run
from bertjax.tools.sweeps.seeds import train_seeds

__all__ = ["Options", "run", "train_seeds"]
