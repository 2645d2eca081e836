"""The scorecard's arithmetic, its command line, and that it gives the same bytes however it is run."""

import json
import math
import pathlib
import random

import numpy as np
import pandas
import pytest
import scorecard_rows
from orrery.scorecard import calibration, cases, command, fit, intervals, outcomes, rules, statistics, text

SHIPPED = pathlib.Path(__file__).resolve().parents[2] / "data" / "serving" / "published_serving.csv"


def outcome(*, ttft=(1.0, 1.0), tpot=(1.0, 1.0), **cells):
    """A simulated closed-loop case with given (published, simulated) seconds."""
    fields = scorecard_rows.row(**cells) | {"family": "MADE"}
    comparisons = tuple(outcomes.Comparison(name, "s", *pair) for name, pair in (("TTFT", ttft), ("TPOT", tpot)))
    case = cases.Case(f"case {sorted(cells.items())}", 2, fields, ())
    return outcomes.Outcome(case, "", comparisons, (), {"measured": 1.0, "interpolated": 0.0, "roofline": 0.0})


def small_file(tmp_path):
    rows = [
        scorecard_rows.row(
            case_id=f"{i}", metric=metric, tp=f"{2 ** (i % 2)}", load_value=f"{i + 1}", engine="" if i == 5 else "vllm"
        )
        for i in range(6)
        for metric in ("ttft", "tpot")
    ]
    return scorecard_rows.write(tmp_path / "cases.csv", rows)


def test_errors_are_relative_to_what_was_published():
    errors = statistics.table([outcome(ttft=(1.0, 1.1)), outcome(ttft=(2.0, 1.0), tp="2")])
    row = statistics.errors_by(errors[errors["metric"] == "TTFT"], "metric").iloc[0]
    # +10 % and -50 %
    assert row["cases"] == 2
    assert row["mape"] == pytest.approx(0.3)
    assert row["median"] == pytest.approx(0.3)
    assert row["bias"] == pytest.approx(-0.2)


def test_the_halves_never_change():
    assert [statistics.half(name) for name in ("good", "other")] == [_half_by_hand(name) for name in ("good", "other")]
    halves = [statistics.half(case.case_id) for case in cases.read_cases(SHIPPED)]
    assert 0.45 < halves.count("fit") / len(halves) < 0.55


def _half_by_hand(name):
    import subprocess

    digest = subprocess.run(["sha256sum"], input=name.encode(), capture_output=True, check=True).stdout.split()[0]
    return "held out" if int(digest, 16) % 2 else "fit"


def test_held_out_errors_are_shown_with_and_without_contradictory_rows():
    unseen = {"metric": "TPOT", "half": "held out", "contradiction": ""}
    rows = [unseen | {"error": 0.1}, unseen | {"error": 0.9, "contradiction": "impossible"}, unseen | {"error": 0.3, "half": "fit"}]
    printed = text.held_out(pandas.DataFrame(rows)).splitlines()
    assert "1 metrics are not consistent" in printed[0]
    assert [line.split()[:4] for line in printed[2:]] == [["TPOT", "all", "2", "50.0"], ["TPOT", "consistent", "1", "10.0"]]
    assert "not consistent" not in text.held_out(pandas.DataFrame(rows[:1]))
    assert text.held_out(pandas.DataFrame(rows[2:])) == ""


def test_only_rows_of_the_table_are_called_contradictory():
    assert rules.contradiction({"family": "IXPOS"})
    assert not rules.contradiction({"family": "SILIX"})


def test_kendall_tau_is_one_for_equal_order_and_minus_one_for_the_reverse():
    def tau(simulated):
        found = statistics.rankings(
            [outcome(tp=tp, tpot=(published, ours)) for tp, published, ours in zip("124", (4, 2, 1), simulated)]
        )
        return found[(found["load"] == "concurrency") & (found["measure"] == "TPOT")].iloc[0]

    assert tau((40, 20, 10))["tau"] == 1.0
    assert tau((40, 20, 10))["best_found"] == 1.0
    assert tau((10, 20, 40))["tau"] == -1.0
    assert tau((20, 40, 10))["tau"] == pytest.approx(1 / 3)  # one of three pairs is the wrong way round


