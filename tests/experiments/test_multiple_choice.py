"""Multiple choice, from rows in the formats of SWAG and ARC to the choices of new questions."""

import json

import jax
import numpy as np
import pytest

from bertjax.data.codecs.choices import ChoiceCodec, ChoicesConfig
from bertjax.data.readers.lines import RowError
from bertjax.data.readers.tables import Row
from bertjax.data.rows.choice_rows import ChoiceRows
from bertjax.data.rows.text_rows import text_fields
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, flags, lines_of, settings_of, sizes, trained, tree_of
from tests.random_params import random_params
from tests.showing import shown

SMALL = {
    "batch_size": 16,
    "log_every": 50,
    **sizes(2, 64, 2, 64, 24),
    **NO_DROPOUT,
    "data.seq_len": 24,
    "data.valid_fraction": 0.1,
    "optimizer.learning_rate": 1e-3,
    "model.initializer_range": 0.1,
}


def ready(folder, variant="tiny", count=40, **values):
    tree = tree_of("multiple_choice", variant, {**SMALL, **tiny.write_choices(folder, count), **values})
    return tiny.ready(tree, folder / "kept")


def codec(variant):
    config = settings_of(ChoicesConfig, "multiple_choice", variant=variant, seq_len=24, source="x")
    return ChoiceCodec(config, WordPiece(SPECIALS, lowercase=True))


@pytest.mark.slow
def test_a_run_learns_and_scores_rows_with_another_number_of_choices(tmp_path):
    values = {**SMALL, **tiny.write_choices(tmp_path, 2000), "num_epochs": 6.0}
    workdir, _ = trained("multiple_choice.py:tiny", tmp_path, values)
    metrics = lines_of(workdir / "metrics.jsonl")
    assert metrics[0]["valid/chance_accuracy"] == 0.25
    assert metrics[-1]["valid/accuracy"] > 0.95

    text = b"likes bird\tthe dog sings\tthe bird runs\n"
    predicted = tiny.run_on_one("--mode=predict", f"--workdir={workdir}", stdin=text)
    record = json.loads(predicted.stdout)
    assert (record["label"], record["choice"]) == ("1", "the bird runs")
    assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5) and record["probabilities"]["1"] > 0.9
    choices = [f"the {animal} runs" for animal in ("cat", "bird", "dog", "fish", "horse")]
    question = {"stem": "likes bird", "choices": choices}
    (tmp_path / "arc.jsonl").write_text(json.dumps({"question": question, "answerKey": "1"}) + "\n")
    columns = {"context_column": "question.stem", "start_column": "", "choice_columns": "('question.choices',)"}
    other = {**columns, "label_column": "answerKey", "num_choices": 5, "test_source": tmp_path / "arc.jsonl"}
    of_data = flags({f"data.{key}": value for key, value in other.items()})
    evaluated = tiny.run_on_one("--mode=evaluate", f"--workdir={workdir}", *of_data)
    metrics = json.loads(evaluated.stdout)
    assert (metrics["test/accuracy"], metrics["test/chance_accuracy"]) == (1.0, 0.2)


@pytest.mark.parametrize(
    ("variant", "values"),
    [
        ("swag", {"sent1": "q", "sent2": "s", "ending0": "a", "ending1": "b", "ending2": "c", "ending3": "d"}),
        ("arc", {"question": {"stem": "q", "choices": [{"text": f"s {t}", "label": t} for t in "abcd"]}}),
    ],
)
def test_questions_in_both_formats(variant, values):
    label = {"swag": {"label": "2"}, "arc": {"answerKey": "c"}}[variant]
    found = codec(variant).labeled(Row({**values, **label}, "x:1"))
    assert found.context == "q"
    assert list(found.choices.values()) == ["s a", "s b", "s c", "s d"]
    assert list(found.choices).index(found.label) == 2


def test_every_truncated_choice_is_counted():
    row = Row({"sent1": "q " * 12, "sent2": "s", "label": 1, **{f"ending{i}": "a " * (6 * i) for i in range(4)}}, "x:1")
    found = codec("swag").labeled(row._replace(values={**row.values, "ending0": "a"}))
    assert codec("swag").training([found]).counts == {"choices": 4, "truncated": 2}


def test_choices_can_be_lists():
    arc = codec("arc")
    for choices in (["x", "y"], {"text": ["x", "y"], "label": ["0", "1"]}):
        row = Row({"question": {"stem": "q", "choices": choices}, "answerKey": 1}, "x:1")
        assert arc.labeled(row) == ("q", {"0": "x", "1": "y"}, "1")
    choices = [{"text": "x", "label": " A"}, {"text": "y", "label": "B "}]
    row = Row({"question": {"stem": "q", "choices": choices}, "answerKey": "B "}, "x:1")
    assert arc.labeled(row) == ("q", {"A": "x", "B": "y"}, "B")


