"""Results of run folders, and their tables."""

import csv
import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from bertjax.configs.sweeps import parts
from bertjax.tools.sweeps import expansion, results, tables
from tests.tools.sweeps import made

# By row and seed; one seed of "No A & B" is missing.
F1 = {
    ("base", 0): 0.5,
    ("base", 1): 0.6,
    ("base", 2): 0.55,
    ("No A", 0): 0.52,
    ("No A", 1): 0.64,
    ("No A", 2): 0.6,
    ("No A & B", 0): 0.3,
    ("No A & B", 2): 0.36,
}
SEEDS = (0, 1, 2)


def runs_of(sweep, workdir):
    return expansion.runs(sweep, expansion.recipes(sweep, (), made.load), SEEDS, SEEDS[0], workdir, {})


def results_of(workdir, metrics_of, name="b", **changed):
    """A sweep with two rows, and the results of its runs, whose metrics are those of `metrics_of`."""
    sweep = made.sweep(rows=[parts.row("base"), parts.row(name, {"task.size": 2})], **changed)
    runs = runs_of(sweep, workdir)
    for run in runs:
        made.write_run(run.folder, metrics_of(run))
    return sweep, results.collect(sweep, runs, SEEDS, frozenset())


@pytest.fixture
def collected(tmp_path):
    """A sweep, its run folders, and their results."""
    sweep = made.sweep()
    runs = runs_of(sweep, tmp_path)
    for run in runs:
        value = F1.get((run.keys[0].row, run.keys[0].seed), 0.0) if run.keys[0].stage == "task" else 0.0
        made.write_run(run.folder, {"valid/f1": value, "valid/loss": 1.0})
    missing = next(run.folder for run in runs if run.name == "no-a-b-task-seed1")
    return sweep, runs, results.collect(sweep, runs, SEEDS, frozenset([missing]))


@pytest.mark.parametrize(("name", "direction"), [("valid/loss", ""), ("valid/size", "min")])
def test_lower_is_better_for_losses_and_with_direction_min(tmp_path, name, direction):
    metric = parts.metric("ppl", "task", name, "exponential", direction)
    _, found = results_of(tmp_path, lambda run: {name: 1.0 if "b-task" in run.name else 2.0}, metrics=[metric])
    assert [line.cells[0].score.mean for line in found.lines] == pytest.approx([math.exp(2), math.e])
    assert [line.cells[0].is_best for line in found.lines] == [False, True]


def test_rows_of_baselines_and_intervals_of_one_seed(tmp_path):
    scores = {"test/rouge1": 30.0, "test/rouge1_low": 29.0, "test/rouge1_high": 31.5, "test/lead_rouge1": 28.0}
    rows = [parts.row("LEAD", baseline="lead"), parts.row("model")]
    sweep = made.sweep(rows=rows, base="LEAD", metrics=[parts.metric("ROUGE-1", "task", "test/rouge1", digits=1)])
    runs = expansion.runs(sweep, expansion.recipes(sweep, (), made.load), (0,), 0, tmp_path, {})
    assert runs[-1].metrics == ("test/lead_rouge1", "test/rouge1"), "both rows share a run"
    for run in runs:
        made.write_run(run.folder, scores)
    found = results.collect(sweep, runs, (0,), frozenset())
    lead, model = ([entry.text for entry in row] for row in tables.make(sweep, found).rows)
    assert lead[:4] == ["LEAD", "1", "28.0", "-"] and lead[-3:] == ["-"] * 3
    assert model[:4] == ["model", "1", "30.0 [29.0, 31.5]", "+2.0"] and model[-3] == "4.0"


