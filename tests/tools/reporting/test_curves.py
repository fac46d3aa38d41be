"""The pictures, read back: which lines there are, and where their points lie."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting.curves import learning_curves, main
from bertjax.tools.reporting.runs import read_run
from tests.tools.reporting.conftest import lines
from tests.tools.reporting.svg import SVG, elements, texts

ROOT = Path(__file__).parents[3]
SPLITS = ("train", "valid")


def drawn(svg: str) -> dict[str, list[tuple[float, float]]]:
    """The points, in the picture's own units, of each line that has an id of ours; y grows downwards."""
    found = {}
    for group in elements(svg, "g"):
        name = group.get("id", "")
        if "/" in name:
            path = group.find(f"{SVG}path")
            numbers = re.findall(r"[ML] (\S+) (\S+)", path.get("d"))
            found[name] = [(float(x), float(y)) for x, y in numbers]
    return found


def test_all_lines_of_a_run_are_drawn(make_run):
    svg = learning_curves({"a": make_run("r", lines([100, 200, 300]))}, "step")
    metrics = ["masked_lm_loss", "masked_lm_accuracy", "next_sentence_accuracy"]
    expected = {f"a/{split}/{metric}": 3 for split in SPLITS for metric in metrics}
    assert {name: len(points) for name, points in drawn(svg).items()} == {**expected, "a/unigram": 2, "a/majority": 2}
    found = texts(svg)
    assert {"a", "validation", "training", "unigram", "majority class", "step", "next-sentence accuracy"} <= set(found)


def test_points_lie_where_the_figures_are(make_run):
    lines_drawn = drawn(learning_curves({"a": make_run("r", lines([100, 200, 400]))}, "step"))
    valid, train, unigram = (lines_drawn[f"a/{n}"] for n in ("valid/masked_lm_loss", "train/masked_lm_loss", "unigram"))
    (x1, y1), (x2, y2), (x3, y3) = valid
    assert x3 - x2 == pytest.approx(2 * (x2 - x1), rel=1e-4)
    assert y3 - y2 == pytest.approx(2 * (y2 - y1), rel=1e-4)
    assert y2 > y1  # a lower loss is further down
    nat = y2 - y1  # 100 steps are one nat
    assert unigram[0][1] == pytest.approx(y1, rel=1e-4)  # both are 6 at step 100
    assert unigram[0][0] == pytest.approx(x1 - (x2 - x1), rel=1e-4)  # from step 0
    assert unigram[1][0] == pytest.approx(x3, rel=1e-4)  # to the end
    assert train[0][1] == pytest.approx(y1 - nat / 2, rel=1e-3)  # half a nat higher


def test_next_sentence_accuracy_is_drawn_with_the_majority_class(make_run):
    found = drawn(learning_curves({"a": make_run("r", lines([100, 200]))}, "step"))
    assert found["a/majority"][0][1] == pytest.approx(found["a/valid/next_sentence_accuracy"][1][1], rel=1e-4)


def test_runs_with_and_without_next_sentences_share_a_picture(make_run):
    runs = {
        "with": make_run("with", lines([100])),
        "without": make_run("without", lines([100], next_sentence=False)),
        "causal": make_run("causal", lines([100], next_sentence=False, objective="causal_lm"), objective="causal_lm"),
    }
    found = drawn(learning_curves(runs, "step"))
    assert {name for name in found if "next" in name} == {f"with/{s}/next_sentence_accuracy" for s in SPLITS}
    assert "causal/valid/causal_lm_loss" in found and "without/valid/masked_lm_loss" in found
    assert set(runs) <= set(texts(learning_curves(runs, "step")))


def test_a_second_phase_goes_on_where_the_first_ended(make_run):
    first = make_run("first", lines([100, 200]))
    second = make_run("second", lines([50, 100]), init_from=str(first))
    found = drawn(learning_curves({"a": second}, "step"))
    before, after = found["a/valid/masked_lm_loss/1"], found["a/valid/masked_lm_loss/2"]
    per_step = (before[1][0] - before[0][0]) / 100
    assert after[0][0] == pytest.approx(before[1][0] + 50 * per_step, rel=1e-4)
    assert after[1][0] == pytest.approx(before[1][0] + 100 * per_step, rel=1e-4)
    assert found["a/unigram/2"][0][0] == pytest.approx(found["a/unigram/1"][1][0], rel=1e-4)
    assert found["a/begins/2"][0][0] == pytest.approx(before[1][0], rel=1e-4)