@pytest.mark.parametrize(
    ("choices", "answer", "told"),
    [
        ("xy", "0", "got 'q', '', 'xy'; expected"),
        (["x"], "0", "two or more choices"),
        ([{"text": "x", "label": "A"}, {"text": "y", "label": "A"}], "A", "distinct labels"),
        ({"text": ["x", "y"]}, "0", "two or more choices"),
        ({"text": ["x", "y"], "label": ["A", "B", "C"]}, "A", "two or more choices"),
        ([{"text": "x", "label": "A"}, "y"], "A", "distinct labels"),
        (["x", "y"], "2", "'2' in column 'answerKey'; expected .* one of 0, 1"),
        (["x", "y\0"], "0", "a NUL character"),
        (list("abcdef"), "0", "6 choices.*at most 5 .data.num_choices"),
    ],
)
def test_bad_questions_are_reported(choices, answer, told):
    row = Row({"question": {"stem": "q", "choices": choices}, "answerKey": answer}, "x:1")
    with pytest.raises(RowError, match=told):
        codec("arc").labeled(row)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"text": "q"}, "without column 'choices'; its columns: 'text'; expected the column of"),
        ("q", "str for column 'question.choices'; expected an object with key 'choices'"),
    ],
)
def test_a_missing_key_is_reported(question, told):
    with pytest.raises(RowError, match=told):
        codec("arc").parse_row(Row({"question": question}, "x:1"))


def test_a_start_must_be_text():
    row = {"sent1": "q", "sent2": None, "ending0": "a", "ending1": "b", "ending2": "c", "ending3": "d"}
    with pytest.raises(RowError, match=r"'q', None, .*a start, and two"):
        codec("swag").parse_row(Row(row, "x:1"))
    start = codec("swag").parse_row(Row({**row, "sent2": ""}, "x:1"))
    assert start.choices["0"] == "a"


def test_a_table_without_the_start_column_is_reported(tmp_path):
    """The error is also raised if bad rows are skipped, because all rows would be bad."""
    task, *_ = ready(tmp_path, **{"data.on_bad_row": "skip"})
    (tmp_path / "in.csv").write_text("sent1,ending0,ending1,ending2,ending3\nq,a,b,c,d\n")
    with pytest.raises(UserError, match=r"no column 'sent2'.*set --config\.data\..*start_column"):
        list(task.examples_of(str(tmp_path / "in.csv")))


def test_missing_choices_do_not_count(tmp_path):
    """Questions that pad a batch do not count either."""
    task, data, *_ = ready(tmp_path)
    params, rows = random_params(task.init, scale=0.3), data.rows
    more = ChoiceRows(data.fields(), 6)
    loss = jax.jit(task.loss)
    batch, wider = (each.padded(np.array([3, 5, -1]), 24) for each in (rows, more))
    assert wider["input_ids"].shape == (3, 6, 24) and not wider["segment_ids"][:, 4:].any()
    (one, metrics), (two, _) = loss(params, batch, None), loss(params, wider, None)
    np.testing.assert_allclose(one["choice"], two["choice"], rtol=1e-5)
    alone = loss(params, rows.padded(np.array([3, 5]), 24), None)
    np.testing.assert_allclose(one["choice"], alone[0]["choice"], rtol=1e-5)
    assert metrics["accuracy"][1] == 2 and task.denominators(batch)["choice"] == 2


def test_each_choice_has_a_row(tmp_path):
    lines = [
        {"question": {"stem": stem, "choices": [{"text": text, "label": label} for label, text in choices.items()]},
         "answerKey": right}
        for stem, choices, right in [
            ("likes bird", {"A": "the bird runs", "B": "a dog"}, "A"),
            ("sees", {"1": "the small cat sings", "2": "cat", "3": "the big old dog sleeps"}, "3"),
            ("finds the red fish", {"A": "a fish", "B": "the bird runs and sings the a the a the a the a"}, "B"),
        ] * 10
    ]  # fmt: skip
    (tmp_path / "arc.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {"data.source": str(tmp_path / "arc.jsonl"), "data.valid_source": str(tmp_path / "arc.jsonl")}
    data = ready(tmp_path, "tiny,arc", **values, **{"data.seq_len": 12}).data
    train = [question for split, question in data.codec.splits() if split == "train"]
    texts = [(question.context, choice) for question in train for choice in question.choices.values()]
    rows = [text_fields([data.vocabulary.encode_batch(pair)], data.vocabulary, 12) for pair in texts]
    rows = [{name: field.values for name, field in row.items()} for row in rows]
    fields = data.fields()
    for name in ("input_ids", "token_type_ids"):
        np.testing.assert_array_equal(fields[name].values, np.concatenate([row[name] for row in rows]), strict=True)
        assert fields[name].lengths.tolist() == [len(row[name]) for row in rows]
    assert fields["choice"].tolist() == [0, 1, 0, 1, 2, 0, 1] * 10
    assert fields["label"].tolist() == [0, 0, 2, 2, 2, 1, 1] * 10
    assert (data.report()["choices"], data.report()["truncated"]) == (70, 10)
    batch = data.rows.padded(np.array([1, 2]), 12)
    assert batch["labels"].tolist() == [2, 1] and batch["labels"].dtype == np.int32
    for (question, choice), row in {(0, 0): 2, (0, 2): 4, (1, 0): 5, (1, 1): 6}.items():
        assert [id_ for id_ in batch["input_ids"][question, choice] if id_] == rows[row]["input_ids"].tolist()
    assert batch["segment_ids"].any(axis=-1).tolist() == [[True] * 3 + [False] * 2, [True] * 2 + [False] * 3]
    assert [example.source.item for example in data.validation_examples()] == train
    assert data.baselines() == {"valid/chance_accuracy": pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)}


def test_samples_show_questions_and_answers(tmp_path):
    task, data, *_ = ready(tmp_path)
    found = shown(task, data, tmp_path / "shown")
    for example, question in zip(found.examples, data.validation_examples(), strict=False):
        assert example["reference"] == question.source.item.choices[data.codec.gold(question.source.item)]
        assert [bar["percent"] for bar in example["bars"]] == [25.0] * 4
