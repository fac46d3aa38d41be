"""One-line messages for bad texts, config values and flags."""

import functools
import gzip
import re
import shutil

import pytest

from tests import tiny
from tests.tiny import check_message as check


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text, `text.txt`, and its `vocabulary`."""
    home = tmp_path_factory.mktemp("bad_input")
    text = tiny.write_text(home / "text.txt")
    assert tiny.run("--mode=prepare", *tiny.arguments(text, home / "run")).status is None
    (vocab,) = (home / "prepared").glob("*/vocab.txt")
    shutil.copytree(vocab.parent, home / "vocabulary")
    return home


@pytest.fixture
def train(home, tmp_path):
    """Returns a function that trains on the text with other values or flags, and returns the error message."""

    def call(*flags: str, **overrides: object) -> str:
        return tiny.run(*tiny.arguments(home / "text.txt", tmp_path / "run", **overrides), *flags).error

    return call


@pytest.fixture
def prepare(train):
    """Returns a function that prepares the text with other values and returns the message. Faster than `train`."""
    return functools.partial(train, "--mode=prepare")


def named(value: object) -> str | None:
    """The id of a test case: the value without patterns and bytes."""
    if isinstance(value, dict):
        return ",".join(f"{key}={given}" for key, given in value.items())
    return " ".join(value) if isinstance(value, list) else ""


# Texts.


@pytest.mark.parametrize(
    ("name", "content", "got", "expected", "fix"),
    [
        ("empty.txt", b"", "no text$", "at least one line", "check the source"),
        ("blank.txt", b"\n \n\t\n", "no text$", "at least one line", "check the source"),
        ("binary.txt", bytes(range(256)), r"binary file \(it has NUL bytes\)", "UTF-8 text", "convert it"),
        ("latin.txt", "a\ncaf\xe9\n".encode("latin1"), r"byte 0xe9 at byte offset 5", "UTF-8", "iconv"),
        (
            "cut.txt.gz",
            gzip.compress(b"some text\n" * 999, mtime=0)[:-20],
            "damaged or truncated gzip",
            "complete",
            "gzip -t",
        ),
        ("renamed.txt.gz", b"some text\n", "named .gz that is not gzip", "if and only if", "rename"),
        (
            "hidden.txt",
            gzip.compress(b"some text\n", mtime=0),
            "gzip data in a file not named .gz",
            "if and only if",
            "rename",
        ),
        (
            "other.jsonl",
            b'{"body": "x"}\n',
            "without field 'text'; its fields: 'body'",
            "text_field",
            "data.text_field",
        ),
        ("broken.jsonl", b'{"text": "x"\n', "not valid JSON", "one JSON object per line", "on_bad_row=skip"),
        ("list.jsonl", b'["x"]\n', "a JSON list", "one JSON object per line", "on_bad_row=skip"),
        ("number.jsonl", b'{"text": 3}\n', "int in field 'text'", "a string", "on_bad_row=skip"),
        ("whole.json", b'{"text": "x"}\n', "a .json file", "jsonl", "rename it"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(("txt", "gz", "json", "jsonl")) else "",
)
@pytest.mark.parametrize("vocabulary", ["trained", "given"])
def test_bad_text(prepare, home, tmp_path, name, content, got, expected, fix, vocabulary):
    path = tmp_path / name
    path.write_bytes(content)
    given = {"data__vocab_file": home / "vocabulary" / "vocab.txt"} if vocabulary == "given" else {}
    message = prepare(data__source=path, data__prepared_dir=tmp_path / "prepared", **given)
    check(message, what=re.escape(str(path)), got=got, expected=expected, fix=fix)
    assert not list((tmp_path / "prepared").glob("*/"))  # no incomplete preparation


def test_the_line_of_a_bad_row_is_named(train, prepare, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x"}\n\n{"txt": "x"}\n')
    for call in (train, prepare):
        check(call(data__source=path), what=f"{path}:3$", got="'txt'", expected="text_field", fix="data.text_field")


@pytest.mark.parametrize(
    ("source", "got", "expected", "fix"),
    [
        ("no/such/file.txt", "does not exist", "files relative to /.*documentation or tfds:NAME", "correct the path"),
        ("no/such/*.txt", "pattern that matches no file", "files.*documentation", "correct the path"),
        ("", "nothing", "text to train on", "set --config.data.source=FILE"),
        ("/", "a folder", "files", r"/\*\.txt"),
        ("/dev/null", "not a regular file", "files", "copy its content to a file"),
        ("tfds:no_such_dataset", "an unknown dataset", "NAME", "TFDS_DATA_DIR"),
        ("tfds:", "'tfds:'", "tfds:NAME", "name the dataset"),
    ],
)
def test_a_bad_source(prepare, source, got, expected, fix):
    message = prepare(data__source=source)
    assert source in message
    check(message, what="config key data.source", got=got, expected=expected, fix=fix)


def test_a_file_named_twice(prepare, home):
    text = home / "text.txt"
    check(
        prepare(data__source=f"{text},{text}"),
        what="config key data.source",
        got=f"{text} twice",
        expected="each file once",
        fix="remove the repetition",
    )


def test_one_document_has_no_random_next_sentence(home, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text((home / "text.txt").read_text().replace("\n\n", "\n"))
    arguments = tiny.arguments(one, tmp_path / "run", data__valid_source=home / "text.txt")
    message = tiny.run_on_one(*arguments).error
    check(message, what="next-sentence", got="1 document", expected="at least two", fix="next_sentence=False")


@pytest.mark.parametrize(("fraction", "split"), [(1e-9, "valid"), (1 - 1e-9, "train")])
def test_an_empty_split(prepare, fraction, split):
    message = prepare(data__valid_fraction=fraction)
    check(message, what=f"the {split} split", got="no document", expected="validation split", fix="data.valid_fraction")


def test_a_batch_larger_than_the_epoch(home, tmp_path):
    message = tiny.run_on_one(*tiny.arguments(home / "text.txt", tmp_path / "run", batch_size=4096)).error
    check(message, what="batch_size", got=r"4096 rows per step, but \d+ rows", expected="at least one", fix="more text")


# Vocabularies.

SPECIALS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize(
    ("content", "got", "expected", "fix"),
    [
        (b"the\na\n", r"2 tokens without \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]", "one token per line", "vocab.txt"),
        (b"", r"0 tokens without \[PAD\]", "one token per line", "vocab.txt"),
        ((SPECIALS + "a\nb\na\n").encode(), "'a' on lines 6, 8", "each token once", "restore the original"),
        ((SPECIALS + "\xe9\n").encode("latin1"), "byte 0xe9", "UTF-8", "save the file as UTF-8"),
        (None, "No such file", "a readable file", "name a vocab.txt"),
    ],
)
def test_a_bad_vocabulary(prepare, tmp_path, content, got, expected, fix):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    check(prepare(data__vocab_file=path), what=re.escape(str(path)), got=got, expected=expected, fix=fix)


def test_a_folder_without_a_vocabulary(prepare, tmp_path):
    message = prepare(data__vocab_file=tmp_path)
    check(message, what=re.escape(str(tmp_path)), got="no vocab.txt", expected="a WordPiece", fix="BERT model")


def test_a_vocabulary_of_another_casing(prepare, home):
    message = prepare(data__vocab_file=home / "vocabulary", data__lowercase=False)
    check(
        message,
        what="data.lowercase",
        got="False",
        expected="True, the casing of the tokenizer in",
        fix="data.lowercase=True",
    )


# Config values.


@pytest.mark.parametrize(
    ("overrides", "what", "got", "expected", "fix"),
    [
        ({"data__vocab_size": 4}, "data.vocab_size", "4", "at least 10", "raise it"),
        ({"data__seq_len": 64}, "data.seq_len", "64", "at most model.max_positions=48", "lower data.seq_len"),
        ({"data__seq_len": 3}, "data.seq_len", "3", "at least 8", "change"),
        ({"data__valid_fraction": 0.0}, "data.valid_fraction", "0.0", "above 0 and below 1", "change"),
        ({"data__lines": "words"}, "data.lines", "'words'", "sentence, paragraph", "change"),
        ({"data__on_bad_row": "ignore"}, "data.on_bad_row", "'ignore'", "stop, skip", "change"),
        ({"data__workers": -2}, "data.workers", "-2", "at least 0", "change"),
        ({"data__short_seq_prob": 1.5}, "data.short_seq_prob", "1.5", "at least 0 and at most 1", "change"),
        ({"model__num_heads": 3}, "model.hidden_size", "16", "multiple of num_heads=3", "model.hidden_size"),
        ({"model__num_layers": 0}, "model.num_layers", "0", "at least 1", "model.num_layers"),
        ({"model__dropout": 1.0}, "model.dropout", "1.0", "below 1", "model.dropout"),
        ({"model__activation": "exact"}, "model.activation", "'exact'", "gelu, gelu_tanh", "change"),
        ({"model__norm": "none"}, "model.norm", "'none'", "post, pre", "change"),
        ({"model__dtype": "float16"}, "model.dtype", "'float16'", "float32, bfloat16", "'bfloat16'"),
        ({"model__direction": "down"}, "model.direction", "'down'", "left_to_right", "change"),
        (
            {"masking__mask_fraction": 0.9},
            "config keys masking.*fraction",
            r"0\.9, 0\.1, 0\.1",
            "add up to 1",
            "0.8, 0.1 and 0.1",
        ),
        ({"masking__rate": 0.0}, "config key masking.rate", "0.0", "above 0", "change"),
        ({"masking__max_predictions": 0}, "config key masking.max_predictions$", "^0$", "at least 1", "change"),
        (
            {"data__stages": "((0.5, 16, 1),)"},
            r"config key data.stages\[0\]$",
            "0.5, 16, 1",
            "a fraction of all updates between 0 and 1, and a length",
            "comma",
        ),
        ({"data__stages": "((1.0, 16),)"}, r"config key data.stages\[0\]$", "1.0", "between 0 and 1", "comma"),
        ({"data__stages": "((0.5, 4),)"}, r"config key data.stages\[0\]$", "4", "at least 8", "comma"),
        ({"data__stages": "((0.5, 8), (0.5, 16))"}, "config key data.stages$", "16", "less than 1", "change"),
        ({"data__stages": "((0.2, 16), (0.2, 8))"}, "config key data.stages$", "8", "increasing", "change"),
        ({"data__stages": "((0.2, 12),)"}, "config key data.stages$", "12", "divide data.seq_len=32", "change"),
        ({"data__stages": "((0.2, 32),)"}, "config key data.stages$", "32", "shorter", "change"),
        ({"masking__max_span": -1}, "config key masking.max_span$", "-1", "at least 0", "change"),
        (
            {"masking__rate": 0.15, "masking__final_rate": 0.3},
            "config key masking.max_predictions$",
            "^6$",
            "at least 10, a fraction 0.3 of 32 tokens",
            "max_predictions=10",
        ),
        ({"masking__mode": "once"}, "masking.mode", "'once'", "dynamic, static", "change"),
        ({"objective": "translation"}, "objective", "'translation'", "masked_lm, causal_lm", "change"),
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
        ({"num_steps": 0}, "num_steps", "0", "at least 1", "change"),
        ({"seed": -1}, "seed", "-1", "at least 0 and below 4294967296", "change"),
        ({"accumulation_steps": 3}, "accumulation_steps", "3 micro-batches for batch_size", "divisor", "change batch"),
        ({"batch_size": 12}, "batch_size", "12", "multiple of 8, the devices", "multiple of 8"),
        ({"accumulation_steps": 4}, "batch_size.*accumulation_steps", "4", "multiple of 8", "accumulation_steps"),
        ({"mesh__data": 3}, "mesh", r"\(3, 1, 1\) for 8 device", "product is the number of devices", "mesh.data=8"),
        ({"mesh__data": -1, "mesh__fsdp": -1}, "mesh", r"\(-1, -1, 1\) for 8", "product", "mesh.data=8"),
        ({"mesh__tensor": 4}, "mesh.tensor", "4 for model.num_heads=2", "a divisor of 2", "lower --config.mesh.tensor"),
        (
            {"mesh__tensor": 2, "model__intermediate_size": 33},
            "mesh.tensor",
            "2 for model.intermediate_size=33",
            "a divisor of 33",
            "lower",
        ),
        ({"mesh__tensor": 2, "parallel": "pmap"}, "parallel", "'pmap' with mesh", "data axis", "parallel=jit"),
        ({"parallel": "shmap"}, "parallel", "'shmap'", "jit, pmap", "'pmap'"),
        ({"optimizer__name": "sgd"}, "optimizer.name", "'sgd'", "adamw, lamb, muon", "change"),
        ({"optimizer__schedule": "step"}, "optimizer.schedule", "'step'", "linear", "change"),
        ({"optimizer__learning_rate": -1.0}, "optimizer.learning_rate", "-1.0", "at least 0", "change"),
        ({"optimizer__decay_fraction": 0.0}, "optimizer.decay_fraction", "0.0", "above 0 and at most 1", "change"),
        ({"optimizer__muon_beta": 1.0}, "optimizer.muon_beta", "1.0", "at least 0 and below 1", "change"),
        ({"optimizer__muon_ns_steps": 0}, "optimizer.muon_ns_steps", "0", "at least 1", "change"),
        ({"optimizer__beta2": 1.5}, "optimizer.beta2", "1.5", "at least 0 and below 1", "change"),
        ({"optimizer__eps": -1.0}, "optimizer.eps", "-1.0", "at least 0 and finite", "change"),
        ({"optimizer__no_decay": "("}, "optimizer.no_decay", r"'\('", "regular expression", "correct it"),
        (
            {"optimizer__groups": "(('no/such',{'frozen':True}),)"},
            r"optimizer.groups\[0\]",
            "'no/such', which matches no parameter",
            "for example bert/embeddings",
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
        ({"checkpoint__best_mode": "least"}, "best_mode", "'least'", "min, max", "change"),
        ({"checkpoint__best_mode": "max"}, "best_mode", "max with best_metric=valid/masked_lm_loss", "min", "=min"),
        ({"checkpoint__keep": 0}, "checkpoint.keep", "0", "at least 1", "change"),
    ],
    ids=named,
)
def test_a_bad_value_is_reported_before_the_text_is_read(train, tmp_path, overrides, what, got, expected, fix):
    prepared = tmp_path / "prepared"
    message = train(data__prepared_dir=prepared, **overrides)
    check(message, what=what, got=got, expected=expected, fix=fix)
    assert not prepared.exists()
    assert not (tmp_path / "run").exists()


# Flags.


@pytest.mark.parametrize(
    ("flags", "what", "got", "expected", "fix"),
    [
        (["--config.num_stepz=3"], "config key num_stepz", "unknown key", "a key in", "'num_steps'"),
        (["--config.model.hidden=3"], "config key model.hidden$", "unknown key", "a key in", "'model.hidden_size'"),
        (
            ["--config.modle.hidden_size=3"],
            "config key modle.hidden_size",
            "unknown",
            "a key in",
            "'model.hidden_size'",
        ),
        (["--config.num_steps=many"], "--config.num_steps=many", "int", "documented in docs/", "correct"),
        (["--config.num_steps=1.5"], "--config.num_steps=1.5", "int", "documented in docs/", "correct"),
        (["--config.model.scan_layers=maybe"], "scan_layers=maybe", "boolean", "documented in docs/", "correct"),
        (["--config.optimizer.learning_rate=x"], "learning_rate=x", "float", "documented in docs/", "correct"),
        (["--config.mesh=3"], "--config.mesh=3", "dict", "documented in docs/", "correct"),
        (["--config.num_steps.more=3"], "key num_steps.more", "unknown", "a key in", "'num_steps'"),
        (["--wrkdir=runs/a"], "--wrkdir", "unknown flag", "--help", "'--workdir'"),
        (["--process_id=first"], "--process_id=first", "int", "--help", "correct"),
        (["--config.model.scan_layers", "maybe"], "arguments", "maybe", "flags only", "--name=value"),
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
            "^--config: variant$",
            "^'huge'$",
            "separated by commas: at most one of tiny, mini, .*; phase2$",
            "after the colon",
        ),
        (["--config=configs/nope.py:tiny"], "^--config$", "^No such file .*'configs/nope.py'$", "a config", "the path"),
        (["--config=configs/bert_pretraining.py"], "--config", "neither a size nor init_from", "a size", ":tiny"),
        ([], "--config", "none", "a file of configs/", "add --config="),
        (["--mode=predict"], "--workdir", "none, and no init_from", "a run", "--config.init_from=FOLDER"),
        (["--mode=evaluate"], "--workdir", "none, and no init_from", "a run", "--config.init_from=FOLDER"),
        (["--mode=train"], "--workdir", "none", "folder for the run", "add --workdir="),
    ],
    ids=named,
)
def test_a_missing_config(tmp_path, flags, what, got, expected, fix):
    workdir = [] if "--mode" in str(flags) else [f"--workdir={tmp_path / 'run'}"]
    config = ["--config=configs/bert_pretraining.py:tiny"] if "--mode" in str(flags) else []
    check(tiny.run(*config, *workdir, *flags).error, what=what, got=got, expected=expected, fix=fix)
    assert not (tmp_path / "run").exists()


def test_training_without_a_folder():
    message = tiny.run("--config=configs/bert_pretraining.py:tiny").error
    check(message, what="--workdir", got="none", expected="a folder", fix="--workdir=runs/NAME")


def test_a_config_in_addition_to_that_of_the_run(home):
    flags = [f"--workdir={home / 'run'}", "--config=configs/bert_pretraining.py:tiny"]
    message = tiny.run("--mode=predict", *flags).error
    check(message, what="--config", got="the run has its own config", expected="only --workdir", fix="omit")
