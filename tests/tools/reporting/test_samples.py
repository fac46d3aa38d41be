"""What a run shows of itself, on its page and read back from its file."""

import json
import re

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting import libraries, page, samples
from tests.tools.reporting import whole
from tests.tools.reporting.conftest import lines
from tests.tools.reporting.test_page import read


@pytest.fixture(autouse=True)
def _without_vega(monkeypatch):
    monkeypatch.setattr(libraries, "vega", lambda: libraries.trusted("0;"))


@pytest.fixture
def folder(make_run):
    return whole.run(make_run)


def test_every_kind_is_laid_out(folder):
    found = read(page.write(folder))
    assert {"samples", "attention", "matrices", "environment"} <= found.ids
    text = re.sub(r"\s+", " ", found.sections["samples"])
    for part in (
        "of checkpoint 300",
        "the dogs run sleep .",  # the prediction, then the label if it differs
        "Next sentence: probability 0.88, label no.",
        "yes 75.0 % predicted no 25.0 % right",
        "predicted: 2.25 right: 3.5",
        "cat 75.0 % right dog 50.0 % predicted fish 25.0 % predicted: cat, dog right: cat",
        "AustenO I-PER",
        "Answer: Green, and right: pale Green",
        "No answer right: no answer",
        "translationIl dort.",
        "Second <b>.",
        "What was first.",
        "summaryShort.referenceShorter.",
    ):
        assert part in text
    assert found.data["matrices"][0]["shape"] == [4, 4]
    assert [one["title"] for one in found.data["attention"]] == ["the cats [MASK] .", "He sleeps."]
    assert "8 × TPU v5e" in found.sections["environment"] and "jax 0.10" in found.sections["environment"]


@pytest.mark.parametrize("kind", ["summary", "extract"])
def test_attention_in_an_article_is_named_by_its_text(make_run, kind):
    sample = next(each for each in whole.SAMPLES if each["kind"] == kind)
    attention = next(each["attention"] for each in whole.SAMPLES if "attention" in each)
    folder = make_run("r", [])
    whole.write_samples(folder, [{**sample, "attention": attention}])
    title = samples.read(folder).attention[0]["title"]
    assert title == ("Long. Longer." if kind == "summary" else "First. Second <b>. Third.")


def test_text_of_samples_is_laid_out_in_its_own_direction(folder):
    text = read(page.write(folder)).directed
    for sample in whole.SAMPLES:
        for key in ("text", "second", "question", "answer", "source", "translation", "summary", "sentences", "article"):
            value = sample.get(key) or ()
            for part in [value] if isinstance(value, str) else value:
                assert part in text, (sample["kind"], key)
    assert whole.CONTEXT in text and "Austen" in text and "What was first." in text


def test_an_answer_and_the_right_one_may_overlap(folder):
    answer = next(view for view in samples.read(folder).examples if view["kind"] == "answer")
    assert [(part["text"], part["chosen"], part["right"]) for part in answer["parts"]] == [
        ("It was ", False, False),
        ("pale ", False, True),
        ("Green", True, True),
        (", and", True, False),
        (" early Monday.", False, False),
    ]


def test_sentences_of_the_oracle_are_told_apart(folder):
    scored = next(view for view in samples.read(folder).examples if view["kind"] == "extract")["scored"]
    assert [" ".join(each["kinds"]) for each in scored] == ["sentence chosen", "sentence oracle", "sentence unscored"]


@pytest.mark.parametrize("kind", ["summary", "extract"])
def test_sentences_of_a_summary_have_their_gains(make_run, kind):
    sample = next(each for each in whole.SAMPLES if each["kind"] == kind)
    folder = make_run("r", lines([100]))
    whole.write_samples(folder, [{**sample, "summary": ["First.", "Not so."], "gains": [12.34, -1.0]}])
    assert "First. +12.3 Not so. -1.0" in re.sub(r"\s+", " ", read(page.write(folder)).sections["samples"])


def test_the_largest_probabilities_are_shown_with_the_right_class(make_run):
    probabilities = {f"c{n}": (9 - n) / 45 for n in range(9)}
    sample = {"kind": "label", "text": "x", "probabilities": probabilities, "label": "c0", "reference": "c7"}
    folder = make_run("r", [])
    whole.write_samples(folder, [sample])
    (view,) = samples.read(folder).examples
    assert [bar["label"] for bar in view["bars"]] == ["c0", "c1", "c2", "c3", "c4", "c7"]


def test_an_empty_translation_is_named(make_run):
    folder = make_run("r", lines([100]))
    whole.write_samples(folder, [{**sample, "translation": ""} for sample in whole.SAMPLES if "translation" in sample])
    assert "translationemptyreference" in read(page.write(folder)).sections["samples"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "samples.jsonl, line 1: got 'nonsense'"),
        ({"kind": "song"}, "line 1: got kind 'song'; expected one of masks, label"),
        ({"kind": "tags", "words": []}, "line 1: got a sample of kind 'tags' without 'tags'; expected all keys"),
        (
            {"kind": "matrix", "title": "", "caption": "", "values": {"shape": [2, 2], "data": "AAAA"}},
            "line 1: got a truncated array; expected 4 numbers",
        ),
    ],
)
def test_mistakes_are_told(folder, line, message):
    text = line if isinstance(line, str) else json.dumps({**line, "checkpoint": "1"})
    rest = (folder / "samples.jsonl").read_text()
    (folder / "samples.jsonl").write_text(f"{text}\n{rest}")
    with pytest.raises(UserError, match=re.escape(message)):
        samples.read(folder)


