"""The targets of fuzzing: every data reader and every task that predicts, with their undamaged files."""

import copy
import dataclasses
import importlib
import io
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import fuzz_checks, small_runs
from benchmarks.fuzz_checks import Split, only
from benchmarks.small_runs import Text
from bertjax import model, modes
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
from bertjax.data.readers.feature_files import FeatureFiles
from bertjax.data.readers.lines import BadRows
from bertjax.data.text import subword_vocabularies, vocabulary_config
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.experiments import find

Read = Callable[[Path, bool], list[Any]]

_ROWS = 12
_TOKENIZER = WordPiece(SPECIALS, lowercase=True)
_TABLE = LabeledTextConfig(
    source="",
    valid_source="",
    valid_fraction=0.1,
    header=True,
    separator="",
    text_columns=("sentence",),
    label_column="label",
    on_bad_row="stop",
)
_ARTICLES = ArticlesConfig(
    layout="line",
    article_field="article",
    summary_field="summary",
    gold_field="",
    gold_as="numbers",
    source="",
    valid_source="",
    test_source="",
    valid_fraction=0.1,
    splitter="punkt",
    on_bad_row="stop",
)
_PAIRS = ParallelTextConfig(
    source="",
    target="",
    valid_source="",
    valid_target="",
    test_source="",
    test_target="",
    source_column="",
    target_column="",
    header=True,
    separator="",
    valid_fraction=0.1,
    source_prefix=(),
    target_prefix=(),
    on_bad_row="stop",
)
_SWAG = ChoicesConfig(
    source="",
    valid_source="",
    valid_fraction=0.1,
    header=True,
    separator="",
    context_column="sent1",
    start_column="sent2",
    choice_columns=("ending0", "ending1", "ending2", "ending3"),
    label_column="label",
    num_choices=5,
    seq_len=32,
    on_bad_row="stop",
)
_ARC_COLUMNS = {
    "context_column": "question.stem",
    "start_column": "",
    "choice_columns": ("question.choices",),
    "label_column": "answerKey",
}
_FORCED = {"decoding.method": "forced", "data.on_long_line": "refuse"}


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


def _on_bad_row(skips: bool) -> str:
    return "skip" if skips else "stop"


def _first(folder: Path) -> str:
    """Returns the only file of a folder."""
    (path,) = folder.iterdir()
    return str(path)


def readers() -> Iterator[Target]:
    """Yields the readers of training data."""
    rng = random.Random(0)
    yield Target("text", 3, small_runs.documents(rng, _ROWS), _read_text, fuzz_checks.documents, packs=True)
    texts = [small_runs.sentence(rng, number) for number in range(_ROWS)]
    rows = {"in.jsonl": _jsonl({"text": f"{text}\n{text}"} for text in texts)}
    yield Target("text jsonl", 2, rows, _read_text, fuzz_checks.texts, packs=True)
    yield from _tables(texts)
    swag, arc = small_runs.choices(rng, _ROWS), small_runs.choice_objects(rng, _ROWS)
    yield Target("choices csv", 2, swag, _read_choices, fuzz_checks.csv, packs=True)
    yield Target("choices jsonl", 3, arc, _read_choice_objects, fuzz_checks.rows, packs=True)
    tagged = small_runs.tagged(rng, _ROWS)
    yield Target("conll", 3, tagged, _read_tagged, fuzz_checks.groups, packs=True)
    yield Target("conllu", 2, {"in.conllu": _conllu(texts)}, _read_conllu, fuzz_checks.groups, packs=True)
    words = [(text.split(), len(text.split()[0])) for text in texts]
    lists = _jsonl({"tokens": each, "ner_tags": ["B-X", *["O"] * (len(each) - 1)]} for each, _ in words)
    yield Target("tagged lists", 2, {"in.jsonl": lists}, _read_tagged, fuzz_checks.rows, packs=True)
    spans = json.dumps([{"text": " ".join(each), "label": [[0, end, "X"]]} for each, end in words])
    yield Target("tagged spans", 2, {"in.json": spans.encode()}, _read_tagged, fuzz_checks.elements, packs=True)
    found = small_runs.questions(rng, 6)
    yield Target("squad", 3, found, _read_questions, fuzz_checks.questions, repeats=False, packs=True)
    paragraphs = [paragraph for article in json.loads(only(found))["data"] for paragraph in article["paragraphs"]]
    flat = _jsonl({**each, "context": paragraph["context"]} for paragraph in paragraphs for each in paragraph["qas"])
    yield Target("question rows", 2, {"in.jsonl": flat}, _read_questions, fuzz_checks.rows, repeats=False, packs=True)
    lines = {"in.jsonl": b'{"header": {}}\n' + _jsonl(map(_mrqa, paragraphs))}
    yield Target("mrqa", 2, lines, _read_questions, fuzz_checks.unknown, packs=True)
    yield from _article_formats(rng)
    yield Target("tmx", 2, {"in.tmx": _tmx(texts)}, _read_pair_table, fuzz_checks.unknown, packs=True)
    yield Target("aligned text", 3, small_runs.pairs(rng, _ROWS), _read_pairs, fuzz_checks.pairs)
    table = {"in.tsv": "".join(f"{row}\n" for row in ["a\tb", *(f"{t}\t{t[::-1]}" for t in texts)]).encode()}
    yield Target("parallel table", 2, table, _read_pair_table, fuzz_checks.table, packs=True)


