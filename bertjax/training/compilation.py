"""The compilation cache, counts of compiled programs, and detection of recompilations during training."""

import contextlib
import hashlib
import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from bertjax.files import cache_folder
from bertjax.settings import jax_config

_log = logging.getLogger(__name__)


_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_MAX_BYTES = 2**31  # approximate limit of a cache folder
_MIN_SECONDS = 0.05  # compiling a faster program takes no longer than reading it from the cache


def keep_programs() -> None:
    """Enables the persistent compilation cache, in a folder of the user's cache.

    Does nothing if `JAX_COMPILATION_CACHE_DIR` names another folder, or if `JAX_ENABLE_COMPILATION_CACHE=false`. The
    folder is `$XDG_CACHE_HOME/bertjax/compiled/`, by default in `~/.cache`. It has a subfolder for each kind of
    processor, because a program compiled for one kind may not run on another. If a subfolder exceeds two gigabytes, the
    least recently used programs are deleted.
    """
    for name, value in _cache_settings().items():
        jax.config.update(name, value)


@contextlib.contextmanager
def kept_programs() -> Iterator[None]:
    """Enables the cache of `keep_programs` inside a context."""
    if not (settings := _cache_settings()):
        yield
        return
    with jax_config(**settings):
        reset_cache()  # JAX decides at the first program whether there is a cache, and where
        try:
            yield
        finally:
            reset_cache()


def _cache_settings() -> dict[str, Any]:
    """Returns the values of `jax.config` that enable the cache; none where `keep_programs` does nothing."""
    if os.environ.get(_FOLDER) or not jax.config.values["jax_enable_compilation_cache"]:
        return {}
    try:
        folder = cache_folder() / "compiled" / _processor()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home folder, or one that cannot be written
        return {}
    with contextlib.suppress(OSError):  # another process may delete the same files
        _prune(folder, _MAX_BYTES)
    return {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": _MIN_SECONDS}


def _processor() -> str:
    """Returns a name for this machine's kind of processor: its architecture and a digest of its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    features = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    digest = hashlib.sha256("\n".join(features or lines[:1]).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:8]}"


def _prune(folder: Path, max_bytes: int) -> None:
    """If the files exceed `max_bytes`, deletes the least recently used ones until at most half of it is left."""
    files = [(entry.stat(), entry.path) for entry in os.scandir(folder)]
    total = sum(status.st_size for status, _ in files)
    if total <= max_bytes:
        return
    for status, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
        Path(path).unlink(missing_ok=True)
        total -= status.st_size
        if total <= max_bytes / 2:
            break


class Compilations:
    """A context manager that counts the programs compiled inside it.

    Attributes:
      programs: names of the programs that were compiled or read from the compilation cache, such as "jit(step)".
      seconds: the total time of compiling and reading.
      cache_hits: the number of programs that were read from the cache.
    """

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.seconds = 0.0
        self.cache_hits = 0

    def __enter__(self) -> "Compilations":
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_duration)
        jax.monitoring.unregister_event_listener(self._on_event)

    def _on_duration(self, event: str, duration_secs: float, **labels: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.programs.append(str(labels.get("fun_name", "a program")))
            self.seconds += duration_secs

    def _on_event(self, event: str, **labels: Any) -> None:
        self.cache_hits += event == "/jax/compilation_cache/cache_hits"


class Recompilations:
    """Counts programs that training compiles after the first update of each announced batch shape."""

    def __init__(self, specs: Sequence[Mapping[str, jax.ShapeDtypeStruct]]) -> None:
        """Takes the announced shapes of batches; each may be compiled once."""
        self._expected = [_shapes(spec) for spec in specs]
        self._number = len(self._expected)
        self._count = 0
        self._message = ""

    def expects(self, batch: Mapping[str, jax.Array]) -> bool:
        """Returns whether a batch is the first one of an announced shape, so that the step will be compiled."""
        return _shapes(batch) in self._expected

    def progress(self) -> str:
        """Returns which shape is compiled next, such as " (shape 2 of 9)"; "" if all batches have one shape."""
        return f" (shape {self._number - len(self._expected) + 1} of {self._number})" if self._number > 1 else ""

    def watch(self, step: int, programs: Sequence[str], batch: Mapping[str, jax.Array]) -> None:
        """Checks the programs, if any, that update `step` compiled for its batch."""
        shapes = _shapes(batch)
        if shapes in self._expected:
            self._expected.remove(shapes)
        elif programs:
            self.add(step, programs, shapes)

    def add(self, step: int, programs: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Counts unexpected programs. The tests of this project replace this method by one that raises."""
        self._count += len(programs)
        seen = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        reason = f"for unannounced or already compiled shapes ({seen}); for details set JAX_EXPLAIN_CACHE_MISSES=1"
        self._message = f"step {step} compiled {', '.join(programs)} {reason}"

    def take(self) -> dict[str, float]:
        """Returns the number of recompilations since the last call, if any, and logs a warning about the last one."""
        if not self._count:
            return {}
        _log.warning("%d recompilations; %s", self._count, self._message)
        metrics = {"train/recompilations": float(self._count)}
        self._count = 0
        return metrics


def size_of(batch: Mapping[str, jax.Array]) -> str:
    """Returns the rows and tokens of a batch's inputs and targets, such as "32 x 64"."""
    shapes = _shapes(batch)
    sizes = dict.fromkeys(shapes[name] for name in ("input_ids", "labels") if len(shapes.get(name, ())) > 1)
    return " and ".join(" x ".join(map(str, size)) for size in sizes) + " tokens"


def _shapes(batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in batch.items()}