@pytest.mark.parametrize("before", ["", "published", "itself"])
def test_what_is_not_a_run_begins_the_chain(make_run, tmp_path, before):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text("{}")
    folder = make_run("itself", lines([100]), init_from=str(tmp_path / before) if before else "")
    assert "a/valid/masked_lm_loss" in drawn(learning_curves({"a": folder}, "step"))


def test_tokens_on_the_axis(make_run):
    slow, fast = lines([100, 200]), lines([100, 200])
    for record in fast:
        if "train/step_seconds" in record:
            record["train/step_seconds"] *= 2  # twice the tokens in a step
    runs = {"slow": make_run("slow", slow), "fast": make_run("fast", fast)}
    found = drawn(learning_curves(runs, "tokens"))
    (x1, _), (x2, _) = found["slow/valid/masked_lm_loss"]
    (x3, _), (x4, _) = found["fast/valid/masked_lm_loss"]
    start = found["slow/unigram"][0][0]
    expected = [n * (x1 - start) for n in (1, 2, 2, 4)]
    assert [x - start for x in (x1, x2, x3, x4)] == pytest.approx(expected, rel=1e-3)


def test_the_same_folders_give_the_same_bytes(make_run, tmp_path):
    runs = {"a": make_run("r", lines([100, 200])), "b": make_run("s", lines([150]))}
    output = tmp_path / "pictures" / "new.svg"
    arguments = [f"--output={output}", *(f"{name}={folder}" for name, folder in runs.items())]
    command = [sys.executable, "-m", "bertjax.tools.reporting.curves", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)
    assert output.read_text() == learning_curves(runs, "step")
    assert "<dc:date>" not in output.read_text()


def test_a_line_that_was_being_written_is_left_out(make_run):
    folder = make_run("r", lines([100, 200]))
    whole = read_run(folder)
    assert whole.num_steps == 200
    for rest in ('{"step": 300, "valid/mas', '{"step"', "3", "{}"):
        text = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(text + rest)
        assert read_run(folder) == whole
        (folder / "metrics.jsonl").write_text(text)


def test_figures_that_are_not_finite_do_not_spoil_the_others(make_run):
    records = lines([100, 200, 300])
    records[4]["valid/masked_lm_loss"] = float("nan")
    found = drawn(learning_curves({"a": make_run("r", records)}, "step"))
    assert len(found["a/valid/masked_lm_loss"]) == 2


def test_a_log_without_metrics_to_draw(make_run):
    with pytest.raises(UserError, match="none of the metrics to draw"):
        learning_curves({"a": make_run("r", [{"step": 0}])}, "step")


def test_runs_without_a_pace_have_no_token_axis(make_run):
    folder = make_run("r", [{"step": 3, "valid/masked_lm_loss": 1.0}])
    with pytest.raises(UserError, match="no train/tokens_per_second"):
        learning_curves({"a": folder}, "tokens")


def test_without_the_drawing_library_the_extra_is_named(make_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=re.escape("pip install -e '.[report]'")):
        learning_curves({"a": make_run("r", lines([100]))}, "step")


def test_runs_of_other_tasks_have_their_loss_and_scores(make_run):
    records = [{"step": step, "train/loss": 1 / step, "valid/f1": step / 100} for step in (10, 20)]
    found = drawn(learning_curves({"a": make_run("r", records, objective="classification")}, "step"))
    assert {"a/train/loss", "a/valid/f1"} <= set(found)
    summaries = make_run("s", [{"step": 10, "train/loss": 0.35, "valid/loss": 2.9}], experiment="bertsum_ext")
    assert "a/train/loss" not in drawn(learning_curves({"a": summaries}, "step")), "it is a mean over other units"


@pytest.mark.parametrize("arguments", [["runs/mine"], ["a=no_such_folder"], ["a/seed0", "b/seed0"]])
def test_the_command_line_tells_mistakes_in_one_line(tmp_path, arguments):
    with pytest.raises(SystemExit, match=r"^error: .*expected.*Fix: "):
        main([f"--output={tmp_path / 'x.svg'}", *arguments])
    assert list(tmp_path.iterdir()) == []
