"""The targets of fuzzing that predict, and those that open vocabularies, features and runs."""

import copy
import dataclasses
import importlib
import io
import json
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from bertjax import model, modes
from bertjax.data.readers.feature_files import FeatureFiles
from bertjax.data.text import subword_vocabularies, vocabulary_config
from bertjax.data.text.wordpiece import WordPiece
from bertjax.experiments import find
from tests.robustness import fuzz_checks, fuzz_targets, small_runs
from tests.robustness.fuzz_checks import Split
from tests.robustness.fuzz_targets import Read, Target
from tests.robustness.small_runs import Text

_FORCED = {"decoding.method": "forced", "data.on_long_line": "refuse"}


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
        overrides=overrides,
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


class CachedModels:
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
        files, read = kind.input(rng, fuzz_targets.ROWS), _predict(home, name)
        split, is_json = splits.get(name, fuzz_checks.lines), name == "answers"
        yield Target(f"predict {name}", 4, files, read, split, drops=False, repeats=not is_json, packs=not is_json)
    yield from _predictions_of_tables(home, rng)
    plain = small_runs.lines(rng, fuzz_targets.ROWS)
    of_lines = {"split": fuzz_checks.lines, "drops": False, "packs": True}
    bertsum = _predict(home, "bertsum", {"data.layout": "line"})
    yield Target("predict bertsum lines", 2, plain, bertsum, **of_lines)
    yield Target("predict features", 3, plain, features(home, place), **of_lines)
    texts = small_runs.sentences(rng, fuzz_targets.ROWS)
    scored = {"in.txt": "".join(f"{text}\t{text[:9]}\n" for text in texts).encode()}
    yield Target("predict scores", 2, scored, _predict(home, "translation", _FORCED, ".jsonl"), **of_lines)
    stories = next(target for target in fuzz_targets.article_formats(rng) if target.name == "articles story")
    yield dataclasses.replace(stories, name="predict stories", share=1, read=_predict(home, "bertsum"), drops=False)
    official, page = _predict(home, "answers", suffix=".json"), _predict(home, "bertsum", suffix=".html")
    answers_, articles_ = small_runs.questions(rng, 6), small_runs.articles(rng, 6)
    yield Target("predict official", 1, answers_, official, fuzz_checks.questions, repeats=False)
    yield Target("predict page", 0.5, articles_, page, fuzz_checks.unknown)


def _predictions_of_tables(home: Path, rng: random.Random) -> Iterator[Target]:
    """Yields tasks that predict on columns of a table."""
    texts = small_runs.sentences(rng, fuzz_targets.ROWS)
    for target in fuzz_targets.tables(texts):
        if target.name not in ("table |||", "label sets"):
            split = fuzz_checks.named_table if target.name == "table tsv" else target.split
            values = {"data.separator": ";"} if target.name == "table ;" else {}
            name, read = f"predict {target.name}", _predict(home, "classification", values)
            yield dataclasses.replace(target, name=name, share=2, read=read, split=split, drops=False)
    of_rows = {"split": fuzz_checks.rows, "drops": False, "packs": True}
    swag, arc = small_runs.choices(rng, fuzz_targets.ROWS), small_runs.choice_objects(rng, fuzz_targets.ROWS)
    yield Target("predict choices csv", 2, swag, _predict(home, "choices"), fuzz_checks.csv, drops=False, packs=True)
    objects = _predict(home, "choices", {f"data.{key}": str(value) for key, value in fuzz_targets.ARC_COLUMNS.items()})
    yield Target("predict choices jsonl", 3, arc, objects, **of_rows)
    masked = {"in.jsonl": fuzz_targets.jsonl({"text": f"{text} [MASK]"} for text in texts)}
    yield Target("predict masks jsonl", 2, masked, _predict(home, "masks"), **of_rows)
    tagged = {"in.csv": "".join(f"{row}\n" for row in ["text", *texts]).encode()}
    tags = _predict(home, "tagging", {"data.text_field": "text"})
    yield Target("predict tagging csv", 2, tagged, tags, fuzz_checks.csv, drops=False)
    of_words = {"in.jsonl": fuzz_targets.jsonl({"text": text.split()} for text in texts)}
    yield Target("predict tagging lists", 2, of_words, tags, **of_rows)
    pairs = {"in.jsonl": fuzz_targets.jsonl({"a": text, "b": "x"} for text in texts)}
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
        given["data"]["on_bad_row"] = fuzz_targets.on_bad_row(skips)
        modes.run(_request(Path(), fuzz_targets.first(folder), output, {}), given, find)
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
        overrides = {**values, "data.on_bad_row": fuzz_targets.on_bad_row(skips)}
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
