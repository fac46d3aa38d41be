"""Small versions of the files that the commands of the documentation name."""

import dataclasses
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests import published, tiny


def write(folder: Path) -> Path:
    """Writes the files and a BERT folder; returns the BERT folder."""
    rng = random.Random(0)
    tiny.write_text(folder / "texts/a.txt")
    tiny.write_text(folder / "other.txt", documents=10, seed=1)
    _write_rows(folder / "MRPC", ["train.tsv", "dev.tsv"], rng, "Quality\t#1 String\t#2 String", "{label}\t{}\t{}")
    _write_rows(folder / "SST-2", ["train.tsv", "dev.tsv"], rng, "sentence\tlabel", "{}\t{label}")
    _write_rows(folder, ["train.tsv"], rng, "text\tlabel", "{}\t{label}")
    _write_rows(folder, ["topics.jsonl"], rng, "", '{{"text": "{}", "topics": [{label}]}}')
    _write_rows(folder, ["ratings_train.txt", "ratings_test.txt"], rng, "document\tlabel", "{}\t{label}")
    _write_rows(folder, ["sts-train.tsv", "sts-dev.tsv"], rng, "score\tsentence1\tsentence2", "{label}.5\t{}\t{}")
    nli = ["klue-nli-v1.1_train.json", "klue-nli-v1.1_dev.json"]
    _write_rows(folder, nli, rng, "", '{{"premise": "{}", "hypothesis": "{}", "gold_label": "{label}"}}')
    characters = ["klue-ner-v1.1_train.tsv", "klue-ner-v1.1_dev.tsv"]
    _write_rows(folder, characters, rng, "", "이\tB-PS\n순\tI-PS\n신\tI-PS\n은\tO\n")
    sides = ["train.en", "train.de", "train.ko", "valid.en", "valid.de", "valid.ko", "text.en", "texts.txt"]
    _write_rows(folder, sides, rng, "", "{}")
    _write_rows(folder, ["pairs.tsv"], rng, "", "{}\t{}")
    _write_rows(folder / "articles", ["one.txt", "two.txt"], rng, "", "{} {}", count=4)
    made = folder / "made"
    _copy(tiny.write_sentences(made), folder, "train.conll", "dev.conll")
    _copy(tiny.write_questions(made, answerable=0.7), folder, "train-v2.0.json", "dev-v2.0.json")
    _copy(tiny.write_choices(made), folder, "train.csv", "val.csv", "test.csv")
    _copy(tiny.write_rankings(made), folder, "rankings.jsonl")
    _copy(tiny.write_articles(made), folder, "train.jsonl", "valid.jsonl")
    config = dataclasses.replace(published.CONFIG, num_layers=1, max_positions=128)
    return published.write_huggingface(folder / "bert", config)


def _copy(keys: Mapping[str, object], folder: Path, *names: str) -> None:
    """Copies the data source that config keys name."""
    for name in names:
        shutil.copy(str(keys["data.source"]), folder / name)


def _write_rows(folder: Path, names: list[str], rng: random.Random, header: str, row: str, count: int = 24) -> None:
    """Writes files of random sentences in the given form, with labels 0 and 1 in turn."""
    folder.mkdir(exist_ok=True)
    for name in names:
        rows = [row.format(_sentence(rng), _sentence(rng), label=number % 2) for number in range(count)]
        (folder / name).write_text("\n".join([header, *rows] if header else rows) + "\n")


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(tiny.WORDS, k=rng.randint(3, 8))).capitalize() + "."
