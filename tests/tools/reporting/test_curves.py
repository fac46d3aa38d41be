"""Learning curves: panels, points and errors."""

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting.curves import learning_curves, main
from bertjax.tools.reporting.runs import read_run
from tests.tools.reporting.conftest import lines

LOSS = "Masked-LM loss"
NEXT = "Next-sentence accuracy"


def curves(runs, against="step"):
    """The points of each line, by panel, run and split, and the number of its phase. Baselines are under "levels"."""
    lines_by_name = {"levels": []}
    for point in learning_curves(runs, against)["data"]["values"]:
        if "text" in point:
            lines_by_name["levels"].append((point["panel"], point["text"], point["y"]))
        else:
            key = tuple(point[name] for name in ("panel", "run", "split", "phase"))
            lines_by_name.setdefault(key, []).append((point["x"], point["y"]))
    return lines_by_name


def test_lines_of_a_run(make_run):
    points = curves({"a": make_run("r", lines([100, 200]))})
    panels = (LOSS, "Masked-LM accuracy", NEXT)
    assert points.keys() == {"levels"} | {
        (panel, "a", split, 0) for panel in panels for split in ("training", "validation")
    }
    assert points[LOSS, "a", "validation", 0] == [(100, 6), (200, 5)]
    assert points[LOSS, "a", "training", 0] == [(100, 6.5), (200, 5.5)]
    assert points["levels"] == [(LOSS, "unigram baseline 6", 6), (NEXT, "majority class 0.6", 0.6)]


def test_runs_with_different_baselines(make_run):
    records = lines([100])
    records[0]["valid/masked_lm_unigram_loss"] = 5.5
    points = curves({"a": make_run("a", lines([100])), "b": make_run("b", records)})
    assert [text for _, text, _ in points["levels"]] == [
        *("a, unigram baseline 6", "b, unigram baseline 5.5"),
        "majority class 0.6",
    ]
    assert (LOSS, "b", "validation", 1) in points


def test_a_phase_begins_where_the_previous_one_ends(make_run):
    first = make_run("first", lines([100, 200]))
    second = {"a": make_run("second", lines([50, 100]), init_from=str(first))}
    for against, scale in (("step", 1), ("tokens", 1000)):
        points = curves(second, against)
        assert [x for x, _ in points[LOSS, "a", "validation", 0]] == [100 * scale, 200 * scale]
        assert [x for x, _ in points[LOSS, "a", "validation", 1]] == [250 * scale, 300 * scale]


@pytest.mark.parametrize("before", ["", "published", "itself"])
def test_a_chain_begins_after_what_is_not_a_run(make_run, tmp_path, before):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text("{}")
    folder = make_run("itself", lines([100]), init_from=str(tmp_path / before) if before else "")
    assert (LOSS, "a", "validation", 0) in curves({"a": folder})


def test_command_line(make_run, tmp_path):
    runs = [f"{name}={make_run(name, lines([100, 200]))}" for name in ("one", "other")]
    output = tmp_path / "new" / "curves.svg"
    main([f"--output={output}", *runs])
    content = output.read_text()
    for text in ("one", "other", "validation", "unigram baseline 6", LOSS):
        assert content.count(f">{text}</text>") == 1


def test_a_line_that_was_being_written_is_left_out(make_run):
    folder = make_run("r", lines([100, 200]))
    whole = read_run(folder)
    assert whole.num_steps == 200
    for rest in ('{"step": 300, "valid/mas', '{"step"', "3", "{}"):
        text = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(text + rest)
        assert read_run(folder) == whole
        (folder / "metrics.jsonl").write_text(text)


def test_a_value_that_is_not_finite_is_a_gap(make_run):
    records = lines([100, 200])
    records[2]["valid/masked_lm_loss"] = float("nan")
    assert curves({"a": make_run("r", records)})[LOSS, "a", "validation", 0] == [(100, None), (200, 5)]


def test_a_log_without_metrics_to_draw(make_run):
    with pytest.raises(UserError, match="none of the metrics to draw"):
        learning_curves({"a": make_run("r", [{"step": 0}])}, "step")


def test_runs_without_a_pace_have_no_token_axis(make_run):
    folder = make_run("r", [{"step": 3, "valid/masked_lm_loss": 1.0}])
    with pytest.raises(UserError, match="no train/tokens_per_second"):
        learning_curves({"a": folder}, "tokens")


@pytest.mark.parametrize("runs", [["runs/mine"], ["a=no_such_folder"], ["a/seed0", "b/seed0"]])
def test_command_line_errors_are_one_line(tmp_path, runs):
    with pytest.raises(SystemExit, match=r"^error: .*expected.*Fix: "):
        main([f"--output={tmp_path / 'x.svg'}", *runs])
    assert list(tmp_path.iterdir()) == []
