"""Small texts and models that train within a test, and `launch.py` inside the test process."""

import contextlib
import functools
import importlib
import io
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
from absl import flags
from absl.testing import flagsaver
from jax.sharding import SingleDeviceSharding

from bertjax import launch
from bertjax.configs import bert_pretraining as config_file
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.experiments import bert_pretraining
from bertjax.modes import stages
from bertjax.runs import checkpoints
from bertjax.training.config import TrainingConfig
from bertjax.training.sharding import with_shardings

_NAMES = ("Ann", "Bob", "Kim")
_PLACES = ("house", "tree", "river")
_WORDS = "the a cat dog bird fish sees likes finds small big red old house tree river and runs sleeps sings"
WORDS = tuple(_WORDS.split())

_PHRASES = {"color": ("dark Gray", "light Blue", "pale Green"), "time": ("early Monday", "late Sunday")}

# The form of a UserError's message.
_MESSAGE = re.compile(
    r"error: (?P<what>.+?): got (?P<got>.*); expected (?P<expected>.+)\. "
    r"(?:Fix: (?P<fix>.+)\.|(?P<question>Did you mean .+))"
)


class Outcome(NamedTuple):
    """The result of running `launch.py`."""

    status: int | str | None  # None for success; else 1, 75, or the error message
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The error message, which must be one line without a traceback."""
        assert isinstance(self.status, str), f"no error: {self.stdout}"
        assert "\n" not in self.status and "Traceback" not in self.status, self.status
        return self.status


def write_text(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """Writes documents of a few sentences, separated by blank lines; returns the path."""
    rng = random.Random(seed)
    sentences = [
        [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) + " ." for _ in range(rng.randint(2, 9))]
        for _ in range(documents)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join("\n".join(document) for document in sentences) + "\n")
    return path


def write_sentences(folder: Path, count: int = 60, scheme: str = "BIO") -> dict[str, object]:
    """Writes tagged sentences to a file of columns, and a cased vocabulary. Names are PER, and "old PLACE" is LOC.

    Returns the config keys for the two files.
    """
    rng = random.Random(0)
    sentences = [[row for _ in range(rng.randint(2, 5)) for row in _phrase(rng, scheme)] for _ in range(count)]
    groups = ["\n".join(f"{word}\tx\t{tag}" for word, tag in [*rows, (".", "O")]) for rows in sentences]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sentences.conll").write_text("\n\n".join(groups) + "\n")
    WordPiece([*SPECIALS, ".", *WORDS, *_NAMES, "Bell", "##my"], lowercase=False).save(folder / "vocabulary")
    return {"data.source": str(folder / "sentences.conll"), "data.vocab_file": str(folder / "vocabulary")}


def _phrase(rng: random.Random, scheme: str) -> list[tuple[str, str]]:
    """Tagged words: a person, an old place, or an untagged place, followed by another word."""
    name, place = rng.choice(_NAMES), rng.choice(_PLACES)
    person = rng.choice([[name], [name, "Bell"], [name + "my", "Bell"]])
    words, kind = rng.choice([(person, "PER"), (["old", place], "LOC"), ([place], "")])
    begin = "B" if scheme == "BIO" else "I"
    tags = [f"{begin if i == 0 else 'I'}-{kind}" if kind else "O" for i in range(len(words))]
    return [*zip(words, tags, strict=True), (rng.choice(["the", "a", "cat", "dog", "sees", "likes"]), "O")]


def write_questions(folder: Path, contexts: int = 40, answerable: float = 1.0, words: int = 9) -> dict[str, object]:
    """Writes a SQuAD file with questions about the color and time in each context, and a vocabulary.

    `answerable` is the fraction of questions with an answer, `words` the maximum number of other words of a context.
    Returns the config keys for the two files.
    """
    rng = random.Random(0)
    paragraphs = [_paragraph(rng, f"c{number}", answerable, words) for number in range(contexts)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))
    phrases = sorted({word.lower() for group in _PHRASES.values() for phrase in group for word in phrase.split()})
    vocab = [*SPECIALS, ".", "?", "which", "is", "it", *_PHRASES, *phrases, *WORDS]
    WordPiece(vocab, lowercase=True).save(folder / "vocabulary")
    return {"data.source": str(folder / "questions.json"), "data.vocab_file": str(folder / "vocabulary")}


def _paragraph(rng: random.Random, name: str, answerable: float, words: int) -> dict[str, Any]:
    """A context and its questions, in SQuAD's format."""
    phrases = {kind: rng.choice(group) for kind, group in _PHRASES.items() if rng.random() < answerable}
    parts = [*rng.choices(WORDS, k=rng.randint(3, words)), *phrases.values()]
    rng.shuffle(parts)
    context = "  ".join(parts) + " ."
    answers = {kind: [{"text": text, "answer_start": context.index(text)}] for kind, text in phrases.items()}
    questions = [
        {"id": f"{name}-{kind}", "question": f"Which {kind} is it?", "answers": answers[kind], "is_impossible": False}
        if kind in answers
        else {"id": f"{name}-{kind}", "question": f"Which {kind} is it?", "answers": [], "is_impossible": True}
        for kind in _PHRASES
    ]
    return {"context": context, "qas": questions}