def _tables(texts: list[str]) -> Iterator[Target]:
    labels = [f"l{number % 3}" for number in range(len(texts))]
    together = list(zip(texts, labels, strict=True))
    tsv = "".join(f"{text}\t{label}\n" for text, label in [("sentence", "label"), *together])
    bars = tsv.replace("\t", "|||")
    quoted = [(f'"{t}, ""{t[:3]}""\n{t}"' if i % 3 == 0 else t.replace(".", "")) for i, t in enumerate(texts)]
    comma = "sentence,label\n" + "".join(f"{t},{label}\n" for t, label in zip(quoted, labels, strict=True))
    objects = _jsonl({"sentence": text, "label": label, "n": 1} for text, label in together)
    read = _read_table
    yield Target("table tsv", 4, {"in.tsv": tsv.encode()}, read, fuzz_checks.table, packs=True)
    yield Target("table csv", 4, {"in.csv": comma.encode()}, read, fuzz_checks.csv, packs=True)
    yield Target("table jsonl", 4, {"in.jsonl": objects}, read, fuzz_checks.rows, packs=True)
    as_list = json.dumps(list(map(json.loads, objects.splitlines())), indent=1).encode()
    yield Target("table json", 3, {"in.json": as_list}, read, fuzz_checks.elements, packs=True)
    semicolons = {"in.csv": comma.replace(",", ";").encode()}
    yield Target("table ;", 1, semicolons, _read_semicolons, fuzz_checks.unknown, packs=True)
    sets = _jsonl({"sentence": text, "label": [label, "x"]} for text, label in together)
    yield Target("label sets", 2, {"in.jsonl": sets}, _read_label_sets, fuzz_checks.rows, packs=True)
    yield Target("table |||", 2, {"in.txt": bars.encode()}, _read_bars, fuzz_checks.table, packs=True)


def _article_formats(rng: random.Random) -> Iterator[Target]:
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
    yield Target("articles story", 2, stories, _read_stories, fuzz_checks.each_file)
    yield Target("articles lines", 2, plain, _read_articles, fuzz_checks.lines, packs=True)


def _jsonl(rows: Iterator[Mapping[str, Any]]) -> bytes:
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
    source = sources.TextSource(_first(folder), "text", _on_bad_row(skips))
    return [document.lines for document in source.documents()]


def _read_table(folder: Path, skips: bool, **changes: Any) -> list[Any]:
    config = dataclasses.replace(_TABLE, on_bad_row=_on_bad_row(skips), **changes)
    codec = LabeledTextCodec(config, _TOKENIZER, seq_len=32, is_numeric=False)
    return [row[:3] for row in config.read(_first(folder), "data.source", codec.labeled)]


def _read_bars(folder: Path, skips: bool) -> list[Any]:
    return _read_table(folder, skips, separator="|||")


def _read_semicolons(folder: Path, skips: bool) -> list[Any]:
    return _read_table(folder, skips, separator=";")


def _read_label_sets(folder: Path, skips: bool) -> list[Any]:
    config = LabelSetsConfig(**{**vars(_TABLE), "on_bad_row": _on_bad_row(skips)})
    codec = LabelSetCodec(config, _TOKENIZER, seq_len=32, is_numeric=False)
    return [row[:3] for row in config.read(_first(folder), "data.source", codec.labeled)]


def _read_choices(folder: Path, skips: bool, **changes: Any) -> list[Any]:
    config = dataclasses.replace(_SWAG, on_bad_row=_on_bad_row(skips), **changes)
    codec = ChoiceCodec(config, _TOKENIZER)
    return [tuple(question) for question in config.read(_first(folder), "data.source", codec.labeled)]


