"""Documents per CPU second of the search for near duplicates, beside datasketch if it is installed.

    BERTJAX_DATA=... python -m benchmarks.duplicates --megabytes=100

The text is novels in documents of 500 words, then copies of these with up to 40 words changed. Ours verifies candidates
by their true similarity, and applies filters; datasketch does not verify. Both have 20 bands of 6 values.
"""

import argparse
import gzip
import os
import random
import resource
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import common
from bertjax.data.pretraining.corpus import Corpus, CorpusConfig, Preparation
from bertjax.data.pretraining.removal import Removal, RemovalConfig


def edited_copies(paths: Iterable[Path], size: int) -> Iterator[list[str]]:
    """Yields the words of documents, and then of copies with edits, until they have `size` characters."""
    rng = random.Random(0)
    words = [word for path in paths for word in gzip.decompress(path.read_bytes()).decode().split()]
    documents = [words[start : start + 500] for start in range(0, len(words), 500)]
    number = 0
    while size > 0:
        document = list(documents[number] if number < len(documents) else rng.choice(documents))
        for _ in range(rng.choice((0, 1, 3, 6, 10, 20, 40)) if number >= len(documents) else 0):
            document[rng.randrange(len(document))] = rng.choice(words)
        size -= sum(map(len, document)) + len(document)
        number += 1
        yield document


def search(corpus: Corpus, workers: int) -> None:
    """Prints the number of duplicates by our search."""
    with tempfile.TemporaryDirectory() as folder:
        removal = Removal(RemovalConfig(duplicates="drop", max_removed=1.0), ["text"], Path(folder), workers)
        removal.run({"text": corpus})
        print("ours:", removal.report()["removal"]["text"], flush=True)


def search_by_datasketch(texts: Iterable[str]) -> None:
    """Prints the number of documents that have candidates by datasketch."""
    import datasketch

    index = datasketch.MinHashLSH(params=(20, 6), num_perm=120)
    duplicates = 0
    for number, text in enumerate(texts):
        words = text.split()
        values = datasketch.MinHash(num_perm=120)
        values.update_batch([" ".join(words[i : i + 5]).encode() for i in range(max(len(words) - 4, 1))])
        is_new = not index.query(values)
        if is_new:
            index.insert(number, values)
        duplicates += not is_new
    print(f"datasketch: {duplicates}", flush=True)


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its workers that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def speeds(args: argparse.Namespace) -> Iterator[common.Speed]:
    """Yields the speed of the search."""
    novels = sorted(Path(os.environ["BERTJAX_DATA"]).glob("english_novels/train*.txt.gz"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = map(" ".join, edited_copies(novels, 10**6 if args.smoke else args.megabytes * 10**6))
        (folder / "text.txt").write_text("\n\n".join(lines))
        source = str(folder / "text.txt")
        preparation = Preparation(CorpusConfig(source=source, lines="sentence", lowercase=True), folder)
        preparation.run()
        corpus = Corpus(preparation.folder)
        contenders = {"ours": lambda: search(corpus, args.workers)}
        if not common.missing("datasketch"):
            texts = (folder / "text.txt").read_text().split("\n\n")
            contenders["datasketch"] = lambda: search_by_datasketch(texts)
        seconds = common.interleave(contenders, args.rounds, cpu_seconds)
        documents = corpus.counts["train"]["documents"]
        work = "search for duplicates"
        if len(contenders) > 1:
            yield common.speed_of(work, "documents/CPU s", documents, seconds)
        else:
            yield common.Speed(work, "documents/CPU s", [documents / s for s in seconds["ours"]])


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=3)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    common.report(speeds, parser.parse_args())


if __name__ == "__main__":
    main()
