"""Sizes that say how much a new task or family costs: lines of code, concepts, opened files, and built tasks.

    python -m benchmarks.structure

Prints a Markdown table of this checkout. Run in the root of another checkout by path, it prints the table of that one.
Lines of code exclude docstrings, comments and blank lines.
"""

import ast
import contextlib
import importlib
import io
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))

from bertjax import experiments, launch, loading, modes

_CODE = ("bertjax", "experiments", "configs")
# Multiple choice is a typical task: an experiment, the reader of its rows, and its config.
_TASK = ("experiments/multiple_choice.py", "configs/multiple_choice.py", "bertjax/data/codecs/choices.py")
# Names that an experiment had to define in the contract with facts, and has to define now.
_DEFINED = {"Config", "FREE_AFTER_TRAINING", "resolve"}
_DEFINED_BEFORE = _DEFINED | {"build_data", "build_task", "read_facts", "stand_in_facts"}
_DEFINED_NOW = _DEFINED | {"Data", "Task", "open_vocabulary", "example_config"}
_STEPS = (
    "bertjax/modes",
    "bertjax/tasks",
    "bertjax/training",
    "bertjax/tools/planning/planner.py",
)  # between file and task
_ATTENTION = ("attention", "backends", "dot_product", "compact", "flash", "local", "row_attention")
_TINY = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_positions": 32}


def main() -> None:
    """Prints the table."""
    sources = {path: path.read_text() for path in _files(_CODE)}
    task = [Path(name) for name in _TASK]
    defined = (
        _DEFINED_BEFORE
        if "\ndef build_task" in sources[task[0]] or "build_task =" in sources[task[0]]
        else _DEFINED_NOW
    )
    concepts = set().union(*(_imported(sources[path]) for path in task[:2])) | defined
    changing = [path for path in _files(_STEPS) if _changes_config(sources[path])]
    facts = [
        line
        for text in sources.values()
        for line in text.splitlines()
        if line.startswith("class ") and "Facts(" in line
    ]
    attention = [Path(f"bertjax/models/{name}.py") for name in _ATTENTION]
    opened, built = _opened_and_built()
    rows = {
        "code lines": sum(map(_code_lines, sources.values())),
        "multiple choice: concepts": len(concepts),
        "multiple choice: code lines": sum(_code_lines(sources[path]) for path in task),
        "opens of config.json in `modes.resolve`": opened["resolve"],
        "opens of config.json in `bertjax.load`": opened["load"],
        "builds of the task: rows not prepared": built["first"],
        "builds of the task: rows prepared": built["second"],
        f"modules that change the config ({', '.join(map(str, changing))})": len(changing),
        "calls of build_all": sum(
            text.count("build_all(") for path, text in sources.items() if path.name != "config.py"
        ),
        "classes of facts": len(facts),
        "modules named plan.py": sum(path.name == "plan.py" for path in sources),
        "modules of attention": len(attention),
        "code lines of attention": sum(_code_lines(sources[path]) for path in attention),
        "code lines of tests": sum(_code_lines(path.read_text()) for path in _files(("tests",))),
    }
    print("| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {value:,} |" for name, value in rows.items()))


def _files(folders: Sequence[str]) -> Iterator[Path]:
    """Yields the Python files of folders, except those behind the links of the package."""
    paths = [path for name in folders for path in sorted(Path(name).rglob("*.py")) or [Path(name)]]
    yield from (path for path in [*([Path("launch.py")] if folders == _CODE else []), *paths] if not path.is_symlink())


def _code_lines(source: str) -> int:
    """The lines with code."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, documented) and ast.get_docstring(node, False)
    ]
    docs = {line for node in nodes for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in ignored]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docs)


def _imported(source: str) -> set[str]:
    """The names that a file imports from the package."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in found if (node.module or "").startswith("bertjax") for alias in node.names}


def _changes_config(source: str) -> bool:
    """Whether a file makes a changed copy of a config, as `{**config, ...}`, or a deep copy to change."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict | ast.Call)]
    copies = any(isinstance(node, ast.Call) and ast.unparse(node.func) == "copy.deepcopy" for node in found)
    parts = [
        value
        for node in found
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    ]
    names = ("config", "given", "resolved.config", "self.config")
    return copies or any(ast.unparse(part) in names for part in parts)


def _opened_and_built() -> tuple[dict[str, int], dict[str, int]]:
    """Counts the opens of an exported folder's config.json, and the tasks that two trainings build."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        (home / "rows.tsv").write_text("sentence\tlabel\n" + "".join(f"{w} film\t{w}\n" for w in ("good", "bad") * 20))
        (home / "vocab.txt").write_text(
            "\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"))
        )
        built, run, exported = [], home / "run", home / "exported"
        values = {f"model.{key}": value for key, value in _TINY.items()} | {"data.seq_len": 16, "num_steps": 1}
        values |= {"data.source": home / "rows.tsv", "data.vocab_file": home / "vocab.txt"}
        command = [
            "--config=configs/classification.py:tiny",
            *(f"--config.{key}={each}" for key, each in values.items()),
        ]
        bert = importlib.import_module("bertjax.tasks.bert")
        base = bert.BertTask
        original = base.__init__

        def counted(self: Any, *args: Any, **options: Any) -> None:
            built.append(self)
            original(self, *args, **options)

        base.__init__ = counted
        _launch(*command, f"--workdir={run}")
        first = len(built)
        _launch(*command, f"--workdir={home / 'again'}", f"--config.data.prepared_dir={run / 'data'}")
        second = len(built) - first
        _launch("--mode=export", f"--workdir={run}", f"--output={exported}")
        opened: list[str] = []
        sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
        wanted = str(exported / "config.json")
        given = loading._config("classification", {"init_from": str(exported)})
        modes.resolve(modes.Request(mode="predict"), given, experiments.find)
        resolved = opened.count(wanted)
        importlib.import_module("bertjax").load(exported)
        return {"resolve": resolved, "load": opened.count(wanted) - resolved}, {"first": first, "second": second}


def _launch(*arguments: str) -> None:
    """Runs `launch.py` in this process."""
    from absl import flags

    sys.argv = ["launch.py", "--distributed=off", "--noreport", *arguments]
    flags.FLAGS.unparse_flags()
    with contextlib.redirect_stderr(io.StringIO()) as log, contextlib.redirect_stdout(io.StringIO()):
        try:
            launch.main(launch._parse_flags(sys.argv))
        except SystemExit as end:
            assert not end.code, (end.code, log.getvalue())
    for name in [name for name in flags.FLAGS if name == "config" or name.startswith("config.")]:
        flags.FLAGS[name].unparse() if name == "config" else delattr(flags.FLAGS, name)


if __name__ == "__main__":
    main()
