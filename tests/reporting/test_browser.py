"""The pages in a headless Chromium: each control is used, nothing is complained of, nothing asked of the network."""

import json

import pytest

from bertjax.reporting import page
from tests.reporting import whole
from tests.reporting.browser import browser

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
    assert tab.evaluate(f"document.querySelector('{_LOSS} h3').firstChild.textContent") == "masked_lm_loss"
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
    assert "held-out" in tab.evaluate(f"document.querySelector('{_LOSS} .readout').textContent")
    # A logarithmic axis, smoothing, another horizontal axis.
    lines = f"document.querySelectorAll('{_LOSS} .plot svg .mark-line path').length"
    labels = f"[...document.querySelectorAll('{_LOSS} .plot svg .role-axis-label text')].map(e => e.textContent).join()"
    assert tab.evaluate(lines) == 2
    before = tab.evaluate(labels)
    tab.click("input[name=log]")
    wait(tab, f"{labels} !== {json.dumps(before)}")
    tab.evaluate("document.querySelector('input[name=smoothing]').focus()")
    for _ in range(3):
        tab.press("ArrowRight", windowsVirtualKeyCode=39)
    wait(tab, f"{lines} === 3")
    assert tab.evaluate("document.querySelector('output[name=shown]').value") == "0.06"
    choose(tab, "select[name=axis]", "tokens")
    wait(tab, f"document.querySelector('{_LOSS} .plot').dataset.window.endsWith(' 300000')")
    tab.click("#curves details summary")
    wait(tab, "document.querySelectorAll('#curves details .plot svg').length > 1")


def test_tables_and_filters(opened, make_run):
    tab = opened(whole.run(make_run))
    column = "[...document.querySelectorAll('#last-figures tbody tr')].map(r => r.cells[1].textContent)"
    tab.click("#last-figures th:nth-child(2) button")
    up = [float(value) for value in tab.evaluate(column)]
    assert up == sorted(up) and len(set(up)) > 3
    tab.evaluate("document.querySelector('#last-figures th:nth-child(2) button').focus()")
    tab.press("Enter", windowsVirtualKeyCode=13, text="\r")
    assert [float(value) for value in tab.evaluate(column)] == up[::-1]
    assert tab.evaluate("document.querySelector('#last-figures th:nth-child(2)').ariaSort") == "descending"
    shown = "document.querySelectorAll('#{} tbody tr:not([hidden])').length"
    tab.click("input[data-filter=last-figures]")
    for letter in "gradient":
        tab.press(letter)
    assert tab.evaluate(shown.format("last-figures")) == 0
    every = tab.evaluate(shown.format("keys"))
    tab.click("input[data-only=keys]")
    assert 0 < tab.evaluate(shown.format("keys")) < every


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
    assert tab.evaluate(told).startswith("“il” looks at “sleeps” 100 %")
    tab.evaluate("document.querySelector('.queries button[aria-pressed=true]').focus()")
    tab.press("ArrowRight")
    assert tab.evaluate(told).startswith("“dort” looks at “</s>” 100 %")
    assert tab.evaluate("document.querySelector('.keys span:nth-child(3)').title") == "100.0 %"
    tab.hover("#attention-viewer canvas", 0.5, 0.1)
    assert tab.evaluate(told).startswith("“<s>” looks at “he”")
    set_to("head", "mean")
    assert "“he” 56 %" in tab.evaluate(told)  # two heads look everywhere


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_light_and_dark(opened, make_run, dark):
    tab = opened(whole.run(make_run), width=360, height=740, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    paper = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(paper)
    assert (sum(map(int, before[4:-1].split(","))) < 380) == dark
    axis = f"document.querySelector('{_LOSS} .plot svg .role-axis-label text').getAttribute('fill')"
    ink = tab.evaluate(axis)
    tab.click("#theme")
    wait(tab, f"{axis} !== {json.dumps(ink)}")
    assert tab.evaluate(paper) != before


def test_a_sweep(opened, make_run):
    tab = opened(whole.sweep(make_run))
    lines = f"document.querySelectorAll('{_LOSS} .plot svg .mark-line path').length"
    assert tab.evaluate(lines) == 4
    tab.click("input[data-row='0']")
    wait(tab, f"{lines} === 2")
    tab.click("button[data-rows=none]")
    wait(tab, f"document.querySelector('{_LOSS} .plot').textContent.includes('Nothing to draw')")
    tab.click(f"{_LOSS} button[title='zoom in']")  # which does nothing now
    tab.hover(f"{_LOSS} .plot")
    tab.click("button[data-rows=all]")
    wait(tab, f"{lines} === 4")
    tab.click("#results th:nth-child(2) button")
    rows = "[...document.querySelectorAll('#results tbody tr')].map(row => row.cells[0].textContent)"
    assert tab.evaluate(rows) == ["large", "small"]
