"""The scorecard's page in headless Chromium: it draws, fits narrow and wide windows, and asks nobody for anything."""

from __future__ import annotations

import chromium
import pytest

from orrery.scorecard import cases, outcomes, page

pytestmark = pytest.mark.skipif(
    chromium.executable() is None, reason="no Chromium here; install the Debian package chromium"
)


def made(number: int) -> outcomes.Outcome:
    """A simulated case of one of three families, 20 % too fast in every second."""
    fields = dict.fromkeys(cases.CONFIGURATION, "") | {
        "family": "ABC"[number % 3], "engine": "vllm", "gpu_key": "h200", "model": "Llama <8B>", "tp": str(2 ** (number % 3)),
        "isl": "128", "osl": "64", "load_kind": "closed_loop", "load_value": "8", "structured": "yes"}  # fmt: skip
    factor = 0.8 if number % 2 else 1.05
    found = tuple(
        outcomes.Comparison(metric, unit, value * (1 + number), value * (1 + number) * factor)
        for metric, unit, value in (("TTFT", "s", 0.05), ("TPOT", "s", 0.01), ("output throughput", "1/s", 900.0))
    )
    split = {
        "flops_per_token": 1e10,
        "wait_s": 0.01,
        "ttft_s": 0.05,
        "prefill_share": 0.1,
        "prefill_step_s": 0.04,
        "decode_step_s": None,
    }
    basis = {"measured": 0.5, "interpolated": 0.3, "roofline": 0.2}
    return outcomes.Outcome(cases.Case(f"case-{number}", 2 + number, fields, ()), "", found, (), basis, split)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "card.html"
    left_out = outcomes.Outcome(made(0).case, "lengths are those of a <data set>")
    page.write(path, [*(made(number) for number in range(24)), left_out])
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (420, True)], ids=["wide-light", "narrow-dark"])
def test_the_page_draws_fits_and_loads_nothing(page_file, width, dark):
    with chromium.Browser() as browser:
        opened = browser.open(page_file, width=width, dark=dark)
        assert opened.errors() == []
        assert opened.requests() == [page_file.resolve().as_uri()]
        assert opened.evaluate("document.documentElement.dataset.drawn") == "3"
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        # 24 cases in each of three scatter plots, a symbol each.
        assert opened.evaluate("document.querySelectorAll('.plot .scatterlayer .point').length") == 72
        text = opened.evaluate("document.body.innerText")
        assert "Llama <8B>" in text
        assert "lengths are those of a <data set>" in text
