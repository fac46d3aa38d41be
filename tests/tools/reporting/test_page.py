"""The pages, read back: what stands where, and that they need nothing else."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting import libraries, page, panels
from bertjax.tools.reporting.results import Place
from bertjax.tools.reporting.runs import read_run
from bertjax.tools.reporting.verdict import of_runs
from tests.tools.reporting.conftest import lines
from tests.tools.reporting.pages import Page


@pytest.fixture
def with_vega():
    """Asked for by tests of whole pages."""


@pytest.fixture(autouse=True)
def _without_vega(monkeypatch, request):
    """What brings Vega takes a second, and most tests look at the rest."""
    if "with_vega" not in request.fixturenames:
        monkeypatch.setattr(libraries, "vega", lambda: libraries.trusted("0;"))


def read(path: Path) -> Page:
    return Page(path.read_text())


def test_a_run_is_one_page_that_needs_nothing_else(make_run):
    folder = make_run("r", lines([100, 200]), data={"source": "<texts>/*.txt"})
    path = page.write(folder)
    assert path == folder / "report.html"
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "metrics.jsonl", "report.html"]
    found = read(path)
    assert set(found.loads) <= {"data:,"}
    assert "default-src 'none'" in path.read_text()
    metrics = {row[-1]: row[:-1] for row in found.tables["last-metrics"]}
    assert metrics["valid/masked_lm_loss"] == ["Masked-LM loss", "validation", "5", "200", "6"]
    assert metrics["valid/masked_lm_unigram_loss"][:3] == ["Masked-LM loss, unigram baseline", "validation", "6"]
    config = {row[0]: row[1] for row in found.tables["keys"]}
    assert json.loads(config["data.source"]) == "<texts>/*.txt"
    assert {"curves", "metrics", "config"} <= found.ids
    assert not {"samples", "attention", "environment", "results", "comparison"} & found.ids


def verdict(path: Path) -> str:
    """The text of the head of a page, with single spaces."""
    return re.sub(r"\s+", " ", read(path).sections["verdict"])


def test_the_verdict_compares_the_main_metric_with_its_baseline(make_run):
    checkpoint = {"best_metric": "valid/masked_lm_loss", "best_mode": "min", "final": "latest"}
    folder = make_run("r", lines([100, 200, 300]), checkpoint=checkpoint)
    environment = {"devices": {"cpu (cpu)": 1}, "parameters": 1234567, "commit": "0123456789ab-dirty"}
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "goodput.jsonl").write_text(json.dumps({"step": 300, "kind": "step", "seconds": 600.0}))
    text = verdict(page.write(folder))
    assert "Finished: 300 steps" in text
    assert "Masked-LM loss validation, lower is better 4 −2 against the unigram baseline (6)" in text
    assert "0.3Masked-LM accuracy validation, higher is better" in text
    assert "Duration10.0 minutesDevice" in text and "Device1 × cpuParameters1,234,567" in text
    assert "Commit0123456789ab-dirty" in text
    usage = {"seconds": 1800.0, "memory": 1.5 * 2**30, "device_memory": 2**31}
    (folder / "environment.json").write_text(json.dumps({**environment, "usage": usage}))
    text = verdict(page.write(folder))
    assert "Duration10.0 minutes of training, 30.0 minutes in all" in text
    assert "Memory1.50 GiB (process), 2.00 GiB (device)" in text
    assert "usage" not in read(folder / page.NAME).sections["environment"]


def test_the_verdict_leaves_out_unknown_facts(make_run):
    text = verdict(page.write(make_run("r", [{"step": 100, "train/loss": 1.0}])))
    assert text.strip().startswith("Not finished: 100 of 300 steps Curves")


def test_a_difference_of_rounding_from_the_baseline_is_none(make_run):
    log = [{"step": 0, "valid/majority_accuracy": 0.6}, {"step": 300, "valid/accuracy": 0.6 - 8.67e-9}]
    text = verdict(page.write(make_run("r", log, checkpoint={"best_metric": "valid/accuracy"})))
    assert "0.6 equal to the majority class (0.6)" in text


def test_the_verdict_of_a_run_that_stopped_early(make_run):
    log = [{"step": step, "valid/accuracy": score} for step, score in ((50, 0.9), (100, 0.2))]
    folder = make_run("r", log, checkpoint={"best_metric": "valid/accuracy"}, evaluate_patience=1)
    text = verdict(page.write(folder))
    assert text.strip().startswith("Stopped early: 100 of 300 steps") and page.read_run(folder).is_finished


@pytest.mark.parametrize(("final", "value"), [("best", "0.9 +0.4"), ("latest", "0.2 −0.3")])
def test_the_verdict_is_of_the_final_checkpoint(make_run, final, value):
    log = [{"step": 0, "valid/majority_accuracy": 0.5}]
    log += [{"step": step, "valid/accuracy": score} for step, score in ((100, 0.9), (300, 0.2))]
    checkpoint = {"best_metric": "valid/accuracy", "best_mode": "max", "final": final}
    found = verdict(page.write(make_run("r", log, checkpoint=checkpoint)))
    assert f"higher is better {value} against the majority class (0.5)" in found
    assert f"Evaluatedstep {100 if final == 'best' else 300} of 300" in found


@pytest.mark.parametrize(
    ("best", "main"), [("", "ROUGE-1 F1 validation, higher is better 3 +2 against"), ("valid/rouge2", "ROUGE-2 F1")]
)
def test_the_main_metric_selects_checkpoints_or_else_has_a_baseline(make_run, best, main):
    log = [{"step": 0, "valid/oracle_rouge2": 9.0, "valid/lead_rouge1": 1.0}]
    log += [{"step": 300, "valid/loss": 0.5, "valid/rouge2": 2.0, "valid/rouge1": 3.0}]
    found = verdict(page.write(make_run("r", log, checkpoint={"best_metric": best})))
    assert f"Finished: 300 steps {main}" in found and "+2 against the lead sentences (1)" in found


def test_a_run_from_trained_weights_is_compared_with_these(make_run):
    """Before the first evaluation of updates, none of the scores is a baseline of another metric."""
    log = [{"step": 0, "valid/masked_lm_unigram_loss": 6.0}, {"step": 0, "valid/masked_lm_loss": 2.5}]
    log.append({"step": 300, "train/loss": 3.0, "train/masked_lm_loss": 3.0})
    started = make_run("r", log)
    assert page.read_run(started).levels() == {"masked_lm_unigram_loss": 6.0}
    page.write(started)
    found = verdict(page.write(make_run("s", [*log, {"step": 300, "valid/masked_lm_loss": 2.0}])))
    assert "lower is better 2 −0.5 against the weights before training (2.5)" in found


def test_the_best_run_is_compared_with_its_own_baseline(make_run, tmp_path):
    logs = {"a": (5.0, 4.0), "b": (3.0, 4.5)}  # the baseline and the loss
    runs = {}
    for name, (level, loss) in logs.items():
        records = [{"step": 0, "valid/unigram_loss": level}, {"step": 300, "valid/loss": loss}]
        runs[name] = make_run(name, records)
    (tmp_path / "page.html").write_text(page.of_runs(runs))
    assert "4 best run: a −1 against the unigram baseline (5)" in verdict(tmp_path / "page.html")


def test_minimal_pairs_have_their_interval_and_their_number(make_run):
    names = {"accuracy": 0.9, "accuracy_low": 0.6, "accuracy_high": 0.98, "shorter_accuracy": 0.7, "total": 10.0}
    folder = make_run("r", [{"step": 300, **{f"valid/pairs/{name}": value for name, value in names.items()}}])
    text = page.write(folder).read_text()
    assert "90.0 % (60.0 to 98.0), n = 10" in text
    assert '<i style="left: 60.0%; width: 38.0%"></i><b style="left: 70.0%"></b>' in text


def test_prepared_rows_are_counted_on_the_page(make_run):
    folder = make_run("r", lines([100]))
    report = {"rows": {"train": 5000, "valid": 10}, "duplicates": 3, "classes": {"train": {"yes": 2400}, "valid": {}}}
    report["removal_samples"] = {"min_words": ["See also", "Home"]}
    (folder / "rows.json").write_text(json.dumps(report))
    found = read(page.write(folder))
    assert "rows" in found.ids and "Duplicates are training rows" in found.sections["rows"]
    counts = {"rows: train": "5,000", "rows: valid": "10", "duplicates": "3", "classes: train: yes": "2,400"}
    samples = [["removal_samples: min_words", text] for text in ("See also", "Home")]
    assert found.tables["row-counts"][1:] == [*(list(item) for item in counts.items()), *samples]


def test_the_curves_have_their_directions_and_axes(make_run):
    found = read(page.write(make_run("r", lines([100, 200])))).data["curves"]
    panels = {panel["title"]: panel for panel in found["panels"]}
    loss = panels["Masked-LM loss"]
    assert loss["better"] == "lower is better"
    assert not any("unigram" in title for title in panels)
    assert found["runs"][0]["axes"]["tokens"] == [[0, 0.0], [100, 1e5], [200, 2e5]]
    assert found["runs"][0]["axes"]["hours"][-1] == [200, pytest.approx(400 / 3600, rel=1e-4)]
    assert not panels["Seconds per step"]["primary"] and loss["primary"]


@pytest.mark.parametrize(
    ("config", "titles"),
    [
        ({}, ["Loss"]),
        *((config, ["Loss", "Training loss"]) for config in ({"experiment": "bertsum_ext"}, {"class_weights": [1, 2]})),
    ],
)
def test_losses_that_do_not_compare_have_charts_of_their_own(make_run, config, titles):
    folder = make_run("r", [{"step": 100, "train/loss": 0.35}, {"step": 100, "valid/loss": 2.9}], **config)
    assert [panel["title"] for panel in read(page.write(folder)).data["curves"]["panels"]] == titles


def test_a_second_phase_goes_on_where_the_first_ended(make_run):
    first = make_run("first", lines([100, 200]))
    found = read(page.write(make_run("second", lines([50]), init_from=str(first)))).data["curves"]
    assert [(run["name"], run["offset"]) for run in found["runs"]] == [("1. first", 0), ("2. second", 200)]


def test_the_config_begins_with_the_keys_that_differ_from_its_file(make_run):
    folder = make_run("r", lines([100]), seed=3)
    environment = {"command": ["launch.py", "--config.seed=3 4"], "python": "3.11"}
    environment["defaults"] = {"seed": 0, "num_steps": 300}
    (folder / "environment.json").write_text(json.dumps(environment))
    found = read(page.write(folder))
    names = ("keys", "differing", "derived")
    rows, differing, derived = ({row[0]: row[1:] for row in found.tables[name]} for name in names)
    assert rows["seed"] == differing["seed"] == ["3", "0"] and len(differing) == 2  # with the header
    assert rows["num_steps"] == ["300", "300"] and "num_steps" not in derived
    assert len(derived) == 4 and "objective" in derived
    assert "Keys that differ from the config's file: 4 of 5." in found.sections["config"]
    assert "launch.py '--config.seed=3 4'" in found.sections["environment"]


def test_the_learning_rate_comes_first_in_its_fold(make_run):
    records = [{**record, "train/learning_rate": 0.1} for record in lines([100])]
    drawn = panels.panels({"run": panels.Phase(read_run(make_run("r", records)), (0.0, 0.0, 0.0))})
    first = page._curves(drawn)["stages"][0]["others"][0]
    assert drawn["panels"][first]["title"] == "Learning rate"


def test_stages_are_marked_where_they_begin(make_run):
    folder = make_run("r", lines([100]), data={"stages": [[0.5, 16], [0.2, 32]], "seq_len": 64})
    (run,) = read(page.write(folder)).data["curves"]["runs"]
    assert run["stages"] == [[150, "32 tokens"], [210, "64 tokens"]]


def test_colors_of_both_signs_have_blank_zero():
    assert page._ends({"low": -0.2, "high": 0.5}) == (-0.5, 0.5)
    assert page._ends({"low": 0.0, "high": 0.5}) == (0.0, 0.5)


def test_time_comes_from_the_ledger(make_run):
    folder = make_run("r", lines([100]))
    kinds = {"init": 2.0, "compile": 8.0, "step": 30.0, "evaluation": 10.0}
    ledger = [{"kind": kind, "seconds": seconds / 2, "step": 1} for kind, seconds in kinds.items()]
    killed = [{"kind": "step", "seconds": 5.0, "step": 9}, {"kind": "lost", "seconds": 5.0, "step": 1}]
    (folder / "goodput.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ledger * 2 + killed))
    found = read(page.write(folder))
    parts = re.findall(r"(\w+) ([\d.]+) seconds, ", found.sections["goodput"])
    assert parts == [
        ("step", "30.0"), ("init", "2.0"), ("compile", "8.0"), ("evaluation", "10.0"), ("lost", "5.0"),
    ]  # fmt: skip
    assert "54.5 % of 55.0 seconds" in found.sections["goodput"]


def test_nothing_that_a_run_says_gets_out_of_its_place(make_run):
    evil = "</script><script>alert(1)</script>"
    records = [{"step": step, f"valid/{evil}": float(step)} for step in (1, 2)]
    folder = make_run("r", records, experiment=evil, init_from=evil)
    text = page.write(folder).read_text()
    assert evil not in text and "<script>alert" not in text
    assert evil in [panel["title"] for panel in Page(text).data["curves"]["panels"]]


def test_runs_side_by_side(make_run, tmp_path):
    runs = {"a": make_run("r", lines([100]), seed=1), "b": make_run("s", lines([100]), seed=2)}
    output = tmp_path / "pages" / "both.html"
    page.main([f"--output={output}", *(f"{name}={folder}" for name, folder in runs.items())])
    found = read(output)
    assert [run["name"] for run in found.data["curves"]["runs"]] == ["a", "b"]
    assert found.tables["keys"][0] == found.tables["differing"][0] == ["key", "a", "b"]
    assert found.tables["differing"][1:] == [["seed", "1", "2"]]


def test_several_runs_show_the_environment_that_they_share(make_run, tmp_path):
    runs = {name: make_run(name, lines([300])) for name in "ab"}
    for number, folder in enumerate(runs.values()):
        environment = {"command": [f"launch{number}.py"], "Python": "3.11", "cores": number, "commit": f"c{number}"}
        (folder / "environment.json").write_text(json.dumps(environment))
    (tmp_path / "page.html").write_text(page.of_runs(runs))
    found = read(tmp_path / "page.html").sections
    assert "3.11" in found["environment"] and "cores" not in found["environment"]
    assert "launch" not in found["environment"] and "Commitc0, c1" in found["verdict"]


@pytest.mark.parametrize(
    ("losses", "told"), [((math.nan, 5.0), "5 best run: b"), ((math.nan,), "not finite best run: a")]
)
def test_a_run_that_is_not_finite_is_not_the_best(make_run, tmp_path, losses, told):
    runs = {name: make_run(name, [{"step": 300, "valid/loss": loss}]) for name, loss in zip("ab", losses, strict=False)}
    (tmp_path / "page.html").write_text(page.of_runs(runs))
    assert told in verdict(tmp_path / "page.html")


def test_a_sweep_is_headed_by_the_best_mean_over_seeds(make_run):
    losses = {"a-0": 1.0, "a-1": 6.0, "b-0": 2.0, "b-1": 3.0}
    runs = {name: read_run(make_run(name, [{"step": 300, "valid/loss": loss}])) for name, loss in losses.items()}
    places = {name: Place(name[0], "train") for name in runs}
    main = of_runs(runs, [], None, places, 0)["main"]
    assert main["value"] == "2.5"
    assert main["of"] == "best row: b, mean of 2 seeds, 95 % interval -3.853 to 8.853"


def test_the_final_metrics_of_runs_are_compared(make_run, tmp_path):
    steps = {"long": 300, "short": 100, "equal": 300}
    runs = {name: make_run(name, lines([step])) for name, step in steps.items()}
    (tmp_path / "page.html").write_text(page.of_runs(runs))
    found = read(tmp_path / "page.html")
    header, *rows = found.tables["final-0"]
    assert header[:2] == ["run", "Masked-LM loss validation, lower is better"]
    assert [row[:2] for row in rows] == [["long", "4"], ["short", "6 +2"], ["equal", "4"]]
    text = (tmp_path / "page.html").read_text()
    assert text.count('number best" data-value="4.0"') == 2  # a tie
    assert "<small>+2</small>" in text and "Differences are to long." in found.sections["comparison"]
    assert "2 of 3 runs finished" in found.sections["verdict"] and "best run: long" in found.sections["verdict"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither config.json with metrics.jsonl nor sweep.json nor seeds"),
        ({"config.json": "{}"}, "no config.json with metrics.jsonl"),
        ({"config.json": '{"a": ', "metrics.jsonl": '{"step": 0}\n'}, "config.json: got a file that cannot be read"),
        ({"config.json": "[1]", "metrics.jsonl": '{"step": 0}\n'}, "(a JSON list)"),
        ({"config.json": "{}", "metrics.jsonl": '{"step": 0}\n\xff\n{"step": 1}\n'}, "metrics.jsonl, line 2: got"),
        ({"config.json": "{}", "metrics.jsonl": '{"step": 0}\n{"step": "x"}\n{"step": 1}\n'}, "metrics.jsonl, line 2"),
        ({"config.json": "{}", "metrics.jsonl": '{"step": 0, "valid/f1": "high"}\n'}, "metrics.jsonl, line 1: got"),
        ({"config.json": "{}", "metrics.jsonl": '{"step": 0}\n', "environment.json": "{"}, "environment.json: got"),
        (
            {"config.json": "{}", "metrics.jsonl": '{"step": 0}\n', "goodput.jsonl": '{"kind": "step"}\n{}\n'},
            'goodput.jsonl, line 1: got \'{"kind": "step"}\'; expected an object with "step" and "seconds" and "kind"',
        ),
        ({"sweep.json": "{}"}, "no run with metrics"),
    ],
)
def test_mistakes_are_told(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=re.escape(message)):
        page.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_folder_that_is_not_there():
    with pytest.raises(UserError, match="no such folder"):
        page.write(Path("no/such/run"))


@pytest.mark.parametrize("library", ["jinja2", "vl_convert"])
def test_without_the_libraries_the_extra_is_named(with_vega, make_run, monkeypatch, library):
    libraries.vega.cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=re.escape("pip install -e '.[report]'")):
        page.write(make_run("r", lines([100])))


def test_the_whole_page_is_small(with_vega, make_run):
    """Of a long run, with the library that draws."""
    text = page.write(make_run("r", lines(list(range(1, 8_000, 4))))).read_text()
    assert "vegaEmbed" in text and len(text.encode()) < 2_000_000
    found = Page(text).data["curves"]
    points = [one["points"] for panel in found["panels"] for one in panel["series"]]
    assert max(map(len, points)) <= 1501 and all(one[0][0] == 1 and one[-1][0] == 7_997 for one in points)
