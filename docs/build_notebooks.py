"""Runs the notebooks of docs/examples, and writes their outputs into them: `python -m docs.build_notebooks`."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).with_name("examples")


def paths() -> list[Path]:
    """The notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def run(path: Path) -> nbformat.NotebookNode:
    """Runs a notebook from the project's root. Raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, record_timing=False, resources={"metadata": {"path": FOLDER.parents[1]}}).execute()
    return notebook


if __name__ == "__main__":
    for path in paths():
        nbformat.write(run(path), path)
