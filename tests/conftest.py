"""Settings of the whole test session, made before JAX starts."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

# Eight devices on any machine, for the tests of meshes; the others use the first.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
# Small programs that run a few times cost more to optimize than to run, and the same ones come again and again.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
_CACHE = tempfile.mkdtemp(prefix="bertjax-compiled-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)


@pytest.fixture(autouse=True)
def _recompilations_are_errors() -> Iterator[None]:
    """Of the training step, after the first update of a shape: in a user's run they are warned of and counted."""

    def fail(self: object, step: int, programs: list[str], shapes: object) -> None:
        raise AssertionError(f"update {step} compiled {programs} for {shapes}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertjax.training.compilation.Recompilations.add", fail)
        yield
