"""Speed, memory and reproducibility of preparing real text for pretraining.

    BERTJAX_DATA=... python -m benchmarks.preparation --workers=2 --repeat_check

Table rows: the text itself (1x); the same with a given vocabulary; three times as much text, either copies (3x same) or
copies with exchanged letters, so that their words are new (3x new words). MB are millions of bytes of uncompressed
training and validation text. Memory is the largest sum of the proportional set sizes (PSS: shared pages counted once)
of the process and its workers, sampled ten times per second from Linux's /proc. All results include starting Python and
its workers. If the machine is otherwise busy, compare CPU seconds. --repeat_check prepares the text again, with as many
workers and with one, and compares the sha256 of all files; the exit status is 1 if they differ.
"""

import argparse
import functools
import gzip
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from bertjax.data.pretraining import corpus, preparation
from bertjax.data.readers import records
from bertjax.data.text import word_counts

PHASES = {
    "count": (preparation, "count_words"),
    "merge": (word_counts, "most_frequent"),
    "train": (preparation, "train_vocabulary"),
    "tokenize": (preparation, "tokenize"),
    "duplicates": (preparation.SplitCounter, "finish"),
    "write": (records, "write_tokens"),
}
LETTERS = "etaoinshrdlu"


def prepare(values: dict[str, Any]) -> None:
    """Prepares the text of a config in this process. Prints the seconds of each phase and the folder, as JSON."""
    seconds = dict.fromkeys(PHASES, 0.0)

    def timed(phase: str, function: Callable, *arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            seconds[phase] += time.monotonic() - began

    for phase, (place, name) in PHASES.items():
        original = getattr(place, name)
        # A partial is not bound as a method, so it would not receive the object.
        bound = functools.partial(timed, phase, original)
        setattr(place, name, (lambda self, bound=bound: bound(self)) if phase == "duplicates" else bound)
    work = corpus.Preparation(corpus.CorpusConfig(**values), Path("unused"))
    work.run()
    print(json.dumps({"folder": str(work.folder), **seconds}))


def memory(pid: int) -> int:
    """Returns the proportional set size of a process and all its descendants, in bytes."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = 1024 * int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(map(memory, map(int, (task / "children").read_text().split())))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
    return total


def measure(values: dict[str, Any]) -> dict[str, Any]:
    """Prepares in a new process. Returns its output, with the total seconds and the peak memory."""
    began, cpu, peak = time.monotonic(), cpu_seconds(), 0
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "benchmarks.preparation", "--child", json.dumps(values)]
        process = subprocess.Popen(command, stdout=output)
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.1)
        assert process.returncode == 0, "the preparation failed"
        output.seek(0)
        found = json.loads(output.read())
    return found | {"total": time.monotonic() - began, "cpu": cpu_seconds() - cpu, "peak": peak}


def cpu_seconds() -> float:
    """Returns the CPU seconds of child processes that have ended, and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def copies(paths: list[Path], folder: Path, number: int, new_words: bool) -> list[Path]:
    """Returns the files and `number` - 1 copies of them under other names, with exchanged letters if `new_words`."""
    made = list(paths)
    for turn in range(1, number):
        letters = LETTERS[turn:] + LETTERS[:turn]
        exchange = str.maketrans(LETTERS + LETTERS.upper(), letters + letters.upper())
        for path in paths:
            copy = folder / f"{turn}-{new_words}-{path.parent.name}-{path.name}"
            made.append(copy)
            if new_words:
                text = gzip.decompress(path.read_bytes()).decode()
                copy.write_bytes(gzip.compress(text.translate(exchange).encode(), compresslevel=1))
            else:
                shutil.copy(path, copy)
    return made


def digest(folder: Path) -> str:
    """Returns the sha256 of the names and contents of all files in a folder."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def raw_bytes(paths: list[Path]) -> int:
    """Returns the uncompressed size of the files."""
    return sum(len(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data) for data in map(Path.read_bytes, paths))


def show(name: str, size: int, found: dict[str, Any]) -> None:
    """Prints a row: MB, MB/s, the seconds of the phases, peak memory and counts."""
    counts = json.loads((Path(found["folder"]) / "manifest.json").read_text())["counts"]["train"]
    phases = " ".join(f"{found[phase]:10.1f}" for phase in PHASES)
    rate, peak = size / 1e6 / found["total"], found["peak"] / 1e6
    columns = f"{size / 1e6:7.1f} {found['total']:7.1f} {rate:6.2f} {found['cpu']:6.1f} {phases} {peak:8.0f}"
    print(f"{name:14} {columns} {counts['tokens']:11,} {counts['duplicate_lines']:10,}", flush=True)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(os.environ.get("BERTJAX_DATA", "data"))
    names = ("wikipedia_en", "english_novels")
    for split in ("train", "valid"):
        files = [path for name in names for path in sorted(folder.glob(f"{name}/{split}*.txt.gz"))]
        parser.add_argument(f"--{split}", type=Path, nargs="+", default=files, metavar="FILE")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocab_size", type=int, default=30_000)
    parser.add_argument("--repeat_check", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        prepare(json.loads(args.child))
        return
    assert args.train, "no files: set BERTJAX_DATA, or set --train and --valid"
    versions = [f"{name} {metadata.version(name)}" for name in ("nltk", "tokenizers", "tensorflow-datasets", "numpy")]
    print(f"Python {platform.python_version()}, {', '.join(versions)}; {len(os.sched_getaffinity(0))} cores")
    print(f"{args.workers} workers, {args.vocab_size} tokens trained, uncased, paragraphs split into sentences")
    titles = [*(f"{phase:>10}" for phase in PHASES), f"{'peak MB':>8}", f"{'tokens':>11}", f"{'dup. lines':>10}"]
    print(f"{'':14} {'MB':>7} {'seconds':>7} {'MB/s':>6} {'CPU s':>6}", *titles)
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(run(args, Path(temporary)))


def run(args: argparse.Namespace, folder: Path) -> bool:
    """Measures and prints the rows. Returns whether repeated preparations differ."""
    values = {
        "valid_source": ",".join(map(str, args.valid)),
        "valid_fraction": 0.02,
        "text_field": "text",
        "on_bad_row": "stop",
        "lines": "paragraph",
        "vocab_size": args.vocab_size,
        "lowercase": True,
    }

    def row(name: str, train: list[Path], workers: int = args.workers, vocab_file: str = "") -> Path:
        source = {"source": ",".join(map(str, train)), "workers": workers, "vocab_file": vocab_file}
        found = measure({**values, **source, "prepared_dir": str(folder / name.replace(" ", "-"))})
        show(name, raw_bytes([*train, *args.valid]), found)
        return Path(found["folder"])

    first = row("1x", args.train)
    row("1x, vocabulary", args.train, vocab_file=str(first / "vocab.txt"))
    row("3x same", copies(args.train, folder, 3, new_words=False))
    row("3x new words", copies(args.train, folder, 3, new_words=True))
    if not args.repeat_check:
        return False
    again = [row("1x again", args.train), row("1x, 1 worker", args.train, workers=1)]
    digests = [digest(path) for path in (first, *again)]
    print("sha256 of all files:", *digests)
    print("identical files" if len(set(digests)) == 1 else "DIFFERENT FILES")
    return len(set(digests)) > 1


if __name__ == "__main__":
    main()
