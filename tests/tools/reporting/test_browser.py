"""The pages in a headless Chromium: controls, layout, contrast, keyboard; no console errors and no requests."""

import json
from pathlib import Path

import pytest

from bertjax.tools.reporting import page, predictions, summaries
from tests.tools.reporting import whole
from tests.tools.reporting.browser import browser
from tests.tools.reporting.conftest import lines

_CHECKS = Path(__file__).with_name("checks.js").read_text()
_LOSS = '[data-panel="0"]'  # of the masked language model


@pytest.fixture(scope="module")
def tab():
    with browser() as tab:
        yield tab


@pytest.fixture
def opened(tab, make_run):
    """Opens the page of a folder."""

    def open_page(folder, **screen):
        tab.problems.clear()
        tab.open(page.write(folder), **screen)
        wait(tab, "document.querySelectorAll('.plot svg').length > 2")
        return tab

    yield open_page
    assert tab.problems == []


def wait(tab, condition):
    """Until a condition of the page holds; curves are drawn a moment after what asked for them."""
    script = """new Promise((done, fail) => {
      const end = Date.now() + 30000;
      (function look() { CONDITION ? done(true) : Date.now() > end ? fail(TEXT) : setTimeout(look, 20) })() })"""
    script = script.replace("CONDITION", condition).replace("TEXT", json.dumps(condition))
    assert tab.evaluate(script)


def window(tab, panel=_LOSS):
    return [float(edge) for edge in tab.evaluate(f"document.querySelector('{panel} .plot').dataset.window").split()]


def choose(tab, selector, value):
    """Chooses in a list, as a user does."""
    chosen = f"(() => {{ const list = document.querySelector({json.dumps(selector)}); list.value = '{value}'; "
    tab.evaluate(chosen + "list.dispatchEvent(new Event('input', {bubbles: true})) })()")


def test_curves(opened, make_run):
    tab = opened(whole.run(make_run))
    assert tab.evaluate(f"document.querySelector('{_LOSS} h3').firstChild.textContent") == "Masked-LM loss"
    assert window(tab) == [10, 300]
    tab.drag(f"{_LOSS} .plot", 0.4, 0.7)
    low, high = window(tab)
    assert 80 < low < high < 250
    tab.click(f"{_LOSS} button[title='zoom out']")
    assert window(tab)[0] < low
    tab.click(f"{_LOSS} button[title='show all']")
    assert window(tab) == [10, 300]
    # Keys.
    tab.evaluate(f"document.querySelector('{_LOSS} .plot').focus()")
    tab.press("+")
    assert window(tab) == [82.5, 227.5]
    tab.press("ArrowRight")
    assert window(tab) == [118.75, 263.75]
    tab.press("ArrowLeft")
    tab.press("-")
    assert window(tab) == [10, 300]
    tab.hover(f"{_LOSS} .plot", 0.6, 0.4)
    assert "validation" in tab.evaluate(f"document.querySelector('{_LOSS} .readout').textContent")
    # A logarithmic axis, smoothing, another horizontal axis.
    curves = f"document.querySelectorAll('{_LOSS} .plot svg .mark-line path').length"
    labels = f"[...document.querySelectorAll('{_LOSS} .plot svg .role-axis-label text')].map(e => e.textContent).join()"
    assert tab.evaluate(curves) == 2
    before = tab.evaluate(labels)
    tab.click("input[name=log]")
    wait(tab, f"{labels} !== {json.dumps(before)}")
    tab.evaluate("document.querySelector('input[name=smoothing]').focus()")
    for _ in range(3):
        tab.press("ArrowRight", windowsVirtualKeyCode=39)
    wait(tab, f"{curves} === 3")
    assert tab.evaluate("document.querySelector('output[name=shown]').value") == "0.06"
    choose(tab, "select[name=axis]", "tokens")
    wait(tab, f"document.querySelector('{_LOSS} .plot').dataset.window.endsWith(' 300000')")
    tab.click("#curves details summary")
    wait(tab, "document.querySelectorAll('#curves details .plot svg').length > 1")


def test_the_axis_of_a_few_points_does_not_magnify_their_noise(opened, make_run):
    names = ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_accuracy")
    values = [{"step": step, **{f"valid/{name}": 5 + step / 1e5 for name in names}} for step in (100, 200)]
    tab = opened(make_run("few", values))
    labels = f"[...document.querySelectorAll('{_LOSS} .plot svg .role-axis-label text')].map(e => e.textContent)"
    wait(tab, f"{labels}.length > 3")
    heights = [float(text) for text in tab.evaluate(labels) if "." in text]
    assert max(heights) - min(heights) > 0.2


