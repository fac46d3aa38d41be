"""The targets of fuzzing that read training data, with their undamaged files."""

import dataclasses
import functools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.data.codecs.choices import ChoiceCodec, ChoicesConfig
from bertjax.data.codecs.label_sets import LabelSetCodec, LabelSetsConfig
from bertjax.data.codecs.labeled_text import LabeledTextCodec, LabeledTextConfig
from bertjax.data.codecs.questions import questions
from bertjax.data.codecs.summarization import articles
from bertjax.data.codecs.summarization.articles import ArticlesConfig
from bertjax.data.codecs.tagging import tagged_words
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.translation import parallel_text
from bertjax.data.codecs.translation.parallel_text import ParallelTextConfig
from bertjax.data.readers import sources
from bertjax.data.readers.lines import BadRows
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from tests.robustness import fuzz_checks, small_runs
from tests.robustness.fuzz_checks import Split, only
from tests.robustness.small_runs import Text

Read = Callable[[Path, bool], list[Any]]

ROWS = 12
_TOKENIZER = WordPiece(SPECIALS, lowercase=True)
ARC_COLUMNS = {
    "context_column": "question.stem",
    "start_column": "",
    "choice_columns": ("question.choices",),
    "label_column": "answerKey",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader of files.

    Attributes:
      name: the name.
      share: the relative frequency of the target.
      files: the undamaged files.
      read: returns the results, from the folder of the files and whether bad rows are skipped.
      split: splits the files into parts.
      drops: whether a skipped bad part has no result; predictions give it an empty result.
      repeats: whether parts may be equal. If not, a known part may be refused because of another part.
      packs: whether the first file may be compressed with gzip.
    """

    name: str
    share: float
    files: Text
    read: Read
    split: Split
    drops: bool = True
    repeats: bool = True
    packs: bool = False


def on_bad_row(skips: bool) -> str:
    return "skip" if skips else "stop"


def first(folder: Path) -> str:
    """Returns the only file of a folder."""
    (path,) = folder.iterdir()
    return str(path)


def readers() -> Iterator[Target]:
    """Yields the readers of training data."""
    rng = random.Random(0)
    yield Target("text", 3, small_runs.documents(rng, ROWS), _read_text, fuzz_checks.documents, packs=True)
    texts = [small_runs.sentence(rng, number) for number in range(ROWS)]
    rows = {"in.jsonl": jsonl({"text": f"{text}\n{text}"} for text in texts)}
    yield Target("text jsonl", 2, rows, _read_text, fuzz_checks.texts, packs=True)
    yield from tables(texts)
    swag, arc = small_runs.choices(rng, ROWS), small_runs.choice_objects(rng, ROWS)
    yield Target("choices csv", 2, swag, _read_choices, fuzz_checks.csv, packs=True)
    read = functools.partial(_read_choices, **ARC_COLUMNS)
    yield Target("choices jsonl", 3, arc, read, fuzz_checks.rows, packs=True)
    tagged = small_runs.tagged(rng, ROWS)
    yield Target("conll", 3, tagged, _read_tagged, fuzz_checks.groups, packs=True)
    yield Target("conllu", 2, {"in.conllu": _conllu(texts)}, _read_conllu, fuzz_checks.groups, packs=True)
    words = [(text.split(), len(text.split()[0])) for text in texts]
    lists = jsonl({"tokens": each, "ner_tags": ["B-X", *["O"] * (len(each) - 1)]} for each, _ in words)
    yield Target("tagged lists", 2, {"in.jsonl": lists}, _read_tagged, fuzz_checks.rows, packs=True)
    spans = json.dumps([{"text": " ".join(each), "label": [[0, end, "X"]]} for each, end in words])
    yield Target("tagged spans", 2, {"in.json": spans.encode()}, _read_tagged, fuzz_checks.elements, packs=True)
    found = small_runs.questions(rng, 6)
    yield Target("squad", 3, found, _read_questions, fuzz_checks.questions, repeats=False, packs=True)
    paragraphs = [paragraph for article in json.loads(only(found))["data"] for paragraph in article["paragraphs"]]
    flat = jsonl({**each, "context": paragraph["context"]} for paragraph in paragraphs for each in paragraph["qas"])
    yield Target("question rows", 2, {"in.jsonl": flat}, _read_questions, fuzz_checks.rows, repeats=False, packs=True)
    lines = {"in.jsonl": b'{"header": {}}\n' + jsonl(map(_mrqa, paragraphs))}
    yield Target("mrqa", 2, lines, _read_questions, fuzz_checks.unknown, packs=True)
    yield from article_formats(rng)
    yield Target("tmx", 2, {"in.tmx": _tmx(texts)}, _read_pair_table, fuzz_checks.unknown, packs=True)
    yield Target("aligned text", 3, small_runs.pairs(rng, ROWS), _read_pairs, fuzz_checks.pairs)
    table = {"in.tsv": "".join(f"{row}\n" for row in ["a\tb", *(f"{t}\t{t[::-1]}" for t in texts)]).encode()}
    yield Target("parallel table", 2, table, _read_pair_table, fuzz_checks.table, packs=True)


def tables(texts: list[str]) -> Iterator[Target]:
    labels = [f"l{number % 3}" for number in range(len(texts))]
    together = list(zip(texts, labels, strict=True))
    tsv = "".join(f"{text}\t{label}\n" for text, label in [("sentence", "label"), *together])
    bars = {"in.txt": tsv.replace("\t", "|||").encode()}
    quoted = [(f'"{t}, ""{t[:3]}""\n{t}"' if i % 3 == 0 else t.replace(".", "")) for i, t in enumerate(texts)]
    comma = "sentence,label\n" + "".join(f"{t},{label}\n" for t, label in zip(quoted, labels, strict=True))
    objects = jsonl({"sentence": text, "label": label, "n": 1} for text, label in together)
    read = _read_table
    yield Target("table tsv", 4, {"in.tsv": tsv.encode()}, read, fuzz_checks.table, packs=True)
    yield Target("table csv", 4, {"in.csv": comma.encode()}, read, fuzz_checks.csv, packs=True)
    yield Target("table jsonl", 4, {"in.jsonl": objects}, read, fuzz_checks.rows, packs=True)
    as_list = json.dumps(list(map(json.loads, objects.splitlines())), indent=1).encode()
    yield Target("table json", 3, {"in.json": as_list}, read, fuzz_checks.elements, packs=True)
    semicolons = {"in.csv": comma.replace(",", ";").encode()}
    yield Target("table ;", 1, semicolons, functools.partial(read, separator=";"), fuzz_checks.unknown, packs=True)
    sets = jsonl({"sentence": text, "label": [label, "x"]} for text, label in together)
    yield Target("label sets", 2, {"in.jsonl": sets}, _read_label_sets, fuzz_checks.rows, packs=True)
    yield Target("table |||", 2, bars, functools.partial(read, separator="|||"), fuzz_checks.table, packs=True)


def article_formats(rng: random.Random) -> Iterator[Target]:
    rows = small_runs.articles(rng, 8)
    values = [json.loads(line) for line in rows["in.jsonl"].split(b"\n")[:-1]]
    bertsum = [{"src": [s.split() for s in v["article"]], "tgt": [s.split() for s in v["summary"]]} for v in values]
    stories = {
        f"{v['id']}.story": ("\n\n".join([*v["article"], "@highlight", *v["summary"]]) + "\n").encode() for v in values
    }
    plain = {"in.txt": "".join(" ".join(v["article"]) + "\n" for v in values).encode()}
    yield Target("articles jsonl", 2, rows, _read_articles, fuzz_checks.rows, packs=True)
    as_list = {"in.json": json.dumps(bertsum).encode()}
    yield Target("articles bertsum", 2, as_list, _read_articles, fuzz_checks.elements, packs=True)
    yield Target("articles story", 2, stories, _read_articles, fuzz_checks.each_file)
    yield Target("articles lines", 2, plain, _read_articles, fuzz_checks.lines, packs=True)


def jsonl(rows: Iterator[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _mrqa(paragraph: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for row in paragraph["qas"]:
        spans = [(each["text"], each["answer_start"]) for each in row["answers"]]
        detected = [{"text": text, "char_spans": [[start, start + len(text) - 1]]} for text, start in spans]
        answers = [text for text, _ in spans]
        rows.append({"qid": row["id"], "question": row["question"], "answers": answers, "detected_answers": detected})
    return {"context": paragraph["context"], "qas": rows}


def _tmx(texts: list[str]) -> bytes:
    units = []
    for text in texts:
        sides = {"a": f"<hi>{text[:3]}</hi>{text[3:]}", "b": f"{text[::-1]}<ph>x</ph>"}
        units.append("".join(f'<tuv xml:lang="{name}"><seg>{side}</seg></tuv>' for name, side in sides.items()))
    body = "\n".join(f"<tu>{unit}</tu>" for unit in units)
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n{body}\n</body></tmx>\n'.encode()


def _conllu(texts: list[str]) -> bytes:
    found = []
    for text in texts:
        rows = [f"{i}\t{word}\t_\tNOUN\t_\t_\t0\t_\t_\t_" for i, word in enumerate(text.split(), start=1)]
        found.append("\n".join([f"# text = {text}", *rows]))
    return ("\n\n".join(found) + "\n\n").encode()


def _read_text(folder: Path, skips: bool) -> list[Any]:
    source = sources.TextSource(first(folder), "text", on_bad_row(skips))
    return [document.lines for document in source.documents()]


def _read_table(folder: Path, skips: bool, **changes: Any) -> list[Any]:
    config = LabeledTextConfig(on_bad_row=on_bad_row(skips), **changes)
    codec = LabeledTextCodec(config, _TOKENIZER, seq_len=32, is_numeric=False)
    return [row[:3] for row in config.read(first(folder), "data.source", codec.labeled)]


def _read_label_sets(folder: Path, skips: bool) -> list[Any]:
    config = LabelSetsConfig(on_bad_row=on_bad_row(skips))
    codec = LabelSetCodec(config, _TOKENIZER, seq_len=32, is_numeric=False)
    return [row[:3] for row in config.read(first(folder), "data.source", codec.labeled)]


def _read_choices(folder: Path, skips: bool, **changes: Any) -> list[Any]:
    config = ChoicesConfig(num_choices=5, seq_len=32, on_bad_row=on_bad_row(skips), **changes)
    codec = ChoiceCodec(config, _TOKENIZER)
    return [tuple(question) for question in config.read(first(folder), "data.source", codec.labeled)]


def _read_tagged(folder: Path, skips: bool, word: int = 0, tag: int = -1) -> list[Any]:
    bad_rows = BadRows(on_bad_row(skips))
    found = tagged_words.read_sentences(first(folder), "data.source", ColumnsConfig(word, tag), bad_rows)
    return [sentence[:2] for sentence in found]


def _read_conllu(folder: Path, skips: bool) -> list[Any]:
    return _read_tagged(folder, skips, 1, 3)


def _read_questions(folder: Path, skips: bool) -> list[Any]:
    bad_rows = BadRows(on_bad_row(skips))
    found = questions.read_questions(first(folder), "data.source", bad_rows, aligned=True)
    return [(q.id, q.question, q.context, q.answers) for q in found]


def _read_articles(folder: Path, skips: bool) -> list[Any]:
    config = ArticlesConfig(layout="line", on_bad_row=on_bad_row(skips))
    source = str(folder) if len(list(folder.iterdir())) > 1 else first(folder)
    found = articles.read(source, "data.source", config, BadRows(config.on_bad_row))
    return [(article.sentences, article.summary) for article in found]


def _read_pairs(folder: Path, skips: bool) -> list[Any]:
    test = {"test_source": str(folder / "in.en"), "test_target": str(folder / "in.de")}
    return _pairs(ParallelTextConfig(source="", on_bad_row=on_bad_row(skips), **test))


def _read_pair_table(folder: Path, skips: bool) -> list[Any]:
    columns = {"test_source": first(folder), "source_column": "a", "target_column": "b"}
    return _pairs(ParallelTextConfig(source="", on_bad_row=on_bad_row(skips), **columns))


def _pairs(config: ParallelTextConfig) -> list[Any]:
    return [pair[:2] for pair in parallel_text.ParallelText(config, "test", 0).pairs()]
