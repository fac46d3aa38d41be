"""Settings of the process that hold inside a context, and are restored at its end."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def jax_config(**values: Any) -> Iterator[None]:
    """Sets values of `jax.config`."""
    import jax  # only now: worker processes import this module without JAX

    before = {name: jax.config.values[name] for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Sets environment variables."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
