"""Whatever a user gets wrong is told in one line: what was got, what was expected, and the fix."""

import contextlib
import gzip
import json
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import tiny

LINE = re.compile(r"error: (?P<what>.+?): got (?P<got>.*); expected (?P<expected>.+)\. Fix: (?P<fix>.+)\.")
MASKED = b"the [MASK] sees a cat\n"


@pytest.fixture(scope="module", autouse=True)
def _quick_compiles(tmp_path_factory):
    with tiny.quick_compiles(tmp_path_factory.mktemp("programs")):
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text, a run on it and what the run exports: `text.txt`, `run`, `published`."""
    home = tmp_path_factory.mktemp("bad_input")
    text = tiny.write_text(home / "text.txt")
    assert tiny.run(*tiny.arguments(text, home / "run", evaluate_every=2)).status is None
    assert tiny.run("--mode=export", f"--workdir={home / 'run'}", f"--output={home / 'published'}").status is None
    return home


@pytest.fixture
def train(home, tmp_path):
    """Trains on the text with other values, flags or text; returns what is told."""

    def call(*flags: str, text: Path = home / "text.txt", workdir: Path = tmp_path / "run", **overrides: object) -> str:
        return tiny.run(*tiny.arguments(text, workdir, **overrides), *flags).error

    return call


@pytest.fixture
def copied(home, tmp_path):
    """A copy of the run, or of another folder beside it, to be spoiled."""

    def call(name: str = "run") -> Path:
        return shutil.copytree(home / name, tmp_path / name)

    return call


def predict(workdir: Path, *flags: str, stdin: bytes = MASKED) -> str:
    return tiny.run("--mode=predict", f"--workdir={workdir}", *flags, stdin=stdin).error


def check(message: str, *, what: str, got: str, expected: str, fix: str) -> None:
    """Checks that each part of a message says what it should, as regular expressions."""
    parts = LINE.fullmatch(message)
    assert parts, message
    for name, pattern in {"what": what, "got": got, "expected": expected, "fix": fix}.items():
        assert re.search(pattern, parts[name]), f"{name} is {parts[name]!r} in {message!r}"


def named(value: object) -> str | None:
    """The name of a case: what the user gave. Patterns and bytes stay out of it."""
    if isinstance(value, dict):
        return ",".join(f"{key}={given}" for key, given in value.items())
    return " ".join(value) if isinstance(value, list) else ""


# The text.


@pytest.mark.parametrize(
    ("name", "content", "got", "expected", "fix"),
    [
        ("empty.txt", b"", r"no text at all", "at least one line", "check that the source"),
        ("blank.txt", b"\n \n\t\n", r"no text at all", "at least one line", "check that the source"),
        ("binary.txt", bytes(range(256)), r"binary file \(it has NUL bytes\)", "UTF-8 text", "convert it"),
        ("latin.txt", "a\ncaf\xe9\n".encode("latin1"), r"byte 0xe9 at byte offset 5", "UTF-8", "iconv"),
        ("cut.txt.gz", gzip.compress(b"some text\n" * 999)[:-20], "damaged or truncated gzip", "complete", "gzip -t"),
        ("renamed.txt.gz", b"some text\n", "named .gz that is not gzip", "if and only if", "rename"),
        ("hidden.txt", gzip.compress(b"some text\n"), "gzip data in a file not named .gz", "if and only if", "rename"),
        (
            "other.jsonl",
            b'{"body": "x"}\n',
            "without field 'text'; its fields: 'body'",
            "text_field",
            "data.text_field",
        ),
        ("broken.jsonl", b'{"text": "x"\n', "not valid JSON", "one JSON object a line", "on_bad_row=skip"),
        ("list.jsonl", b'["x"]\n', "a JSON list", "one JSON object a line", "on_bad_row=skip"),
        ("number.jsonl", b'{"text": 3}\n', "int in field 'text'", "a string", "on_bad_row=skip"),
        ("whole.json", b'{"text": "x"}\n', "a .json file", "jsonl", "rename it"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(("txt", "gz", "json", "jsonl")) else "",
)
@pytest.mark.parametrize("vocabulary", ["trained", "given"])
def test_bad_text(train, home, tmp_path, name, content, got, expected, fix, vocabulary):
    path = tmp_path / name
    path.write_bytes(content)
    given = {"data__vocab_file": home / "published" / "vocab.txt"} if vocabulary == "given" else {}
    message = train(data__source=path, data__prepared_dir=tmp_path / "prepared", **given)
    check(message, what=re.escape(str(path)), got=got, expected=expected, fix=fix)
    assert not list((tmp_path / "prepared").glob("*/"))  # nothing half prepared


def test_the_line_of_a_bad_row_is_named(train, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x"}\n\n{"txt": "x"}\n')
    check(train(data__source=path), what=f"{path}:3$", got="'txt'", expected="text_field", fix="data.text_field")


@pytest.mark.parametrize(
    ("source", "got", "expected", "fix"),
    [
        ("no/such/file.txt", "does not exist", "documentation, files seen from /.*tfds:NAME", "correct the path"),
        ("no/such/*.txt", "pattern that matches no file", "documentation, files", "correct the path"),
        ("", "'', with an empty name", "paths or globs separated by commas", "--config.data.source="),
        ("/", "a folder", "files", r"/\*\.txt"),
        ("/dev/null", "not a regular file", "plain text", "copy its text to a file"),
        ("tfds:no_such_dataset", "TFDS does not find", "NAME", "TFDS_DATA_DIR"),
        ("tfds:", "'tfds:'", "tfds:NAME", "name the dataset"),
    ],
)
def test_a_bad_source(train, source, got, expected, fix):
    message = train(data__source=source)
    assert source in message
    check(message, what="config key data.source", got=got, expected=expected, fix=fix)


def test_a_file_named_twice(train, home):
    text = home / "text.txt"
    check(
        train(data__source=f"{text},{text}"),
        what="config key data.source",
        got=f"{text} twice",
        expected="each file once",
        fix="remove the repetition",
    )


def test_one_document_has_no_random_next_sentence(train, home, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text((home / "text.txt").read_text().replace("\n\n", "\n"))
    message = train(data__source=one, data__valid_source=home / "text.txt")
    check(message, what="next-sentence", got="1 document", expected="at least two", fix="next_sentence=False")


@pytest.mark.parametrize(("fraction", "split"), [(1e-9, "valid"), (1 - 1e-9, "train")])
def test_an_empty_split(train, fraction, split):
    message = train(data__valid_fraction=fraction)
    check(message, what=f"the {split} split", got="no document", expected="some held out", fix="data.valid_fraction")


def test_a_batch_larger_than_the_epoch(train):
    message = train(batch_size=4096)
    check(message, what="batch_size", got=r"4096 rows a step, but \d+ rows", expected="at least one", fix="more text")


# The vocabulary.

SPECIALS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize(
    ("content", "got", "expected", "fix"),
    [
        (b"the\na\n", r"2 tokens without \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]", "one token a line", "vocab.txt"),
        (b"", r"0 tokens without \[PAD\]", "one token a line", "vocab.txt"),
        ((SPECIALS + "a\nb\na\n").encode(), "'a' on lines 6, 8", "every token once", "restore the original"),
        ((SPECIALS + "\xe9\n").encode("latin1"), "byte 0xe9", "UTF-8", "save the file as UTF-8"),
        (None, "No such file", "a readable file", "path of a vocab.txt"),
    ],
)
def test_a_bad_vocabulary(train, tmp_path, content, got, expected, fix):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    check(train(data__vocab_file=path), what=re.escape(str(path)), got=got, expected=expected, fix=fix)


def test_a_folder_without_a_vocabulary(train, tmp_path):
    message = train(data__vocab_file=tmp_path)
    check(message, what=re.escape(str(tmp_path)), got="tells the casing", expected="do_lower_case", fix="write")


def test_a_vocabulary_of_another_casing(train, home):
    message = train(data__vocab_file=home / "published", data__lowercase=False)
    check(message, what="data.lowercase", got="False", expected="True, as the tokenizer in", fix="data.lowercase=True")


# Values.


@pytest.mark.parametrize(
    ("overrides", "what", "got", "expected", "fix"),
    [
        ({"data__vocab_size": 4}, "data.vocab_size", "4", "at least 10", "raise it"),
        ({"data__seq_len": 64}, "data.seq_len", "64", "at most model.max_positions=48", "lower data.seq_len"),
        ({"data__seq_len": 3}, "data.seq_len", "3", "at least 8", "BERT uses 128"),
        ({"data__valid_fraction": 0.0}, "data.valid_fraction", "0.0", "above 0 and below 1", "0.02"),
        ({"data__lines": "words"}, "data.lines", "'words'", "sentence, paragraph", "one of these"),
        ({"data__on_bad_row": "ignore"}, "data.on_bad_row", "'ignore'", "stop, skip", "one of these"),
        ({"data__workers": -2}, "data.workers", "-2", "0 or more", "all cores"),
        ({"data__short_seq_prob": 1.5}, "data.short_seq_prob", "1.5", "0 to 1", "0.1"),
        ({"model__num_heads": 3}, "model.hidden_size", "16", "multiple of num_heads=3", "model.hidden_size"),
        ({"model__num_layers": 0}, "model.num_layers", "0", "at least 1", "model.num_layers"),
        ({"model__dropout": 1.0}, "model.dropout", "1.0", "below 1", "model.dropout"),
        ({"model__gelu": "exact"}, "model.gelu", "'exact'", "erf, tanh", "one of these"),
        ({"model__norm": "none"}, "model.norm", "'none'", "post, pre", "one of these"),
        ({"model__dtype": "float16"}, "model.dtype", "'float16'", "float32, bfloat16", "one of these"),
        ({"model__direction": "down"}, "model.direction", "'down'", "left_to_right", "one of these"),
        ({"masking__mask_fraction": 0.9}, "masking.*fraction", r"0\.9, 0\.1, 0\.1", "add up to 1", "0.8, 0.1 and 0.1"),
        ({"masking__rate": 0.0}, "masking.rate", "0.0", "above 0", "0.15"),
        ({"masking__max_predictions": 0}, "masking.max_predictions", "0", "at least 1", "20"),
        ({"masking__mode": "once"}, "masking.mode", "'once'", "dynamic, static", "one of these"),
        ({"objective": "translation"}, "objective", "'translation'", "masked_lm, causal_lm", "one of these"),
        (
            {"objective": "causal_lm", "model__direction": "left_to_right"},
            "objective",
            "causal_lm with .*next_sentence=True",
            "no next-sentence",
            "data.next_sentence=False",
        ),
        (
            {"objective": "causal_lm", "data__next_sentence": False},
            "objective",
            "direction=both",
            "one direction",
            "model.direction=left_to_right",
        ),
        ({"num_steps": 0}, "num_steps", "0", "at least 1", "raise it"),
        ({"seed": -1}, "seed", "-1", r"0 to 2\*\*32 - 1", "one of these"),
        ({"accumulation_steps": 3}, "accumulation_steps", "3 micro-batches for batch_size 16", "divisor", "change one"),
        ({"batch_size": 12}, "batch_size", "12", "multiple of 8, the devices", "multiple of 8"),
        ({"accumulation_steps": 4}, "batch_size.*accumulation_steps", "4", "multiple of 8", "accumulation_steps"),
        ({"mesh__data": 3}, "mesh", r"\(3, 1, 1\) for 8 device", "product is the number of devices", "mesh.data=8"),
        ({"mesh__data": -1, "mesh__fsdp": -1}, "mesh", r"\(-1, -1, 1\) for 8", "product", "mesh.data=8"),
        ({"mesh__tensor": 2, "parallel": "pmap"}, "parallel", "'pmap' with mesh", "data axis", "parallel=jit"),
        ({"parallel": "shmap"}, "parallel", "'shmap'", "jit, pmap", "one of these"),
        ({"optimizer__name": "sgd"}, "optimizer.name", "'sgd'", "adamw, lamb", "one of these"),
        ({"optimizer__schedule": "step"}, "optimizer.schedule", "'step'", "linear", "one of these"),
        ({"optimizer__learning_rate": -1.0}, "optimizer.learning_rate", "-1.0", "0 or more", "raise it"),
        ({"optimizer__no_decay": "("}, "optimizer.no_decay", r"'\('", "regular expression", "correct it"),
        (
            {"optimizer__groups": "(('no/such',{'frozen':True}),)"},
            r"optimizer.groups\[0\]",
            "'no/such', which no parameter",
            "such as bert/embeddings",
            "correct the pattern",
        ),
        (
            {"optimizer__groups": "(('kernel',{'speed':1}),)"},
            r"optimizer.groups\[0\]",
            "speed=1",
            "learning_rate .float.",
            "correct the name",
        ),
        (
            {"optimizer__groups": "(('kernel',{'learning_rate':'fast'}),)"},
            r"optimizer.groups\[0\]",
            "learning_rate='fast'",
            "learning_rate .float.",
            "or the value",
        ),
        ({"optimizer__groups": "('kernel',)"}, r"optimizer.groups\[0\]", "'kernel'", "a pair", "comma after each"),
        ({"optimizer__groups": "(('(',{}),)"}, r"optimizer.groups\[0\]", r"'\('", "regular", "correct it"),
        ({"checkpoint__best_metric": "valid/bleu"}, "best_metric", "'valid/bleu'", "valid/masked_lm_loss", "one of"),
        (
            {"checkpoint__best_metric": "valid/tokens"},
            "best_metric",
            "'valid/tokens'",
            "valid/masked_lm_loss",
            "one of",
        ),
        ({"checkpoint__best_mode": "least"}, "best_mode", "'least'", "min, max", "one of these"),
        ({"checkpoint__keep": 0}, "checkpoint", r"\(2, 0\)", "at least 1", "could be resumed"),
    ],
    ids=named,
)
def test_a_bad_value_is_told_before_the_text_is_read(train, tmp_path, overrides, what, got, expected, fix):
    prepared = tmp_path / "prepared"
    message = train(data__prepared_dir=prepared, **overrides)
    check(message, what=what, got=got, expected=expected, fix=fix)
    assert not prepared.exists()
    assert not (tmp_path / "run").exists()


# The command line.


@pytest.mark.parametrize(
    ("flags", "what", "got", "expected", "fix"),
    [
        (["--config.num_stepz=3"], "config key num_stepz", "unknown key", "num_steps", "correct the name"),
        (["--config.model.hidden=3"], "config key model.hidden$", "unknown key", "hidden_size", "correct the name"),
        (["--config.modle.hidden_size=3"], "config key modle|flags", "modle|unknown", "model|config", "correct"),
        (["--config.num_steps=many"], "flags", "config.num_steps=many", "types in the config", "correct"),
        (["--config.num_steps=1.5"], "flags", "config.num_steps=1.5", "types in the config", "correct"),
        (["--config.model.remat=maybe"], "flags", "config.model.remat=maybe", "types in the config", "correct"),
        (["--config.optimizer.learning_rate=x"], "flags", "learning_rate=x", "types in the config", "correct"),
        (["--config.mesh=3"], "flags", "config.mesh=3", "types in the config", "correct"),
        (["--config.num_steps.more=3"], "flags", "num_steps.more", "types in the config", "correct"),
        (["--wrkdir=runs/a"], "flags", "'wrkdir'.*workdir", "--help", "correct the name"),
        (["--process_id=first"], "flags", "--process_id=first", "--help", "correct"),
        (["--config.model.remat", "maybe"], "arguments", "maybe", "flags only", "--name=value"),
        (["--mode=fit"], "--mode", "'fit'", "train, evaluate, predict", "one of these"),
        (["--config.experiment=bart"], "experiment", "'bart'", "bert_pretraining", "one of these"),
        (["--distributed=maybe"], "--distributed", "'maybe'", "auto, on, off", "one of these"),
    ],
    ids=named,
)
def test_a_bad_flag(train, flags, what, got, expected, fix):
    check(train(*flags), what=what, got=got, expected=expected, fix=fix)


@pytest.mark.parametrize(
    ("flags", "what", "got", "expected", "fix"),
    [
        (
            ["--config=configs/bert_pretraining.py:huge"],
            "flags",
            "'huge'; expected one of tiny, mini",
            "--help",
            "correct",
        ),
        (["--config=configs/nope.py:tiny"], "flags", "No such file .*'configs/nope.py'", "launch.py", "correct"),
        (["--config=configs/bert_pretraining.py"], "--config", "neither a size nor init_from", "a size", ":tiny"),
        ([], "--config", "none", "a file of configs/", "add --config="),
        (["--mode=predict"], "--workdir", "none, and no init_from", "a run", "--config.init_from=FOLDER"),
        (["--mode=evaluate"], "--workdir", "none", "folder for the run", "add --workdir="),
    ],
    ids=named,
)
def test_a_config_that_is_not_there(tmp_path, flags, what, got, expected, fix):
    workdir = [] if "--mode" in str(flags) else [f"--workdir={tmp_path / 'run'}"]
    config = ["--config=configs/bert_pretraining.py:tiny"] if "--mode" in str(flags) else []
    check(tiny.run(*config, *workdir, *flags).error, what=what, got=got, expected=expected, fix=fix)
    assert not (tmp_path / "run").exists()


def test_training_without_a_folder():
    message = tiny.run("--config=configs/bert_pretraining.py:tiny").error
    check(message, what="--workdir", got="none", expected="a folder", fix="--workdir=runs/NAME")


def test_a_config_beside_the_runs_own(home):
    message = predict(home / "run", "--config=configs/bert_pretraining.py:tiny")
    check(message, what="--config", got="beside the run's own", expected="--workdir of a run", fix="leave out")


# Runs and their checkpoints.


def test_the_folder_of_a_run_of_another_config(train, home):
    before = (home / "run" / "config.json").read_text()
    message = train(workdir=home / "run", seed=3, model__gelu="tanh", evaluate_every=2)
    check(
        message,
        what=f"--workdir={home / 'run'}",
        got="another config: model.gelu: 'erf' there, 'tanh' now; seed: 0 there, 3 now$",
        expected="an empty folder, or a run of the same config",
        fix="another --workdir",
    )
    assert (home / "run" / "config.json").read_text() == before


def test_a_mistake_can_be_mended_in_the_same_folder(train, home, tmp_path):
    assert "no/such" in train(data__source="no/such.txt")
    assert "4096 rows" in train(batch_size=4096)
    assert tiny.run(*tiny.arguments(home / "text.txt", tmp_path / "run", evaluate_every=2)).status is None
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 2, 2, 4, 4, 6, 6]


@pytest.mark.parametrize("mode", ["evaluate", "predict", "export"])
def test_a_folder_that_is_no_run(tmp_path, mode):
    message = tiny.run(f"--mode={mode}", f"--workdir={tmp_path}", f"--output={tmp_path / 'out'}", stdin=MASKED).error
    check(message, what=f"--workdir={tmp_path}", got="no readable config.json", expected="a run", fix="train it first")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("content", "got"), [("{", "Expecting property name"), ("[]", "a JSON list")])
def test_a_damaged_config(copied, content, got):
    run = copied()
    (run / "config.json").write_text(content)
    check(predict(run), what=f"--workdir={run}", got=got, expected="the folder of a run", fix="correct the path")


def test_a_config_with_keys_lost(copied):
    run = copied()
    config = json.loads((run / "config.json").read_text())
    for key in ("init_from", "experiment"):
        del config[key]
        (run / "config.json").write_text(json.dumps(config))
        check(
            predict(run), what=f"config key {key}", got="no value|''", expected="str|bert_pretraining", fix="choose|set"
        )


def test_a_run_without_checkpoints(copied):
    run = copied()
    shutil.rmtree(run / "checkpoints")
    for mode in ("evaluate", "predict", "export"):
        message = tiny.run(f"--mode={mode}", f"--workdir={run}", f"--output={run / 'out'}", stdin=MASKED).error
        check(message, what="checkpoint 'latest'", got="no checkpoints", expected="latest, best", fix="train the run")
        assert not (run / "out").exists()


@pytest.mark.parametrize("which", ["77", "newest", "-2"])
def test_a_checkpoint_that_is_not_there(home, which):
    message = predict(home / "run", f"--checkpoint={which}")
    check(message, what=f"checkpoint '{which}'", got="steps 2, 4, 6", expected="one of the steps", fix="--checkpoint")


def largest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "got"), [(truncate, "sha256"), (flip_a_bit, "sha256"), (Path.unlink, "no such file")]
)
@pytest.mark.parametrize("item", ["params", "opt_state"])
def test_a_damaged_checkpoint(home, copied, damage, got, item):
    run = copied()
    path = largest_file(run / "checkpoints" / "6" / item)
    damage(path)
    parts = {"what": f"checkpoint file {path}$", "got": got, "expected": "sha256 .* as it was written"}
    fix = f"restore the file, or delete {run}/checkpoints/6"
    check(predict(run), **parts, fix=fix)
    again = tiny.run(*tiny.arguments(home / "text.txt", run, evaluate_every=2)).error
    check(again, **parts, fix=fix)
    # The fix works.
    shutil.rmtree(run / "checkpoints" / "6")
    assert tiny.run("--mode=predict", f"--workdir={run}", stdin=MASKED).status is None


def test_a_checkpoint_without_its_digests_or_scores(copied):
    run = copied()
    (run / "checkpoints" / "4" / "meta" / "metadata").write_text("{")
    message = predict(run, "--checkpoint=best")
    check(message, what="meta/metadata", got="Expecting property", expected="scored", fix="restore the file")
    (run / "checkpoints" / "6" / "manifest.json").unlink()
    check(predict(run), what="manifest.json", got="No such file", expected="digests", fix="restore the file")


def test_a_checkpoint_of_another_size(copied):
    run = copied()
    config = json.loads((run / "config.json").read_text())
    config["model"]["intermediate_size"] = 64
    (run / "config.json").write_text(json.dumps(config))
    check(predict(run), what="checkpoint .*/6", got="64", expected="names and shapes of this run's model", fix="config")


# Published weights.


def from_folder(folder: Path) -> str:
    flags = ["--config=configs/bert_pretraining.py", f"--config.init_from={folder}", "--config.data.seq_len=32"]
    return tiny.run("--mode=predict", *flags, stdin=MASKED).error


def test_published_weights_with_a_tensor_missing(copied):
    folder, name = copied("published"), "bert.encoder.layer.1.output.dense.weight"
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    message = from_folder(folder)
    check(
        message, what=f"{folder}: {name}", got="no such tensor", expected=r"shape \(16, 32\)", fix="a complete folder"
    )


def test_published_weights_of_another_shape(copied):
    folder, name = copied("published"), "bert.embeddings.position_embeddings.weight"
    tensors = load_file(folder / "model.safetensors") | {name: np.zeros((5, 16), np.float32)}
    save_file(tensors, folder / "model.safetensors")
    check(from_folder(folder), what=f"{folder}: {name}", got=r"\(5, 16\)", expected=r"\(48, 16\)", fix="sizes that its")


def test_truncated_published_weights(copied):
    folder = copied("published")
    truncate(folder / "model.safetensors")
    check(
        from_folder(folder),
        what="model.safetensors",
        got=".",
        expected="complete safetensors",
        fix="download or export",
    )


@pytest.mark.parametrize(
    ("lost", "what", "got", "fix"),
    [
        (["model.safetensors"], "", "no weights", "convert other formats"),
        (["vocab.txt", "tokenizer.json"], "", "no vocab.txt, no tokenizer.json", "folder of a BERT model"),
        (["tokenizer_config.json", "tokenizer.json"], "", "nothing that tells the casing", "do_lower_case"),
        (["config.json"], "config key init_from=", "neither checkpoints nor a Hugging Face config.json", "correct"),
    ],
)
def test_published_weights_with_a_file_missing(copied, lost, what, got, fix):
    folder = copied("published")
    for name in lost:
        (folder / name).unlink()
    check(from_folder(folder), what=f"{what}{folder}", got=got, expected=".", fix=fix)


def test_published_weights_that_are_not_there(home, tmp_path):
    for path, got in ((tmp_path / "nowhere", "no such folder"), (home / "text.txt", "neither checkpoints nor")):
        check(
            from_folder(path), what=f"init_from={path}", got=got, expected="a run of ours, or a folder", fix="correct"
        )


def test_a_size_that_contradicts_the_published_weights(train, home):
    message = train(init_from=home / "published", model__hidden_size=32)
    check(message, what="model.hidden_size", got="32", expected="16, as in init_from=", fix="leave it out")


# Disks and folders.


@contextlib.contextmanager
def no_room(size: int):
    """No file grows beyond `size` bytes, whoever writes it: a full disk that needs no disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_no_room(message: str, what: object, got: str = "File too large") -> None:
    check(message, what=re.escape(str(what)), got=got, expected="with room left", fix="free some room")


