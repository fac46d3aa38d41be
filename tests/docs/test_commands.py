"""The command blocks of README and guides: each runs, with settings that make it small, or says why not.

A comment before a block marks it: `<!-- run -->` runs it, `<!-- run: FLAGS -->` adds FLAGS to each `launch.py` command,
and `<!-- not run: REASON -->` skips it. The blocks of a page run in order. All pages use one folder, so a command must
mean the same on every page; it runs once.
"""

import operator
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import tiny
from tests.docs import example_files
from tests.docs.pages import GUIDES, ROOT

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>run|not run)(?:: (?P<detail>.+?))? -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# A command with its continued lines or its here-document.
_COMMAND = re.compile(r"^.*<<'END'(?: .*)?\n(?:.*\n)*?END$|^(?:.*(?:\\|\|)\n)*.+$", re.MULTILINE)
_LAUNCH = re.compile(r"(?:(?P<input>.+?)\s*\|\s*)?python launch\.py (?P<arguments>.+)", re.DOTALL)
_ROWS = 200  # of a table
_name = operator.attrgetter("stem")
# What makes the training of a config small, and its model unless `init_from` gives one.
_SMALL = "num_steps=2 batch_size=4 data.workers=1"
_SMALL_MODEL = "model.num_layers=1 model.hidden_size=16 model.num_heads=2 model.intermediate_size=32"
_SMALL_DATA = {
    "bert_pretraining": "data.source=texts/*.txt data.valid_fraction=0.2 data.vocab_size=300",
    **dict.fromkeys(
        ("denoising", "replaced_tokens"), "data.source=texts/*.txt data.valid_fraction=0.2 data.vocab_size=300"
    ),
    "translation": "data.vocab_size=80 model.num_decoder_layers=1 evaluate_every=2 checkpoint.save_every=1"
    " checkpoint.final=last:2",
}


class Block(NamedTuple):
    """A block of code with its marker, "" for none, and what the marker says."""

    marker: str
    detail: str
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    return [Block(*groups) for groups in _BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("page", GUIDES, ids=_name)
def test_every_command_block_runs_or_says_why_not(page: Path):
    for block in blocks(page):
        assert block.language in ("bash", "python", "text", "yaml"), block.code
        if block.language in ("bash", "python"):
            assert block.marker == "run" or (block.marker == "not run" and block.detail), block.code


def test_marked_blocks_are_found():
    assert sum(block.marker == "run" for page in GUIDES for block in blocks(page)) > 20


def test_commands_of_the_readme_write_below_runs():
    """They run in the clone, where other files would be untracked."""
    written = re.findall(r"(?:--(?:output|plot|workdir)=| > )([^ \n]+)", (ROOT / "README.md").read_text())
    assert written and [path for path in written if not path.startswith("runs/")] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name, and a BERT in `bert`."""
    folder = tmp_path_factory.mktemp("pages")
    example_files.write(folder)
    (folder / "configs").symlink_to(ROOT / "configs")
    return folder


@pytest.fixture(scope="module")
def finished() -> set[str]:
    """The commands that have run in the folder; a page that repeats one uses its run."""
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if "<!-- run" in page.read_text()], ids=_name)
def test_commands_run(page: Path, folder: Path, finished: set[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BERT", "bert")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Installs a page's package beside its modules instead of into the environment, without network.
    for name, value in (("TARGET", str(folder / "package")), ("NO_INDEX", "1"), ("NO_BUILD_ISOLATION", "0")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.syspath_prepend(folder / "package")
    names: dict[str, object] = {"BERT": "bert"}
    for block in blocks(page):
        if block.marker == "run" and block.language == "python":
            with tiny.few_devices(1):
                exec(block.code, names)
        elif block.marker == "run":
            for command in _COMMAND.findall(block.code):
                if command not in finished:
                    _run(command, shlex.split(block.detail))
                    finished.add(command)


def _run(command: str, flags: list[str]) -> None:
    """Runs a command, `launch.py` in this process."""
    command = command.replace("\\\n", " ")
    launched = _LAUNCH.fullmatch(command)
    if not launched:
        subprocess.run(["bash", "-ec", command], check=True, stdout=subprocess.DEVNULL)
        for table in Path("runs").glob("*.tsv"):  # a command may have made a long one
            table.write_text("".join(table.read_text().splitlines(keepends=True)[:_ROWS]))
        return
    text = subprocess.run(["bash", "-ec", launched["input"] or ""], check=True, capture_output=True).stdout
    arguments = [os.path.expandvars(argument) for argument in shlex.split(launched["arguments"])]
    values = dict(argument.partition("=")[::2] for argument in arguments)
    if "--config" in values and values.get("--mode", "check") == "check":
        flags = [*_small(Path(values["--config"]).stem, "--config.init_from" not in values), *flags]
        if "--config.budget.tokens" in values:  # instead of updates: two of four rows of 64 tokens
            flags = [flag for flag in flags if "num_steps" not in flag] + ["--config.budget.tokens=512"]
    outcome = tiny.run_on_one(*arguments, *flags, stdin=text)
    assert outcome.status is None, f"{command}\n{outcome.status}\n{outcome.stderr[-2000:]}"


def _small(config: str, is_new_model: bool) -> list[str]:
    """The flags that make training by a config small."""
    values = f"{_SMALL} {_SMALL_MODEL if is_new_model else ''} {_SMALL_DATA.get(config, '')}"
    return [f"--config.{value}" for value in values.split()]
