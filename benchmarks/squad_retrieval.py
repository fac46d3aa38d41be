"""Makes a retrieval task of files in SQuAD's form: a folder in BEIR's form, and training rows.

    python -m benchmarks.squad_retrieval squad/ --test=dev.json.gz --train=train.json.gz --train=other.json.gz
    python launch.py --mode=evaluate --config=configs/retrieval.py --config.init_from=FOLDER \\
        --config.data.test_source=squad/beir
    python launch.py --config=configs/embeddings.py --workdir=runs/squad --config.init_from=BERT_FOLDER \\
        --config.data.source=squad/train.jsonl

A question is a query, and its paragraph the only relevant document. Equal paragraphs are one document with all of their
questions, equal questions one query. Training rows are questions with their paragraphs, without the articles and the
paragraphs of the test files. Titles of articles are not used: they would give away the article of most questions.
"""

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class _Question(NamedTuple):
    article: str
    question: str
    paragraph: str


def main() -> None:
    """Writes the files that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--test", type=Path, action="append", required=True, help="a SQuAD file, .json or .json.gz")
    parser.add_argument("--train", type=Path, action="append", default=[], help="a SQuAD file, .json or .json.gz")
    args = parser.parse_args()
    test = list(_questions(args.test))
    write_beir(args.folder / "beir", test)
    articles, paragraphs = ({getattr(each, name) for each in test} for name in ("article", "paragraph"))
    every = list(dict.fromkeys(_questions(args.train)))
    rows = [each for each in every if each.article not in articles and each.paragraph not in paragraphs]
    lines = [json.dumps({"query": each.question, "positive": each.paragraph}) + "\n" for each in rows]
    (args.folder / "train.jsonl").write_text("".join(lines))
    texts = len({each.paragraph for each in rows})
    print(f"train.jsonl: {len(rows):,} questions, {texts:,} paragraphs; {len(every) - len(rows):,} questions left out")


def write_beir(folder: Path, questions: Iterable[_Question]) -> None:
    """Writes a folder in BEIR's form, and prints its counts."""
    paragraphs: dict[str, str] = {}
    relevant: dict[str, dict[str, None]] = {}
    for each in questions:
        document = paragraphs.setdefault(each.paragraph, f"p{len(paragraphs):06}")
        relevant.setdefault(each.question, {})[document] = None
    queries = {text: f"q{number:06}" for number, text in enumerate(relevant)}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    rows = {
        "corpus.jsonl": [{"_id": name, "title": "", "text": text} for text, name in paragraphs.items()],
        "queries.jsonl": [{"_id": name, "text": text} for text, name in queries.items()],
    }
    for name, objects in rows.items():
        (folder / name).write_text("".join(json.dumps(each) + "\n" for each in objects))
    judged = [f"{queries[text]}\t{document}\t1" for text, found in relevant.items() for document in found]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    print(f"beir/: {len(queries):,} queries, {len(paragraphs):,} documents, {len(judged):,} judgments")


def _questions(paths: Iterable[Path]) -> Iterator[_Question]:
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            articles = json.load(file)["data"]
        for number, article in enumerate(articles):
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    if not qa.get("is_impossible"):
                        title = article.get("title") or f"{path}:{number}"
                        yield _Question(title, qa["question"].strip(), paragraph["context"].strip())


if __name__ == "__main__":
    main()