def test_a_full_disk_under_predictions(home):
    message = predict(home / "run", "--output=/dev/full", stdin=MASKED * 9)
    check_no_room(message, "/dev/full", "No space left on device")


def test_a_full_disk_under_a_file_of_predictions(home, tmp_path):
    output = tmp_path / "out.jsonl"
    with no_room(500):
        message = predict(home / "run", f"--output={output}", stdin=MASKED * 9)
    check_no_room(message, output)
    assert not output.exists()


@pytest.mark.parametrize("size", [2_000, 8_000])
def test_a_full_disk_under_the_prepared_text(train, tmp_path, size):
    prepared = tmp_path / "prepared"
    with no_room(size):
        message = train(data__prepared_dir=prepared, workdir=tmp_path / "run", data__seq_len=16)
    check_no_room(message, "")
    assert not list(prepared.glob("*/"))


def test_a_full_disk_under_checkpoints(train, home, tmp_path):
    with no_room(16_000):
        message = train(evaluate_every=2)
    check_no_room(message, tmp_path / "run")
    steps = [path.name for path in (tmp_path / "run" / "checkpoints").glob("*") if path.name.isdigit()]
    assert steps == []
    # With room again, the same command goes through.
    assert tiny.run(*tiny.arguments(home / "text.txt", tmp_path / "run", evaluate_every=2)).status is None


