"""The text of `launch.py --help`."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_WIDTH = 110
_INDENT = 26


class Experiment(NamedTuple):
    """An entry of the list of experiments.

    Attributes:
      name: the name of its config file.
      summary: one sentence.
      variants: groups of names that exclude each other.
    """

    name: str
    summary: str
    variants: Sequence[Sequence[str]]


def text(
    commands: str,
    experiments: Sequence[Experiment],
    sizes: Sequence[str],
    sweeps: Sequence[str],
    groups: Mapping[str, Mapping[str, str]],
) -> str:
    """Returns the help.

    Args:
      commands: a summary and examples.
      experiments: the experiments.
      sizes: names of variants that many experiments share. They are listed once, as SIZE.
      sweeps: the names of the sweep files.
      groups: the help of each flag by its name, by titles.
    """
    lines = [commands.strip(), "", "Experiments: --config=configs/NAME.py:VARIANT. Commas join the names of a variant."]
    lines += _entry("SIZE", " | ".join(sizes))
    for experiment in experiments:
        variants = "; ".join(" | ".join(_shortened(group, sizes)) for group in experiment.variants)
        lines += [*_entry(experiment.name, experiment.summary), *_entry("", variants)]
    lines += ["", "Ablations: --sweep=configs/sweeps/NAME.py, or NAME.py:tiny for small models"]
    lines += _wrapped("  ", ", ".join(sweeps))
    for title, flags in groups.items():
        lines += ["", title]
        for name, described in flags.items():
            lines += _entry(f"--{name}", described)
    return "\n".join(lines)


def _shortened(group: Sequence[str], sizes: Sequence[str]) -> list[str]:
    """Returns a group of variants with SIZE in place of all sizes."""
    if not set(sizes) <= set(group):
        return list(group)
    return ["SIZE", *(name for name in group if name not in sizes)]


def _entry(name: str, described: str) -> list[str]:
    return _wrapped(f"  {name}".ljust(_INDENT), described)


def _wrapped(start: str, words: str) -> list[str]:
    return textwrap.wrap(words, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
