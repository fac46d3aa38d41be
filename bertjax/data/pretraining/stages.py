"""Keys that hold a value for each of several parts of training."""

from collections.abc import Callable
from typing import Any

from bertjax.config import Constrained


def check_stages(config: Constrained, key: str, expected: str, allows: Callable[[Any], bool]) -> None:
    """Raises UserError unless a key has pairs of a fraction of all updates and an allowed value."""
    stages = getattr(config, key)
    for i, stage in enumerate(stages):
        is_pair = isinstance(stage, (tuple, list)) and len(stage) == 2
        ok = is_pair and 0 < number(stage[0]) < 1 and allows(stage[1])
        text = f"a fraction of all updates between 0 and 1, and {expected}"
        config.check(ok, f"{key}[{i}]", text, got=repr(stage), fix=f"write {key}=((0.5, VALUE),), with both commas")
    total = sum(fraction for fraction, _ in stages)
    config.check(total < 1, key, "fractions whose sum is less than 1: the last stage has the rest")


def number(value: Any, otherwise: float = 0.0) -> float:
    """Returns `value` if it is a number."""
    return value if type(value) in (int, float) else otherwise
