"""Small runs of several tasks and their inputs, which `fuzz` and `kills` predict with."""

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NONE: Mapping[str, object] = {}
_ENGLISH = ("the", "a", "cat", "dog", "bird", "fish", "sees", "likes", "finds", "small", "big", "red", "old", "house")
WORDS = [*_ENGLISH, "größe", "東京", "İn"]
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?"
_ENCODER = {
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.intermediate_size": 16,
    "model.max_positions": 48,
    "model.initializer_range": 0.4,  # large, so that different inputs give different outputs
}
_FEW = {"num_steps": 2, "batch_size": 4, "log_every": 2, "evaluate_every": 2, "checkpoint.save_every": 2}
_FINE_TUNED = {
    **_ENCODER,
    **{key: value for key, value in _FEW.items() if key != "num_steps"},
    "num_epochs": 0.1,
    "data.seq_len": 32,
    "data.valid_fraction": 0.2,
}

Text = Mapping[str, bytes]  # file names and contents


def sentence(rng: random.Random, number: int) -> str:
    """Returns a sentence that contains the number, so that it is unique."""
    return " ".join([*rng.choices(WORDS, k=rng.randint(2, 7)), str(number)]) + " ."


def sentences(rng: random.Random, count: int) -> list[str]:
    """Returns `count` different sentences."""
    return [sentence(rng, number) for number in range(count)]


