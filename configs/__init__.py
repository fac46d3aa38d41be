"""One config file per experiment; `sweeps` has a file per ablation."""

from bertjax.errors import refuse_other_names

refuse_other_names(__name__)