def _read_choice_objects(folder: Path, skips: bool) -> list[Any]:
    return _read_choices(folder, skips, **_ARC_COLUMNS)


def _read_tagged(folder: Path, skips: bool, word: int = 0, tag: int = -1) -> list[Any]:
    bad_rows = BadRows(_on_bad_row(skips))
    found = tagged_words.read_sentences(_first(folder), "data.source", ColumnsConfig(word, tag), bad_rows)
    return [sentence[:2] for sentence in found]


def _read_conllu(folder: Path, skips: bool) -> list[Any]:
    return _read_tagged(folder, skips, 1, 3)


def _read_questions(folder: Path, skips: bool) -> list[Any]:
    bad_rows = BadRows(_on_bad_row(skips))
    found = questions.read_questions(_first(folder), "data.source", bad_rows, aligned=True)
    return [(q.id, q.question, q.context, q.answers) for q in found]


def _read_articles(folder: Path, skips: bool) -> list[Any]:
    config = dataclasses.replace(_ARTICLES, on_bad_row=_on_bad_row(skips))
    source = str(folder) if len(list(folder.iterdir())) > 1 else _first(folder)
    found = articles.read(source, "data.source", config, BadRows(config.on_bad_row))
    return [(article.sentences, article.summary) for article in found]


def _read_stories(folder: Path, skips: bool) -> list[Any]:
    return _read_articles(folder, skips)


def _read_pairs(folder: Path, skips: bool) -> list[Any]:
    test = {"test_source": str(folder / "in.en"), "test_target": str(folder / "in.de")}
    return _pairs(dataclasses.replace(_PAIRS, on_bad_row=_on_bad_row(skips), **test))


def _read_pair_table(folder: Path, skips: bool) -> list[Any]:
    columns = {"test_source": _first(folder), "source_column": "a", "target_column": "b"}
    return _pairs(dataclasses.replace(_PAIRS, on_bad_row=_on_bad_row(skips), **columns))


def _pairs(config: ParallelTextConfig) -> list[Any]:
    return [pair[:2] for pair in parallel_text.ParallelText(config, "test", 0).pairs()]


def folders(home: Path, place: Path) -> Iterator[Target]:
    """Yields vocabularies, features and runs. They have no independent reader: any success or UserError is right."""
    WordPiece.from_file(home / "vocab.txt", lowercase=True).save(home / "tokenizer")
    yield Target("vocab.txt", 1, _files(home / "tokenizer", ("vocab.txt",)), _read_vocabulary, fuzz_checks.unknown)
    yield Target("tokenizer folder", 2, _files(home / "tokenizer"), _read_tokenizer, fuzz_checks.unknown)
    library = _files(home / "tokenizer", ("tokenizer.json",))
    yield Target("tokenizer.json", 1, library, _read_tokenizer, fuzz_checks.unknown)
    of_translation = ("vocab.json", "tokenizer.json", "tokenizer_config.json", "vocabulary.sha256", "spm.model")
    saved = _files(home / "translation", of_translation)
    yield Target("translation vocabulary", 1, saved, _read_translation_vocabulary, fuzz_checks.unknown)
    few = small_runs.lines(random.Random(3), 5)
    features(home, place)(small_runs.write(place / "features-text", few)[0].parent, False)
    kept = _files(place / "features-out")
    yield Target("features folder", 2, kept, _read_features, fuzz_checks.unknown)
    for name in ("classification", "tagging"):
        run = {str(path.relative_to(home / name)): path.read_bytes() for path in _of_run(home / name)}
        yield Target(f"run of {name}", 0.3, run, _predict_by_folder(name, "workdir"), fuzz_checks.unknown)
    published = _files(home / "exported")
    read = _predict_by_folder("classification", "init_from")
    yield Target("published folder", 0.3, published, read, fuzz_checks.unknown)


def _files(folder: Path, names: tuple[str, ...] = ()) -> Text:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file() and (not names or p.name in names)}


def _of_run(run: Path) -> list[Path]:
    """Returns the files of a run that a prediction reads."""
    texts = [path for path in run.iterdir() if path.suffix in (".json", ".txt") or path.name == "metrics.jsonl"]
    return sorted([*texts, *(path for path in (run / "checkpoints").rglob("*") if path.is_file())])


def _read_vocabulary(folder: Path, skips: bool) -> list[Any]:
    return vocabulary_config.load_wordpiece(folder / "vocab.txt", True).encode_batch(["a cat", "\u0130"])


