"""The report of an answer in headless Chromium: it draws and fits, its controls do what they say, and it asks nobody for anything."""

from __future__ import annotations

import csv
import io
import json

import chromium
import pytest
import small_answer
from test_report_browser import OVERLAPS

import orrery
from orrery.search import report

pytestmark = pytest.mark.skipif(
    chromium.executable() is None, reason="no Chromium here; install the Debian package chromium"
)

# Width and colours that a browser is asked for.
LOOKS = [(1280, False), (1280, True), (400, False), (400, True)]
IDS = ["wide-light", "wide-dark", "narrow-light", "narrow-dark"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = small_answer.write(tmp_path_factory.mktemp("met") / "answer")
    report.render(made)
    return made


@pytest.fixture(scope="module")
def missed_file(tmp_path_factory):
    return report.render(small_answer.write(tmp_path_factory.mktemp("missed") / "answer", ttft="30 ms"))


@pytest.fixture(scope="module")
def impossible_file(tmp_path_factory):
    asked = """</script><img src=x onerror=console.error(1)> "מה" שאלה"""
    return report.render(small_answer.write(tmp_path_factory.mktemp("none") / "answer", asked=asked, ttft="1 us"))


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser() as opened:
        yield opened


@pytest.fixture
def page(browser, directory):
    return browser.open(directory / "report.html", width=1280)


def answer_of(directory):
    return json.loads((directory / "answer.json").read_text())


def type_into(page, title, text):
    page.evaluate(f"""(() => {{
        const box = document.querySelector('input[aria-label="filter by {title}"]');
        box.value = {json.dumps(text)};
        box.dispatchEvent(new Event('input', {{bubbles: true}}));
    }})()""")


def shown(page, column=0):
    return page.evaluate(f"[...document.querySelectorAll('#plans-table tbody tr')].map(row => row.cells[{column}].textContent)")


def marks(page):
    """Plans that stand in the chart as simulated, and operating points of closed form."""
    return page.evaluate("""(() => {
        const found = document.getElementById('front').data.flatMap(trace => trace.customdata ?? []);
        return [found.filter(mark => mark[0] === 'p').length, found.filter(mark => mark[0] === 's').length];
    })()""")


@pytest.mark.parametrize(("width", "dark"), LOOKS, ids=IDS)
def test_the_page_draws_and_fits_and_loads_nothing(browser, directory, width, dark):
    file = directory / "report.html"
    opened = browser.open(file, width=width, dark=dark)
    assert opened.errors() == []
    assert opened.requests() == [file.resolve().as_uri()]
    plots = opened.evaluate("[...document.querySelectorAll('.plot')].map(plot => [plot.id, plot.querySelectorAll('.main-svg .trace').length])")
    assert {name for name, traces in plots if traces} == {"front", "load_ttft", "load_tpot", "limits", "growth", "others"}
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(OVERLAPS) == []


@pytest.mark.parametrize(("width", "dark"), [LOOKS[0], LOOKS[3]], ids=[IDS[0], IDS[3]])
@pytest.mark.parametrize("kind", ["missed_file", "impossible_file"])
def test_an_answer_without_a_plan_draws_as_cleanly(browser, request, kind, width, dark):
    opened = browser.open(request.getfixturevalue(kind), width=width, dark=dark)
    assert opened.errors() == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert "No plan of the space meets the SLO" in opened.evaluate("document.querySelector('.lead').textContent")
    assert "the nearest" in opened.evaluate("document.getElementById('plan-page').textContent")


def test_markup_and_other_directions_in_a_question_stay_text(browser, impossible_file):
    opened = browser.open(impossible_file, width=1280)
    assert opened.evaluate("document.querySelector('h1').textContent") == """</script><img src=x onerror=console.error(1)> "מה" שאלה"""
    assert opened.evaluate("document.querySelector('h1').dir") == "auto"


def test_other_axes_move_the_marks_and_the_front_follows_them(page):
    before = page.evaluate("[...document.querySelectorAll('#front .xtitle, #front .ytitle')].map(title => title.textContent)")
    assert before == ["tokens/s per user", "tokens/s per GPU"]
    page.evaluate("""(() => {
        const select = document.getElementById('axis-x');
        select.value = 'ttft';
        select.dispatchEvent(new Event('change'));
    })()""")
    page.wait_for("document.querySelector('#front .xtitle').textContent === 'TTFT'")
    # On the front of TTFT against tokens, which is of points that were served in full: none has less TTFT and more tokens.
    dominated = page.evaluate("""(() => {
        const traces = document.getElementById('front').data;
        const front = traces.find(trace => trace.hoverinfo === 'skip');
        const points = traces.filter(trace => trace.mode === 'lines+markers').flatMap(t => t.x.map((x, i) => [x, t.y[i], t.text[i]])).filter(([x, , text]) => x !== null && text.includes('served in full'));
        return !points.length ? -1 : front.x.filter((x, i) => points.some(([px, py]) => px < x && py > front.y[i])).length;
    })()""")
    assert dominated == 0
    assert page.errors() == []


def test_a_filter_holds_in_the_table_and_in_the_chart(page, directory):
    total = answer_of(directory)["space"]["plans"]
    assert page.evaluate("document.getElementById('count').textContent") == f"{total} plans"
    simulated, points = marks(page)
    type_into(page, "Plan", "TP2")
    assert shown(page) and all("TP2" in name for name in shown(page))
    fewer = marks(page)
    assert fewer[0] < simulated and 0 < fewer[1] < points
    type_into(page, "Plan", "")
    type_into(page, "GPUs", "2..4")
    assert {int(text) for text in shown(page, 1)} == {2, 3, 4}
    type_into(page, "GPUs", ">= 5")
    assert {int(text) for text in shown(page, 1)} == {5, 6}
    type_into(page, "GPUs", "many")
    assert page.evaluate("document.querySelector('input[aria-label=\"filter by GPUs\"]').getAttribute('aria-invalid')") == "true"
    assert len(shown(page)) == total  # what is no filter leaves nothing out
    page.evaluate("document.getElementById('clear').click()")
    assert marks(page) == [simulated, points]


def test_a_filter_takes_units(page, directory):
    with (directory / "plans.csv").open() as file:
        fast = [row["plan"] for row in csv.DictReader(file) if row["tpot_s_p50"] and float(row["tpot_s_p50"]) < 0.01]
    type_into(page, "TPOT p50", "< 10 ms")
    assert sorted(shown(page)) == sorted(fast)


def test_a_title_sorts_by_numbers_with_empty_cells_last(page):
    press = "document.querySelector('#plans-table th[data-key=\"ttft_s_p50\"] button').click()"
    for direction in ("ascending", "descending"):
        page.evaluate(press)
        assert page.evaluate("document.querySelector('#plans-table th[data-key=\"ttft_s_p50\"]').getAttribute('aria-sort')") == direction
        column = page.evaluate("[...document.querySelectorAll('#plans-table thead th')].findIndex(th => th.dataset.key === 'ttft_s_p50')")
        cells = shown(page, column)
        filled = [float(text.split()[0]) for text in cells if text != "–"]
        assert len(filled) > 1 and all(text.endswith(" ms") for text in cells if text != "–")
        assert filled == sorted(filled, reverse=direction == "descending")
        assert cells[len(filled) :] == ["–"] * (len(cells) - len(filled))


def test_the_download_is_the_table_as_the_search_wrote_it(page, directory):
    page.evaluate("""(() => {
        globalThis.saved = new Promise(resolve => {
            URL.createObjectURL = blob => { blob.text().then(resolve); return '#'; };
        });
        document.getElementById('download').click();
    })()""")
    assert page.evaluate("globalThis.saved") == (directory / "plans.csv").read_text()
    type_into(page, "GPUs", "2")
    page.evaluate("""(() => {
        globalThis.saved = new Promise(resolve => {
            URL.createObjectURL = blob => { blob.text().then(resolve); return '#'; };
        });
        document.getElementById('download').click();
    })()""")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("globalThis.saved"))))
    assert rows and {row["num_gpus"] for row in rows} == {"2"}