def test_the_chart_of_cost_has_intervals_over_seeds(tmp_path):
    metrics = [parts.metric("F1", "task", "valid/f1"), parts.metric("ms", "task", "valid/row_seconds", "milliseconds")]
    sweep, found = results_of(
        tmp_path,
        lambda run: {"valid/f1": 50.0 + run.keys[0].seed, "valid/row_seconds": 0.002},
        metrics=metrics,
        cost="ms",
    )
    (chart,) = tables.tradeoffs(sweep, found)
    point = chart["points"][0]
    ends = stats.t.interval(0.95, len(SEEDS) - 1, 50 + np.mean(SEEDS), stats.sem(SEEDS))
    assert (chart["cost"], chart["score"], point["row"]) == ("ms", "F1", "base")
    assert (point["score_low"], point["score_high"]) == pytest.approx(ends)
    assert (point["cost_low"], point["cost"], point["cost_high"]) == pytest.approx((2.0, 2.0, 2.0))


def test_training_metrics_are_medians_over_log_lines(tmp_path):
    speed = parts.metric("tokens/s", "task", "train/tokens_per_second")
    sweep = made.sweep(metrics=[speed], rows=[parts.row("base")], seeds=(0,))
    runs = runs_of(sweep, tmp_path)
    for run in runs:
        made.write_run(run.folder, {"valid/f1": 1.0})
        with (run.folder / "metrics.jsonl").open("a") as log:
            for step, value in enumerate((900.0, 7.0, 8.0)):
                log.write(json.dumps({"step": 5 + step, "train/tokens_per_second": value}) + "\n")
    (line,) = results.collect(sweep, runs, (0,), frozenset()).lines
    assert line.cells[0].score.mean == 9.0  # of 10, 900, 7 and 8


# Problems of a run's folder are reported, and the rest of the table is complete.


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (shutil.rmtree, "no such folder|no readable config.json"),
        (lambda folder: (folder / "config.json").write_text('{"num_st'), "no readable config.json"),
        (lambda folder: (folder / "metrics.jsonl").write_text(""), "no metrics yet"),
        (
            lambda folder: (folder / "metrics.jsonl").write_text('{"step": 4, "train/loss": 1}\n'),
            "run .*: got no validation metrics; expected an evaluation. Fix: resume",
        ),
        (
            lambda folder: (folder / "metrics.jsonl").write_text('{"step": 4, "valid/loss": 1.0}\n'),
            r"metric 'score': got no valid/f1 in .*; expected one of valid/loss",
        ),
    ],
)
def test_an_unreadable_folder(collected, damage, problem):
    sweep, runs, _ = collected
    damage(next(run.folder for run in runs if run.name == "no-a-task-seed1"))
    found = results.collect(sweep, runs, SEEDS, frozenset())
    assert len(found.problems) == 1
    assert re.search(f"^no-a-task-seed1: .*({problem})", found.problems[0])
    assert [line.seeds for line in found.lines] == [3, 2, 3]


def test_a_metric_that_no_run_has(collected):
    sweep, runs, _ = collected
    wrong = dataclasses.replace(sweep, metrics=(dataclasses.replace(sweep.metrics[0], figure="valid/f2"),))
    found = results.collect(wrong, runs, SEEDS, frozenset())
    assert len(found.problems) == 9
    assert "got no valid/f2 in" in found.problems[0] and "expected one of valid/f1, valid/loss" in found.problems[0]
    line = tables.as_text(tables.make(wrong, found)).splitlines()[1]
    assert " ".join(line.split()) == "base 0 - 50 4.0 2.4k -"


# Tables.


def test_a_table_computed_by_hand(collected):
    sweep, _, found = collected
    text = tables.as_text(tables.make(sweep, found))
    # Two stages of 4 steps of 30 s and 300 tokens each.
    assert text.splitlines()[:5] == [
        "row       seeds       score                 vs base  paper  minutes  tokens  parameters",
        "base          3  55.0 ± 5.0                       -     50      4.0    2.4k           -",
        "No A          3  58.7 ± 6.1 *   +3.7 [-0.1, +7.5] ≈      -      4.0    2.4k           -",
        "No A & B      2  33.0 ± 4.2    -19.5 [-25.9, -13.1]     45      4.0    2.4k           -",
        "",
    ]
    assert "paired t-test; ≈ where it covers 0." in text
    assert text.endswith("Paper: nowhere\n")


