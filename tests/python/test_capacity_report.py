"""The report of an answer of `orrery explore`: what it says is what the answer holds; damaged answers are refused by name."""

from __future__ import annotations

import copy
import csv
import json
import pathlib
import random
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "browser"))
import mutations  # noqa: E402
import small_answer  # noqa: E402

from orrery.cli import main  # noqa: E402
from orrery.search import report, report_content, saved  # noqa: E402


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    return small_answer.write(tmp_path_factory.mktemp("met") / "answer")


@pytest.fixture(scope="module")
def missed(tmp_path_factory):
    return small_answer.write(tmp_path_factory.mktemp("missed") / "answer", ttft="30 ms")


@pytest.fixture(scope="module")
def impossible(tmp_path_factory):
    return small_answer.write(tmp_path_factory.mktemp("impossible") / "answer", ttft="1 us")


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    return small_answer.write(tmp_path_factory.mktemp("closed") / "answer", load=small_answer.CLOSED)


def variations(directory, what):
    answer = json.loads((directory / "answer.json").read_text())
    return {v["factor"]: v["num_gpus"] for v in answer["sensitivity"]["variations"] if v["what"] == what}


def test_the_same_answer_gives_the_same_page(met, tmp_path):
    copied = shutil.copytree(met, tmp_path / "elsewhere")
    assert report.render(met).read_bytes() == report.render(copied).read_bytes()


def test_what_is_asked_needs_the_gpus_of_the_answer_and_more_of_it_needs_no_fewer(met):
    answer = json.loads((met / "answer.json").read_text())
    traffic = variations(met, "traffic")
    assert traffic[1.0] == answer["best"]["num_gpus"]
    found = [gpus for _, gpus in sorted(traffic.items()) if gpus is not None]
    assert found == sorted(found) and found[0] < found[-1]
    for what in ("prompt_tokens", "output_tokens"):
        lengths = variations(met, what)
        assert lengths[0.5] <= traffic[1.0] and (lengths[2.0] is None or lengths[2.0] >= traffic[1.0])
    for what in ("TTFT p99", "TPOT p99"):  # a tighter limit needs no fewer
        limits = variations(met, what)
        assert limits[0.8] is None or limits[0.8] >= traffic[1.0] >= limits[1.25]


def test_the_fewest_gpus_of_a_variation_are_those_of_a_search_that_asks_for_it(met):
    from orrery.search import driver, question

    text = (met / "question.yaml").read_text().replace("prompt_tokens: 1000", "prompt_tokens: 500").replace("tp: [1, 2]", "tp: [1]")
    found = driver.explore(question.Question(text, "half.yaml"), threads=2)
    assert variations(met, "prompt_tokens")[0.5] == found.columns["num_gpus"][found.ranking[0]]


def test_lengths_of_a_trace_are_not_varied_and_the_report_says_so(tmp_path):
    from orrery.search import sensitivity

    found, left_out = sensitivity._lengths({"trace": "requests.csv", "warmup_requests": "0"})
    assert found == [] and left_out == ["prompt and output lengths: they are those of the trace"]


def test_the_mean_of_drawn_lengths_is_scaled_with_their_bounds_and_the_spread_is_not():
    from orrery.search import sensitivity

    drawn = {"poisson": {"prompt_tokens": {"mean": "2000", "cv": "1", "max": "16384"}, "output_tokens": "300"}}
    found, _ = sensitivity._lengths(drawn)
    doubled = next(v for v in found if v["what"] == "prompt_tokens" and v["factor"] == 2)
    assert doubled["overrides"] == ("workload.poisson.prompt_tokens.mean=4000", "workload.poisson.prompt_tokens.max=32768")
    assert doubled["value"] == 4000


def test_the_price_is_that_of_the_device_with_its_source(met):
    answer = json.loads((met / "answer.json").read_text())
    device = (pathlib.Path(__file__).parents[2] / "topologies/devices/h200-sxm/device.yaml").read_text()
    assert answer["basis"]["price_source"] in device
    gpus = answer["best"]["num_gpus"]
    assert answer["best"]["usd_per_hour"] == pytest.approx(gpus * answer["basis"]["usd_per_hour"])
    assert answer["basis"]["price_source"] in dict(report_content.assumptions(saved.read(met)))["Price"]


