"""The scorecard's arithmetic, its command line, and that it gives the same bytes however it is run."""

import json

import pandas
import pytest
import scorecard_rows
from orrery.scorecard import cases, command, outcomes, rules, statistics, text


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


def test_errors_are_shown_without_contradictory_rows_too():
    rows = [{"metric": "TPOT", "contradiction": "", "error": 0.1}, {"metric": "TPOT", "contradiction": "impossible", "error": 0.9}]
    printed = text.consistent(pandas.DataFrame(rows)).splitlines()
    assert "without 1 metrics that are not consistent" in printed[0]
    assert printed[2].split()[:3] == ["TPOT", "1", "10.0"]
    assert text.consistent(pandas.DataFrame(rows[:1])) == ""
    assert text.consistent(pandas.DataFrame(rows[1:])) == ""


def test_errors_of_cases_without_an_inferred_setting_stand_beside_those_of_all():
    rows = [{"metric": metric, "inferred": inferred, "error": error} for metric, inferred, error in
            (("TPOT", 0, 0.1), ("TPOT", 2, 0.9), ("TTFT", 1, 0.4))]  # fmt: skip
    lines = {line.split()[0]: line.split() for line in text.all_cases(pandas.DataFrame(rows)).splitlines()[2:]}
    assert (lines["TPOT"][1:3], lines["TPOT"][-2:]) == (["2", "50.0"], ["1", "10.0"])
    assert (lines["TTFT"][1:3], lines["TTFT"][-1]) == (["1", "40.0"], "0")


def test_json_has_the_errors_of_cases_without_an_inferred_setting(tmp_path):
    rows = [scorecard_rows.row(), scorecard_rows.row(id="MADE-2", case_id="b", engine_version="")]
    errors = json.loads(run(scorecard_rows.write(tmp_path / "cases.csv", rows), 1))["errors"]
    assert [row["cases"] for row in errors["metric"]] == [2]
    assert [row["cases"] for row in errors["metric, no setting inferred"]] == [1]


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