def test_tables_and_filters(opened, make_run):
    tab = opened(whole.run(make_run))
    column = "[...document.querySelectorAll('#last-metrics tbody tr')].map(r => r.cells[2].textContent)"
    tab.click("#last-metrics th:nth-child(3) button")
    up = [float(value) for value in tab.evaluate(column)]
    assert up == sorted(up) and len(set(up)) > 3
    tab.evaluate("document.querySelector('#last-metrics th:nth-child(3) button').focus()")
    tab.press("Enter", windowsVirtualKeyCode=13, text="\r")
    assert [float(value) for value in tab.evaluate(column)] == up[::-1]
    assert tab.evaluate("document.querySelector('#last-metrics th:nth-child(3)').ariaSort") == "descending"
    shown = "document.querySelectorAll('#{} tbody tr:not([hidden])').length"
    tab.click("input[data-filter=last-metrics]")
    for letter in "gradient":
        tab.press(letter)
    assert tab.evaluate(shown.format("last-metrics")) == 0
    assert not tab.evaluate("document.querySelector('#config details').open")
    assert tab.evaluate(shown.format("differing")) == 1
    tab.click("#config summary")
    tab.click("input[data-filter=keys]")
    for letter in "seed":
        tab.press(letter)
    assert tab.evaluate(shown.format("keys")) == 1


def test_a_long_table_draws_its_rows_on_demand(tab, tmp_path):
    path = tmp_path / "predictions.html"
    records = [{"text": f"text {n}", "score": (7 * n) % 450 / 4} for n in range(450)]
    path.write_text("".join(predictions.write(records)))
    tab.problems.clear()
    tab.open(path)
    texts = "[...document.querySelectorAll('#records tbody tr')].map(row => row.cells[{}].textContent)"
    more = "document.querySelector('[data-more]')"
    assert tab.evaluate(texts.format(0)) == [f"text {n}" for n in range(200)]
    assert tab.evaluate(f"{more}.textContent") == "Show more: 200 of 450 rows"
    for _ in range(2):
        tab.click("[data-more]")
    assert tab.evaluate(texts.format(0))[-1] == "text 449" and tab.evaluate(f"{more}.hidden")
    tab.click("#records th:nth-child(2) button")
    assert [float(text) for text in tab.evaluate(texts.format(1))] == [n / 4 for n in range(450)]
    tab.click("input[data-filter=records]")
    for letter in "text 44":
        tab.press(letter)
    assert {*tab.evaluate(texts.format(0))} == {"text 44", *(f"text 44{n}" for n in range(10))}
    assert tab.problems == []


def test_attention(opened, make_run):
    tab = opened(whole.run(make_run))
    told = "document.querySelector('#attention-viewer > .viewer .readout').textContent"

    def set_to(name, value):
        choose(tab, f"#attention-viewer select[name={name}]", value)

    assert "14 %" in tab.evaluate(told)  # of seven words, all alike
    set_to("example", 1)
    assert tab.evaluate("[...document.querySelectorAll('.queries button')].map(b => b.textContent)") == [
        "he",
        "sleeps",
        "</s>",
    ]
    set_to("kind", "cross")
    set_to("layer", 1)
    set_to("head", 2)
    tab.hover(".queries button:nth-child(2)")
    assert tab.evaluate(told).startswith("“il” attends to “sleeps” 100 %")
    tab.evaluate("document.querySelector('.queries button[aria-pressed=true]').focus()")
    tab.press("ArrowRight")
    assert tab.evaluate(told).startswith("“dort” attends to “</s>” 100 %")
    assert tab.evaluate("document.querySelector('.keys span:nth-child(3)').title") == "100.0 %"
    tab.hover("#attention-viewer .map rect.cell")
    assert tab.evaluate(told).startswith("“<s>” attends to “he”")
    labels = "[...document.querySelectorAll('.map text')].map(text => text.textContent)"
    assert tab.evaluate(labels) == ["keys", "queries", "he", "sleeps", "</s>", "<s>", "il", "dort"]
    set_to("head", "mean")
    assert "“he” 56 %" in tab.evaluate(told)  # two heads look everywhere


def test_attention_has_a_map_where_there_is_no_room(opened, make_run):
    tab = opened(whole.run(make_run), width=100)
    assert tab.evaluate("Number(document.querySelector('.map rect.cell').getAttribute('width'))") == 1


