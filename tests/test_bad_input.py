"""One-line messages for bad texts, config values and flags. The tests of readers have all messages about texts."""

import functools
import re

import pytest

from tests import tiny
from tests.tiny import check_message as check


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text, `text.txt`."""
    return tiny.write_text(tmp_path_factory.mktemp("bad_input") / "text.txt").parent


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


# Texts.


def test_the_line_of_a_bad_row_is_named(train, prepare, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x"}\n\n{"txt": "x"}\n')
    for call in (train, prepare):
        check(call(data__source=path), f"{path}:3$", "'txt'", "text_field", "data.text_field")


def test_a_bad_source(prepare):
    expected = "files relative to /.*documentation, tfds:NAME"
    check(prepare(data__source="no.txt"), "data.source=no.txt", "does not exist", expected, "correct the path")
    check(prepare(data__source=""), "data.source", "nothing", "text to train on", "--config.data.source=FILE")


def test_one_document_has_no_random_next_sentence(home, prepare, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text((home / "text.txt").read_text().replace("\n\n", "\n"))
    message = prepare(data__source=one, data__valid_source=home / "text.txt", data__prepared_dir=tmp_path / "prepared")
    check(message, "next-sentence", "1 document", "at least two", "next_sentence=False")


# Config values.


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("data.seq_len", 64, "at most model.max_positions=48"),
        ("data.stages[0]", ((0.5, 16, 1),), "a fraction of all updates between 0 and 1, and a length"),
        ("data.stages[0]", ((1.0, 16),), "between 0 and 1"),
        ("data.stages[0]", ((0.5, 4),), "at least 8"),
        ("data.stages", ((0.5, 8), (0.5, 16)), "less than 1"),
        ("data.stages", ((0.2, 16), (0.2, 8)), "increasing"),
        ("data.stages", ((0.2, 12),), "divide data.seq_len=32"),
        ("data.stages", ((0.2, 32),), "shorter"),
        ("accumulation_steps", 3, "divisor"),
        ("batch_size", 12, "multiple of 8, the devices"),
        ("checkpoint.best_metric", "valid/tokens", "valid/masked_lm_loss"),
        ("checkpoint.best_mode", "max", "min"),
    ],
)
def test_a_bad_value_is_reported_before_the_text_is_read(train, tmp_path, key, value, expected):
    check_refused(train, tmp_path, {key.partition("[")[0].replace(".", "__"): value}, re.escape(key), expected)


@pytest.mark.parametrize(
    ("overrides", "what", "expected"),
    [
        ({"masking__rate": 0.3, "masking__max_predictions": 6}, "masking.max_predictions$", "at least 10, a fraction"),
        ({"masking__final_rate": 0.3, "masking__max_predictions": 6}, "masking.max_predictions$", "at least 10"),
        ({"objective": "causal_lm", "model__direction": "left_to_right"}, "objective", "no next-sentence"),
        ({"objective": "causal_lm", "data__next_sentence": False}, "objective", "one direction"),
        ({"data__mixture": "(('a','documentation',1.0),)"}, "data.source", "'' with data.mixture"),
        ({"data__phases": "((0.5,{'seq_len':8}),)", "data__stages": "((0.5,8),)"}, "data.phases", "if data.stages"),
        ({"data__phases": "((0.2,{'seq_len':16}),(0.2,{'seq_len':8}))"}, "data.phases", "increase up to data.seq_len"),
        ({"data__phases": "((0.5,{'rate':0.3}),)", "masking__final_rate": 0.1}, "data.phases", "none with masking.fin"),
        ({"mesh__tensor": 2, "model__intermediate_size": 33}, "mesh.tensor", "a divisor of 33"),
        ({"mesh__tensor": 2, "parallel": "pmap"}, "parallel", "data axis"),
        ({"optimizer__groups": "(('no/such',{'frozen':True}),)"}, r"optimizer.groups\[0\]", "example bert/embeddings"),
    ],
)
def test_values_that_contradict_each_other(train, tmp_path, overrides, what, expected):
    check_refused(train, tmp_path, overrides, what, expected)


def check_refused(train, tmp_path, overrides, what, expected):
    message = train(data__prepared_dir=tmp_path / "prepared", **overrides)
    check(message, what, ".", expected, ".")
    assert list(tmp_path.iterdir()) == []


# Flags.


@pytest.mark.parametrize(
    ("flag", "what", "got", "expected", "fix"),
    [
        ("--config.num_steps=many", "--config.num_steps=many", "int", "a value as --keys describes", "correct"),
        ("--config.model.scan_layers=maybe", "scan_layers=maybe", "^'maybe'$", "^True or False$", "correct"),
        ("--config.data.text_field=('a','b')", "data.text_field", r"\('a','b'\), several values", "one value", "one"),
        ("--config.mesh=3", "--config.mesh=3", "dict", "a value as --keys describes", "correct"),
        ("--config.num_steps.more=3", "key num_steps.more", "unknown", "a key that", "'num_steps'"),
        ("--wrkdir=runs/a", "--wrkdir", "unknown flag", "--help", "'--workdir'"),
        ("--confg.seed=1", "--confg.seed", "unknown flag", "--help", "'--config.seed'"),
        ("maybe", "arguments", "maybe", "flags only", "--name=value"),
        ("--mode=fit", "--mode", "'fit'", "train, evaluate, predict", "one of these"),
        ("--distributed=maybe", "--distributed", "'maybe'", "auto, on, off", "one of these"),
    ],
)
def test_a_bad_flag(train, flag, what, got, expected, fix):
    check(train(flag), what, got, expected, fix)


TINY = "--config=configs/bert_pretraining.py:tiny"


@pytest.mark.parametrize(
    ("flags", "what", "got", "expected", "fix"),
    [
        ([f"{TINY},huge"], "^--config: variant$", "^'tiny,huge'$", "commas: at most one of tiny, .* minilm$", "after"),
        (["--config=configs/nope.py:tiny"], "^--config$", "^No such file .*'configs/nope.py'$", "a config", "the path"),
        ([], "--config", "none", "a file of configs/", "add --config="),
        ([TINY, "--mode=predict"], "--workdir", "none, and no init_from", "a run", "--config.init_from=FOLDER"),
        ([TINY, "--mode=evaluate"], "--workdir", "none, and no init_from", "a run", "--config.init_from=FOLDER"),
        ([TINY], "--workdir", "none", "folder for the run", "add --workdir="),
    ],
)
def test_a_missing_config(tmp_path, flags, what, got, expected, fix):
    workdir = [] if TINY in flags else [f"--workdir={tmp_path / 'run'}"]
    check(tiny.run(*workdir, *flags).error, what, got, expected, fix)
    assert not (tmp_path / "run").exists()


def test_a_config_in_addition_to_that_of_the_run(home):
    flags = [f"--workdir={home / 'run'}", "--config=configs/bert_pretraining.py:tiny"]
    message = tiny.run("--mode=predict", *flags).error
    check(message, "--config", "the run has its own config", "only --workdir", "omit")
