"""The wheel, built from the sdist and installed outside the repository, does what a clone does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes, published, tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
OFFLINE = ["--no-index", "--no-deps"]
SOURCES = ("bertjax", "configs", "experiments", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
SWEEP = """
from bertjax.configs.sweeps import parts

def get_sweep(variant=""):
    return {
        "stages": [parts.stage("pretrain", "configs/bert_pretraining.py:tiny", VALUES)],
        "rows": [parts.row("BERT", {})],
        "base": "BERT",
        "seeds": (0,),
        "metrics": [parts.metric("loss", "pretrain", "valid/masked_lm_loss", direction="min")],
        "source": "nobody",
        "needs": {},
    }
"""

# An installed package that registers the task `mine`, and its config.
PACKAGE = {
    "mine.py": """
from bertjax.experiments.features import Config, Task as Features, open_vocabulary, resolve

class Task(Features):
    def record(self, *arguments):
        return {**super().record(*arguments), "mine": True}
""",
    "mine_config.py": """
from bertjax.configs import features

def get_config(variant=""):
    config = features.get_config("sentence")
    config.experiment = "mine"
    return config
""",
    "mine-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n",
    "mine-1.dist-info/entry_points.txt": "[bertjax.experiments]\nmine = mine\n[bertjax.configs]\nmine = mine_config\n",
}


def execute(*command: str, cwd: Path, stdin: str = "", **variables: str) -> str:
    """Runs a command and returns its standard output."""
    env = processes.environment() | variables
    done = subprocess.run(command, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for path in (ROOT / name for name in SOURCES):
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / path.name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, source)
    build = "from setuptools import build_meta; build_meta.build_sdist('../sdist')"
    execute(sys.executable, "-c", build, cwd=source)
    (sdist,) = (folder / "sdist").iterdir()
    execute(*PIP, "wheel", *OFFLINE, "--no-build-isolation", f"--wheel-dir={folder}", str(sdist), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    execute(*PIP, "install", *OFFLINE, f"--target={folder / 'site'}", str(wheel), cwd=folder)
    return folder / "site"


@pytest.fixture
def bertjax(site, tmp_path):
    """Runs the console command in an empty folder."""

    def run(*arguments: str, stdin: str = "") -> str:
        path = f"{site}:{tmp_path}"
        return execute(str(site / "bin" / "bertjax"), *arguments, cwd=tmp_path, stdin=stdin, PYTHONPATH=path)

    return run


def files(package: Path) -> set[str]:
    """The files of a package, those behind links too."""
    return {
        os.path.relpath(Path(folder) / name, package)
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }


def test_the_wheel_is_the_package_and_nothing_else(site):
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"bertjax", "bin"}
    assert [path.name for path in (site / "bin").iterdir()] == ["bertjax"]
    assert files(site / "bertjax") == files(ROOT / "bertjax")
    assert "py.typed" in files(site / "bertjax")


def test_the_console_command_trains_and_predicts_as_the_library(site, bertjax, tmp_path):
    run = tmp_path / "run"
    bertjax(*tiny.arguments(tiny.write_text(tmp_path / "text.txt"), run, num_steps=2))
    environment = json.loads((run / "environment.json").read_text())
    assert environment["command"][:2] == ["bertjax", "--config=configs/bert_pretraining.py:tiny"]
    assert (run / "report.html").exists()
    predicted = json.loads(bertjax("--mode=predict", f"--workdir={run}", stdin="the [MASK] sees a cat .\n"))
    assert len(predicted["masks"][0]["tokens"]) == 5
    code = "import bertjax, json; print(json.dumps(bertjax.load('run').predict(['the [MASK] sees a cat .'])))"
    (by_library,) = json.loads(execute(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site)))
    assert [mask["tokens"] for mask in by_library["masks"]] == [mask["tokens"] for mask in predicted["masks"]]


def test_an_installed_package_adds_a_task(site, bertjax, tmp_path):
    (tmp_path / "mine-1.dist-info").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "encoder").mkdir()
    encoder = published.write_sentence_transformers(tmp_path / "encoder", "mean_tokens", True, 16)
    flags = ["--mode=predict", "--config=mine", f"--config.init_from={encoder}"]
    predicted = json.loads(bertjax(*flags, stdin="the cat sees .\n"))
    assert predicted["mine"] and len(predicted["features"][0]) == 16
    code = "import bertjax; print(bertjax.load('encoder', 'mine').predict(['the cat sees .'])[0]['mine'])"
    assert execute(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=f"{site}:{tmp_path}") == "True\n"


def test_the_console_command_runs_sweeps_by_itself(bertjax, tmp_path):
    values = tiny.values(tiny.write_text(tmp_path / "text.txt"), num_steps=2)
    (tmp_path / "sweep.py").write_text(SWEEP.replace("VALUES", repr(values)))
    flags = ["--sweep=sweep.py", "--workdir=sweep"]
    printed = bertjax(*flags, "--print_commands")
    assert printed.startswith("bertjax --config=configs/bert_pretraining.py:tiny ")
    assert "BERT" in bertjax(*flags, "--backend=workers")


def test_the_packages_sweeps_and_keys_are_found(bertjax):
    assert bertjax("--keys=batch_size").startswith("batch_size = ")
    assert bertjax("--sweep=configs/sweeps/bertsum.py:tiny", "--workdir=sweep", "--dry_run").endswith(" rows\n")