def test_the_scale_of_attention_ends_at_the_maximum_of_the_head(opened, make_run):
    tab = opened(whole.run(make_run))
    tab.evaluate(_CHECKS)
    assert tab.evaluate("document.querySelector('#attention-viewer output').value") == "0.1412"  # 36 / 255, about 1 / 7
    assert tab.evaluate("checks.shade(document.querySelector('.map rect.cell'))") == pytest.approx(1, abs=0.02)
    choose(tab, "#attention-viewer select[name=layer]", 1)
    choose(tab, "#attention-viewer select[name=head]", 2)
    assert tab.evaluate("document.querySelector('#attention-viewer output').value") == "1"


def test_the_theme_changes(opened, make_run):
    tab = opened(whole.run(make_run), dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(paper)
    assert sum(map(int, before[4:-1].split(","))) < 380
    axis = f"document.querySelector('{_LOSS} .plot svg .role-axis-label text').getAttribute('fill')"
    ink = tab.evaluate(axis)
    tab.click("#theme")
    wait(tab, f"{axis} !== {json.dumps(ink)}")
    assert tab.evaluate(paper) != before


def test_buttons_of_a_chart_appear_on_hover_and_focus(make_run):
    opacity = f"getComputedStyle(document.querySelector('{_LOSS} .buttons')).opacity"
    with browser(has_mouse=True) as tab:
        tab.open(page.write(whole.run(make_run)))
        wait(tab, f"document.querySelector('{_LOSS} svg') && {opacity} === '0'")
        tab.hover(f"{_LOSS} .plot")
        wait(tab, f"{opacity} === '1'")
        tab.hover("h1")
        wait(tab, f"{opacity} === '0'")
        tab.evaluate(f"document.querySelector('{_LOSS} .buttons button').focus()")
        wait(tab, f"{opacity} === '1'")


def summary_page(folder):
    path = folder / "summary.html"
    extract = next(sample for sample in whole.SAMPLES if sample["kind"] == "extract")
    path.write_text("".join(summaries.page([extract, {"error": "a" * 200}], "extract")))
    return path


def test_articles_are_drawn_when_they_are_near(tab, make_run):
    tab.open(summary_page(whole.run(make_run)))
    styles = "[...document.querySelectorAll('section')].map((section) => getComputedStyle(section).contentVisibility)"
    assert tab.evaluate(styles) == ["auto", "auto"]


def comparison_page(folder):
    path = folder.parent / "comparison.html"
    path.write_text(page.of_runs({"one": folder, "two": folder}))
    return path


PAGES = {
    "run": lambda make_run: page.write(whole.run(make_run)),
    "sweep": lambda make_run: page.write(whole.sweep(make_run)),
    "comparison": lambda make_run: comparison_page(whole.run(make_run)),
    "summary": lambda make_run: summary_page(whole.run(make_run)),
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_readable_and_reachable(tab, make_run, name, width, dark):
    tab.problems.clear()
    path = PAGES[name](make_run)
    tab.open(path, width=width, dark=dark)
    if name != "summary":
        wait(tab, "document.querySelectorAll('.plot svg').length > 2")
    tab.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true })")
    wait(tab, "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))")
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.evaluate(_CHECKS)
    assert tab.evaluate("checks.wide()") == []
    count, faint = tab.evaluate("checks.faint()")
    assert count > 10 and faint == []
    controls = tab.evaluate("checks.controls().length")
    assert controls
    reached = []
    for _ in range(controls):
        tab.press("Tab", windowsVirtualKeyCode=9)
        reached.append(tab.evaluate("checks.focused()"))
    assert reached == [[number, True] for number in range(controls)]
    assert tab.problems == []


