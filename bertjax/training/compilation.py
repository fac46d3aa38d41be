"""What XLA compiles: how long that takes, what came from the compilation cache, and what should not have been.

JAX keeps compiled programs in the folder that the environment variable `JAX_COMPILATION_CACHE_DIR` names, and starts
faster from there.
"""

import logging
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

_log = logging.getLogger(__name__)


_FOLDER = "JAX_COMPILATION_CACHE_DIR"


def share_programs(folder: Path) -> None:
    """Lets the runs that follow, in this process or in its children, have their compiled programs in common.

    Args:
      folder: where they are kept, apart for each machine, as their processors may differ; not heeded if the user keeps
        programs elsewhere.
    """
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = str(folder / (platform.node() or "here"))
        jax.config.update("jax_compilation_cache_dir", os.environ[_FOLDER])


class Compilations:
    """Counts what is compiled while it is entered.

    Attributes:
      programs: names of what was compiled, or fetched from the compilation cache instead: "jit(step)".
      seconds: how long that took.
      cache_hits: how many were fetched.
    """

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.seconds, self.cache_hits = 0.0, 0

    def __enter__(self) -> "Compilations":
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_duration)
        jax.monitoring.unregister_event_listener(self._on_event)

    def _on_duration(self, event: str, duration_secs: float, **labels: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.programs.append(str(labels.get("fun_name", "a program")))
            self.seconds += duration_secs

    def _on_event(self, event: str, **labels: Any) -> None:
        self.cache_hits += event == "/jax/compilation_cache/cache_hits"


class Recompilations:
    """Programs that training compiled after the first update of a shape, which had compiled all that it should need."""

    def __init__(self, specs: Sequence[Mapping[str, jax.ShapeDtypeStruct]]) -> None:
        """Args: what batches should look like; each shape may be compiled once."""
        self._expected = [_shapes(spec) for spec in specs]
        self._count, self._told = 0, ""

    def watch(self, step: int, programs: Sequence[str], batch: Mapping[str, jax.Array]) -> None:
        """Looks at what update `step` compiled for its batch, which may be nothing."""
        shapes = _shapes(batch)
        if shapes in self._expected:
            self._expected.remove(shapes)
        elif programs:
            self.add(step, programs, shapes)

    def add(self, step: int, programs: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Adds what should not have been compiled. The tests of this project raise here."""
        self._count += len(programs)
        seen = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        reason = f"for shapes that the task does not announce, or that were compiled before ({seen})"
        self._told = f"step {step} compiled {', '.join(programs)} {reason}; JAX_EXPLAIN_CACHE_MISSES=1 tells more"

    def take(self) -> dict[str, float]:
        """How many there were since this was last asked, nothing for none; warns of the last."""
        if not self._count:
            return {}
        _log.warning("%d recompilations; %s", self._count, self._told)
        figures = {"train/recompilations": float(self._count)}
        self._count = 0
        return figures


def _shapes(batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in batch.items()}
