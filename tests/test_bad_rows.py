"""One-line messages for bad rows and config values of fine-tuning."""

import pytest

from tests import tiny
from tests.experiments.commands import flags, sizes
from tests.tiny import check_message as check
from tests.tiny import run_on_one as run

VALUES = {"batch_size": 8, "data.seq_len": 16, "data.valid_fraction": 0.3, **sizes(1, 16, 2, 16, 16)}
NUMBERS = {"objective": "regression"}
GOOD = "sentence\tlabel\na cat .\tyes\na dog .\tno\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with `rows.tsv` and their `vocabulary`."""
    tiny.write_table(home := tmp_path_factory.mktemp("bad_rows"))
    return home


@pytest.fixture
def train(home, tmp_path):
    """Returns a function that trains with other values and returns the message. No metrics may be logged."""

    def call(content: str | None = None, **overrides: object) -> str:
        values = {**VALUES, "data.source": home / "rows.tsv", "data.vocab_file": home / "vocabulary"}
        if content is not None:
            values["data.source"] = tmp_path / "rows.tsv"
            values["data.source"].write_text(content)
        values |= {key.replace("__", "."): value for key, value in overrides.items()}
        message = run("--config=configs/classification.py:tiny", f"--workdir={tmp_path / 'run'}", *flags(values)).error
        assert not (tmp_path / "run" / "metrics.jsonl").exists()
        return message

    return call


# Rows and files. The tests of readers have all messages.


def test_a_validation_label_that_no_training_row_has(train, tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na cat .\tyes\na bird .\tmaybe\n")
    message = train(GOOD, data__valid_source=tmp_path / "dev.tsv")
    what = rf"{tmp_path}/dev\.tsv:3$"
    check(message, what, "label 'maybe'", "one of no, yes", "add its class to the training rows")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_bad_row_if_the_config_does_not_depend_on_rows(train, tmp_path):
    lengths = dict.fromkeys(("num_steps", "evaluate_every", "checkpoint__save_every"), 1)
    message = train(GOOD + "a\t\n", data__labels="('no', 'yes')", **lengths)
    check(message, rf"{tmp_path}/rows\.tsv:4$", "an empty label", "a class", "correct the row")
    assert not (tmp_path / "run").exists()


def test_a_label_that_the_config_does_not_have(train, home):
    message = train(data__labels="('yes', 'maybe')")
    check(message, rf"{home}/rows\.tsv:\d+$", "label 'no'", "one of yes, maybe", "data.labels")


# Config values.


@pytest.mark.parametrize(
    ("overrides", "what", "got", "expected", "fix"),
    [
        ({"data__seq_len": 32}, "data.seq_len", "32", "8 to model.max_positions=16", "in this range"),
        ({"class_weights": "(1.0,)"}, "class_weights", r"\(1.0,\)", "each of no, yes", "in that order"),
        ({"class_weights": "(1.0, -1.0)"}, "class_weights", "-1.0", "0 or more", "in that order"),
        ({"class_weights": "(0.0, 0.0)"}, "class_weights", r"\(0.0, 0.0\)", "not all of them 0", "in that order"),
        ({"class_weights": "(1.0, 1e999)"}, "class_weights", "inf", "a number of 0 or more", "in that order"),
        ({"metrics": "('pearson',)"}, "metrics", "pearson with objective=class", "f1, macro_f1", "--config.metrics"),
        ({"metrics": "()"}, "checkpoint.final", "no checkpoint.best_metric", "defines the best", "best_metric"),
        ({"checkpoint__best_metric": "valid/f1"}, "best_metric", "'valid/f1'", "valid/accuracy, valid/loss", "mean"),
        ({"data__labels": "('yes',)"}, "data.labels", "yes", "two or more", "omit it"),
        ({"data__labels": "('yes', 'no', 'yes')"}, "data.labels", "yes, no, yes", "more different", "omit it"),
        ({"data__text_columns": "('label',)"}, "text_columns,label_column", "and 'label'", "different", "repeated"),
    ],
    ids=lambda value: ",".join(f"{key}={given}" for key, given in value.items()) if isinstance(value, dict) else "",
)
def test_a_bad_value(train, tmp_path, overrides, what, got, expected, fix):
    check(train(**overrides), what, got, expected, fix)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(("key", "value"), [("data__labels", "('a', 'b')"), ("class_weights", "(1.0, 2.0)")])
def test_classes_of_a_regression(train, key, value):
    message = train("sentence\tlabel\na\t1\nb\t2\nc\t3\nd\t4\n", **NUMBERS, **{key: value})
    check(message, "objective", "regression with .*2", "regression predicts", "omit them")


def test_a_metric_of_classes_for_a_regression(train):
    message = train("sentence\tlabel\na\t1\nb\t2\nc\t3\nd\t4\n", **{**NUMBERS, "metrics": "('f1',)"})
    check(message, "metrics", "f1 with objective=regression", "pearson, spearman", "metrics")


def test_f1_of_three_classes(train):
    rows = "sentence\tlabel\n" + "a\tx\nb\ty\nc\tz\n" * 9
    message = train(rows, metrics="('f1',)", checkpoint__best_metric="valid/f1")
    check(message, "config key metrics", "f1 with 3 classes", "two classes", "use macro_f1")
