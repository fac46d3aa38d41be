"""The error analysis of a page."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest

from bertjax.data.codecs.tagging.tag_schemes import spans, to_bio
from bertjax.tools.reporting import error_counts, errors, page
from bertjax.tools.reporting.tables import number
from tests.tools.reporting.conftest import lines
from tests.tools.reporting.pages import Page

NAMES = ["a", "b", "다"]


def label(text, probabilities, reference, **more):
    best = max(probabilities, key=probabilities.get)
    loss = -float(np.log(max(probabilities[reference], 1e-9)))
    record = {"kind": "label", "text": text, "second": "", "label": best, "probabilities": probabilities}
    return {**record, "reference": reference, "loss": loss, "tokens": len(text.split()), **more}


def labels(count, seed=0):
    rng = np.random.default_rng(seed)
    drawn = rng.dirichlet(np.ones(len(NAMES)), count)
    texts = [" ".join(["word"] * n) + f" {place}" for place, n in enumerate(rng.integers(1, 40, count))]
    records = [
        label(text, dict(zip(NAMES, row.tolist(), strict=True)), NAMES[gold])
        for text, row, gold in zip(texts, drawn, rng.integers(0, len(NAMES), count), strict=True)
    ]
    return sorted(records, key=lambda record: -record["loss"])


def tables_of(records, training=None):
    analysis = errors.analysis(records, "predictions.jsonl", training or {})
    return {
        one["title"]: [[cell["text"] for cell in row["cells"]] for row in one["rows"]] for one in analysis["tables"]
    }


def test_confusions_and_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    gold, predicted = rng.integers(0, 5, 300), rng.integers(0, 4, 300)  # a class is never predicted
    counts = error_counts.confusion(gold.tolist(), predicted.tolist(), 5)
    np.testing.assert_array_equal(counts, metrics.confusion_matrix(gold, predicted))
    theirs = metrics.precision_recall_fscore_support(gold, predicted, zero_division=0)[:3]
    np.testing.assert_allclose(error_counts.class_scores(counts), theirs, atol=1e-12)
    sets = rng.random((2, 300, 3)) < 0.3
    theirs = metrics.precision_recall_fscore_support(*sets, zero_division=0)[:3]
    np.testing.assert_allclose(error_counts.set_scores(*sets), theirs, atol=1e-12)


def test_calibration_is_the_weighted_gap_of_15_bins():
    rng = np.random.default_rng(2)
    probabilities = np.concatenate([rng.random(500), [0.0, 1.0, 1 / 15, 2 / 15]])
    right = rng.random(len(probabilities)) < probabilities
    edges = np.linspace(0, 1, 16)
    gap = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (probabilities > low) & (probabilities <= high) | ((low == 0) & (probabilities == 0))
        if inside.any():
            gap += inside.mean() * abs(probabilities[inside].mean() - right[inside].mean())
    result = error_counts.calibration(probabilities.tolist(), right.tolist())
    assert result.error == pytest.approx(gap) and result.counts.sum() == len(probabilities)


def test_classes_have_their_scores_confusions_and_training_rows():
    records = labels(400)
    training = {"classes": {"train": {"a": 30, "b": 10}, "valid": {"다": 4}}, "lengths": {"8": 3, "64": 1}}
    tables = tables_of(records, training)
    pairs = Counter((record["reference"], record["label"]) for record in records)
    assert tables["Confusion matrix"] == [[gold, *(str(pairs[gold, other]) for other in NAMES)] for gold in NAMES]
    assert [row[0] for row in tables["Classes"]] == NAMES
    assert sum(int(row[1]) for row in tables["Calibration"]) == sum(int(row[1]) for row in tables["Length"]) == 400
    assert tables["Classes of the rows"] == [
        ["a", "30", "75.0 %", "0", "0.0 %"], ["b", "10", "25.0 %", "0", "0.0 %"], ["다", "0", "0.0 %", "4", "100.0 %"]
    ]  # fmt: skip
    short = sum(record["tokens"] <= 8 for record in records)
    assert [row[:4:2] for row in tables["Lengths of the rows"]] == [["1 to 8", "75.0 %"], ["9 to 64", "25.0 %"]]
    assert int(tables["Lengths of the rows"][0][3]) == short


def test_lengths_are_those_of_rows_and_none_is_left_out():
    lengths = {"tokens": 9, "row_tokens": [4, 5]}, {"tokens": 70}
    records = [label("x", {"a": 1.0, "b": 0.0}, "a") | of_record for of_record in lengths]
    rows = tables_of(records, {"lengths": {"4": 2, "8": 2}})["Lengths of the rows"]
    assert [row[:4:3] for row in rows] == [["1 to 4", "1"], ["5 to 8", "1"], ["9 to 70", "1"]]


def test_a_small_negative_number_has_no_sign():
    assert number(-1e-9)["text"] == "0.000" and number(-0.5)["text"] == "-0.500"


def test_many_classes_have_their_most_frequent_confusions():
    names = [f"c{n}" for n in range(40)]
    records = [label("x", {name: float(name == "c1") for name in names}, "c2")] * 3
    tables = tables_of(records)
    assert tables["Most frequent confusions"] == [["c2", "c1", "3"]] and "Confusion matrix" not in tables


def test_choices_that_differ_have_only_a_calibration():
    records = [label("x", {"yes": 0.7, "no": 0.3}, "yes"), label("y", {"red": 0.6, "blue": 0.4}, "blue")]
    assert tables_of(records).keys() == {"Calibration"}


def test_label_sets_have_scores_by_threshold():
    record = {"kind": "label", "text": "x", "labels": ["a"], "probabilities": {"a": 0.55, "b": 0.25}, "loss": 1.0}
    tables = tables_of([{**record, "reference": ["a", "b"]}, {**record, "reference": ["a"]}])
    assert tables["Classes"] == [["a", "1.000", "1.000", "1.000", "2", "2"], ["b", "0.000", "0.000", "0.000", "1", "0"]]
    assert tables["F1 by threshold"][1] == ["b", "0.667", "0.667", *["0.000"] * 7]


def test_numbers_are_compared_in_parts_of_the_data():
    record = {"kind": "label", "text": "x", "score": 2.0, "loss": 1.0}
    assert tables_of([{**record, "reference": 1.0}, {**record, "reference": 4.0}])["Numbers"] == [
        ["1 to 1", "1", "1.000", "2.000", "1.000"],
        ["4 to 4", "1", "4.000", "2.000", "2.000"],
    ]


def test_entities_have_kinds_of_errors():
    gold = [["PER", 0, 1], ["LOC", 3, 3], ["ORG", 5, 6], ["LOC", 8, 8]]
    predicted = [["PER", 0, 1], ["PER", 3, 3], ["ORG", 5, 5], ["ORG", 10, 11]]
    assert Counter(error_counts.span_errors(gold, predicted)) == {
        ("PER", "right"): 1, ("LOC", "type"): 1, ("ORG", "boundary"): 1, ("LOC", "missed"): 1, ("ORG", "false"): 1,
        ("PER", "predicted"): 2, ("ORG", "predicted"): 2,
    }  # fmt: skip
    words = {"words": ["x"] * 12, "start": list(range(0, 24, 2)), "text": " ".join("x" * 12)}
    record = {"kind": "tags", **words, "tags": ["O"], "reference": ["O"], "loss": 0.5}
    (loc, org, per) = tables_of([{**record, "spans": predicted, "reference_spans": gold}])["Entities"]
    assert per == ["PER", "0.500", "1.000", "0.667", "1", "2", "0", "0", "0", "0"]
    assert loc == ["LOC", "0.000", "0.000", "0.000", "2", "0", "1", "0", "1", "0"]
    assert org == ["ORG", "0.000", "0.000", "0.000", "1", "2", "0", "1", "0", "1"]


@pytest.mark.parametrize("mode", ["strict", None])
def test_counts_of_entities_are_those_of_seqeval(mode):
    """Strict mode ignores an I that continues no entity: it gets valid sequences, and the default mode any."""
    from seqeval.metrics import classification_report
    from seqeval.scheme import IOB2

    rng = np.random.default_rng(3)
    tags = ["O", *(f"{letter}-{kind}" for kind in ("PER", "LOC", "ORG") for letter in "BI")]
    gold = [rng.choice(tags, 30).tolist() for _ in range(100)]
    predicted = [[tag if rng.random() < 0.7 else str(rng.choice(tags)) for tag in row] for row in gold]
    if mode:
        gold, predicted = (list(map(to_bio, rows)) for rows in (gold, predicted))
    words = {"text": "x " * 30, "words": ["x"] * 30, "start": list(range(0, 60, 2))}
    record = {"kind": "tags", **words, "tags": [], "reference": [], "loss": 0.5}
    records = [
        {**record, "spans": spans(ours), "reference_spans": spans(right)}
        for ours, right in zip(predicted, gold, strict=True)
    ]
    report = classification_report(gold, predicted, mode=mode, scheme=IOB2 if mode else None, output_dict=True)
    rows = tables_of(records)["Entities"]
    assert [row[0] for row in rows] == ["LOC", "ORG", "PER"]
    for name, precision, recall, f1, *counts in rows:
        theirs = report[name]
        in_data, num_predicted, wrong_type, boundary, missed, _ = map(int, counts)
        right = round(theirs["recall"] * theirs["support"])
        assert in_data == theirs["support"] > 100 and num_predicted == round(right / theirs["precision"])
        assert wrong_type + boundary + missed == in_data - right
        expected = [theirs["precision"], theirs["recall"], theirs["f1-score"]]
        assert [float(precision), float(recall), float(f1)] == pytest.approx(expected, abs=5.1e-4)


def test_entities_are_marked_in_their_text(make_run):
    folder = make_run("run", lines([100]))
    words = {"text": "Ann Lee saw Seoul.", "words": ["Ann", "Lee", "saw", "Seoul", "."], "start": [0, 4, 8, 12, 17]}
    tags = {**words, "tags": [], "reference": []}
    spans = {"spans": [["PER", 0, 1], ["ORG", 3, 3]], "reference_spans": [["PER", 0, 0], ["LOC", 3, 3]]}
    (folder / errors.FILE).write_text(json.dumps({"kind": "tags", **tags, **spans, "loss": 1.5}))
    text = Page(page.of_run(folder)).tables["worst"][1][1]
    assert " ".join(text.split()) == "Ann PER Lee PER · saw Seoul ORG LOC."


def test_answers_are_grouped_by_their_agreement():
    record = {"kind": "answer", "question": "?", "context": "a b", "start": None, "end": None, "null_score": 1.0}
    cases = [("", [], 0.0), ("", ["a"], 1.0), ("a", [], 1.0), ("a", ["a"], 0.0), ("a b", ["a"], 0.4), ("b", ["a"], 1.0)]
    records = [{**record, "answer": answer, "reference": gold, "loss": loss} for answer, gold, loss in cases]
    assert sorted(row[0] for row in tables_of(records)["Answers"]) == [
        "none, and there is one", "none, as in the data", "one, and there is none", "overlaps the right one", "right",
        "wrong",
    ]  # fmt: skip


def test_rankings_texts_and_masks():
    ranks = [
        {"kind": "retrieval", "text": "q", "found": [], "reference": "", "rank": n, "loss": 0.0} for n in (0, 1, 12)
    ]
    assert [row[:2] for row in tables_of(ranks)["Ranks"]] == [
        ["1", "1"], ["2 to 3", "0"], ["4 to 10", "0"], ["11 or more", "1"], ["not ranked", "1"]
    ]  # fmt: skip
    text = {"kind": "translation", "source": "x", "translation": "y", "reference": "z", "score": -1.0}
    scores = tables_of([{**text, "loss": 35.0}, {**text, "loss": 100.0}])["chrF by text"]
    assert [row[1] for row in scores] == ["1", *"00000", "1", *"000"]
    mask = {"tokens": ["a"], "probabilities": [1.0], "position": 0, "loss": 1.0}
    masks = [{**mask, "label": "a"}, {**mask, "label": "b", "position": 7}, {**mask, "label": "b", "position": 1}]
    tables = tables_of([{"kind": "masks", "words": ["a"] * 8, "masks": masks, "loss": 1.0}])
    assert tables["Masked tokens by frequency"] == [
        ["1", "1", "1.000", "100.0 %"], ["2 to 4", "2", "1.000", "0.0 %"]
    ]  # fmt: skip
    assert [row[0] for row in tables["Masked tokens by position"]] == ["0 to 0", "1 to 1", "7 to 7"]


def test_vectors_of_classes_are_points_whose_variances_are_the_shares_of_the_axes(make_run):
    names = [f"c{n}" for n in range(9)]  # more than the palette has
    drawn = np.random.default_rng(0).normal(size=(90, 2)) * (0.7, 0.3)
    record = {"kind": "retrieval", "found": [], "reference": "", "rank": 1, "loss": 0.0}
    classes = [names[min(number, 8)] for number in range(10) for _ in range(9)]
    records = [
        {**record, "text": f"text {place}", "class": name, "projection": point}
        for place, (name, point) in enumerate(zip(classes, drawn.tolist(), strict=True))
    ]
    plot = errors.analysis([*records, {**record, "text": "unplaced"}], "")["projection"]
    assert [entry[:2] for entry in plot["legend"][:2]] == [("c8", "c0"), ("c0", "c1")]
    assert plot["legend"][-1] == ("other classes", "c2", 18) and sum(entry[2] for entry in plot["legend"]) == 90
    np.testing.assert_allclose(plot["shares"], 100 * drawn.var(axis=0))
    places = {point["title"]: (point["x"], -point["y"]) for point in plot["points"]}
    ours = np.array([places[f"{record['class']}: {record['text']}"] for record in records])
    scale = 600 / np.ptp(drawn, axis=0).max()
    np.testing.assert_allclose(ours - ours[0], (drawn - drawn[0]) * scale, atol=0.11)
    assert [point["color"] for point in plot["points"][:18]] == ["c2"] * 18, "below the others"
    content = page.of_evaluation(make_run("run", []), {}, {"valid": records})
    assert '<b>text 0</b> <span class="soft">c0</span>' in content
    assert content.count("<circle cx") == 90 and "% of the variance is horizontal" in content
    assert "<circle cx" not in page.of_evaluation(make_run("other", []), {}, {"valid": labels(3)})


def test_the_page_of_20_000_predictions_is_small_and_shows_the_worst(make_run):
    folder = make_run("run", lines([100]))
    records = labels(20_000)
    text = "".join(json.dumps({**record, "checkpoint": "100"}) + "\n" for record in records)
    (folder / errors.FILE).write_text(text)
    content = page.of_run(folder)
    assert len(content.encode()) < 3e6
    worst = Page(content).tables["worst"]
    assert len(worst) == 21 and all(record["text"] in row[1] for record, row in zip(records, worst[1:], strict=False))


def with_predictions(folder, records):
    text = "".join(json.dumps({"digest": record["text"], **record}) + "\n" for record in records)
    (folder / errors.FILE).write_text(text)


def test_two_runs_show_the_examples_that_they_predict_differently(make_run):
    right, wrong = {"a": 0.9, "b": 0.1}, {"a": 0.2, "b": 0.8}
    folders = {name: make_run(name, lines([100])) for name in ("ours", "theirs")}
    ours = [label(text, right, "a") for text in "stuvwxyz"]
    with_predictions(folders["ours"], ours)
    with_predictions(folders["theirs"], [label("s", right, "a"), *(label(text, wrong, "a") for text in "tuvwxy")])
    content = Page(page.of_runs(folders))
    text = " ".join(content.sections["differences"].split())
    assert "Right: both 1, only ours 6, only theirs 0, neither 0. McNemar's exact test: p = 0.031." in text
    assert "Both runs predict 7 examples, and one of them 1 more." in text and len(content.tables["different"]) == 7
    numbers = [{"kind": "label", "text": text, "score": 1.0, "reference": 2.0, "loss": 1.0} for text in "st"]
    with_predictions(folders["ours"], numbers)
    with_predictions(folders["theirs"], [{**record, "loss": 3.0 + n} for n, record in enumerate(numbers)])
    text = " ".join(Page(page.of_runs(folders)).sections["differences"].split())
    assert "Mean difference of losses: -2.5 (95 % interval -8.85 to 3.85)." in text
    (folders["ours"] / errors.FILE).unlink()
    assert "differences" not in Page(page.of_runs(folders)).ids


def test_mcnemar_is_the_binomial_test():
    stats = pytest.importorskip("scipy.stats")
    for ours, theirs in ((6, 0), (3, 3), (10, 25), (0, 0), (700, 640)):
        expected = stats.binomtest(ours, ours + theirs).pvalue if ours + theirs else 1.0
        assert error_counts.mcnemar(ours, theirs) == pytest.approx(expected)


def test_the_page_of_an_evaluation_has_metrics_and_errors(tmp_path):
    content = Page(page.of_evaluation(tmp_path / "run", {"valid/f1": 0.5, "protocol": {}}, {"valid": labels(30)}))
    assert content.tables["last-metrics"][1] == ["F1", "valid", "0.5", "valid/f1"]
    assert "30 examples." in content.sections["errors"] and len(content.tables["worst"]) == 21
    assert "errors" not in Page(page.of_evaluation(tmp_path, {"valid/f1": 0.5}, {})).ids