def _read_tokenizer(folder: Path, skips: bool) -> list[Any]:
    return vocabulary_config.load_wordpiece(folder, True).encode_batch(["a cat", "\u0130"])


def _read_translation_vocabulary(folder: Path, skips: bool) -> list[Any]:
    return subword_vocabularies.load_side(folder).encode_batch(["a cat", "\u0130"])


def _read_features(folder: Path, skips: bool) -> list[Any]:
    return [(one.units, one.features.shape) for one in FeatureFiles(folder)]


def _request(workdir: Path, source: str, output: Path, overrides: Mapping[str, str]) -> modes.Request:
    """Returns a prediction request. Path() as `workdir` is no run. An output without suffix is a folder."""
    return modes.Request(
        mode="predict",
        workdir=str(workdir) if workdir.name else "",
        input=source,
        output=str(output) if output.suffix else f"{output}/",
        format="",
        checkpoint="final",
        program=Path("launch.py"),
        started={},
        overrides=overrides,
        topology="",
        plan_search=False,
        profile="",
    )


def _predict_by_folder(name: str, key: str) -> Read:
    """Returns a function that predicts on one line with the weights and settings of a folder."""

    def read(folder: Path, skips: bool) -> list[Any]:
        source, output = folder.with_name("line.txt"), folder.with_name("line.jsonl")
        source.write_text("a cat sees .\n")
        output.unlink(missing_ok=True)
        given = None
        if key == "init_from":
            fixed = {"init_from": str(folder), "data.seq_len": 32}
            config = importlib.import_module("bertjax.configs.classification").get_config("")
            config.update_from_flattened_dict(fixed)
            given = json.loads(config.to_json_best_effort())
        modes.run(_request(folder if given is None else Path(), str(source), output, {}), given, find)
        return [json.loads(line) for line in output.read_text().splitlines()]

    return read


class Kept:
    """`model.Model`, whose parameters and programs are cached by run and settings."""

    def __init__(self, home: Path) -> None:
        """Initializes the cache. Runs in the subfolder `case` of `home` change, so they are not cached."""
        self._damaged = home / "case"
        self._made: dict[tuple[str, str, Path], Any] = {}
        self._make = model.Model

    def __call__(self, task: Any, settings: Any, config: Any, workdir: Path | None, *others: Any) -> Any:
        """See `model.Model`."""
        weights = workdir or Path(config["init_from"])
        if weights == self._damaged:
            return self._make(task, settings, config, workdir, *others)
        key = type(task).__module__, repr(vars(task).get("_decoding")), weights
        if key not in self._made:
            self._made[key] = self._make(task, settings, config, workdir, *others)
        found = copy.copy(self._made[key])
        found.task = task  # which reads the inputs
        return found


def predictions(home: Path, place: Path) -> Iterator[Target]:
    """Yields every task that predicts, with each kind of file that it reads."""
    rng = random.Random(1)
    splits: dict[str, Split] = {"answers": fuzz_checks.questions, "bertsum": fuzz_checks.rows}
    for name, kind in small_runs.KINDS.items():
        files, read = kind.input(rng, _ROWS), _predict(home, name)
        split, is_json = splits.get(name, fuzz_checks.lines), name == "answers"
        yield Target(f"predict {name}", 4, files, read, split, drops=False, repeats=not is_json, packs=not is_json)
    yield from _predictions_of_tables(home, rng)
    plain = small_runs.lines(rng, _ROWS)
    of_lines = {"split": fuzz_checks.lines, "drops": False, "packs": True}
    bertsum = _predict(home, "bertsum", {"data.layout": "line"})
    yield Target("predict bertsum lines", 2, plain, bertsum, **of_lines)
    yield Target("predict features", 3, plain, features(home, place), **of_lines)
    texts = small_runs.sentences(rng, _ROWS)
    scored = {"in.txt": "".join(f"{text}\t{text[:9]}\n" for text in texts).encode()}
    yield Target("predict scores", 2, scored, _predict(home, "translation", _FORCED, ".jsonl"), **of_lines)
    stories = next(target for target in _article_formats(rng) if target.name == "articles story")
    yield dataclasses.replace(stories, name="predict stories", share=1, read=_predict(home, "bertsum"), drops=False)
    official, page = _predict(home, "answers", suffix=".json"), _predict(home, "bertsum", suffix=".html")
    answers_, articles_ = small_runs.questions(rng, 6), small_runs.articles(rng, 6)
    yield Target("predict official", 1, answers_, official, fuzz_checks.questions, repeats=False)
    yield Target("predict page", 0.5, articles_, page, fuzz_checks.unknown)


