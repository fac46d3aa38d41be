"""The notebooks run, and their files have outputs."""

import pytest

from tests import processes

nbformat = pytest.importorskip("nbformat")
from docs.build_notebooks import paths, run  # noqa: E402


def cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_notebook_has_outputs_without_errors(path):
    found = cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in found] == list(range(1, len(found) + 1))
    kinds = [output.output_type for cell in found for output in cell.outputs]
    assert "display_data" in kinds and "stream" in kinds and "error" not in kinds


@pytest.mark.slow
@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_notebook_runs(path, minilm, monkeypatch):
    # Programs for the session's eight devices take several times as long.
    monkeypatch.setenv("XLA_FLAGS", processes.environment()["XLA_FLAGS"])
    outputs = [output.output_type for cell in cells(run(path)) for output in cell.outputs]
    assert "display_data" in outputs
