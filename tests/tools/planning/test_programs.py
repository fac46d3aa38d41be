"""Bytes and operations of small programs, compiled for a TPU and a GPU, against counts by hand."""

import importlib.util
import subprocess
import sys

import pytest

from bertjax.tools.planning.costs import step_costs
from tests.tools.planning import programs

CASES = [(kind, name) for kind in programs.TARGETS for name in programs.programs(kind)]


def check(text, kind, name):
    program = programs.programs(kind)[name]
    costs = step_costs(text, 1)
    assert costs.hbm_bytes == pytest.approx(program.moved[kind], rel=0.02)
    assert costs.flops == program.flops
    assert costs.uncounted_loops == 0


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_costs_are_those_counted_by_hand(kind, name):
    check(programs.path(kind, name).read_text(), kind, name)


def test_every_text_belongs_to_a_program():
    assert {programs.path(*case) for case in CASES} == set(programs.FOLDER.glob("*/*.txt"))
    assert len([case for case in CASES if case[0] == "gpu"]) >= 20


def compile_again(kind, name):
    """The text of a program, compiled in a separate process because of the compiler's settings."""
    code = f"from tests.tools.planning import programs; print(programs.compile_alone({kind!r}, {name!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


if importlib.util.find_spec("libtpu"):  # without a compiler these tests are not collected, rather than skipped

    @pytest.mark.parametrize("name", ["product", "dropout", "splash, backward"])
    def test_tpu_programs_compiled_again(name):
        text = compile_again("tpu", name)
        check(text, "tpu", name)
        assert step_costs(programs.stripped(text), 1) == step_costs(text, 1)


if importlib.util.find_spec("jax_cuda12_plugin"):

    @pytest.mark.parametrize("name", ["product", "attention", "cudnn, backward"])
    def test_gpu_programs_compiled_again(name):
        text = compile_again("gpu", name)
        check(text, "gpu", name)
        assert step_costs(programs.stripped(text), 1) == step_costs(text, 1)