def test_a_press_on_a_mark_and_the_link_of_a_plan_show_its_page(page, directory):
    answer = answer_of(directory)
    assert answer["best"]["words"] in page.evaluate("document.querySelector('#plan-page h3').textContent")
    other = answer["runners_up"][0]
    page.evaluate(f"document.querySelector('#plans-table a[href=\"#plan-{other['id']}\"]').click()")
    page.wait_for(f"document.querySelector('#plan-page h3').textContent === {json.dumps(other['words'])}")
    text = page.evaluate("document.getElementById('plan-page').textContent")
    assert other["why"] in text and "orrery run question.yaml --set placement.tp=2" in text
    assert page.evaluate("document.activeElement.id") == "plan-title"
    page.evaluate(f"document.getElementById('front').emit('plotly_click', {{points: [{{customdata: 'p{answer['best']['id']}'}}]}})")
    page.wait_for(f"document.querySelector('#plan-page h3').textContent.startsWith({json.dumps(answer['best']['words'])})")
    assert page.errors() == []


def test_the_commands_of_a_plan_give_that_plan(page, directory, tmp_path):
    other = answer_of(directory)["runners_up"][0]
    page.evaluate(f"location.hash = 'plan-{other['id']}'")
    page.wait_for("document.querySelector('.plan-command code').textContent.includes('question.yaml')")
    words = page.evaluate("document.querySelector('.plan-command code').textContent").split()
    settings = [word for before, word in zip(words, words[1:]) if before == "--set"]
    plan = orrery.load(directory / "question.yaml", overrides=settings)
    assert plan.replicas * plan.gpus_per_replica == other["num_gpus"]
    assert sorted(settings) == sorted(other["assignments"])


