"""Speed, memory and reproducibility of preparing real text for pretraining.

    BERTJAX_DATA=... python -m benchmarks.preparation --workers=2

Rows: the text itself (1x); the same text again, with one worker, and with an existing vocabulary; and three times as
much text (3x new words). Two of its three copies have exchanged letters, so their words are new. MB are millions of
bytes of uncompressed training and validation text. Memory is the largest sum of the proportional set sizes (PSS: shared
pages counted once) of the process and its workers, sampled ten times per second from Linux's /proc. All results include
starting Python and its workers. If the machine is otherwise busy, compare CPU seconds. The files of repeated
preparations must have the same sha256; the exit status is 1 if they differ.
"""

import argparse
import functools
import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax.data.pretraining import corpus, preparation
from bertjax.data.readers import records
from bertjax.data.text import word_counts

if TYPE_CHECKING:
    from benchmarks import common

PHASES = {
    "count": (preparation, "count_words"),
    "merge": (word_counts, "most_frequent"),
    "train": (preparation, "train_tokenizer"),
    "tokenize": (preparation, "tokenize"),
    "duplicates": (preparation.SplitCounter, "finish"),
    "write": (records, "write_tokens"),
}
ROOT = Path(__file__).parents[1]
LETTERS = "etaoinshrdlu"


def prepare(values: dict[str, Any]) -> None:
    """Prepares the text of a config in this process. Prints the seconds of each phase and the folder, as JSON."""
    seconds = dict.fromkeys(PHASES, 0.0)

    def timed(phase: str, function: Callable, *arguments: Any, **keywords: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments, **keywords)
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
    began = time.monotonic()
    cpu = cpu_seconds()
    peak = 0
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "benchmarks.preparation", "--child", json.dumps(values)]
        process = subprocess.Popen(command, stdout=output)
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.1)
        assert process.returncode == 0, "the preparation failed"
        output.seek(0)
        phases = json.loads(output.read())
    return phases | {"total": time.monotonic() - began, "cpu": cpu_seconds() - cpu, "peak": peak}


def cpu_seconds() -> float:
    """Returns the CPU seconds of child processes that have ended, and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def with_new_words(paths: list[Path], folder: Path) -> list[Path]:
    """Returns the files and two copies of them, with exchanged letters so that their words are new."""
    copies = list(paths)
    for turn in (1, 2):
        letters = LETTERS[turn:] + LETTERS[:turn]
        exchange = str.maketrans(LETTERS + LETTERS.upper(), letters + letters.upper())
        for path in paths:
            copies.append(folder / f"{turn}-{path.parent.name}-{path.name.removesuffix('.gz')}.gz")
            copies[-1].write_bytes(gzip.compress(raw(path).decode().translate(exchange).encode(), compresslevel=1))
    return copies


def digest(folder: Path) -> str:
    """Returns the sha256 of the names and contents of all files in a folder."""
    files = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return files.hexdigest()


def raw(path: Path) -> bytes:
    """Returns the uncompressed content of a file."""
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    if sys.argv[1:2] == ["--child"]:
        prepare(json.loads(sys.argv[2]))
        return
    from benchmarks import common  # not in the measured process, whose memory it would increase

    parser = common.parser(__doc__ or "", rounds=1)
    folder = Path(os.environ.get("BERTJAX_DATA", "data"))
    names = ("wikipedia_en", "english_novels")
    for split in ("train", "valid"):
        files = [path for name in names for path in sorted(folder.glob(f"{name}/{split}*.txt.gz"))]
        parser.add_argument(f"--{split}", type=Path, nargs="+", default=files, metavar="FILE")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocab_size", type=int, default=30_000)
    args = parser.parse_args()
    if args.smoke:
        args.train = [ROOT / "docs/reference/inputs.md"]
        args.valid = [ROOT / "docs/faq.md"]
        args.vocab_size = 1000
    assert args.train, "no files: set BERTJAX_DATA, or set --train and --valid"
    common.report(speeds, args)


def speeds(args: argparse.Namespace) -> "Iterator[common.Speed]":
    """Yields the speed of each row. Exits with an error if repeated preparations differ."""
    from benchmarks.common import Speed

    values = {
        "valid_source": ",".join(map(str, args.valid)),
        "valid_fraction": 0.02,
        "text_field": "text",
        "on_bad_row": "stop",
        "lines": "paragraph",
        "vocab_size": args.vocab_size,
        "lowercase": True,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        digests = {}
        sets = {"1x": args.train, "1x again": args.train, "1x, 1 worker": args.train, "1x, vocabulary": args.train}
        sets["3x new words"] = with_new_words(args.train, folder)
        for name, train in sets.items():
            prepared = folder / name.replace(" ", "-")
            source = {"source": ",".join(map(str, train)), "prepared_dir": str(prepared), "vocab_file": ""}
            workers = 1 if name == "1x, 1 worker" else args.workers
            if name == "1x, vocabulary":
                source["vocab_file"] = str(next((folder / "1x").rglob("vocab.txt")))
            measured = measure({**values, **source, "workers": workers})
            digests[name] = digest(Path(measured["folder"]))
            phases = ", ".join(f"{phase} {measured[phase]:.1f} s" for phase in PHASES)
            cost = f"{measured['cpu']:.1f} CPU seconds, {measured['peak'] / 1e6:.0f} MB at most"
            print(f"{name}: {phases}; {cost}", flush=True)
            megabytes = sum(len(raw(path)) for path in (*train, *args.valid)) / 1e6
            yield Speed(f"preparation, {name}", "MB/s", [megabytes / measured["total"]])
        if len({digests[name] for name in ("1x", "1x again", "1x, 1 worker")}) > 1:
            sys.exit(f"error: the same text gave different files: {digests}")


if __name__ == "__main__":
    main()
