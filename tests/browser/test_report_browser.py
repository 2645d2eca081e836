"""The report in headless Chromium: it draws, says what summary.json says, fits, and asks nobody for anything."""

from __future__ import annotations

import html
import json
import pathlib
import re

import chromium
import pytest
import synthetic_run

from orrery import report

pytestmark = pytest.mark.skipif(
    chromium.executable() is None, reason="no Chromium here; install the Debian package chromium"
)

FIGURES = {
    "cdf_ttft",
    "cdf_tpot",
    "cdf_e2e",
    "timeline",
    "ttft_prompt",
    "step_times",
    "memory",
    "breakdown",
    "gantt",
}
SCALES = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01}
# Text of each colour on the backgrounds that it stands on.
TEXT_ON = [
    ("ink", "page"),
    ("ink", "card"),
    ("muted", "page"),
    ("muted", "card"),
    ("accent", "page"),
    ("accent", "card"),
    ("green", "page"),
    ("red", "page"),
    ("red", "card"),
    ("ink", "hover"),
    ("ink", "faint"),
    ("green", "card"),
    ("blue", "card"),
    ("orange", "card"),
    ("purple", "card"),
    ("grey", "card"),
    ("onfill", "blue"),
    ("onfill", "green"),
    ("onfill", "orange"),
    ("onfill", "purple"),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return synthetic_run.write(tmp_path_factory.mktemp("runs") / "quiet")


@pytest.fixture(scope="module")
def page_file(run_dir):
    return report.render(run_dir)


@pytest.fixture(scope="module")
def overloaded_file(tmp_path_factory):
    # 60 requests/s is about twice what the toy can do: long queues, times over every limit.
    return report.render(
        synthetic_run.write(tmp_path_factory.mktemp("runs") / "overloaded", num_requests=4000, rate_per_s=60)
    )


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser() as opened:
        yield opened


@pytest.fixture(
    scope="module",
    params=[(1280, False), (1280, True), (400, False), (400, True)],
    ids=["wide-light", "wide-dark", "narrow-light", "narrow-dark"],
)
def page(request, browser, page_file):
    width, dark = request.param
    return browser.open(page_file, width=width, dark=dark)


def shown_number(text: str) -> float:
    """Value in base units of a text such as "42.4 ms", "1,279 tokens/s" or "> 99.9 %"."""
    number, unit = re.fullmatch(r"[<>▲ ]*([0-9.,]+)\s*(\S*).*", text.strip()).groups()
    return float(number.replace(",", "")) * SCALES.get(unit, 1.0)


def at(summary: dict, key: str) -> float:
    for part in key.split("."):
        summary = summary[part]
    return summary


def test_every_figure_draws_all_its_traces(page):
    counts = page.evaluate("""Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id, {
        asked: JSON.parse(document.getElementById('figures').textContent).find(f => f.name === plot.id).data.length,
        drawn: plot.querySelectorAll('.main-svg .trace').length,
        marks: plot.querySelectorAll('.trace path').length}]))""")
    assert set(counts) == FIGURES
    for name, count in counts.items():
        assert count["drawn"] == count["asked"] > 0, name
        assert count["marks"] >= count["asked"], name


def test_the_console_stays_silent(page):
    assert page.errors() == []


def test_the_page_requests_nothing_but_itself(page, page_file):
    assert page.requests() == [page_file.resolve().as_uri()]


def test_no_address_outside_the_page_is_loaded_or_linked(page_file):
    text = page_file.read_text()
    plotly = report._plotly_js()
    assert text.count(plotly) == 1
    own = text.replace(plotly, "")
    assert not re.search(r"""(src|href|action|data|poster|srcset)\s*=\s*["']?\s*(https?:)?//""", own)
    assert not re.search(r"""url\(|@import|\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(""", own)
    assert "default-src 'none'" in own


def test_the_cards_show_the_figures_of_the_summary(page, run_dir):
    summary = json.loads((run_dir / "summary.json").read_text())
    cards = page.evaluate("""Object.fromEntries([...document.querySelectorAll('.card')].map(card =>
        [card.dataset.key, ['.value', '.unit'].map(part => card.querySelector(part).textContent).join(' ')]))""")
    assert set(cards) == {
        "ttft_s.p50",
        "tpot_s.p50",
        "output_tokens_per_s",
        "output_tokens_per_s_per_gpu",
        "goodput",
        "slo_attainment",
    }
    for key, text in cards.items():  # three significant digits: off by at most 0.5 in 100
        assert shown_number(text) == pytest.approx(at(summary, key), rel=0.005), (key, text)
    assert (
        "tokens/s" in cards["output_tokens_per_s"]
        and "requests/s" in cards["goodput"]
        and "%" in cards["slo_attainment"]
    )


def test_the_tables_show_the_figures_of_the_summary(page, run_dir):
    summary = json.loads((run_dir / "summary.json").read_text())
    rows = page.evaluate("""Object.fromEntries([...document.querySelectorAll('#latency-table tbody tr')].map(row =>
        [row.dataset.key, [...row.querySelectorAll('td')].map(cell => cell.textContent)]))""")
    assert list(rows) == ["ttft_s", "tpot_s", "itl_s", "e2e_s"]
    for key, cells in rows.items():
        for name, text in zip(("mean", "p50", "p90", "p95", "p99", "max"), cells):
            assert shown_number(text) == pytest.approx(summary[key][name], rel=0.005), (key, name)
    assert rows["ttft_s"][6] == "2 s" and rows["tpot_s"][6] == "50 ms"  # the limits of the scenario
    shares = page.evaluate("""Object.fromEntries([...document.querySelectorAll('#basis-table tbody tr')].map(row =>
        [row.dataset.key, row.querySelector('td').textContent]))""")
    for key, text in shares.items():
        assert shown_number(text) == pytest.approx(at(summary, key), abs=0.0005)


def test_nothing_is_wider_than_the_window(page):
    width = page.evaluate("window.innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = page.evaluate("""[...document.querySelectorAll('section, figure, .card, .plot, h1, dd')].filter(e =>
        e.getBoundingClientRect().right > window.innerWidth + 0.5).map(e => e.tagName + '.' + e.className)""")
    assert beyond == []


OVERLAPS = """(() => {
    const found = [];
    for (const plot of document.querySelectorAll('.plot')) {
        const texts = [...plot.querySelectorAll('[class$="tick"] text, .annotation-text, .xtitle')]
            .filter(t => t.textContent.trim()).map(t => [t.textContent, t.getBoundingClientRect()]);
        if (!texts.length) found.push(`${plot.id} has no labels`);
        const frame = plot.getBoundingClientRect();
        texts.forEach(([name, a], i) => {
            const outside = a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1;
            if (outside) found.push(`${plot.id}: ${name} is cut off`);
            for (const [other, b] of texts.slice(i + 1)) {
                const across = a.left < b.right - 1 && b.left < a.right - 1;
                const along = a.top < b.bottom - 2 && b.top < a.bottom - 2;
                if (across && along) found.push(`${plot.id}: ${name} on ${other}`);
            }
        });
    }
    return found;
})()"""


def test_no_label_covers_another_or_is_cut_off(page):
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("width", [1280, 420])
def test_an_overloaded_run_draws_as_cleanly(browser, overloaded_file, width):
    page = browser.open(overloaded_file, width=width)
    assert page.errors() == []
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('.missed').length") == 2  # TTFT and TPOT


def test_text_has_enough_contrast(page):
    # WCAG 2.2, 1.4.3: 4.5 for text. Relative luminance as defined there.
    ratios = page.evaluate(
        """(pairs => {
        const css = getComputedStyle(document.documentElement);
        const light = name => {
            const hex = css.getPropertyValue('--c-' + name).trim();
            const [r, g, b] = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
                .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        return pairs.map(([a, b]) => {
            const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
            return (high + 0.05) / (low + 0.05);
        });
    })(%s)"""
        % json.dumps(TEXT_ON)
    )
    assert [(pair, round(ratio, 2)) for pair, ratio in zip(TEXT_ON, ratios) if not ratio >= 4.5] == []


def test_the_page_is_structured_for_a_screen_reader(page):
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))
    assert page.evaluate(
        "[...document.querySelectorAll('.plot')].every(p =>"
        " p.getAttribute('role') === 'img' && p.getAttribute('aria-label').length > 20)"
    )
    assert page.evaluate("[...document.querySelectorAll('th')].every(h => ['col', 'row'].includes(h.scope))")
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate(
        "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))"
    )


def test_a_change_of_theme_redraws_the_figures(browser, page_file):
    page = browser.open(page_file, width=1280)
    line = "document.querySelector('#cdf_ttft .trace path.js-line').style.stroke"
    light = page.evaluate(line)
    page.set_dark(True)
    page.wait_for(f"{line} !== '{light}'")
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    assert page.errors() == []


def test_a_page_that_is_made_narrow_still_fits(browser, page_file):
    page = browser.open(page_file, width=1280)
    page.set_width(420)
    page.wait_for("document.querySelector('#timeline .main-svg').getBoundingClientRect().width < 420")
    page.wait_for(f"{OVERLAPS}.length === 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_the_page_prints_on_white_and_comes_back(browser, page_file, tmp_path):
    page = browser.open(page_file, width=1280, dark=True)
    # What the browser fires before it lays the page out for paper.
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert (
        page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c-card').trim()")
        == "#ffffff"
    )
    assert (
        page.evaluate(
            "Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(s => s.getBoundingClientRect().width))"
        )
        <= 700
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
    page.print_pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF-")
    assert page.errors() == []


def test_markup_in_names_stays_text(browser, tmp_path):
    run = synthetic_run.write(tmp_path / "run", num_requests=50)
    evil = "</script><img src=x onerror=console.error(1)>"
    (run / "scenario.yaml").write_text(
        synthetic_run.SCENARIO.replace('question: "How', f'question: "{evil} How')
    )
    summary = json.loads((run / "summary.json").read_text())
    summary["step_breakdown"][0]["op"] = evil
    (run / "summary.json").write_text(json.dumps(summary))
    trace = (run / "step.trace.json").read_text().replace('"qkv_proj"', json.dumps(evil))
    (run / "step.trace.json").write_text(trace)
    page = browser.open(report.render(run), width=1280)
    assert page.errors() == []
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert evil in page.evaluate("document.querySelector('h1').textContent")
    assert html.escape(evil) in pathlib.Path(run / "report.html").read_text()


def test_tables_sort_by_mouse_and_key_and_say_so(browser, page_file, run_dir):
    page = browser.open(page_file, width=1280)
    summary = json.loads((run_dir / "summary.json").read_text())
    rising = sorted(["ttft_s", "tpot_s", "itl_s", "e2e_s"], key=lambda key: summary[key]["mean"])
    shown = "[...document.querySelectorAll('#latency-table tbody tr')].map(row => row.dataset.key)"
    sorts = "[...document.querySelectorAll('#latency-table thead th')].map(cell => cell.getAttribute('aria-sort'))"
    assert page.evaluate(sorts) == [None] * 8
    page.evaluate("document.querySelector('#latency-table thead th:nth-child(2) button').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", page._session, type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert page.evaluate(shown) == rising
    assert page.evaluate(sorts) == [None, "ascending", *[None] * 6]
    page.evaluate("document.querySelector('#latency-table thead th:nth-child(2) button').click()")
    assert page.evaluate(shown) == rising[::-1]
    assert page.evaluate(sorts) == [None, "descending", *[None] * 6]


def test_the_share_of_every_bar_stands_inside_the_page_of_a_phone(browser, page_file):
    page = browser.open(page_file, width=400)
    cut = page.evaluate("""(() => {
        const frame = document.getElementById('breakdown').getBoundingClientRect();
        const texts = [...document.querySelectorAll('#breakdown .bartext')];
        if (!texts.length) return ['no shares'];
        return texts.filter(t => t.getBoundingClientRect().right > frame.right + 1).map(t => t.textContent);
    })()""")
    assert cut == []


def test_a_phone_shows_p95_and_p99_and_the_limit_without_a_scroll(browser, page_file):
    page = browser.open(page_file, width=400)
    shown = page.evaluate("""[...document.querySelectorAll('#latency-table thead th')]
        .filter(cell => cell.offsetWidth > 0 && cell.getBoundingClientRect().right <= innerWidth).map(cell => cell.textContent.trim())""")
    assert {"p50", "p95", "p99", "limit"} <= set(shown)
    assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#latency .scroll'))") == 0