def write_table(folder: Path, rows: int = 60) -> dict[str, object]:
    """Writes a TSV file of sentences labeled by whether they contain "cat", and a vocabulary.

    Returns the config keys for the two files.
    """
    rng = random.Random(0)
    sentences = [rng.choices(WORDS, k=rng.randint(3, 9)) for _ in range(rows)]
    lines = ["sentence\tlabel", *(f"{' '.join(words)} .\t{'yes' if 'cat' in words else 'no'}" for words in sentences)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    WordPiece([*SPECIALS, ".", *WORDS], lowercase=True).save(folder / "vocabulary")
    return {"data.source": str(folder / "rows.tsv"), "data.vocab_file": str(folder / "vocabulary")}


_ANIMALS = ("cat", "dog", "bird", "fish", "horse")
_OTHERS = "sees likes finds the a small big red old runs sleeps sings"
CHOICE_WORDS = (*_ANIMALS, *_OTHERS.split())


def write_choices(folder: Path, count: int = 60) -> dict[str, object]:
    """Writes a CSV file of SWAG questions, whose correct ending has the animal of the text, and a vocabulary.

    Returns the config keys for the two files.
    """
    rng, lines = random.Random(0), ["sent1,sent2,ending0,ending1,ending2,ending3,label"]
    for _ in range(count):
        animals, label = rng.sample(_ANIMALS, 4), rng.randrange(4)
        endings = [f"{animal} {rng.choice(CHOICE_WORDS[-3:])}" for animal in animals]
        lines.append(f"{rng.choice(CHOICE_WORDS[5:8])} {animals[label]},the,{','.join(endings)},{label}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "swag.csv").write_text("\n".join(lines) + "\n")
    WordPiece([*SPECIALS, *CHOICE_WORDS], lowercase=True).save(folder / "vocabulary")
    return {"data.source": str(folder / "swag.csv"), "data.vocab_file": str(folder / "vocabulary")}


def write_collection(folder, texts):
    """Documents with the words of the texts in reverse. Text i is a query for document i."""
    (folder / "qrels").mkdir(parents=True)
    for name, each in (("corpus", [" ".join(text.split()[::-1]) for text in texts]), ("queries", texts)):
        rows = [json.dumps({"_id": f"{name}{number}", "text": text}) for number, text in enumerate(each)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    lines = [f"queries{number}\tcorpus{number}\t1" for number in range(len(texts))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return folder


def write_related(folder: Path, count: int = 60, fewest: int = 3) -> dict[str, object]:
    """Writes JSON lines of a query, its positive, which has the same animal, and `fewest` to three negatives.

    Rows also have "score", that of the pair, "scores", those of all documents, and "label", the animal.
    Also writes a vocabulary. Returns the config keys for the two files.
    """
    rng, lines = random.Random(0), []
    for _ in range(count):
        animals = rng.sample(_ANIMALS, 1 + rng.randint(fewest, 3))
        texts = [
            " ".join((each, *rng.choices(CHOICE_WORDS[5:], k=rng.randint(1, 5)))) for each in (animals[0], *animals)
        ]
        row = {"query": texts[0], "positive": texts[1], "negatives": texts[2:], "label": animals[0]}
        lines.append(json.dumps({**row, "score": rng.random(), "scores": [rng.random() for _ in animals]}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "related.jsonl").write_text("\n".join(lines) + "\n")
    WordPiece([*SPECIALS, *CHOICE_WORDS], lowercase=True).save(folder / "vocabulary")
    return {"data.source": str(folder / "related.jsonl"), "data.vocab_file": str(folder / "vocabulary")}


write_rankings = functools.partial(write_related, fewest=1)


def write_articles(folder: Path, count: int = 60) -> dict[str, object]:
    """Writes articles of six sentences, whose summaries are the two with "sings", and a vocabulary.

    A sentence has 7 words and a full stop: 10 tokens. Returns the config keys for the two files.
    """
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    rows = ({"id": f"a{number}", **_article(rng)} for number in range(count))
    (folder / "articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    WordPiece([*SPECIALS, ".", *WORDS], lowercase=True).save(folder / "vocabulary")
    return {"data.source": str(folder / "articles.jsonl"), "data.vocab_file": str(folder / "vocabulary")}


def _article(rng: random.Random) -> dict[str, list[str]]:
    others = [word for word in WORDS if word != "sings"]
    words = [rng.choices(others, k=7) for _ in range(6)]
    chosen = sorted(rng.sample(range(6), 2))
    for number in chosen:
        words[number][rng.randrange(7)] = "sings"
    texts = [" ".join(sentence).capitalize() + "." for sentence in words]
    return {"article": texts, "summary": [texts[number] for number in chosen]}


def values(text: Path, **overrides: object) -> dict[str, object]:
    """Config values that shrink the tiny config of pretraining. Keys of `overrides` have "__" for dots."""
    shrunk = {
        "num_steps": 6,
        "batch_size": 16,
        "log_every": 2,
        "evaluate_every": 3,
        "model__num_layers": 2,
        "model__hidden_size": 16,
        "model__num_heads": 2,
        "model__intermediate_size": 32,
        "model__max_positions": 48,
        "model__dropout": 0.1,
        "model__attention_dropout": 0.1,
        "data__source": str(text),
        "data__lines": "sentence",
        "data__vocab_size": 120,
        "data__valid_fraction": 0.2,
        "data__workers": 1,
        "data__seq_len": 32,
        "data__stages": (),
        "data__packing": False,
        "data__prepared_dir": str(text.parent / "prepared"),
        "optimizer__warmup_steps": 2,
        "optimizer__schedule": "linear",
        "optimizer__bias_correction": False,
        "checkpoint__save_every": 2,
        **overrides,
    }
    return {key.replace("__", "."): value for key, value in shrunk.items()}


def config(text: Path, **overrides: object) -> dict:
    """The shrunk tiny config of pretraining, resolved as by `launch.py`."""
    tree = config_file.get_config("tiny")
    tree.update_from_flattened_dict(values(text, **overrides))
    return stages.of_config(bert_pretraining, json.loads(tree.to_json())).config


def arguments(text: Path, workdir: Path, **overrides: object) -> list[str]:
    """The command line that trains the shrunk config of pretraining."""
    return [
        "--config=configs/bert_pretraining.py:tiny",
        f"--workdir={workdir}",
        *(f"--config.{key}={value}" for key, value in values(text, **overrides).items()),
    ]


class Ready(NamedTuple):
    """The inputs of training."""

    task: Any
    data: Any
    settings: TrainingConfig
    config: dict[str, Any]


def ready(tree: Mapping[str, Any], folder: Path) -> Ready:
    """Prepares the data of a new run in a folder, and returns its task, data, settings and config."""
    module = importlib.import_module(f"bertjax.experiments.{tree['experiment']}")
    resolved = stages.of_config(module, dict(tree))
    data = resolved.data(folder)
    data.prepare()
    complete = resolved.complete(data)
    if complete.meter:  # as in training: the batches may depend on the number of updates
        data = resolved._replace(config=complete.config).data(folder)
    return Ready(complete.task, data, complete.settings, complete.config)


def pretraining(tree: Mapping[str, Any]) -> Ready:
    """`ready` for pretraining, whose text is prepared in `data.prepared_dir`."""
    return ready(tree, Path(tree["data"]["prepared_dir"]))


@contextlib.contextmanager
def few_devices(count: int) -> Iterator[None]:
    """Makes JAX report only the first `count` devices of the session."""
    there = jax.devices()[:count]
    with mock.patch.multiple(jax, devices=lambda *_: there, device_count=lambda: count):
        yield


def run(*command: str, stdin: bytes = b"", devices: int | None = None) -> Outcome:
    """Runs `launch.py COMMAND` in this process, and restores flags afterwards.

    JAX reports `devices` of the session's devices; None for all of them.
    """
    argv, status = ["launch.py", "--distributed=off", "--noreport", *command], None
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_flags_kept())
        if devices is not None:
            stack.enter_context(few_devices(devices))
        stack.enter_context(mock.patch.multiple(sys, argv=argv, stdin=io.TextIOWrapper(io.BytesIO(stdin))))
        stack.enter_context(contextlib.redirect_stdout(stdout))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        flags.FLAGS.unparse_flags()
        try:
            launch.main(launch._parse_flags(argv))
        except SystemExit as end:
            status = end.code or None
    return Outcome(status, stdout.getvalue(), stderr.getvalue())


# `run` with one device, because programs for several take twice as long to compile and to run.
run_on_one = functools.partial(run, devices=1)


def evaluate_elsewhere(run: Path, folder: Path, **overrides: object) -> dict[str, float]:
    """The metrics of a copy of a run without its training data, evaluated with the given config keys."""
    copy = shutil.copytree(run, folder / "elsewhere")
    config = json.loads((copy / "config.json").read_text())
    config["data"]["source"] = "gone"
    (copy / "config.json").write_text(json.dumps(config))
    flags = [f"--config.{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    outcome = run_on_one("--mode=evaluate", f"--workdir={copy}", *flags)
    assert outcome.status is None, outcome.status
    return json.loads(outcome.stdout)


def check_message(message: str, what: str, got: str, expected: str, fix: str) -> None:
    """Checks each part of a UserError's message against a regular expression."""
    parts = _MESSAGE.fullmatch(message)
    assert parts, message
    for name, pattern in {"what": what, "got": got, "expected": expected}.items():
        assert re.search(pattern, parts[name]), f"{name} is {parts[name]!r} in {message!r}"
    assert re.search(fix, parts["fix"] or parts["question"]), f"no {fix!r} in {message!r}"


@contextlib.contextmanager
def _flags_kept():
    """Restores flags, except those defined by modules imported inside the context; removes flags of config keys."""
    before = flagsaver.save_flag_values()
    try:
        yield
    finally:
        after = flagsaver.save_flag_values()
        new = {name: state for name, state in after.items() if not name.startswith("config.")}
        flagsaver.restore_flag_values({**new, **before})


def saved_params(tree: dict, workdir: Path, which: str = "latest") -> Any:
    """The parameters of a checkpoint of a pretraining run, as NumPy arrays."""
    return params_of(pretraining(tree).task, workdir, which)


def params_of(task: Any, workdir: Path, which: str = "latest") -> Any:
    """The parameters of a checkpoint of a task's run, as NumPy arrays."""
    here = SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    placed = with_shardings(shapes, jax.tree.map(lambda _: here, shapes))
    return jax.device_get(checkpoints.restore_params(workdir, which, placed))