def test_a_full_disk_under_an_export(home, tmp_path):
    with no_room(20_000):
        message = tiny.run("--mode=export", f"--workdir={home / 'run'}", f"--output={tmp_path / 'out'}").error
    check_no_room(message, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("folder", ["/proc/run", "/sys/kernel/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_written(train, home, folder):
    reasons = "No such file|not permitted|Not a directory|Read-only|Permission denied"
    check(train(workdir=Path(folder)), what=folder, got=reasons, expected="written", fix="another path")
    message = tiny.run("--mode=export", f"--workdir={home / 'run'}", f"--output={folder}").error
    check(message, what=folder, got=reasons, expected="written", fix="another path")
    message = predict(home / "run", f"--output={folder}")
    check(message, what=folder, got=reasons, expected="written", fix="another path")


def test_a_file_in_place_of_a_folder(train, home):
    text = home / "text.txt"
    check(
        train(workdir=text), what=str(text), got="File exists|Not a directory", expected="a place", fix="another path"
    )
    message = tiny.run("--mode=export", f"--workdir={home / 'run'}", f"--output={text}").error
    check(message, what=str(text), got="File exists", expected="a place", fix="another path")


def test_an_export_without_a_folder(home):
    message = tiny.run("--mode=export", f"--workdir={home / 'run'}").error
    check(message, what="--output", got="none", expected="a folder to export to", fix="--output=FOLDER")


# Lines to predict on.


@pytest.mark.parametrize(
    ("line", "got", "expected"),
    [
        (b"no mask here", r"0 \[MASK\]", r"at least one \[MASK\]"),
        (b"", r"0 \[MASK\]", r"at least one \[MASK\]"),
        (b"a [mask] in small letters", r"0 \[MASK\]", r"at least one \[MASK\]"),
        (b"the " * 60 + b"[MASK]", "63 word pieces", "at most 48 word pieces"),
        (b"a\tb\tc [MASK]", r"3 tab-separated", "at most two segments"),
        (b"a \xff [MASK]", "byte 0xff", "UTF-8"),
    ],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_a_line_that_cannot_be_predicted_on(home, tmp_path, line, got, expected, is_file):
    lines, output = MASKED + line + b"\n" + MASKED, tmp_path / "out.jsonl"
    (tmp_path / "in.txt").write_bytes(lines)
    source = [f"--input={tmp_path / 'in.txt'}"] if is_file else []
    message = predict(home / "run", f"--output={output}", *source, stdin=b"" if is_file else lines)
    check(message, what="input line 2$", got=got, expected=expected, fix="correct the line|convert the input")
    assert not output.exists()


def test_an_input_that_is_not_there(home, tmp_path):
    message = predict(home / "run", f"--input={tmp_path / 'none.txt'}")
    check(message, what=f"--input={tmp_path}/none.txt", got="No such file", expected="a file with a line", fix="path")
    check(
        predict(home / "run", f"--input={tmp_path}"),
        what="--input",
        got="Is a directory",
        expected="a file",
        fix="path",
    )


# Numbers.


def test_numbers_that_are_not_finite(train, tmp_path):
    message = train(optimizer__learning_rate=1e30, evaluate_every=6)
    check(
        message,
        what=r"^step 3$",
        got=r"loss or gradient that is not finite; .*bert/\w+",
        expected="finite numbers; the last checkpoint from before",
        fix="lower optimizer.learning_rate",
    )
    run = tmp_path / "run"
    assert [path.name for path in (run / "checkpoints").glob("*") if path.name.isdigit()] == ["2"]
