"""orrery explore and orrery saturate: the answer, that it is the same however it is come by, and what is no question."""

import concurrent.futures
import csv
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from orrery.search import driver, question, store
from orrery.search.answer import answer
from orrery.search.plan_words import words

QUESTION = """question: Which plan?
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {poisson: {requests_per_s: 30, num_requests: 300, prompt_tokens: 1000, output_tokens: 100}}
slo: {ttft: {p99: 300 ms}, tpot: {p99: 10 ms}}
search: {placement: {tp: [1, 2, 4], replicas: auto}, engine: {max_num_seqs: [64, 256]}}
"""
ONE_LINE = ("explore --model llama-3.1-8b --machine hgx-h200 --rate 30 --prompt 1000 --output 100 --requests 300"
            " --ttft p99=300ms --tpot p99=10ms --gpus 1..8").split()  # fmt: skip


def asked(text=QUESTION, **replaced):
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return question.Question(text, "/q.yaml")


def test_the_answer_is_that_of_simulating_every_plan():
    found = driver.explore(asked(), threads=2)
    outcomes = found.runner.run([(i, driver.FULL, 1.0) for i in range(len(found.space))], phase="all")
    costs = [float(found.columns["usd_per_hour"][i]) for i, outcome in enumerate(outcomes) if outcome["meets"]]
    assert costs
    assert float(found.columns["usd_per_hour"][found.ranking[0]]) == min(costs)
    assert found.num_simulated["full"] * 3 <= len(found.space)
    # No bound ruled out what meets.
    assert not any(outcome["meets"] and found.estimates[i]["impossible"] for i, outcome in enumerate(outcomes))


def test_threads_processes_and_order_change_nothing():
    plain = answer(driver.explore(asked(), threads=1))
    threads = answer(driver.explore(asked(), threads=3))
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        processes = answer(driver.explore(asked(), executor=executor))
    for other in (threads, processes):
        for result in (plain, other):
            result["space"].pop("wall_s", None)
        assert json.dumps(other) == json.dumps(plain)


def test_what_the_answer_says():
    found = driver.explore(asked(), threads=2)
    result = answer(found)
    best = result["best"]
    assert best["outcome"]["meets"]
    assert result["saturation"]["load"] >= 1  # it holds what is asked
    assert result["saturation"]["low"] <= result["saturation"]["load"] <= result["saturation"]["high"]
    assert {limit["name"] for limit in result["limits"]} >= {"hbm_bandwidth", "flops", "max_num_seqs", "host"}
    loads = [point["requests_per_s"] for point in result["load_curve"]]
    assert loads == sorted(loads)
    assert result["load_curve"][-1]["outcome"]["meets"] is False  # beyond the highest rate
    for other in result["runners_up"]:
        assert other["num_gpus"] >= best["num_gpus"]
        assert other["outcome"]["meets"]
        assert other["why"]
    front = [point for point in result["fronts"] if point["is_front"]]
    assert [p["tokens_per_s_per_gpu"] for p in front] == sorted(p["tokens_per_s_per_gpu"] for p in front)
    # $1.60 an hour and GPU, 30 requests/s of 100 tokens, as far as 300 draws have that rate.
    rate = result["offered_requests_per_s"] * 100
    assert best["usd_per_million_output_tokens"] == pytest.approx(1.6 * best["num_gpus"] / 3600 / rate * 1e6)


def test_words_of_plans():
    assert words(["placement.tp=2", "placement.pp=1", "placement.replicas=6"]) == "6 × TP2"
    assert words(["disaggregation.prefill.tp=4", "disaggregation.decode.tp=4", "disaggregation.decode.dp=2", "engine.max_num_seqs=64",
                  "disaggregation.decode.replicas=1", "disaggregation.prefill.replicas=3"]) == (
        "3 × TP4 prefill + 1 × TP4 DP2 decode, max_num_seqs 64")  # fmt: skip


