"""Runs the notebooks of docs/examples, and writes their outputs into them: `python -m docs.build_notebooks`."""

import sys
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
    options = {"record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": FOLDER.parents[1]}}, **options).execute()
    return notebook


if __name__ == "__main__":
    for path in paths():
        path.write_text(nbformat.writes(run(path)).replace(sys.prefix, ".venv") + "\n")
