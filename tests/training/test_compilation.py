"""Counts of compiled programs, detection of recompilations, and the compilation cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training import compilation, loop
from tests import processes, tiny

ROOT = Path(__file__).parents[2]
add = compilation.Recompilations.add  # the original, before an autouse fixture replaces it


def test_programs_and_cache_hits_are_counted():
    never_compiled = float(np.random.default_rng().random())

    def program():
        def cube(x):
            return x * x * x + never_compiled

        return jax.jit(cube)

    x = np.ones(3, np.float32)
    with compilation.Compilations() as compiled:
        program()(x)
        assert compiled.programs == ["jit(cube)"]
        assert (compiled.seconds > 0, compiled.cache_hits) == (True, 0)
        program()(x)
        assert (len(compiled.programs), compiled.cache_hits) == (2, 1)
    program()(x)
    assert len(compiled.programs) == 2, "programs after the context are not counted"


def test_an_unexpected_shape_fails_tests(text):
    task, data, settings, _ = tiny.pretraining(tiny.config(text, model__num_layers=1))
    trainer = loop.Trainer(task, settings, jax.devices()[:1])

    def batches(*arguments):
        for index, batch in enumerate(data.batches(*arguments)):
            yield {name: rows[:8] for name, rows in batch.items()} if index >= 3 else batch

    message = r"update 4 compiled .*jit\(step\)"
    with compilation.Compilations() as compiled, pytest.raises(AssertionError, match=message):
        state = trainer.fresh()
        list(trainer.updates(batches, state, compiled))


def test_each_announced_shape_is_compiled_once(monkeypatch):
    added = []
    monkeypatch.setattr(compilation.Recompilations, "add", lambda self, step, programs, shapes: added.append(step))
    specs = [{"x": jax.ShapeDtypeStruct((2, length), jnp.float32)} for length in (3, 4)]
    recompilations = compilation.Recompilations(specs)
    assert recompilations.progress() == " (shape 1 of 2)"
    for step, length, programs in (
        (1, 3, ["jit(step)"]),
        (2, 3, []),
        (3, 4, ["jit(step)"]),
        (4, 3, ["jit(step)"]),  # again
        (5, 5, ["jit(step)"]),  # not announced
    ):
        batch = {"x": jnp.zeros((2, length))}
        assert recompilations.expects(batch) == (step in (1, 3))
        recompilations.watch(step, programs, batch)
    assert added == [4, 5]


def test_recompiled_programs_are_named(caplog):
    recompilations = compilation.Recompilations([])
    add(recompilations, 7, ["jit(step)"], {"x": (2,)})
    assert recompilations.take() == {"train/recompilations": 1}
    assert recompilations.take() == {}
    assert "1 recompilations; step 7 compiled jit(step) for unannounced" in caplog.messages[0]
    assert "(x (2,))" in caplog.messages[0]


@pytest.fixture
def cache_settings(tmp_path, monkeypatch):
    """Sets JAX's default settings, restores them afterwards, and returns the user's cache folder."""
    names = ("compilation_cache_dir", "enable_compilation_cache", "persistent_cache_min_compile_time_secs")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "bertjax" / "compiled"
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_in_the_users_cache(cache_settings):
    compilation.keep_programs()
    assert Path(jax.config.jax_compilation_cache_dir).parent == cache_settings


@pytest.mark.parametrize("how", ["named", "disabled"])
def test_environment_variables_of_the_user_are_respected(cache_settings, monkeypatch, how):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere" if how == "named" else "")
    jax.config.update("jax_enable_compilation_cache", how == "named")
    compilation.keep_programs()
    assert jax.config.jax_compilation_cache_dir == before


def test_a_cache_that_cannot_be_written_is_not_used(cache_settings, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    before = jax.config.jax_compilation_cache_dir
    compilation.keep_programs()
    assert jax.config.jax_compilation_cache_dir == before


def test_the_least_recently_used_programs_are_deleted(tmp_path):
    for age in range(6):
        path = tmp_path / f"program{age}"
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    compilation._prune(tmp_path, 600)
    assert len(list(tmp_path.iterdir())) == 6, "the limit is not exceeded"
    compilation._prune(tmp_path, 599)
    assert {path.name for path in tmp_path.iterdir()} == {"program0", "program1"}


@pytest.mark.slow
def test_a_second_start_reads_its_programs_from_the_cache(text, tmp_path):
    environment = {**processes.environment(), "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    values = {"num_steps": 1, "model__num_layers": 1}
    counts = []
    for name in ("first", "second"):
        command = [sys.executable, "launch.py", "--noreport", *tiny.arguments(text, tmp_path / name, **values)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        counts.append([int(n) for n in re.search(r"(\d+) of (\d+) programs cached", done.stderr).groups()])
    (first_hits, first), (hits, programs) = counts
    assert first == programs > 1
    assert first_hits < programs / 2 < programs == hits