def test_pairs_within_the_noise_of_measurements_do_not_count():
    found = statistics.rankings([outcome(tp="1", tpot=(1.0, 2.0)), outcome(tp="2", tpot=(1.01, 1.0))])
    row = found[(found["load"] == "concurrency") & (found["measure"] == "TPOT")].iloc[0]
    assert row["pairs"] == 0
    assert row["best_found"] == 1.0


def test_cases_under_other_loads_are_not_ranked_together():
    found = statistics.rankings(
        [outcome(tp="1", tpot=(1.0, 2.0), load_value="4"), outcome(tp="2", tpot=(2.0, 1.0), load_value="8")]
    )
    tables = found.set_index(["load", "measure"])["pairs"]
    assert tables["concurrency", "TPOT"] == 0
    assert tables["concurrency per GPU", "TPOT"] == 1  # 4 clients on 1 GPU, 8 on 2


def residuals(count, spread, seed):
    """Published values log-normal around simulated ones, as a table of errors."""
    draw = random.Random(seed)
    rows = [
        {
            "metric": "TTFT",
            "engine": "vllm 1",
            "load": "closed_loop",
            "unit": "s",
            "roofline": 0.0,
            "half": "fit",
            "simulated": 1.0,
            "published": math.exp(spread * draw.gauss(0, 1)),
        }
        for _ in range(count)
    ]
    return pandas.DataFrame(rows)


def test_the_bounds_of_many_log_normal_residuals_are_their_quantiles():
    _, table = calibration.fit(residuals(4000, 0.3, seed=7))
    count, (low, high) = table["TTFT", "vllm", "closed_loop"]
    # The 90 % quantile of a standard normal is 1.2816; its standard error here 0.3 * 0.027.
    assert count == 4000
    assert low == pytest.approx(-0.3 * 1.2816, abs=0.03)
    assert high == pytest.approx(0.3 * 1.2816, abs=0.03)


def test_a_small_group_is_drawn_towards_its_parent():
    few = residuals(2, 0.01, seed=1).assign(load="poisson")
    _, table = calibration.fit(pandas.concat([residuals(400, 0.5, seed=2), few]))
    alone = np.quantile(np.log(few["published"]), 0.9)
    parent = table["TTFT", "vllm", "any"][1][1]
    mixed = table["TTFT", "vllm", "poisson"][1][1]
    assert mixed == pytest.approx((2 * alone + calibration.SHRINKAGE * parent) / (2 + calibration.SHRINKAGE))


def test_an_interval_widens_with_the_roofline_share_and_scales_with_the_value():
    narrow, wide = (intervals.interval(1.0, metric="TPOT", roofline=share, engine="vllm") for share in (0.0, 1.0))
    assert math.log(wide[1] / wide[0]) > math.log(narrow[1] / narrow[0]) > 0
    assert intervals.interval(2.0, metric="TPOT", roofline=0.0, engine="vllm") == tuple(2 * bound for bound in narrow)


def test_a_metric_that_was_never_compared_has_no_interval():
    assert intervals.interval(1.0, metric="joy", roofline=0.0) is None


def test_an_engine_that_was_never_compared_takes_the_interval_of_all():
    assert intervals.interval(1.0, metric="TPOT", roofline=0.1, engine="new") == intervals.interval(
        1.0, metric="TPOT", roofline=0.1
    )


@pytest.fixture
def profiles(tmp_path):
    (tmp_path / "base.yaml").write_text(
        'name: base\nhost:\n  # launches\n  eager_launch: {value: 5.0 us, source: "a, b"}\n  scheduler_base: 1 ms\n'
        'front_end:\n  eager_launch: {value: 7 us, source: "c"}\n',
        encoding="utf-8",
    )
    (tmp_path / "child.yaml").write_text(
        "name: child\nextends: base\nhost:\n  scheduler_base: 2 ms\n", encoding="utf-8"
    )
    return tmp_path