def _predictions_of_tables(home: Path, rng: random.Random) -> Iterator[Target]:
    """Yields tasks that predict on columns of a table."""
    texts = small_runs.sentences(rng, _ROWS)
    for target in _tables(texts):
        if target.name not in ("table |||", "label sets"):
            split = fuzz_checks.named_table if target.name == "table tsv" else target.split
            values = {"data.separator": ";"} if target.name == "table ;" else {}
            name, read = f"predict {target.name}", _predict(home, "classification", values)
            yield dataclasses.replace(target, name=name, share=2, read=read, split=split, drops=False)
    of_rows = {"split": fuzz_checks.rows, "drops": False, "packs": True}
    swag, arc = small_runs.choices(rng, _ROWS), small_runs.choice_objects(rng, _ROWS)
    yield Target("predict choices csv", 2, swag, _predict(home, "choices"), fuzz_checks.csv, drops=False, packs=True)
    objects = _predict(home, "choices", {f"data.{key}": str(value) for key, value in _ARC_COLUMNS.items()})
    yield Target("predict choices jsonl", 3, arc, objects, **of_rows)
    masked = {"in.jsonl": _jsonl({"text": f"{text} [MASK]"} for text in texts)}
    yield Target("predict masks jsonl", 2, masked, _predict(home, "masks"), **of_rows)
    tagged = {"in.csv": "".join(f"{row}\n" for row in ["text", *texts]).encode()}
    tags = _predict(home, "tagging", {"data.text_field": "text"})
    yield Target("predict tagging csv", 2, tagged, tags, fuzz_checks.csv, drops=False)
    of_words = {"in.jsonl": _jsonl({"text": text.split()} for text in texts)}
    yield Target("predict tagging lists", 2, of_words, tags, **of_rows)
    pairs = {"in.jsonl": _jsonl({"a": text, "b": "x"} for text in texts)}
    columns = {"data.source_column": "a", "data.target_column": "b"}
    yield Target("predict translation jsonl", 2, pairs, _predict(home, "translation", columns), **of_rows)


def features(home: Path, place: Path) -> Read:
    """Returns a function that extracts features with a run's encoder into a folder."""

    def read(folder: Path, skips: bool) -> list[Any]:
        output = place / "features-out"
        shutil.rmtree(output, ignore_errors=True)
        config = importlib.import_module("bertjax.configs.features").get_config("sentence")
        config.init_from = str(home / "masks")
        given = json.loads(config.to_json_best_effort())
        given["data"]["seq_len"] = 32
        given["data"]["on_bad_row"] = _on_bad_row(skips)
        modes.run(_request(Path(), _first(folder), output, {}), given, find)
        return [(one.units, np.round(one.features.astype(float), 3).tolist()) for one in FeatureFiles(output)]

    return read


def _predict(home: Path, name: str, values: Mapping[str, str] = MappingProxyType({}), suffix: str = "") -> Read:
    """Returns a function that predicts like `launch.py --mode=predict --workdir=RUN`, with `values` of config keys."""
    suffix = suffix or small_runs.KINDS[name].suffix

    def read(folder: Path, skips: bool) -> list[Any]:
        files, output = list(folder.iterdir()), folder.with_name(f"out{suffix}")
        output.unlink(missing_ok=True)
        source = folder if len(files) > 1 else files[0]
        content = files[0].read_bytes()
        by_stdin = source.suffix == ".txt" and random.Random(content).random() < 0.15
        overrides = {**values, "data.on_bad_row": _on_bad_row(skips)}
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(content))):
            request = _request(home / name, "-" if by_stdin else str(source), output, overrides)
            modes.run(request, None, find)
        return _records(output)

    return read


def _records(output: Path) -> list[Any]:
    """Returns the predictions of a file: lines, records, answers by id, or a page."""
    text = output.read_text(encoding="utf-8")
    if output.suffix == ".html":
        return [text]
    if output.suffix == ".json":
        return list(json.loads(text).items())
    found = text.split("\n")[:-1]
    return found if output.suffix == ".txt" else [_without_place(json.loads(line)) for line in found]


def _without_place(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record without the number of its line."""
    is_place = str(record.get("id", "")).isdigit() or ":" in str(record.get("id", ""))
    return {key: value for key, value in record.items() if key != "id" or not is_place}
