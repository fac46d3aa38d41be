"""Rules about imports between packages and the length of functions."""

import ast
import functools
import importlib
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each module or package may import of bertjax; the longest match applies. `bertjax.experiments.find` imports by
# name. Task packages of `data` do not import each other.
LAYERS = {
    "launch.py": "launch",
    "bertjax/launch.py": "BASE distributed evaluations experiments.find experiments.load experiments.registered keys "
    "modes tools.sweeps training usage",
    "configs/": "configs errors config.defaults evaluations.find experiments",
    "configs/denoising.py": "configs errors config.defaults interop.families tasks.translators",
    "configs/translation.py": "configs errors config.defaults tasks.translators",
    "configs/parts.py": "configs errors config.defaults contract evaluations.find experiments.find models.bert "
    "training.config",
    "experiments/": "BASE contract tasks models data decoding scoring interop",
    "experiments/retrieval.py": "BASE contract tasks models data decoding scoring interop experiments.features "
    "loading model",
    "bertjax/fitting.py": "BASE experiments.find loading model modes training",
    "bertjax/keys.py": "BASE evaluations experiments.find training.config",
    "bertjax/loading.py": "BASE configs experiments interop.published model modes training",
    "bertjax/model.py": "BASE contract data.readers interop.published tasks.text_encoders training",
    "bertjax/evaluations/": "BASE contract data.codecs data.readers experiments.load experiments.registered models "
    "scoring tasks",
    "bertjax/evaluations/causal_pairs.py": "BASE contract evaluations.minimal_pairs tasks",
    "bertjax/modes/": "BASE contract data.readers distributed evaluations interop.published interruption model modes "
    "runs training",
    "bertjax/modes/stages.py": "BASE contract evaluations interop.published modes runs training tasks.distillation "
    "tasks.teachers",  # a student's task is made from the experiment's
    "bertjax/reporting/": "tools.reporting",
    "bertjax/tools/__init__.py": "",
    "bertjax/tools/sweeps/": "BASE tools.sweeps modes distributed runs training.preemption tools.reporting.runs "
    "tools.reporting.titles scoring.paired data.text data.readers data.codecs.summarization.article_formats",
    "bertjax/tools/planning/": "BASE tools.planning contract training",
    "bertjax/training/": "BASE training contract distributed meshes runs",
    "bertjax/runs/": "BASE runs distributed",
    "bertjax/tools/reporting/": "BASE tools.reporting scoring.paired runs.early_stopping runs.goodput",
    "bertjax/tools/reporting/model_card.py": "BASE tools.reporting runs.run_folder",
    "bertjax/tasks/": "BASE tasks contract meshes models data decoding scoring interop",
    "bertjax/decoding/": "BASE decoding models.decoder",
    "bertjax/scoring/": "BASE scoring data.codecs.tagging.tag_schemes",
    "bertjax/scoring/translation.py": "BASE scoring data.text.sentences",
    "bertjax/interop/": "BASE interop models data.text",
    "bertjax/interop/published.py": "BASE interop models data.text runs.checkpoints",
    "bertjax/interop/encoder_decoders.py": "BASE interop models data.text decoding.generation",
    "bertjax/interop/generation_files.py": "BASE interop decoding.generation",
    "bertjax/interop/folder_keys.py": "BASE interop data.text decoding.generation",
    "bertjax/interop/formats/": "interop.formats errors",
    "bertjax/meshes.py": "",
    "bertjax/models/": "models config errors meshes",
    "bertjax/data/": "BASE DATA",
    "bertjax/data/prepared.py": "BASE DATA data.rows data.codecs.codec",
    "bertjax/data/readers/": "BASE DATA data.readers",
    "bertjax/data/text/": "BASE DATA data.text",
    "bertjax/data/text/conversion.py": "BASE DATA data.text interop.formats",
    "bertjax/data/rows/": "BASE DATA data.text data.rows",
    "bertjax/data/pretraining/": "BASE DATA SHARED data.pretraining",
    "bertjax/data/codecs/": "BASE DATA SHARED data.codecs",
    "bertjax/data/codecs/codec.py": "BASE DATA SHARED",
    "bertjax/data/codecs/translation/": "BASE DATA SHARED data.codecs.codec data.codecs.translation",
    "bertjax/data/codecs/summarization/": "BASE DATA SHARED data.codecs.codec data.codecs.summarization",
    "bertjax/data/codecs/summarization/presumm_files.py": "BASE DATA SHARED interop.formats",
    "bertjax/contract.py": "errors interop.published",  # `Published` only for types
    "bertjax/distributed.py": "config errors",
    "bertjax/config.py": "errors",
    "bertjax/errors.py": "",
    "bertjax/file_keys.py": "errors",
    "bertjax/files.py": "errors",
    "bertjax/interruption.py": "",
    "bertjax/korean.py": "errors progress",
    "bertjax/progress.py": "",
    "bertjax/settings.py": "",
    "bertjax/words.py": "korean",
    "bertjax/usage.py": "",
    "bertjax/__init__.py": "errors fitting loading",
}
GROUPS = {
    "BASE": "config errors file_keys files korean progress settings words",
    "DATA": "data.random data.splits data.parts data.workers data.beam",
    "SHARED": "data.readers data.text data.rows",
}
OURS = ("bertjax", "tests", "benchmarks")
# The modules that may import each library; empty for libraries that only tests and benchmarks use.
OWNERS = {
    "orbax": ("bertjax/runs/checkpoints.py",),
    "tensorboardX": ("bertjax/training/metric_log.py",),
    "tensorflow_datasets": ("bertjax/data/readers/records.py",),
    "apache_beam": ("bertjax/data/beam.py",),
    "submitit": ("bertjax/tools/sweeps/processes.py",),
    "absl.flags": ("bertjax/launch.py",),
    "absl.app": ("bertjax/launch.py",),
    "ml_collections": ("bertjax/launch.py", "configs/", "experiments/"),
    "tensorflow": (),
    "torch": (),
    "transformers": (),
}
WITHOUT_JAX = ("bertjax/data/", "bertjax/scoring/")
JAX = ("jax", "flax", "optax", "chex")