def test_markdown(collected):
    sweep, _, found = collected
    lines = tables.as_markdown(tables.make(sweep, found)).splitlines()
    assert lines[3] == "| No A | 3 | **58.7 ± 6.1** | +3.7 [-0.1, +7.5] ≈ | - | 4.0 | 2.4k | - |"
    assert {line.count("|") for line in lines[:5]} == {9}
    assert lines[1] == "| --- |" + " ---: |" * 7


def test_json_has_the_table_and_its_sort_keys(collected):
    sweep, _, found = collected
    table = json.loads(tables.as_json(tables.make(sweep, found), ()))
    assert table["header"] == ["row", "seeds", "score", "vs base", "paper", "minutes", "tokens", "parameters"]
    assert table["rows"][1][2] == {"text": "58.7 ± 6.1", "best": True, "value": found.lines[1].cells[0].score.mean}
    assert table["rows"][1][3]["value"] == found.lines[1].cells[0].difference.mean
    assert [cell["text"] for cell in table["rows"][2][4:]] == ["45", "4.0", "2.4k", "-"]
    assert table["notes"][-1] == "Paper: nowhere"


def test_csv_reads_back(collected):
    sweep, _, found = collected
    rows = list(csv.DictReader(tables.as_csv(sweep, found).splitlines()))
    assert [row["row"] for row in rows] == ["base", "No A", "No A & B"]
    for row, line in zip(rows, found.lines, strict=True):
        cell = line.cells[0]
        assert float(row["score mean"]) == cell.score.mean
        assert float(row["score std"]) == cell.score.std
        assert int(row["score seeds"]) == line.seeds
        if cell.difference:
            numbers = [float(row[f"score {part}"]) for part in ("difference", "low", "high", "p")]
            assert numbers == list(cell.difference)
        assert float(row["minutes"]) == pytest.approx(4.0)
    assert (rows[0]["score difference"], rows[1]["score paper"], rows[0]["parameters"]) == ("", "", "")


NAME = r"a & b_c % $x$ # {y} ~ ^ \ < > | ± ≈ é · −"


@pytest.mark.parametrize("first", [NAME, "[a]", "*b"])
def test_latex_is_well_formed(tmp_path, first):
    latex = tables.as_latex(tables.make(*results_of(tmp_path, lambda run: {"valid/f1": 0.5}, name=first)))
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    assert re.fullmatch(r"\\begin\{tabular\}\{lr+\}", body[0]) and body[-1] == r"\end{tabular}"
    columns = body[0].count("r", len(r"\begin{tabular}{l")) + 1
    rows = [line for line in body if line.endswith(r" \\")]
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == columns - 1
        assert len(re.findall(r"(?<!\\)\$", row)) % 2 == 0
        assert len(re.findall(r"(?<!\\)\{", row)) == len(re.findall(r"(?<!\\)\}", row))
        assert not re.search(r"(?<!\\)[#%_]", row)
        assert not row.startswith(("[", "*"))  # LaTeX would parse it as an option of the previous row


def test_notes_list_stages_with_one_seed():
    stages = [parts.stage("pretrain", "p.py", one_seed=True), parts.stage("task", "t.py", {}, "pretrain")]
    sweep = made.sweep(stages=stages)
    assert "Run with the first seed only: pretrain." in tables.make(sweep, results.Results((), ())).notes


def test_nonfinite_scores_are_shown_and_are_not_best(tmp_path):
    metrics = [parts.metric("perplexity", "task", "valid/f1", "exponential", digits=1)]
    values = {"base": 1000.0, "b": math.nan}
    sweep, found = results_of(tmp_path, lambda run: {"valid/f1": values[run.keys[0].row]}, metrics=metrics)
    assert [line.cells[0].is_best for line in found.lines] == [True, False]
    table = tables.make(sweep, found)
    assert [row[2].text for row in table.rows] == ["inf ± nan", "nan ± nan"]
    content = json.loads(tables.as_json(table, ()), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert [row[2]["value"] for row in content["rows"]] == [None, None]


def test_a_source_of_two_lines_becomes_one_comment():
    latex = tables.as_latex(tables.make(made.sweep(source="a paper,\nand another"), results.Results((), ())))
    assert "% Paper: a paper, and another\n" in latex
