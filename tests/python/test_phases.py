"""Warm-up and drain: what of a run fills and empties the service, is said, and left out where it is asked for."""

import json

import numpy as np
import orrery
import pytest
from orrery import cli
from orrery.finished_run import open_run

SCENARIO = {
    "question": "what does the drain do?", "model": {"config": "llama-3.1-8b"}, "machine": "single-h200", "provider": "none",
    "workload": {"poisson": {"requests_per_s": 20, "num_requests": 600, "prompt_tokens": 256, "output_tokens": 200}},
    "slo": {"ttft": {"p95": "1 s"}},
}  # fmt: skip


def simulated(**workload):
    return orrery.simulate(orrery.Scenario.from_dict(SCENARIO | {"workload": SCENARIO["workload"] | workload}))


def test_the_last_requests_are_served_and_in_no_figure():
    whole, cut = simulated(), simulated(warmup_requests=100, drain_requests=150)
    assert cut.summary.requests == 350
    requests = whole.requests.to_pandas()
    assert cut.requests.to_pandas().equals(requests)
    kept = requests[(requests.id >= 100) & (requests.id < 450)]
    assert cut.summary.ttft_s["mean"] == pytest.approx(kept.ttft_s.mean(), rel=1e-9)
    assert cut.summary.tpot_s["p95"] == pytest.approx(np.sort(kept.tpot_s)[int(np.ceil(0.95 * 350)) - 1], rel=1e-9)
    # The rate of arrivals between the first that counts and the first that no longer does.
    arrivals = requests.arrival_s.to_numpy()
    assert cut.summary.requests_per_s == pytest.approx(350 / (arrivals[450] - arrivals[100]), rel=1e-9)
    assert cut.summary.output_tokens_per_s == pytest.approx(200 * cut.summary.requests_per_s, rel=1e-9)


def test_a_run_says_how_long_it_filled_and_emptied_the_service():
    requests, phases = simulated().requests.to_pandas(), simulated().summary.phases
    first, last = requests.arrival_s.min(), requests.arrival_s.max()
    assert phases["drain_s"] == pytest.approx(requests.finish_s.max() - last)
    assert phases["run_s"] == pytest.approx(requests.finish_s.max() - first)
    in_service = (np.minimum(requests.finish_s, last) - requests.arrival_s).sum() / (last - first)
    assert phases["ramp_s"] == pytest.approx(np.sort(requests.finish_s)[int(np.ceil(in_service)) - 1] - first)
    assert phases["drained_requests"] == (requests.finish_s > last).sum()
    assert (phases["warmup_requests"], phases["drain_requests"]) == (0, 0)


def test_where_all_requests_wait_at_the_start_nothing_is_said():
    workload = {"offline": {"num_requests": 8, "prompt_tokens": 4, "output_tokens": 2}}
    assert orrery.simulate(orrery.Scenario.from_dict(SCENARIO | {"workload": workload, "slo": {}})).summary.phases is None


def test_the_terminal_says_what_would_leave_ramp_and_drain_out_and_what_is(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    short = {"poisson": SCENARIO["workload"]["poisson"] | {"num_requests": 300}}
    file.write_text(json.dumps(SCENARIO | {"workload": short}), encoding="utf-8")
    assert cli.main(["run", str(file), "-o", str(tmp_path / "whole"), "--no-report"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ramp up and drain"))
    phases = json.loads((tmp_path / "whole" / "summary.json").read_text())["phases"]
    assert f"without: workload.warmup_requests={phases['ramp_requests']} and drain_requests={phases['drained_requests']}" in line
    asked = ["--set", "workload.warmup_requests=20", "--set", "workload.drain_requests=30"]
    assert cli.main(["run", str(file), "-o", str(tmp_path / "cut"), *asked]) == 0
    assert "no figure has the 20 requests of the warm-up and the 30 of the drain" in capsys.readouterr().out
    page = (tmp_path / "cut" / "report.html").read_text(encoding="utf-8")
    assert "leave the 20 requests of the warm-up and the 30 of the drain out" in page and "Drain, of the whole run" in page
    run = open_run(tmp_path / "cut")
    assert list(run.measured["id"]) == list(range(20, 270))


def test_a_resolved_scenario_keeps_its_drain():
    scenario = orrery.Scenario.from_dict(SCENARIO | {"workload": SCENARIO["workload"] | {"drain_requests": 7}})
    assert scenario.to_dict(resolved=True)["workload"]["drain_requests"] == 7
    assert orrery.Scenario.from_dict(scenario.to_dict(resolved=True)).to_yaml() == scenario.to_yaml()


def test_a_statistic_of_95_is_checked_and_listed():
    summary = simulated().summary
    assert summary.slo[0]["name"] == "ttft_p95" and summary.slo[0]["value"] == summary.ttft_s["p95"]
    assert summary.ttft_s["p90"] <= summary.ttft_s["p95"] <= summary.ttft_s["p99"]
