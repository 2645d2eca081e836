"""`orrery compare`: figures of benchmarks are read as they were written, and differences are split as they were made."""

import json
import pathlib
import random
import re
import shutil

import bench_samples
import numpy as np
import orrery
import pytest
from orrery import cli, finished_run
from orrery.compare import against_bench, bench_files, fit, runs, split
from orrery.scorecard import profiles

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIO = """question: q
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
engine: {profile: vllm_sync}
workload: {poisson: {requests_per_s: RATE, num_requests: 240, prompt_tokens: {mean: 900, cv: 0.8, min: 16, max: 6000}, output_tokens: {min: 1, max: 120}}}
"""
READERS = {
    "vllm bench serve": bench_samples.vllm,
    "sglang.bench_serving": bench_samples.sglang,
    "GuideLLM": bench_samples.guidellm,
    "AIPerf": bench_samples.aiperf,
}

SHIPPED = profiles.values(ROOT / "scenarios" / "engines", "vllm_sync")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A scenario, its profiles beside it, one of them 2 ms slower on the host and one with decodes 10 % slower."""
    found = tmp_path_factory.mktemp("compare")
    (found / "light.yaml").write_text(SCENARIO.replace("RATE", "8"))
    for file in (ROOT / "scenarios" / "engines").glob("*.yaml"):
        shutil.copy(file, found)
    host, decodes = SHIPPED["host.scheduler_base"] + 2, SHIPPED["kernel_time.graph"] * 1.1
    (found / "slow_host.yaml").write_text(f"name: slow_host\nextends: vllm_sync\nhost: {{scheduler_base: {host} ms}}\n")
    (found / "slow_decodes.yaml").write_text(f"name: slow_decodes\nextends: vllm_sync\nkernel_time: {{graph: {decodes}}}\n")
    return found


@pytest.fixture(scope="module")
def columns(folder):
    return bench_samples.served(folder / "light.yaml")


@pytest.fixture(scope="module")
def run(folder):
    return finished_run.open_run(folder / "light.yaml")


def served_by(folder, profile, *sets):
    return bench_samples.served(folder / "light.yaml", sets=[f"engine.profile={folder / profile}.yaml", *sets])


def compared(tmp_path, run, columns, write=bench_samples.vllm):
    return against_bench.compare(run, bench_files.read(write(tmp_path / "bench.json", columns)))


# --- what clients write


@pytest.mark.parametrize("tool", READERS)
def test_figures_of_every_client_are_those_that_were_measured(tmp_path, columns, tool):
    bench = bench_files.read(READERS[tool](tmp_path / "bench.json", columns))
    assert bench.tool == tool and bench.num_requests == 240 and bench.num_failed == 0
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        values = columns[metric][np.isfinite(columns[metric])]
        expected = {"mean": values.mean(), "p50": np.median(values), **{f"p{n}": np.quantile(values, n / 100) for n in (90, 95, 99)}}
        assert bench.figures[metric] == pytest.approx(expected, rel=1e-6)
    span = (columns["arrival_s"] + columns["e2e_s"]).max() - columns["arrival_s"].min()
    assert bench.rates["requests_per_s"] == pytest.approx(240 / span)
    assert bench.rates["output_tokens_per_s"] == pytest.approx(columns["output_tokens"].sum() / span)
    assert "llama" in bench.model.lower()


def test_single_requests_are_read_in_the_order_of_their_start(tmp_path, columns):
    shuffled = {name: values[::-1] for name, values in columns.items()}
    records = bench_files.read(bench_samples.aiperf_records(tmp_path / "profile_export.jsonl", shuffled))
    guide = bench_files.read(bench_samples.guidellm(tmp_path / "benchmarks.json", shuffled))
    detailed = bench_files.read(bench_samples.vllm(tmp_path / "bench.json", shuffled))
    for bench in (records, guide, detailed):
        assert bench.has_times
        gaps = bench.requests["start_s"] - bench.requests["start_s"][0]
        assert gaps == pytest.approx(columns["arrival_s"] - columns["arrival_s"][0], abs=1e-5)
        for name in ("prompt_tokens", "output_tokens", "ttft_s", "tpot_s"):
            assert bench.requests[name] == pytest.approx(columns[name], rel=1e-9, nan_ok=True), (bench.tool, name)


def test_aiperf_takes_single_requests_from_the_file_beside_it(tmp_path, columns):
    bench_samples.aiperf_records(tmp_path / "profile_export.jsonl", columns)
    assert bench_files.read(bench_samples.aiperf(tmp_path / "profile_export_aiperf.json", columns)).has_times
    assert not bench_files.read(bench_samples.aiperf(tmp_path / "other.json", columns, is_genai_perf=True)).model == ""


def test_requests_that_failed_are_counted_and_left_out(tmp_path, columns):
    bench = bench_files.read(bench_samples.vllm(tmp_path / "bench.json", columns, failed=5))
    assert bench.num_failed == 5 and len(bench.requests["ttft_s"]) == 240
    assert bench.figures["ttft_s"]["mean"] == pytest.approx(columns["ttft_s"].mean())


def test_the_last_of_several_runs_in_one_file_is_taken(tmp_path, columns):
    path = bench_samples.sglang(tmp_path / "bench.jsonl", columns)
    path.write_text(path.read_text().replace('"completed": 240', '"completed": 7') + path.read_text())
    bench = bench_files.read(path)
    assert bench.num_requests == 240 and "2 runs" in bench.notes[0]


def mutated(value, random):
    """A copy of JSON content in which one value, somewhere, is another."""
    if isinstance(value, (dict, list)) and value and random.random() < 0.85:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = dict(value) if isinstance(value, dict) else list(value)
        if random.random() < 0.15:
            del copy[key]
        else:
            copy[key] = mutated(value[key], random)
        return copy
    return random.choice([None, "", "x", -1, 0, 1e308, float("nan"), float("inf"), 10**400, [], {}, [[]], True])


@pytest.mark.parametrize("write", [*READERS.values(), bench_samples.aiperf_records])
def test_damaged_files_are_refused_by_name_or_read(tmp_path, columns, run, write):
    seed = 20
    random_numbers = random.Random(seed)
    few = {name: values[:12] for name, values in columns.items()}
    whole = [json.loads(line) for line in write(tmp_path / "bench.json", few).read_text().splitlines()]
    path = tmp_path / "damaged.json"
    refused = 0
    for _ in range(150):
        lines = [mutated(line, random_numbers) if i == 0 else line for i, line in enumerate(whole)]
        path.write_text("\n".join(json.dumps(line) for line in lines))
        try:
            bench = bench_files.read(path)
            assert all(np.isfinite(value) for values in bench.figures.values() for value in values.values())
        except ValueError as error:
            assert str(path) in str(error), f"seed {seed}: {error}"
            refused += 1
    assert 10 < refused < 150


# --- the split


def test_a_perfect_prediction_has_no_error_anywhere(tmp_path, run, columns):
    for write in (bench_samples.vllm, bench_samples.guidellm, bench_samples.aiperf_records):
        result = compared(tmp_path, run, columns, write) if write is not bench_samples.aiperf_records else against_bench.compare(
            run, bench_files.read(write(tmp_path / "records.jsonl", columns)))  # fmt: skip
        for metric in ("ttft", "tpot", "e2e"):
            for part, seconds in result["split"][metric].items():
                assert seconds == pytest.approx(0, abs=2e-5), (write.__name__, metric, part)
        for metric in ("ttft_s", "tpot_s", "e2e_s"):
            for name, figures in result["figures"][metric].items():
                assert figures["error"] == pytest.approx(0, abs=1e-3), (metric, name)


def test_the_parts_add_up_to_the_whole(tmp_path, folder, run):
    result = compared(tmp_path, run, served_by(folder, "slow_host", "seed=5"))["split"]
    for metric in ("ttft", "tpot", "e2e"):
        parts = dict(result[metric])
        assert parts.pop("total") == pytest.approx(sum(parts.values()), rel=1e-9)
    assert result["e2e"]["total"] == pytest.approx(result["ttft"]["total"] + result["e2e"]["decode"] + result["e2e"]["arrival"] - result["ttft"]["arrival"])


def test_longer_times_between_tokens_are_the_decodes_share(tmp_path, run, columns):
    # All gaps 10 % longer and nothing else: predicted - measured is -0.1 of the mean TPOT.
    result = compared(tmp_path, run, bench_samples.slowed(columns, gap=1.1))["split"]
    assert result["tpot"]["decode"] == pytest.approx(-0.1 * np.nanmean(columns["tpot_s"]), rel=1e-6)
    tokens = np.maximum(columns["output_tokens"] - 1, 0)
    assert result["e2e"]["decode"] == pytest.approx(-0.1 * float(np.mean(tokens * np.nan_to_num(columns["tpot_s"]))), rel=1e-6)
    assert result["e2e"]["total"] == pytest.approx(result["e2e"]["decode"], rel=1e-6)


def test_slower_kernels_of_decodes_are_the_decodes_share_too(tmp_path, folder, run):
    """A service whose decode steps take 10 % longer, with all that follows: prompts wait longer for the step in progress."""
    result = compared(tmp_path, run, served_by(folder, "slow_decodes"))["split"]
    assert result["e2e"]["total"] < 0
    assert result["e2e"]["decode"] / result["e2e"]["total"] == pytest.approx(1, abs=0.05)


def test_later_first_tokens_are_the_prefills_share_a_constant_and_per_token(tmp_path, run, columns):
    result = compared(tmp_path, run, bench_samples.slowed(columns, first_s=2e-3, per_prompt_token_s=5e-6))["split"]
    added = 2e-3 + 5e-6 * columns["prompt_tokens"].mean()
    assert result["ttft"]["total"] == pytest.approx(-added, rel=1e-6)
    assert result["ttft"]["prefill"] == pytest.approx(-added, rel=1e-3)
    constant, slope = result["prefill_line"]
    assert constant == pytest.approx(-2e-3, rel=1e-3) and slope == pytest.approx(-5e-6, rel=1e-3)


def test_another_rate_than_offered_is_the_arrivals_share(tmp_path, folder, run):
    faster = bench_samples.served(folder / "light.yaml", sets=["workload.poisson.requests_per_s=16"])
    result = compared(tmp_path, run, faster)["split"]
    for metric in ("ttft", "tpot", "e2e"):
        assert result[metric]["arrival"] == pytest.approx(result[metric]["total"], rel=0.01)
        assert result[metric]["total"] < 0
    offered, realised = result["offered_per_s"]
    assert realised == pytest.approx(2 * offered, rel=0.05)


def test_what_the_data_do_not_tell_is_said(tmp_path, run, columns):
    result = compared(tmp_path, run, columns, bench_samples.sglang)
    assert result["split"]["ttft"]["queue"] is None and result["split"]["ttft"]["prefill"] is None
    assert any("does not say when each request was sent" in note for note in result["notes"])
    every_at_once = {**columns, "arrival_s": np.zeros(240)}
    result = compared(tmp_path, run, every_at_once)
    assert result["split"]["ttft"]["prefill"] is None
    assert any("cannot be told apart" in note for note in result["notes"])


def test_the_warm_up_of_the_run_is_left_out_of_the_benchmark(tmp_path, folder, columns):
    warm = finished_run.open_run(folder / "light.yaml", ["workload.warmup_requests=40"])
    late = {**columns, "ttft_s": np.where(np.arange(240) < 40, 9.0, columns["ttft_s"])}
    bench = bench_files.read(bench_samples.vllm(tmp_path / "bench.json", late))
    assert not split.measured_part(warm, bench)[:40].any() and split.measured_part(warm, bench)[40:].all()
    found = against_bench.compare(warm, bench)["figures"]["ttft_s"]["mean"]
    assert found["measured"] == pytest.approx(columns["ttft_s"][40:].mean())
    assert found["predicted"] == pytest.approx(found["measured"], rel=1e-6)


def test_another_model_is_refused_and_another_name_of_the_same_is_not(tmp_path, run, columns):
    with pytest.raises(ValueError, match="benchmark of Qwen/Qwen3-8B; expected one of meta-llama/Meta-Llama-3.1-8B"):
        against_bench.compare(run, bench_files.read(bench_samples.vllm(tmp_path / "b.json", columns, model="Qwen/Qwen3-8B")))
    with pytest.raises(ValueError, match="70B"):
        against_bench.compare(run, bench_files.read(bench_samples.vllm(tmp_path / "b.json", columns, model="meta-llama/Llama-3.1-70B")))
    other = bench_files.read(bench_samples.vllm(tmp_path / "b.json", columns, model="RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic"))
    assert against_bench.compare(run, other)["figures"]


# --- the fit


def test_two_milliseconds_of_the_host_are_found(tmp_path, folder, run):
    base = 1e-3 * SHIPPED["host.scheduler_base"]
    bench = bench_files.read(bench_samples.vllm(tmp_path / "bench.json", served_by(folder, "slow_host")))
    found = fit.fit(run, bench, None)
    assert found.before["host.scheduler_base"] == pytest.approx(base)
    assert found.moved[0] == "host.scheduler_base" and found.after["host.scheduler_base"] == pytest.approx(base + 2e-3, abs=1e-4)
    for data in ("fitted", "held out"):
        sides = found.errors[data]
        assert sides["before"].requests == sides["after"].requests == 120
        assert sides["before"].metrics["tpot_s"]["mean_absolute"] > 0.15
        assert sides["after"].metrics["tpot_s"]["mean_absolute"] < 0.02
    assert "did not see" in found.held_out


def test_a_second_benchmark_is_held_out_and_the_profile_written_gives_the_same_run(tmp_path, folder, run, capsys):
    first = bench_samples.vllm(tmp_path / "first.json", served_by(folder, "slow_host"))
    second = bench_samples.vllm(tmp_path / "second.json", served_by(folder, "slow_host", "seed=9"))
    profile = tmp_path / "mine.yaml"
    assert cli.main(["compare", str(folder / "light.yaml"), str(first), str(second), "--fit", str(profile), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["benchmarks"]) == 2
    errors = result["fit"]["errors"]["held out"]
    assert errors["before"]["requests"] == 240
    assert errors["after"]["metrics"]["tpot_s"]["mean_absolute"] < 0.2 * errors["before"]["metrics"]["tpot_s"]["mean_absolute"]
    # The file stands by itself: no profile that it extends lies beside it.
    again = orrery.simulate(orrery.load(folder / "light.yaml", overrides=[f"engine.profile={profile}"]))
    truth = served_by(folder, "slow_host")
    assert again.summary["tpot_s"]["mean"] == pytest.approx(np.nanmean(truth["tpot_s"]), rel=0.02)
    assert "fitted to first.json" in profile.read_text()


def test_a_profile_that_is_right_is_left_alone(tmp_path, run, columns):
    found = fit.fit(run, bench_files.read(bench_samples.vllm(tmp_path / "bench.json", columns)), None)
    assert found.moved == [] and found.before == found.after


def test_a_fit_needs_to_know_when_requests_were_sent(tmp_path, run, columns):
    with pytest.raises(ValueError, match="no start or no length of each request"):
        fit.fit(run, bench_files.read(bench_samples.sglang(tmp_path / "bench.jsonl", columns)), None)


# --- runs beside each other


@pytest.fixture(scope="module")
def three(folder):
    open_run = finished_run.open_run
    apart = ["disaggregation={prefill: {replicas: 1}, decode: {replicas: 1}}", "engine.profile=vllm"]
    return [open_run(folder / "light.yaml"), open_run(folder / "light.yaml", ["engine.profile=sglang", "seed=2"]), open_run(folder / "light.yaml", apart)]


def test_causes_add_up_to_the_means(three):
    for run in three:
        found = runs.causes(run)
        for metric in ("ttft", "tpot"):
            parts = dict(found[metric])
            assert parts.pop("mean") == pytest.approx(sum(parts.values()), rel=1e-9)
        assert found["ttft"]["mean"] == pytest.approx(run.summary["ttft_s"]["mean"], rel=1e-9)
    mixed, prompts_first, apart = (runs.causes(run)["tpot"] for run in three)
    # Mixed steps hold every token of a decode; where prompts run alone, decodes wait between steps; apart, they wait for their blocks.
    assert mixed["between_steps"] == pytest.approx(0, abs=1e-7) and mixed["mixed_steps"] > 0
    assert prompts_first["mixed_steps"] == 0 and prompts_first["between_steps"] > 0
    assert apart["transfer"] > 0 and apart["mixed_steps"] == 0


def test_only_keys_that_differ_are_listed(three):
    rows = {row["key"]: (row["a"], row["b"]) for row in runs.scenario_differences(three[0], three[1])}
    assert rows["engine.profile"] == ("vllm_sync", "sglang") and rows["seed"] == ("1", "2")
    assert not any(key.startswith(("model", "machine", "workload")) for key in rows)
    assert runs.scenario_differences(three[0], three[0]) == []


def test_runs_are_sorted_by_any_figure(three):
    rows = runs.side_by_side(three, "ttft_s.p99")
    assert [row["ttft_s.p99"] for row in rows] == sorted(run.summary["ttft_s"]["p99"] for run in three)
    assert runs.side_by_side(three, "-ttft_s.p99") == rows[::-1]
    assert runs.side_by_side(three, "TTFT p99") == rows
    with pytest.raises(ValueError, match="such as ttft_s.p99"):
        runs.side_by_side(three, "ttft_s.p98")


def test_directories_and_scenarios_are_compared_alike(folder, tmp_path, capsys):
    file = folder / "light.yaml"
    assert cli.main(["run", str(file), "-o", str(tmp_path / "run"), "--no-report"]) == 0
    capsys.readouterr()
    assert cli.main(["compare", str(tmp_path / "run"), str(file), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    first, second = result["runs"]
    assert {key: value for key, value in first.items() if key != "run"} == {key: value for key, value in second.items() if key != "run"}
    assert result["scenario"] == []
    assert cli.main(["compare", str(tmp_path / "run"), str(file), "--sort", "tpot_s.mean"]) == 0
    text = capsys.readouterr().out
    assert "The scenarios are the same." in text and re.search(r"TTFT, mean +\S+ ms +\S+ ms +0 s", text)


def test_the_terminal_shows_errors_and_their_split(folder, tmp_path, columns, capsys):
    path = bench_samples.vllm(tmp_path / "bench.json", bench_samples.slowed(columns, gap=1.25))
    assert cli.main(["compare", str(folder / "light.yaml"), str(path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"TPOT mean .* -20\.0 %", text)  # 1 / 1.25 - 1
    assert re.search(r"decode +-\S+ (µs|ms) +-\S+ ms", text)


# --- runs as a page


def page_of(tmp_path, runs_of):
    from orrery.compare import report

    path = report.render(runs_of, tmp_path / "runs.html")
    return path.read_text(encoding="utf-8")


def test_a_page_holds_every_run_its_parts_and_the_keys_that_differ(tmp_path, folder):
    found = [finished_run.open_run(folder / "light.yaml", sets) for sets in ([], ["placement.tp=2"], ["placement.tp=4"])]
    result = runs.beside(found, "tpot_s.mean")
    plans = [row["plan"] for row in result["runs"]]
    assert plans == ["1 x tp4", "1 x tp2", "1 x tp1"]  # more ranks, shorter steps
    assert [row["key"] for row in result["scenario"]] == ["placement.tp"]
    assert result["scenario"][0]["values"] == ["4", "2", "1"]
    for row, causes in zip(result["runs"], result["causes"]):
        for metric, parts in (("ttft", runs.TTFT_CAUSES), ("tpot", runs.TPOT_CAUSES)):
            assert sum(causes[metric][part] for part in parts) == pytest.approx(causes[metric]["mean"])
    assert len({row["run"] for row in result["runs"]}) == 3  # names are told apart
    page = page_of(tmp_path, found)
    assert page == page_of(tmp_path, found)
    assert all(row["run"] in page for row in result["runs"]) and "placement.tp" in page
    assert 'class="number best"' in page
    assert "http://" not in page.partition("<script>")[0]


def test_a_page_does_not_take_names_for_markup(tmp_path, folder):
    import dataclasses

    run = finished_run.open_run(folder / "light.yaml", [])
    found = [dataclasses.replace(run, name="<img src=x>"), run]
    page = page_of(tmp_path, found)
    assert "<img src=x>" not in page.partition("<script>")[0].replace("<script", "")