def test_a_shape_that_is_put_away_leaves_the_chart_and_comes_back(page):
    before = marks(page)
    press = "document.querySelector('#shapes button').click()"
    page.evaluate(press)
    assert page.evaluate("document.querySelector('#shapes button').getAttribute('aria-pressed')") == "false"
    assert marks(page)[1] < before[1]
    page.evaluate(press)
    assert marks(page) == before


def press_key(browser, page, key, code, text=""):
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", page._session, type=kind, key=key, windowsVirtualKeyCode=code, **({"text": text} if text else {}))


def test_every_control_is_reached_and_worked_by_keyboard(browser, page):
    reached = []
    for _ in range(80):
        press_key(browser, page, "Tab", 9)
        name = page.evaluate("document.activeElement.id || document.activeElement.closest('[data-key]')?.dataset.key || document.activeElement.getAttribute('href')")
        reached.append(name)
        if name == "num_gpus":
            press_key(browser, page, "Enter", 13, "\r")
            # The titles are drawn again, and the one that was pressed keeps the focus.
            assert page.evaluate("document.activeElement.closest('[data-key]').dataset.key") == "num_gpus"
            assert page.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
        if name == "download":
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert {"axis-x", "axis-y", "all-columns", "clear", "download", "num_gpus", "#plan-0"} <= set(reached)


def test_all_columns_of_the_file_can_be_shown(page, directory):
    page.evaluate("document.getElementById('all-columns').click()")
    header = (directory / "plans.csv").read_text().splitlines()[0].split(",")
    keys = page.evaluate("[...document.querySelectorAll('#plans-table thead th')].map(th => th.dataset.key)")
    assert set(header) <= set(keys)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_page_is_structured_for_a_screen_reader(page):
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))
    assert page.evaluate("[...document.querySelectorAll('.plot')].every(p => p.getAttribute('role') === 'img' && p.getAttribute('aria-label').length > 20)")
    assert page.evaluate("[...document.querySelectorAll('th')].every(h => ['col', 'row'].includes(h.scope))")
    assert page.evaluate("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))")
    assert page.evaluate("[...document.querySelectorAll('input, select, button')].every(c => c.labels?.length || c.ariaLabel || c.textContent.trim())")


def test_the_colours_of_shapes_are_told_from_the_page(page):
    for dark in (False, True):
        page.set_dark(dark)
        contrasts = page.evaluate("""(() => {
            const css = getComputedStyle(document.documentElement);
            const light = name => {
                const hex = css.getPropertyValue(name).trim();
                const [r, g, b] = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
                    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            return ['--c-teal', '--c-pink'].map(name => {
                const [high, low] = [light(name), light('--c-card')].sort((x, y) => y - x);
                return (high + 0.05) / (low + 0.05);
            });
        })()""")
        assert min(contrasts) >= 4.5  # WCAG 2.2, 1.4.3