ERRORS = {
    "tags": {
        "text": "Jane Austen wrote",
        "start": [0, 5, 12],
        "spans": [["PER", 0, 0]],
        "reference_spans": [["PER", 0, 1]],
    },
    "answer": {"null_score": -1.5},
}


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_errors_of_every_kind_are_readable(tab, tmp_path, width, dark):
    retrieval = {"kind": "retrieval", "text": "q", "found": [{"text": "d", "score": 0.5}], "reference": "e", "rank": 0}
    samples = [sample for sample in whole.SAMPLES if sample["kind"] not in ("matrix", "masks")]
    masked = {**whole.SAMPLES[0], "masks": [{**mask, "loss": 0.5} for mask in whole.SAMPLES[0]["masks"]]}
    tab.problems.clear()
    for number, sample in enumerate([*samples, masked, retrieval]):
        record = {**sample, **ERRORS.get(sample["kind"], {}), "loss": 0.25, "tokens": 7}
        path = tmp_path / f"{number}.html"
        path.write_text(page.of_evaluation(tmp_path, {"valid/f1": 0.5}, {"valid": [record]}))
        tab.open(path, width=width, dark=dark)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        tab.evaluate(_CHECKS)
        assert tab.evaluate("checks.wide()") == []
        count, faint = tab.evaluate("checks.faint()")
        assert count > 10 and faint == []
        assert tab.evaluate("document.querySelectorAll('#worst > tbody > tr').length") == 1
        lefts = (
            "[...document.querySelectorAll('#worst > tbody > tr > td > p')].map((p) => p.getBoundingClientRect().left)"
        )
        assert len({*tab.evaluate(lefts)}) <= 1, "paragraphs of an example stand below each other"
    assert tab.problems == []


def test_bars_of_minimal_pairs_have_the_width_of_a_phone(tab, make_run):
    names = {"accuracy": 0.9, "accuracy_low": 0.6, "accuracy_high": 0.98, "shorter_accuracy": 0.7, "total": 3.0}
    records = [{"step": 300, **{f"valid/pairs/{name}": value for name, value in names.items()}}]
    tab.open(page.write(make_run("pairs", records)), width=390)
    assert tab.evaluate("document.querySelector('.bars .track').clientWidth") > 300


def test_names_of_a_large_confusion_matrix_are_not_broken(tab, tmp_path):
    names = [f"ENTITY:number{n}" for n in range(25)]
    record = {"kind": "label", "text": "x", "probabilities": dict.fromkeys(names, 0.04), "label": names[0], "loss": 3.0}
    path = tmp_path / "page.html"
    path.write_text(page.of_evaluation(tmp_path, {"valid/f1": 0.5}, {"valid": [{**record, "reference": names[1]}]}))
    tab.open(path, width=1440)
    assert tab.evaluate("document.querySelector('td.shaded').previousElementSibling.offsetWidth") > 120


def test_a_sweep(opened, make_run):
    tab = opened(whole.sweep(make_run))
    curves = f"document.querySelectorAll('{_LOSS} .plot svg .mark-line path').length"
    assert tab.evaluate(curves) == 4
    tab.click("input[data-row='0']")
    wait(tab, f"{curves} === 2")
    tab.click("button[data-rows=none]")
    wait(tab, f"document.querySelector('{_LOSS} .plot').textContent.includes('Nothing to draw')")
    tab.click(f"{_LOSS} button[title='zoom in']")  # which does nothing now
    tab.hover(f"{_LOSS} .plot")
    tab.click("button[data-rows=all]")
    wait(tab, f"{curves} === 4")
    tab.click("#results th:nth-child(2) button")
    rows = "[...document.querySelectorAll('#results tbody tr')].map(row => row.cells[0].textContent)"
    assert tab.evaluate(rows) == ["large", "small"]
    marks = [
        f"document.querySelectorAll('#results .layer_{number}_marks :is(path, line)').length" for number in range(3)
    ]
    wait(tab, " && ".join(marks))
    assert [tab.evaluate(count) for count in marks] == [2, 2, 2], "a point and two intervals for each row"


def test_seeds_are_a_mean_with_a_band(opened, make_run):
    for seed in range(3):
        records = [
            {**record, **{name: value + seed / 10 for name, value in record.items() if name != "step"}}
            for record in lines([100, 200, 300])
        ]
        make_run(f"seeds/seed{seed}", records)
    folder = make_run("other", []).parent / "seeds"
    metrics = {"valid/masked_lm_loss": {"seeds": {"0": 4.0, "1": 4.1, "2": 4.2}, "mean": 4.1, "std": 0.1}}
    (folder / "seeds.json").write_text(json.dumps({"steps": dict.fromkeys("012", 300), "metrics": metrics}))
    tab = opened(folder)
    plot = f"document.querySelector('{_LOSS} .plot svg')"
    assert tab.evaluate(f"{plot}.querySelectorAll('.mark-line path').length") == 2, "training and validation"
    assert tab.evaluate(f"{plot}.querySelectorAll('.mark-area path').length") == 2
    assert tab.evaluate("document.querySelectorAll('[data-row]').length") == 1
    readout = tab.evaluate(f"document.querySelector('{_LOSS} .readout').textContent")
    assert "seeds, mean of 3, validation 4.1 at 300" in readout
