"""Makes rouge.json with the output of ROUGE-1.5.5.pl, or compares our scores with the program.

    python -m tests.scoring.golden.make_rouge_golden ROUGE_HOME DATA_FOLDER
    python -m tests.scoring.golden.make_rouge_golden ROUGE_HOME DATA_FOLDER --verify

ROUGE_HOME contains ROUGE-1.5.5.pl and its folder data. Perl needs XML::DOM and DB_File. DATA_FOLDER contains
cnn_dailymail_small, bbc_news_summary and sumpubmed_small, of which only means and a digest of the scores of each
document are stored. With --verify, the scores of each document and the stems of all words are compared.
"""

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bertjax.scoring import rouge_stemmer
from bertjax.scoring.rouge import METRICS, RougeConfig, score, summarize
from tests.scoring.golden.make_rouge_exceptions import irregular_forms
from tests.scoring.golden.rouge_summaries import make_up, read

GOLDEN = Path(__file__).with_name("rouge.json")
CASES = 60
LIMIT = 20
STEMMED_WORDS = 250
SETTINGS = [(stem, words) for stem in (True, False) for words in (None, LIMIT)]
Summaries = Sequence[Sequence[str]]

_AVERAGE = re.compile(r"X (ROUGE-[12L]) Average_([RPF]): (\S+) \(95%-conf.int. (\S+) - (\S+)\)")
_DOCUMENT = re.compile(r"X (ROUGE-[12L]) Eval (\d+)\.X R:(\S+) P:(\S+) F:(\S+)")
_PARTS = {"R": "_recall", "P": "_precision", "F": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rouge_home", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--verify", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(flags.rouge_home, Path(folder))
        if flags.verify:
            verify(program, flags.data)
        else:
            golden = make(program, flags.data)
            lines = [f'"{key}":{json.dumps(golden[key], ensure_ascii=False, separators=(",", ":"))}' for key in golden]
            GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


class Program:
    """The unmodified ROUGE-1.5.5.pl, with a database of irregular forms that today's DB_File can open."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.script, self.folder = home / "ROUGE-1.5.5.pl", folder
        forms = irregular_forms(home / "data" / "WordNet-2.0-Exceptions")
        (folder / "smart_common_words.txt").touch()
        build = (
            "tie %h, 'DB_File', $ARGV[0], O_CREAT|O_RDWR, 0640, $DB_HASH or die; /(.*) (.*)/, $h{$1} = $2 while <STDIN>"
        )
        lines = "".join(f"{word} {base}\n" for word, base in forms.items())
        command = ["perl", "-MDB_File", "-e", build, str(folder / "WordNet-2.0.exc.db")]
        subprocess.run(command, input=lines, text=True, check=True)

    def score(self, candidates: Summaries, references: Summaries, stem: bool, words: int | None) -> dict[str, object]:
        """The program's averages and the scores of each document, by our names, in percent."""
        options = ["-n", "2", "-d", *(["-m"] if stem else []), *(["-l", str(words)] if words else [])]
        averages, documents = self._figures(candidates, references, options)
        as_one = [[[" ".join(filter(None, summary))] for summary in side] for side in (candidates, references)]
        for ours, whole in zip((averages, documents), self._figures(*as_one, options), strict=True):
            ours |= {
                name.replace("rougeLsum", "rougeL"): value
                for name, value in whole.items()
                if name.startswith("rougeLsum")
            }
        return {"averages": averages, "documents": documents}

    def stems(self, words: list[str]) -> list[str]:
        """The program's stem of each word."""
        rows = [" ".join(words[start : start + 50]) for start in range(0, len(words), 50)]
        output = self._run([rows], [["x"]], ["-m", "-v"])
        printed = output.split("***P")[1].split("***M")[0]
        return [
            stem for line in printed.splitlines() if re.match(r"\d+: ", line) for stem in line.split(": ")[1].split("|")
        ]

    def _figures(self, candidates: Summaries, references: Summaries, options: list[str]) -> tuple[dict, dict]:
        output = self._run(candidates, references, options)
        averages, documents = {}, {}
        for metric, part, *values in _AVERAGE.findall(output):
            name = _name(metric) + _PARTS[part]
            for suffix, value in zip(("_resampled", "_low", "_high"), values, strict=True):
                averages[name + suffix] = round(100 * float(value), 3)
        for metric, number, *values in _DOCUMENT.findall(output):
            for part, value in zip("RPF", values, strict=True):
                row = documents.setdefault(_name(metric) + _PARTS[part], [0.0] * len(candidates))
                row[int(number) - 1] = round(100 * float(value), 3)
        return averages, documents

    def _run(self, candidates: Summaries, references: Summaries, options: list[str]) -> str:
        """The program's output for files with one sentence per line and documents numbered from 1."""
        pairs = []
        for number, pair in enumerate(zip(candidates, references, strict=True)):
            files = [self.folder / f"{side}.{number}" for side in ("candidate", "reference")]
            for file, sentences in zip(files, pair, strict=True):
                file.write_text("".join(sentence + "\n" for sentence in sentences), encoding="utf-8")
            pairs.append(" ".join(map(str, files)))
        (self.folder / "pairs").write_text("\n".join(pairs))
        command = ["perl", str(self.script), "-e", str(self.folder), "-c", "95", "-r", "1000", "-z", "SPL", *options]
        run = subprocess.run([*command, str(self.folder / "pairs")], capture_output=True, text=True, check=True)
        return run.stdout


def make(program: Program, data: Path) -> dict[str, object]:
    candidates, references = make_up(CASES)
    runs = [
        {"stem": stem, "words": words, **program.score(candidates, references, stem, words)} for stem, words in SETTINGS
    ]
    words = _words(candidates + references)[:STEMMED_WORDS]
    real = []
    for stem in (True, False):
        figures = program.score(*read(data), stem, words=None)
        real.append({"stem": stem, "averages": figures["averages"], "documents": digest(figures["documents"])})
    return {
        "stems": dict(zip(words, program.stems(words), strict=True)),
        "candidates": candidates,
        "references": references,
        "runs": runs,
        "real": real,
    }


def digest(documents: Mapping[str, Sequence[float]]) -> str:
    """A digest of the scores of each document in percent, with the program's precision."""
    digits = {name: [round(1000 * value) for value in documents[name]] for name in sorted(documents)}
    return hashlib.sha256(json.dumps(digits).encode()).hexdigest()


def verify(program: Program, data: Path) -> None:
    """Prints the largest difference between our scores and the program's, in percent, and the stems that differ."""
    real, made_up = read(data), make_up(500)
    words = _words([*real[0], *real[1], *made_up[0], *made_up[1]])
    words = sorted({*words, *(word for word in irregular_forms(program.script.parent / "data/WordNet-2.0-Exceptions"))})
    words = [word for word in words if word.isalnum()]
    theirs = program.stems(words)
    different = [pair for pair in zip(words, theirs, strict=True) if rouge_stemmer.stem(pair[0]) != pair[1]]
    print(f"{len(different)} of {len(words)} stems differ: {different[:20]}")
    for name, (candidates, references) in (("real", real), ("made up", made_up)):
        for stem, limit in SETTINGS:
            expected = program.score(candidates, references, stem, limit)
            ours = score(candidates, references, RougeConfig(flavor="rouge-1.5.5", stem=stem, words=limit))
            figures = summarize(ours, confidence=True)
            documents = max(np.abs(ours[key] - row).max() for key, row in expected["documents"].items())
            averages = max(abs(figures[key] - value) for key, value in expected["averages"].items())
            f1 = {metric: round(figures[metric], 2) for metric in METRICS}
            print(f"{name}, stem {stem}, words {limit}: {len(candidates)} documents {f1}")
            print(f"  differ by {documents:.1e} (each document) and {averages:.1e} (averages and intervals)")


def _name(metric: str) -> str:
    return {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeLsum"}[metric]


def _words(summaries: Sequence[Sequence[str]]) -> list[str]:
    """The distinct words of the summaries, in lowercase."""
    return sorted({word for summary in summaries for s in summary for word in re.findall("[a-z0-9]+", s.lower())})


if __name__ == "__main__":
    main()
