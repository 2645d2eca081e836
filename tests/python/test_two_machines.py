"""Prefill and decode, or attention and FFNs, on machines of their own: what runs, reports, steps and comparisons say of each side."""

import json
import pathlib

import pytest

import orrery
from orrery import cli, explain

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "scenarios" / "llama_70b_two_machines.yaml"
FEW = ["workload.poisson.num_requests=150", "workload.warmup_requests=0"]


@pytest.fixture(scope="module")
def run():
    return orrery.simulate(orrery.load(SCENARIO, overrides=FEW))


def test_each_side_has_its_gpu_tables_price_and_energy(run):
    sides = run.summary["disaggregation"]
    assert [sides[side]["device"] for side in ("prefill", "decode")] == ["h100-sxm", "h200-sxm"]
    assert [sides[side]["machine"] for side in ("prefill", "decode")] == ["hgx-h100", "hgx-h200"]
    for side, device in (("prefill", "h100-sxm"), ("decode", "h200-sxm")):
        assert any(table["device"] == device and table["origin"] == "own" for table in sides[side]["tables"])
    assert sides["prefill"]["memory_per_gpu"]["hbm_bytes"] < sides["decode"]["memory_per_gpu"]["hbm_bytes"]
    assert run.summary["num_gpus"] == 8


def test_energy_and_cost_are_the_sums_of_the_sides(run):
    summary, sides = run.summary, run.summary["disaggregation"]
    parts = [sides[side] for side in ("prefill", "decode")]
    for name in ("j", "j_per_output_token", "j_per_request"):
        assert summary["energy"][name] == pytest.approx(sum(part["energy"][name] for part in parts), rel=1e-12)
    assert sides["usd_per_hour"] == pytest.approx(sum(part["usd_per_hour"] for part in parts), rel=1e-12)
    devices = {name: next(d for d in _devices() if d["name"] == name)["usd_per_hour"] for name in ("h100-sxm", "h200-sxm")}
    assert sides["usd_per_hour"] == pytest.approx(4 * devices["h100-sxm"] + 4 * devices["h200-sxm"])
    tokens = summary["output_tokens_per_s"]
    assert sides["usd_per_million_output_tokens"] == pytest.approx(sides["usd_per_hour"] / 3600 / tokens * 1e6)


def _devices():
    from orrery import _core

    for name in ("h100-sxm", "h200-sxm"):
        yield _core.device_summary(str(ROOT / "topologies" / "devices" / name))


def test_a_run_prints_both_and_its_report_shows_them(tmp_path, capsys):
    sets = [word for text in FEW for word in ("--set", text)]
    assert cli.main(["run", str(SCENARIO), "-o", str(tmp_path / "run"), *sets]) == 0
    printed = capsys.readouterr().out
    assert "4 of 8 GPUs (h100-sxm of hgx-h100)" in printed and "4 of 8 GPUs (h200-sxm of hgx-h200)" in printed
    assert "USD an hour (5.20 for prefill and 6.40 for decode)" in printed
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    table = page.partition('id="sides-table"')[2].partition("</table>")[0]
    for text in ("h100-sxm", "h200-sxm", "hgx-h100", "5.20 USD", "6.40 USD", "quantize of vllm-0.24.0 on h200-sxm"):
        assert text in table
    assert "hgx-h100 with 8 GPUs for prefill, hgx-h200 with 8 GPUs for decode" in page
    again = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    resolved = orrery.simulate(orrery.load(tmp_path / "run" / "scenario.yaml"))
    assert resolved.summary["ttft_s"] == again["ttft_s"] and resolved.summary["energy"] == again["energy"]


def test_a_step_of_either_side_is_explained_by_its_own_tables(capsys):
    scenario = orrery.load(SCENARIO)
    batch = orrery.Batch(num_decodes=16, decode_context=16 * 1000)
    times = {}
    for side, device in (("prefill", "h100-sxm"), ("decode", "h200-sxm")):
        found = explain.step(scenario.side(side), batch)
        attention = next(op for op in found["ops"] if "decode" in op["call"])
        assert attention["device"] == device
        times[side] = found["device_s"]
        alone = scenario.replace({"disaggregation": None, "machine": f"hgx-{device.partition('-')[0]}", "placement": {"tp": 4}})
        assert found["device_s"] == explain.step(alone, batch)["device_s"]
    assert times["decode"] < times["prefill"]  # of weights read at 4.8 TB/s and 3.35
    assert cli.main(["explain", str(SCENARIO), "--side", "prefill", "--prefill", "2000"]) == 0
    assert "h100-sxm" in capsys.readouterr().out


