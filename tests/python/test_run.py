"""The main job end to end: quickstart, its files, the same bytes every time."""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
FILES = {"scenario.yaml", "summary.json", "requests.csv", "steps.csv", "step.trace.json", "SHA256SUMS"}
QUANTILES = {"mean", "p50", "p90", "p95", "p99", "max"}


def run_quickstart(directory, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "bindings")}
    command = [sys.executable, "-m", "orrery", "run", str(QUICKSTART), "-o", str(directory), "--json", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "quickstart"
    result = run_quickstart(directory)
    assert result.returncode == 0, result.stderr
    return directory, json.loads(result.stdout)


def test_json_is_the_summary_and_the_wall_time(quickstart):
    directory, printed = quickstart
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert printed.pop("wall_s") > 0
    inputs = printed.pop("inputs")
    assert inputs["model"]["config"] == "llama-3.1-70b"
    assert inputs["question"] == summary["question"]
    assert printed.pop("schema_version") == 1
    assert printed == summary


def test_the_summary_has_intervals_and_says_of_what_they_are_made(quickstart):
    _, summary = quickstart
    for key in ("ttft_s", "tpot_s"):
        for name in ("mean", "p50", "p99"):
            found = summary["intervals"][f"{key}.{name}"]
            assert 0 < found["low"] < summary[key]["mean"] * 10 and found["low"] < found["high"]
            assert re.fullmatch(r"[\d,]+ published \S+( p50| p99)? in \d+ groups?, of (any engine|engine vllm)", found["basis"])
    mean = summary["intervals"]["ttft_s.mean"]
    assert mean["low"] < summary["ttft_s"]["mean"] < mean["high"]


def test_the_summary_has_what_the_table_promises(quickstart):
    _, summary = quickstart
    assert summary["requests"] == 19366  # rows of the trace
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        assert set(summary[name]) == QUANTILES
        assert 0 < summary[name]["p50"] <= summary[name]["p90"] <= summary[name]["p95"] <= summary[name]["p99"] <= summary[name]["max"]
    assert sum(summary["basis"].values()) == pytest.approx(1)
    assert summary["num_gpus"] == 8
    assert summary["output_tokens_per_s_per_gpu"] == pytest.approx(summary["output_tokens_per_s"] / 8)
    assert summary["output_tokens_per_s"] == pytest.approx(summary["output_tokens"] / summary["duration_s"])
    assert 0 <= summary["slo_attainment"] <= 1
    assert summary["goodput"] == pytest.approx(summary["requests_per_s"] * summary["slo_attainment"])


def test_memory_of_a_gpu_adds_up_to_no_more_than_the_engine_may_use(quickstart):
    _, summary = quickstart
    memory = summary["memory_per_gpu"]
    # 70.6 G parameters at about one byte over 4 GPUs (embeddings and head in bf16): 17.6 to 19 GB.
    assert 17e9 < memory["weights_bytes"] < 20e9
    parts = ("weights", "kv_cache", "activations", "graphs", "communication")
    assert sum(memory[f"{part}_bytes"] for part in parts) <= 0.9 * memory["hbm_bytes"] * (1 + 1e-12)


def test_requests_and_steps_agree_with_the_summary(quickstart):
    directory, summary = quickstart
    with open(directory / "requests.csv", encoding="utf-8", newline="") as file:
        requests = list(csv.DictReader(file))
    assert len(requests) == summary["requests"]
    assert sum(int(row["output_tokens"]) for row in requests) == summary["output_tokens"]
    for row in requests:
        assert float(row["arrival_s"]) <= float(row["first_scheduled_s"]) < float(row["first_token_s"]) <= float(row["finish_s"])
        assert (row["tpot_s"] == "") == (row["output_tokens"] == "1")
    with open(directory / "steps.csv", encoding="utf-8", newline="") as file:
        steps = list(csv.DictReader(file))
    assert sum(int(row["num_steps"]) for row in steps) == summary["num_steps"]
    # Without preemption and prefix cache each prompt token is computed once.
    if summary["preemptions"] == 0:
        computed = sum(int(row["prefill_tokens"]) * int(row["num_steps"]) for row in steps)
        assert computed == summary["prompt_tokens"]


def test_the_run_directory_is_complete_and_its_trace_has_ranks_and_links(quickstart):
    directory, _ = quickstart
    assert {path.name for path in directory.iterdir()} == FILES | {"report.html"}
    trace = json.loads((directory / "step.trace.json").read_text(encoding="utf-8"))
    processes = {event["args"]["name"] for event in trace["traceEvents"] if event.get("name") == "process_name"}
    assert any("rank" in name for name in processes)
    assert any("link" in name for name in processes)


def test_the_breakdown_of_the_step_is_sorted_and_its_shares_add_to_one(quickstart):
    _, summary = quickstart
    rows = summary["step_breakdown"]
    times = [row["time_s"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert {row["kind"] for row in rows} <= {"kernel", "comm", "host"}


def test_the_resolved_scenario_gives_the_same_run(quickstart, tmp_path):
    directory, _ = quickstart
    environment = os.environ | {"PYTHONPATH": str(ROOT / "bindings")}
    again = tmp_path / "again"
    command = [sys.executable, "-m", "orrery", "run", str(directory / "scenario.yaml"), "-o", str(again), "--no-report"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    for name in FILES - {"summary.json", "SHA256SUMS"}:  # the first names the scenario's file
        assert (again / name).read_bytes() == (directory / name).read_bytes(), name


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_same_scenario_gives_the_same_bytes_with_one_or_two_threads(quickstart, tmp_path, threads):
    directory, _ = quickstart
    result = run_quickstart(tmp_path / "quickstart", "--threads", threads)
    assert result.returncode == 0, result.stderr
    for name in FILES | {"report.html"}:
        assert (tmp_path / "quickstart" / name).read_bytes() == (directory / name).read_bytes(), name


def test_a_table_is_printed_without_colour_into_a_pipe(workdir):
    result = workdir.run()
    assert result.returncode == 0, result.stderr
    assert "\033" not in result.stdout
    for word in ("TTFT", "TPOT", "ITL", "end to end", "goodput", "KV utilisation", "preemptions", "measured", "per GPU"):
        assert word in result.stdout
    assert result.stderr == ""


def test_progress_goes_to_stderr_when_asked_for(workdir):
    result = workdir.run("--progress", "--json")
    assert result.returncode == 0, result.stderr
    assert "of 5 requests" in result.stderr
    json.loads(result.stdout)


def test_the_default_run_directory_is_named_after_the_scenario(workdir):
    result = workdir.orrery("run", workdir.scenario, "--no-report")
    assert result.returncode == 0, result.stderr
    assert (workdir.directory / "runs" / "scenario" / "summary.json").is_file()


def test_an_override_replaces_one_value(workdir):
    result = workdir.run("--set", "placement.replicas=1", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["num_gpus"] == 2


@pytest.mark.parametrize("command", ["models", "machines", "providers", "kernels"])
def test_listings_print_a_table(workdir, command):
    result = workdir.orrery(command)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) > 1


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_loads_and_says_its_question(file):
    import orrery

    scenario = orrery.load(file)
    assert scenario.question.endswith("?")
    readme = (ROOT / "scenarios" / "README.md").read_text(encoding="utf-8")
    assert file.name in readme


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_runs(file):
    import orrery

    summary = orrery.simulate(orrery.load(file)).summary
    assert summary["requests"] > 0
    assert summary["output_tokens_per_s"] > 0


def test_the_summary_says_what_its_numbers_rest_on():
    import orrery

    scenario = orrery.load(orrery.project_root() / "scenarios" / "quickstart.yaml", overrides=["workload.num_requests=3"])
    provenance = orrery.simulate(scenario).summary["provenance"]
    assert provenance["orrery_version"] == orrery.__version__
    assert provenance["provider"] == "vllm-0.24.0"
    assert provenance["tables_licence"] == "Apache-2.0"


def test_a_disaggregated_run_says_what_moved(tmp_path):
    import orrery

    scenario = orrery.load(ROOT / "scenarios" / "llama_8b_disaggregated.yaml",
                           overrides=["workload.poisson.num_requests=200", "workload.warmup_requests=0"])  # fmt: skip
    result = orrery.simulate(scenario)
    columns = result.requests.columns()
    moved = result.summary["disaggregation"]["transfer"]
    assert moved["count"] == 200
    assert columns["transfer_bytes"].sum() == moved["bytes"]
    assert set(columns["decode_replica"]) == {1} and set(columns["replica"]) == {0}
    page = (result.write(tmp_path / "run") / "report.html").read_text(encoding="utf-8")
    assert "From prefill to decode" in page and '"handover"' in page
    again = orrery.simulate(scenario, threads=4)
    assert again == result


def test_a_run_without_an_slo_says_so_and_one_with_it_how_many_meet_it(workdir):
    assert "of requests meet the SLO" in workdir.run().stdout
    workdir.replace("slo: {ttft: 2 s, tpot: 50 ms}\n", "")
    printed = workdir.run("--force").stdout
    assert "SLO " in printed and "none given" in printed
    assert "meet the SLO" not in printed