def test_each_plan_has_one_verdict_and_the_best_one_meets(met):
    read = saved.read(met)
    verdicts = report_content._verdicts(read)
    assert len(verdicts) == len(read.rows) == read.answer["space"]["plans"]
    assert verdicts[[row[0] for row in read.rows].index(str(read.plan["id"]))] in ("meets", "meets, may miss")


def test_the_table_has_the_interval_that_the_answer_has(met):
    answer = json.loads((met / "answer.json").read_text())
    with (met / "plans.csv").open() as file:
        rows = {int(row["id"]): row for row in csv.DictReader(file)}
    for check in answer["best"]["checks"]:
        row = rows[answer["best"]["id"]]
        assert [float(row[f"{check['name']}_{part}"]) for part in ("low", "high")] == check["interval"]
        assert float(row[f"{check['name']}_checked"]) == check["value"]


def test_an_answer_without_a_plan_names_the_nearest_and_the_reasons(missed, impossible):
    page = report.render(missed).read_text()
    answer = json.loads((missed / "answer.json").read_text())
    assert "No plan of the space meets the SLO" in page and answer["nearest"]["words"] in page
    page = report.render(impossible).read_text()
    assert "9 cannot meet a limit of TTFT at any load" in page


def test_a_closed_loop_has_neither_a_load_curve_nor_a_failure(closed):
    page = report.render(closed).read_text()
    assert "A closed loop waits" in page and 'id="load_ttft"' not in page


def test_a_question_is_text_and_never_markup(tmp_path):
    asked = """</script><img src=x onerror=alert(1)> "quoted" & 'so' שאלה"""
    page = report.render(small_answer.write(tmp_path / "evil", asked=asked, ttft="1 us")).read_text()
    assert "<img" not in page.replace(report.page_parts([])["plotly"], "")
    assert "&lt;/script&gt;&lt;img src=x" in page and "שאלה" in page


def test_explore_writes_the_report_unless_told_not_to_and_report_writes_it_again(tmp_path, capsys):
    asked = tmp_path / "asked.yaml"
    asked.write_text(small_answer.TEXT.format(question="Small?", ttft="1 us", load=small_answer.OPEN))
    assert main(["explore", str(asked), "-o", str(tmp_path / "without"), "--no-report"]) == 0
    assert not (tmp_path / "without" / "report.html").exists()
    assert main(["explore", str(asked), "-o", str(tmp_path / "with")]) == 0
    first = (tmp_path / "with" / "report.html").read_bytes()
    assert main(["report", str(tmp_path / "without")]) == 0
    assert (tmp_path / "without" / "report.html").read_bytes() == first


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("answer.json", "{", "answer.json: not JSON"),
        ("answer.json", "[]", "found '[]' as 'the whole', expected an object"),
        ("plans.csv", "", "plans.csv: found nothing"),
        ("plans.csv", "id,plan\n", "no column shape, num_gpus, simulated, impossible"),
        ("scenario.yaml", "model: {", "scenario.yaml"),
        ("question.yaml", None, "no file question.yaml"),
    ],
)
def test_a_damaged_answer_is_refused_by_the_name_of_its_file(met, tmp_path, capsys, file, text, said):
    damaged = shutil.copytree(met, tmp_path / "damaged")
    (damaged / file).unlink()
    if text is not None:
        (damaged / file).write_text(text)
    assert main(["report", str(damaged)]) == 2
    assert said in capsys.readouterr().err


def test_a_table_of_another_answer_is_refused(met, tmp_path, capsys):
    damaged = shutil.copytree(met, tmp_path / "damaged")
    lines = (damaged / "plans.csv").read_text().splitlines()
    (damaged / "plans.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert main(["report", str(damaged)]) == 2
    assert "found 8 plans, expected 9" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["met", "missed", "closed"])
def test_an_answer_with_any_value_changed_is_refused_by_name_or_rendered(kind, request, tmp_path):
    directory = shutil.copytree(request.getfixturevalue(kind), tmp_path / "damaged")
    answer = json.loads((directory / "answer.json").read_text())
    for number in range(25):
        changed = mutations.tree(random.Random(f"{kind} {number}"), copy.deepcopy(answer))
        (directory / "answer.json").write_text(json.dumps(changed))
        try:
            report.render(directory)
        except ValueError as error:
            assert str(directory) in str(error), number