def test_no_plan_meets_it():
    result = answer(driver.explore(asked(**{"p99: 10 ms": "p99: 3.8 ms"}), threads=2))
    assert not result["is_met"]
    assert "TPOT p99" in result["why"] or result["impossible_reasons"]
    impossible = answer(driver.explore(asked(**{"p99: 10 ms": "p99: 100 us"}), threads=2))
    assert impossible["impossible_reasons"] == {"TPOT": len(question.Question(QUESTION, "/q.yaml").space())}
    assert "above the limit of 100 us" in impossible["why"]


def test_a_closed_loop_is_ranked_by_cost_for_a_token():
    text = QUESTION.replace(
        "poisson: {requests_per_s: 30, num_requests: 300,", "closed_loop: {concurrency: 32, num_requests: 200,"
    )
    result = answer(driver.explore(asked(text), threads=2))
    assert result["is_met"]
    assert not result["is_open"]
    for other in result["runners_up"]:
        assert other["usd_per_million_output_tokens"] >= result["best"]["usd_per_million_output_tokens"]


def test_one_line_without_a_file(workdir):
    done = workdir.orrery(*ONE_LINE, "-o", "out", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "are the fewest that meet the SLO" in done.stdout
    best = json.loads((workdir.directory / "out" / "answer.json").read_text(encoding="utf-8"))["best"]
    with (workdir.directory / "out" / "plans.csv").open(encoding="utf-8", newline="") as file:
        plans = list(csv.DictReader(file))
    assert plans[best["id"]]["meets"] == "True"
    assert plans[best["id"]]["num_gpus"] == str(best["num_gpus"])
    # The best plan is a scenario, and its run is the outcome that the answer shows.
    ran = workdir.orrery("run", "out/scenario.yaml", "-o", "run", "--no-report", "--json")
    assert json.loads(ran.stdout)["tpot_s"] == best["outcome"]["tpot_s"]
    # The same question again: the same bytes; not over what is there without --force.
    assert workdir.orrery(*ONE_LINE, "-o", "out", "--no-report").returncode == 2
    again = workdir.orrery("explore", "out/question.yaml", "-o", "again", "--no-report")
    assert again.returncode == 0, again.stderr
    for name in ("answer.json", "plans.csv", "scenario.yaml"):
        assert (workdir.directory / "again" / name).read_bytes() == (workdir.directory / "out" / name).read_bytes(), name


def test_a_killed_search_goes_on_and_runs_nothing_twice(workdir):
    (workdir.directory / "q.yaml").write_text(QUESTION.replace("num_requests: 300", "num_requests: 3000"), encoding="utf-8")
    command = [sys.executable, "-m", "orrery", "explore", "q.yaml", "-o", "out", "--no-report", "--threads", "1"]
    kept = workdir.directory / ".out-search.sqlite"
    process = subprocess.Popen(command, cwd=workdir.directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Estimates are kept together, of 26 plans some hundred bytes each; what follows one by one.
    while process.poll() is None and not (kept.exists() and kept.stat().st_size > 30_000):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = _outcomes(kept, "")
    assert before
    assert not (workdir.directory / "out").exists()
    done = workdir.orrery(*command[3:])
    assert done.returncode == 0, done.stderr
    assert f"going on with {len(before):,} outcomes" in done.stderr
    assert not kept.exists()
    whole = workdir.orrery(*command[3:5], "-o", "whole", "--no-report")
    assert whole.returncode == 0, whole.stderr
    assert (workdir.directory / "out/answer.json").read_bytes() == (workdir.directory / "whole/answer.json").read_bytes()


def _outcomes(path, fidelity):
    """Keys of a store; none while another process writes it and holds its lock, or has not made it yet."""
    if not path.exists():
        return []
    connection = sqlite3.connect(path, timeout=0)
    try:
        return [key for (key,) in connection.execute("SELECT key FROM outcomes") if fidelity in key]
    except sqlite3.DatabaseError:
        return []
    finally:
        connection.close()


def test_a_store_is_of_one_question_and_one_process(tmp_path):
    path = tmp_path / "s.sqlite"
    with store.Store(path, "a") as first:
        first.put("0 full 1.0", "{}")
        with pytest.raises(FileExistsError, match="in use: another search"):
            store.Store(path, "a")
    with store.Store(path, "a") as again:
        assert again.get("0 full 1.0") == "{}"
    with store.Store(path, "b") as other:
        assert other.get("0 full 1.0") is None
    path.write_text("no database at all, but long enough to be looked at " * 10, encoding="utf-8")
    with pytest.raises(ValueError, match="expected a store of orrery explore"):
        store.Store(path, "a")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_said(tmp_path):
    with store.Store(tmp_path / "s.sqlite", "a") as outcomes:
        outcomes._connection.execute("PRAGMA max_page_count = 4")
        with pytest.raises(OSError, match="full; what was found until then is kept"):
            for i in range(1000):
                outcomes.put(f"{i} full 1.0", "x" * 4000)
    with store.Store(tmp_path / "s.sqlite", "a") as outcomes:
        assert outcomes.num_found > 0


def test_saturate(workdir):
    workdir.replace("workload: {trace: trace.csv}",
                    "workload: {poisson: {requests_per_s: 5, num_requests: 200, prompt_tokens: 1000, output_tokens: 100}}")  # fmt: skip
    workdir.replace("slo: {ttft: 2 s, tpot: 50 ms}", "slo: {ttft: {p99: 300 ms}, tpot: {p99: 10 ms}}")
    done = workdir.orrery("saturate", "scenario.yaml", "--seeds", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["at_most"]["meets"] and not found["above"]["meets"]
    assert found["above"]["load_factor"] / found["at_most"]["load_factor"] <= 1.011
    text = workdir.orrery("saturate", "scenario.yaml", "--seeds", "2").stdout
    assert "highest load that holds the SLO" in text and "25 % more HBM bandwidth" in text


def test_an_overloaded_run_says_so_and_by_what(workdir):
    workdir.replace("workload: {trace: trace.csv}",
                    "workload: {poisson: {requests_per_s: 60, num_requests: 600, prompt_tokens: 500, output_tokens: 200}}")  # fmt: skip
    workdir.replace("max_num_seqs: 64", "max_num_seqs: 8")
    done = workdir.run()
    assert done.returncode == 0, done.stderr
    assert "warning: overloaded:" in done.stderr and "held up by seats (max_num_seqs)" in done.stderr
    summary = json.loads((workdir.directory / "out/summary.json").read_text(encoding="utf-8"))
    assert summary["load"]["limit"] == "seats"
    assert summary["load"]["served_requests_per_s"] < summary["load"]["offered_requests_per_s"]


def test_from_python(tmp_path):
    orrery = pytest.importorskip("orrery")
    scenario = orrery.Scenario(
        model="llama-3.1-8b", machine="hgx-h200", provider="vllm-0.24.0", name="sizes",
        workload={"poisson": {"requests_per_s": 30, "num_requests": 300, "prompt_tokens": 1000, "output_tokens": 100}},
        slo={"ttft": {"p99": "300 ms"}, "tpot": {"p99": "10 ms"}},
    )  # fmt: skip
    found = orrery.explore(scenario, {"placement": {"tp": [1, 2], "replicas": "auto"}}, resume=tmp_path / "s.sqlite", threads=2)
    assert found.is_met
    assert found.best["words"] in found.text
    frame = found.plans.to_pandas()
    assert len(frame) == len(found.exploration.space)
    assert frame.loc[found.best["id"], "meets"]
    assert found.plans.where(lambda row: row["meets"]).best("num_gpus")["num_gpus"] == found.best["num_gpus"]
    assert orrery.simulate(found.scenario()).summary.tpot_s == found.best["outcome"]["tpot_s"]
    again = orrery.explore(scenario, {"placement": {"tp": [1, 2], "replicas": "auto"}}, resume=tmp_path / "s.sqlite", threads=1)
    assert again.exploration.num_resumed > 0
    assert again.best == found.best
    assert (found.write(tmp_path / "out") / "report.html").stat().st_size > 1e6
    with pytest.raises(orrery.ScenarioError, match="unknown key"):
        orrery.explore(scenario, {"placement": {"tq": [1]}})
    with pytest.raises(orrery.ScenarioError, match="found no search"):
        orrery.explore(scenario)
