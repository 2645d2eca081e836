"""Energy and owners' costs: in the summary, in answers and in what is typed."""

import json
import pathlib

import orrery
import pytest
from orrery import cli

QUESTION = """question: q
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {poisson: {requests_per_s: 20, num_requests: 200, prompt_tokens: 1000, output_tokens: 100}}
slo: {ttft: {p99: 500 ms}, tpot: {p99: 30 ms}}
search: {placement: {tp: [1, 2], replicas: auto}}
"""


def answered(tmp_path, *sets, name="answer"):
    file = tmp_path / "q.yaml"
    file.write_text(QUESTION)
    words = ["explore", str(file), "-o", str(tmp_path / name), "--no-report"]
    for override in sets:
        words += ["--set", override]
    assert cli.main(words) == 0
    return json.loads((tmp_path / name / "answer.json").read_text())


def summary_of(tmp_path, *sets):
    file = tmp_path / "run.yaml"
    file.write_text(QUESTION.partition("search:")[0])
    return orrery.simulate(orrery.load(file, overrides=list(sets))).summary


def test_the_energy_of_a_run_adds_up_and_lies_between_waiting_and_the_limit(tmp_path):
    summary = summary_of(tmp_path, "placement={tp: 1, replicas: 4}")
    energy = summary["energy"]
    assert energy["j_per_output_token"] * summary["output_tokens"] == pytest.approx(energy["j"])
    assert energy["j_per_request"] * summary["requests"] == pytest.approx(energy["j"])
    assert energy["mean_w_per_gpu"] * summary["num_gpus"] * summary["duration_s"] == pytest.approx(energy["j"])
    assert 120 < energy["mean_w_per_gpu"] < 700  # of an H200
    assert energy["basis"].startswith("model") and 0 < energy["error"] < 1


def test_idle_boards_make_tokens_dearer(tmp_path):
    few, many = (summary_of(tmp_path, f"placement={{tp: 1, replicas: {n}}}")["energy"] for n in (4, 8))
    assert many["j_per_output_token"] > few["j_per_output_token"]
    assert many["mean_w_per_gpu"] < few["mean_w_per_gpu"]


def test_owners_costs_take_the_place_of_the_rental_price(tmp_path):
    rented = answered(tmp_path)["best"]
    owned = answered(tmp_path, "cost={usd_per_gpu_hour: 0.8}", name="owned")
    assert owned["best"]["num_gpus"] == rented["num_gpus"]
    assert owned["best"]["usd_per_hour"] == pytest.approx(0.8 * rented["num_gpus"])
    assert owned["basis"]["usd_per_hour"] == 0.8
    assert owned["best"]["usd_per_million_output_tokens"] == pytest.approx(rented["usd_per_million_output_tokens"] * 0.8 / 1.6)


def test_electricity_is_paid_by_the_joule_and_the_pue(tmp_path):
    plain = answered(tmp_path, "cost={usd_per_gpu_hour: 0.8}")["best"]
    paid = answered(tmp_path, "cost={usd_per_gpu_hour: 0.8, usd_per_kwh: 0.1, pue: 1.5}", name="paid")["best"]
    # A million tokens of j joules are j * 1e6 / 3.6e6 kWh.
    more = paid["j_per_output_token"] / 3.6 * 0.1 * 1.5
    assert paid["usd_per_million_output_tokens"] - plain["usd_per_million_output_tokens"] == pytest.approx(more)


def test_a_machine_may_say_what_its_gpus_cost(tmp_path):
    text = (pathlib.Path(orrery.simulation.project_root()) / "topologies" / "hgx-h200.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text + "\ncost: {usd_per_gpu_hour: 0.5, usd_per_kwh: 0.2}\n")
    found = answered(tmp_path, "machine=./mine.yaml")["best"]
    assert found["usd_per_hour"] == pytest.approx(0.5 * found["num_gpus"])
    cheaper = answered(tmp_path, "machine=./mine.yaml", "cost={usd_per_kwh: 0.1}", name="cheaper")["best"]
    assert cheaper["usd_per_hour"] == found["usd_per_hour"]
    assert cheaper["usd_per_million_output_tokens"] < found["usd_per_million_output_tokens"]


def test_points_of_the_front_are_served_and_marked(tmp_path):
    points = answered(tmp_path)["fronts"]
    front = [point for point in points if point["is_front"]]
    assert front and all(point["is_simulated"] for point in front)
    assert any(not point["is_simulated"] for point in points)
    for a, b in zip(front, front[1:]):  # no point beats another
        assert a["tokens_per_s_per_user"] > b["tokens_per_s_per_user"] and a["tokens_per_s_per_gpu"] < b["tokens_per_s_per_gpu"]


def test_a_run_says_that_it_does_not_search(tmp_path):
    file = tmp_path / "q.yaml"
    file.write_text(QUESTION)
    warnings = orrery.simulate(orrery.load(file)).summary["warnings"]
    assert any(text.startswith("search is passed over") for text in warnings)
    assert not any("search" in text for text in summary_of(tmp_path)["warnings"])