def _text(rows: list[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def masked(rng: random.Random, count: int) -> Text:
    """Returns texts with a [MASK], one per line."""
    return {"in.txt": _text([f"{text[:-2]} [MASK] ." for text in sentences(rng, count)])}


def lines(rng: random.Random, count: int) -> Text:
    """Returns texts, one per line."""
    return {"in.txt": _text(sentences(rng, count))}


def documents(rng: random.Random, count: int) -> Text:
    """Returns texts of three sentences, with a sentence per line."""
    groups = ["\n".join(sentence(rng, 3 * number + i) for i in range(3)) for number in range(count)]
    return {"in.txt": ("\n\n".join(groups) + "\n").encode()}


def table(rng: random.Random, count: int) -> Text:
    """Returns labeled texts, as a TSV file with a header."""
    rows = [f"{text}\t{'yes' if 'cat' in text else 'no'}" for text in sentences(rng, count)]
    return {"in.tsv": _text(["sentence\tlabel", *rows])}


def choices(rng: random.Random, count: int) -> Text:
    """Returns questions with four endings, as a CSV file in SWAG's format."""
    rows = [",".join([text, "it", *sentences(rng, 4), str(rng.randrange(4))]) for text in sentences(rng, count)]
    return {"in.csv": _text(["sent1,sent2,ending0,ending1,ending2,ending3,label", *rows])}


def choice_lines(rng: random.Random, count: int) -> Text:
    """Returns questions with two to five choices, one per line."""
    rows = ["\t".join([text, *sentences(rng, 2 + number % 4)]) for number, text in enumerate(sentences(rng, count))]
    return {"in.txt": _text(rows)}


def choice_objects(rng: random.Random, count: int) -> Text:
    """Returns questions with two to five choices, as JSON lines in ARC's format."""
    rows = []
    for number, text in enumerate(sentences(rng, count)):
        found = [{"text": each, "label": "ABCDE"[i]} for i, each in enumerate(sentences(rng, 2 + number % 4))]
        rows.append(json.dumps({"id": number, "question": {"stem": text, "choices": found}, "answerKey": "B"}))
    return {"in.jsonl": _text(rows)}


def tagged(rng: random.Random, count: int) -> Text:
    """Returns sentences of tagged words, with a word and its tag per line."""
    groups = [text.split() for text in sentences(rng, count)]
    rows = ["\n".join(f"{word}\t{'B-ANIMAL' if word in WORDS[2:6] else 'O'}" for word in words) for words in groups]
    return {"in.conll": ("\n\n".join(rows) + "\n").encode()}


def questions(rng: random.Random, count: int) -> Text:
    """Returns questions about texts, as a SQuAD file."""
    paragraphs = []
    for number, text in enumerate(sentences(rng, count)):
        word = text.split()[0]
        answers = [{"text": word, "answer_start": text.index(word)}]
        rows = [{"id": f"{number}-{i}", "question": f"Which {i} {number} ?", "answers": answers} for i in range(2)]
        paragraphs.append({"context": text, "qas": rows})
    half = len(paragraphs) // 2
    data = [{"title": f"t{i}", "paragraphs": part} for i, part in enumerate((paragraphs[:half], paragraphs[half:]))]
    return {"in.json": json.dumps({"version": "1.1", "data": data}).encode()}


def pairs(rng: random.Random, count: int) -> Text:
    """Returns texts and their translations, in two files."""
    found = sentences(rng, count)
    return {"in.en": _text(found), "in.de": _text([text[::-1].strip() for text in found])}


def articles(rng: random.Random, count: int) -> Text:
    """Returns articles of four sentences with summaries of one sentence, as JSON lines."""
    rows = []
    for number in range(count):
        found = [sentence(rng, 10 * number + i).capitalize() for i in range(4)]
        rows.append(json.dumps({"id": f"a{number}", "article": found, "summary": found[1:2]}))
    return {"in.jsonl": _text(rows)}


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a task is trained, and its input for predictions.

    Attributes:
      config: the config file, with a variant after a colon.
      values: config keys and their values.
      source: makes the training files.
      keys: the config keys that name the training files.
      input: makes the input of predictions, in its first file.
      suffix: the suffix of the file of predictions.
    """

    config: str
    values: Mapping[str, object]
    source: Callable[[random.Random, int], Text]
    keys: tuple[str, ...]
    input: Callable[[random.Random, int], Text]
    suffix: str = ".jsonl"


_PRETRAINED = {
    **_ENCODER,
    **_FEW,
    "data.seq_len": 32,
    "data.lines": "sentence",
    "data.valid_fraction": 0.3,
    "data.workers": 1,
    "optimizer.warmup_steps": 1,
}
_TRANSLATION = {
    **_ENCODER,
    **_FEW,
    "model.num_decoder_layers": 1,
    "num_scored": 2,
    "checkpoint.final": "latest",
    "data.seq_len": 48,
    "data.vocab_size": 60,
    "data.valid_fraction": 0.1,
    "decoding.max_length": 16,
    "decoding.num_beams": 2,
    "optimizer.warmup_steps": 1,
}
_BERTSUM = {
    **_ENCODER,
    **_FEW,
    "model.scorer_layers": 1,
    "model.scorer_heads": 2,
    "model.scorer_intermediate": 16,
    "data.seq_len": 48,
    "data.window_overlap": 0,
    "data.valid_fraction": 0.2,
    "optimizer.warmup_steps": 1,
    "selection.num_sentences": 1,
}
_QUESTIONS = {**_FINE_TUNED, "data.doc_stride": 8, "data.max_query_length": 8, "data.max_answer_length": 4}
KINDS = {
    "masks": Kind("bert_pretraining.py:tiny", _PRETRAINED, documents, ("data.source",), masked),
    "classification": Kind("classification.py:tiny", _FINE_TUNED, table, ("data.source",), lines),
    "choices": Kind("multiple_choice.py:tiny", _FINE_TUNED, choices, ("data.source",), choice_lines),
    "tagging": Kind("tagging.py:tiny", _FINE_TUNED, tagged, ("data.source",), lines),
    "answers": Kind("question_answering.py:tiny,squad", _QUESTIONS, questions, ("data.source",), questions),
    "translation": Kind("translation.py:tiny", _TRANSLATION, pairs, ("data.source", "data.target"), lines, ".txt"),
    "bertsum": Kind("bertsum_ext.py:tiny", _BERTSUM, articles, ("data.source",), articles),
}


def write(folder: Path, files: Text) -> list[Path]:
    """Writes files. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def write_vocabulary(path: Path) -> Path:
    """Writes a vocab.txt of the words and of letters, so that most words have pieces. Returns the path."""
    tokens = [*_SPECIALS, *WORDS, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    path.write_text("".join(f"{token}\n" for token in dict.fromkeys(tokens)))
    return path


def environment(cache: Path, platform: str = "cpu") -> dict[str, str]:
    """Returns environment variables of processes that share a folder of compiled programs.

    Accelerators too multiply float32 numbers in full precision. Several processes may share one.
    """
    quick = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    accelerator = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": platform, **quick, **accelerator}


def command(*arguments: str) -> list[str]:
    """Returns a command line of `launch.py`."""
    return [sys.executable, "launch.py", "--noreport", "--distributed=off", *arguments]


def train(name: str, folder: Path, seed: int, changes: Mapping[str, object] = _NONE, platform: str = "cpu") -> Path:
    """Trains a small model, and replaces an existing one in the folder. Returns the run."""
    kind, run = KINDS[name], folder / name
    shutil.rmtree(run, ignore_errors=True)
    sources = write(folder / f"{name}-text", kind.source(random.Random(0), 40))
    values = {**kind.values, **dict(zip(kind.keys, sources, strict=True)), "seed": seed, **changes}
    if name == "masks":
        values["data.prepared_dir"] = folder / f"{name}-text" / "prepared"
    if name != "translation":
        values["data.vocab_file"] = write_vocabulary(folder / "vocab.txt")
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    full = command(f"--config=configs/{kind.config}", f"--workdir={run}", *flags)
    done = subprocess.run(full, cwd=ROOT, env=environment(folder / "cache", platform), capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
    return run


def export(name: str, folder: Path, output: Path) -> Path:
    """Exports a run. Returns the exported folder."""
    full = command("--mode=export", f"--workdir={folder / name}", f"--output={output}")
    subprocess.run(full, cwd=ROOT, env=environment(folder / "cache"), check=True, capture_output=True)
    return output
