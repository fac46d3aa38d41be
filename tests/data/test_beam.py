import functools
import os

import pytest

from bertjax.data import beam
from bertjax.data.beam import BeamConfig
from bertjax.errors import UserError

HERE = BeamConfig("DirectRunner")


def write(number, folder):
    with (folder / f"{number}").open("x") as file:
        file.write(f"{os.getpid()}")


@pytest.mark.slow
def test_worker_processes_process_each_item_once(tmp_path, monkeypatch):
    """The workers import the modules of this checkout from any folder."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    beam.for_each(HERE, 2, functools.partial(write, folder=tmp_path), list(range(40)))
    assert os.environ["PYTHONPATH"] == ""
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(40))
    processes = {int(path.read_text()) for path in tmp_path.iterdir()}
    assert os.getpid() not in processes
    assert len(processes) == 2


def test_an_unknown_runner_is_an_error():
    pytest.importorskip("apache_beam")
    beam.check(HERE)
    with pytest.raises(UserError, match=r"runner=NoRunner: got an unknown runner"):
        beam.check(BeamConfig("NoRunner"))