@functools.cache
def nodes(source: str) -> list[ast.AST]:
    """The syntax tree of a file as a list of its imports and functions."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def imported(source: str) -> Iterator[str]:
    """The dotted names that a file imports, at any depth."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import keeps its dots, so it matches no allowed name.
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_within(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


def violations(path: str, source: str) -> list[str]:
    """The forbidden imports of a file; `path` is relative to the root."""
    place = max((place for place in LAYERS if path.startswith(place)), key=len, default=None)
    if place is None:
        return [f"{path} is in no layer"]
    found = []
    for name in imported(source):
        owners = next((owners for library, owners in OWNERS.items() if is_within(name, (library,))), ("",))
        allowed = any(path.startswith(owner) for owner in owners)
        allowed &= not (path.startswith(WITHOUT_JAX) and is_within(name, JAX))
        if name.startswith(".") or is_within(name, OURS):
            layer = " ".join(GROUPS.get(word, word) for word in LAYERS[place].split())
            allowed &= is_within(name, tuple(f"bertjax.{package}" for package in layer.split()))
        if not allowed:
            found.append(f"{path} imports {name}")
    return found


def oversized(path: str, source: str) -> list[str]:
    """The functions over 60 lines, except those of configs, which are lists of values."""
    found = []
    for node in nodes(source):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not path.startswith("configs/"):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > 60:
                found.append(f"{path}: {node.name} has {length} lines")
    return found


@functools.cache
def sources() -> dict[str, str]:
    folders = ("bertjax", "experiments", "configs")
    paths = [ROOT / "launch.py", *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def test_all_imports_are_allowed():
    files = sources()
    assert len(files) > 30
    assert [v for path, source in files.items() for v in violations(path, source)] == []


def test_no_function_is_too_long():
    assert [o for path, source in sources().items() for o in oversized(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("launch.py", "from bertjax import modes"),
        ("bertjax/launch.py", "import bertjax.experiments.bert_pretraining"),
        ("experiments/a.py", "from . import bert_pretraining"),
        ("experiments/a.py", "def f():\n    from bertjax.training import sharding"),
        ("bertjax/models/a.py", "from ...data.pretraining import masking"),
        ("bertjax/data/a.py", "import jax.numpy as jnp"),
        ("bertjax/models/a.py", "import transformers"),
        ("bertjax/data/codecs/translation/a.py", "from bertjax.data.codecs.summarization import oracle"),
        ("bertjax/errors.py", "import tests.tiny"),
        ("bertjax/novelty/a.py", ""),
    ],
)
def test_a_planted_violation_is_found(path, source):
    assert len(violations(path, source)) == 1


def test_functions_that_are_too_long_are_found():
    long = "def f():\n" + "    pass\n" * 60
    assert oversized("bertjax/a.py", long) == ["bertjax/a.py: f has 61 lines"]
    assert oversized("configs/a.py", long) == []


def test_functions_named_in_the_architecture_exist():
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|", text, re.MULTILINE)
    assert len(rows) == 15
    for module, function in rows:
        operator.attrgetter(function)(importlib.import_module(module))