def test_a_profile_value_is_found_in_its_section_or_in_the_profile_it_extends(profiles):
    assert fit.value_of(profiles, "base", "host.eager_launch") == "5.0 us"
    assert fit.value_of(profiles, "base", "front_end.eager_launch") == "7 us"
    assert fit.value_of(profiles, "child", "host.scheduler_base") == "2 ms"
    assert fit.value_of(profiles, "child", "host.eager_launch") == "5.0 us"


def test_a_profile_has_no_value_of_an_unknown_key(profiles):
    assert fit.value_of(profiles, "child", "host.tea_break") is None
    assert fit.value_of(profiles, "child", "tea.break") is None


def test_a_fitted_profile_states_only_what_it_changes(profiles):
    text = fit.extending(
        "base", {"host.eager_launch": "9 us", "front_end.eager_launch": "8 us", "host.scheduler_base": "3 ms"}
    )
    (profiles / "fitted.yaml").write_text(text, encoding="utf-8")
    assert text.startswith("name: base\nextends: base\n")
    assert fit.value_of(profiles, "fitted", "host.eager_launch") == "9 us"
    assert fit.value_of(profiles, "fitted", "front_end.eager_launch") == "8 us"
    assert text.count("host:") == 1


def test_the_search_finds_the_parameters_that_made_the_measurements():
    made_with = {"host.scheduler_base": "2 ms", "front_end.per_request": "6 ms"}

    def simulated(values):
        return 1 + float(values["host.scheduler_base"].split()[0]), 10 + float(
            values["front_end.per_request"].split()[0]
        )

    tpot, ttft = simulated(made_with)

    def evaluate(values):
        ours = simulated(values)
        return [outcome(tpot=(tpot, ours[0]), ttft=(ttft, ours[1]))]

    start = {"host.scheduler_base": "0.75 ms", "front_end.per_request": "0.9 ms"}
    assert fit.search([evaluate(start)[0].case], start, evaluate) == made_with


def run(path, threads, **options):
    return command.run(cases=path, filters=(), threads=threads, as_json=True, html=None, progress=None, **options)


def test_the_same_cases_give_the_same_bytes_with_any_number_of_threads(tmp_path):
    path = small_file(tmp_path)
    first = run(path, 1)
    assert first == run(path, 2)
    found = json.loads(first)
    assert [case["case_id"] for case in found["cases"]] == ["0", "1", "2", "3", "4", "5"]
    assert [case["cannot_be_simulated"] for case in found["cases"]] == [None] * 5 + ["engine not stated"]


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    command.run(
        cases=small_file(tmp_path), filters=(), threads=1, as_json=True, html=tmp_path / "card.html", progress=None
    )
    html = (tmp_path / "card.html").read_text(encoding="utf-8")
    assert "engine not stated" in html
    assert html.count("<script") == 3
    assert "<script src" not in html and "<link" not in html


def test_the_command_prints_tables(workdir, tmp_path):
    result = workdir.orrery("scorecard", "--cases", small_file(tmp_path), "--filter", "tp=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2 of 3 cases simulated, 4 metrics compared\n")
    for words in (
        "Errors of all cases",
        "by parallelism",
        "by engine",
        "80 % intervals",
        "Worst case",
        "engine not stated",
    ):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cases", "nowhere.csv"), "found no file 'nowhere.csv'"),
        (("--cases", "trace.csv"), "trace.csv:1: missing column 'source'"),
        (("--filter", "engine"), "expected key=value"),
        (("--filter", "colour=red"), "expected key=value with a key among case_id"),
        (("--filter", "engine=lmdeploy"), "no case is left"),
        (("--threads", "0"), "whole number from 1 to 1,024"),
        (("--html", "nowhere/card.html"), "nowhere"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_simulated(workdir, arguments, words):
    result = workdir.orrery("scorecard", *arguments)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert words in result.stderr
