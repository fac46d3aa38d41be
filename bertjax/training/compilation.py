"""What XLA compiles: how long that takes, what came from the compilation cache, and what should not have been."""

import contextlib
import hashlib
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from bertjax.files import cache_folder

_log = logging.getLogger(__name__)


_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_LARGEST = 2**31  # bytes of a cache folder, about
_LEAST_SECONDS = 0.05  # compiling anything faster takes no longer than reading it


def keep_programs() -> None:
    """Keeps compiled programs between starts, in a folder of the user's cache.

    Does nothing if `JAX_COMPILATION_CACHE_DIR` names another folder or `JAX_ENABLE_COMPILATION_CACHE=false`. The folder
    is `$XDG_CACHE_HOME/bertjax/compiled/`, by default in `~/.cache`, with a subfolder for each kind of processor, since
    a program that was compiled for one need not run on another. Once it exceeds two gigabytes, the programs that were
    used longest ago are deleted.
    """
    if os.environ.get(_FOLDER) or not jax.config.values["jax_enable_compilation_cache"]:
        return
    try:
        folder = cache_folder() / "compiled" / _processor()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return
    with contextlib.suppress(OSError):  # another process deletes too
        _prune(folder, _LARGEST)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)


def _processor() -> str:
    """Returns a name for the kind of this machine's processor: its architecture and a digest of its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    features = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    digest = hashlib.sha256("\n".join(features or lines[:1]).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:8]}"


def _prune(folder: Path, largest: int) -> None:
    """Deletes the files that were used longest ago while the others exceed half of `largest`, if all exceed it."""
    files = [(entry.stat(), entry.path) for entry in os.scandir(folder)]
    total = sum(status.st_size for status, _ in files)
    if total <= largest:
        return
    for status, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
        Path(path).unlink(missing_ok=True)
        total -= status.st_size
        if total <= largest / 2:
            break


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
        self._number = len(self._expected)
        self._count, self._told = 0, ""

    def expects(self, batch: Mapping[str, jax.Array]) -> bool:
        """Returns whether the step will be compiled for a batch, as the first of a shape that the task announces."""
        return _shapes(batch) in self._expected

    def progress(self) -> str:
        """Returns which shape is compiled next, such as " (shape 2 of 9)"; "" if all batches have one shape."""
        return f" (shape {self._number - len(self._expected) + 1} of {self._number})" if self._number > 1 else ""

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


def size_of(batch: Mapping[str, jax.Array]) -> str:
    """Returns the rows and tokens of a batch's inputs and targets, such as "32 x 64"."""
    shapes = _shapes(batch)
    sizes = dict.fromkeys(shapes[name] for name in ("input_ids", "labels") if len(shapes.get(name, ())) > 1)
    return " and ".join(" x ".join(map(str, size)) for size in sizes) + " tokens"


def _shapes(batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in batch.items()}