def test_python_needs_no_machine_where_both_sides_have_one():
    sides = {"prefill": {"machine": "hgx-h100"}, "decode": {"machine": {"name": "h200-cluster", "num_gpus": 8}}, "transfer": {"rate": "50 GB/s"}}
    load = {"closed_loop": {"concurrency": 2, "num_requests": 8, "prompt_tokens": 100, "output_tokens": 10}}
    made = orrery.Scenario(model="llama-3.1-8b", disaggregation=sides, workload=load)
    summary = orrery.simulate(made).summary
    assert summary["device"] == "h100-sxm + h200-sxm"
    changed = made.replace({"disaggregation.decode.machine": "hgx-h100"})
    assert orrery.simulate(changed).summary["disaggregation"]["decode"]["device"] == "h100-sxm"
    assert orrery.simulate(changed).summary["tpot_s"]["mean"] > summary["tpot_s"]["mean"]
    with pytest.raises(orrery.ScenarioError, match="missing key 'machine'"):
        orrery.Scenario(model="llama-3.1-8b", workload=load)


def test_a_comparison_says_where_each_side_is(tmp_path, capsys):
    for name, machine in (("a", "hgx-h100"), ("b", "hgx-h200")):
        sets = [word for text in [*FEW, f"disaggregation.prefill.machine={machine}"] for word in ("--set", text)]
        assert cli.main(["run", str(SCENARIO), "-o", str(tmp_path / name), "--no-report", *sets]) == 0
    capsys.readouterr()
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "disaggregation.prefill.machine.name" in capsys.readouterr().out


FFN = "placement={ffn_instances: 1, num_micro_batches: 2, ffn: {machine: hgx-h100, transfer: {rate: 50 GB/s, latency: 3 us}}}"
FEW_AT_ONCE = "workload={closed_loop: {concurrency: 8, num_requests: 16, prompt_tokens: 200, output_tokens: 10}}"


def test_a_run_says_what_attention_and_ffns_are_on(tmp_path, capsys):
    sets = [word for text in ("machine=hgx-h200", FFN, FEW_AT_ONCE) for word in ("--set", text)]
    assert cli.main(["run", "scenarios/llama_8b_closed_loop.yaml", "-o", str(tmp_path / "run"), *sets]) == 0
    printed = capsys.readouterr().out
    assert "1 of 2 GPUs (h200-sxm of hgx-h200)" in printed and "1 of 2 GPUs (h100-sxm of hgx-h100)" in printed
    assert "USD an hour (1.60 for attention and 1.30 for ffn)" in printed
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    sides = summary["attention_ffn"]
    assert summary["device"] == "h200-sxm + h100-sxm" and sides["usd_per_hour"] == pytest.approx(2.9)
    of_attention = {kernel for table in sides["attention"]["tables"] for kernel in table["kernels"]}
    assert "attention_decode" in of_attention and all(table["device"] == "h200-sxm" for table in sides["attention"]["tables"])
    assert any(table["device"] == "h100-sxm" for table in sides["ffn"]["tables"])
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    table = page.partition('id="ffn-table"')[2].partition("</table>")[0]
    assert "h200-sxm" in table and "h100-sxm" in table and "1.30 USD" in table
    assert "hgx-h200 with 8 GPUs for attention, hgx-h100 with 8 GPUs for FFNs" in page


def test_ops_of_ffns_are_of_their_devices_tables():
    batch = orrery.Batch(num_decodes=48, decode_context=48 * 1000)
    found = explain.step(orrery.load("scenarios/llama_8b_closed_loop.yaml", overrides=["machine=hgx-h200", FFN]), batch)
    devices = {op["name"].rpartition(".")[2]: op["device"] for op in found["ops"] if op["device"]}
    assert devices["down_proj"] == "h100-sxm" and devices["qkv_proj"] == "h200-sxm"