def test_a_sweep_is_one_page(make_run):
    folder = whole.sweep(make_run)
    page.write(folder / "runs/small-seed0")
    found = read(page.write(folder))
    assert found.loads == ["data:,", "runs/small-seed0/report.html"]
    header, *rows = found.tables["sweep"]
    assert header == ["row", "MNLI", "vs small", "paper", "tokens"]
    assert rows == [
        ["small", "80.5 ± 0.5", "-", "84.6", "5M"],
        ["large", "9.2 ± 1.2", "-71.2 [-80.0, -60.0]", "-", "5M"],
    ]
    text = (folder / "report.html").read_text()
    assert text.count('class=" number best" data-value="80.5"><span>80.5 ± 0.5</span></td>') == 1
    assert "Paper: table 5." in found.sections["results"]
    assert [row[0] for row in found.tables["final-0"]] == ["run", "small-seed0", "large-seed0"]
    assert [run["name"] for run in found.data["curves"]["runs"]] == ["small-seed0", "large-seed0"]
    assert ["seed", "0", "1"] in found.tables["differing"]
    assert "No metrics yet: new-seed0." in found.sections["verdict"]


def test_curves_of_a_sweep_are_parted_by_stages_and_colored_by_rows(make_run):
    folder = whole.sweep(make_run)
    for name in ("small-task-seed0", "small-task-seed1", "large-task-seed0"):
        make_run(
            f"sweep/runs/{name}", [{"step": 0, "valid/lead_f1": 1.0}, {"step": 4, "valid/f1": 2.0, "train/loss": 3.0}]
        )
    kept = json.loads((folder / "sweep.json").read_text())
    kept["rows"] = {"large": {"train": "1a", "task": "1b"}, "small": {"train": "5a", "task": "5b"}}
    kept["rows"]["other"] = {"train": "5a", "task": "5b"}  # a row that shares all runs with the one before
    kept["names"] |= {"5b-0": "small-task-seed0", "5b-1": "small-task-seed1", "1b-0": "large-task-seed0"}
    (folder / "sweep.json").write_text(json.dumps(kept))
    curves = read(page.write(folder)).data["curves"]
    assert curves["rows"] == ["large", "small"]
    assert [(run["name"], run["row"]) for run in curves["runs"]] == [
        ("large-seed0", 0),
        ("large-task-seed0", 0),
        ("small-seed0", 1),
        ("small-task-seed0", 1),
        ("small-task-seed1", 1),
    ]
    drawn = {(panel["stage"], panel["title"]): panel for panel in curves["panels"]}
    assert {run["run"] for run in drawn["train", "Masked-LM loss"]["series"]} == {0, 2}
    assert {run["run"] for run in drawn["task", "Loss"]["series"]} == {1, 3, 4}
    # What is known of all runs of a stage is one line.
    assert drawn["train", "Masked-LM loss"]["lines"] == [
        {"run": None, "name": "unigram baseline", "value": 6.0, "is_bound": False}
    ]
    assert drawn["task", "F1"]["lines"] == [{"run": None, "name": "lead sentences", "value": 1.0, "is_bound": False}]


def test_several_seeds_are_one_page(make_run):
    for seed in (0, 1, 10):
        folder = make_run(f"seeds/seed{seed}", [{"step": 2, "valid/f1": seed / 2}], seed=seed).parent
    assert [row[1] for row in read(page.write(folder)).tables["final-0"][1:]] == ["0", "0.5 +0.5", "5 +5"]
    metrics = {"valid/f1": {"mean": 0.25, "std": 0.35, "n": 2, "seeds": {"0": 0.0, "1": 0.5}}}
    (folder / "seeds.json").write_text(json.dumps({"steps": {"0": 2, "1": 2}, "metrics": metrics}))
    found = read(page.write(folder))
    assert found.tables["final-0"] == [
        ["run", "F1 validation, higher is better"],
        ["mean ± standard deviation", "0.25 ± 0.35"],
        ["seed0", "0 −0.25"],
        ["seed1", "0.5 +0.25"],
    ]
    assert "The metrics are from steps 2 (seed 0), 2 (seed 1)." in found.sections["comparison"]
    assert [run["name"] for run in found.data["curves"]["runs"]] == ["seed0", "seed1", "seed10"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("table.json", '{"header": ["row"], "rows": [[]], "notes": []}', "table.json: got an incomplete table"),
        ("table.json", '{"header": ["row"]}', "table.json: got an incomplete table"),
        ("sweep.json", '{"names": [], "rows": {}}', "sweep.json: got a malformed file"),
        ("sweep.json", '{"sweep": ', "sweep.json: got a file that cannot be read"),
    ],
)
def test_half_of_a_sweep_is_told(make_run, name, text, message):
    folder = whole.sweep(make_run)
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        page.write(folder)
