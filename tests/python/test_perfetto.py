"""`orrery trace`: events for Perfetto that add up to what was simulated."""

import collections
import itertools
import json
import pathlib

import orrery
import pytest
from orrery import _core, simulation
from orrery.perfetto import events
from orrery.perfetto.step import step

US = 1e-6


def traced(workdir, *words):
    """The events of `orrery trace WORDS`, by phase."""
    result = workdir.orrery("trace", *words, "-o", "out.json", "--force")
    assert result.returncode == 0, result.stderr
    found = collections.defaultdict(list)
    for event in json.loads((workdir.directory / "out.json").read_text(encoding="utf-8"))["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def step_of(model, *, tp=1, **batch):
    scenario = orrery.Scenario.from_dict({
        "model": {"config": model, "weights": "fp8", "activations": "fp8"}, "machine": "hgx-h200", "provider": "vllm-0.24.0", "placement": {"tp": tp},
        "engine": {"max_model_len": 4096},
        "workload": {"closed_loop": {"concurrency": 1, "num_requests": 1, "prompt_tokens": 64, "output_tokens": 2}}})  # fmt: skip
    result = simulation.step_result(scenario, orrery.Batch(**batch))
    return result, json.loads(step(result).text())["traceEvents"]


def integral(counters):
    """Of one counter, in the unit of its values times seconds."""
    total = 0.0
    for one, after in itertools.pairwise(sorted(counters, key=lambda event: event["ts"])):
        total += sum(one["args"].values()) * (after["ts"] - one["ts"]) * US
    return total


def test_ops_stand_in_the_spans_of_their_layers(workdir):
    found = traced(workdir, "step", workdir.scenario, "--decodes", "8")
    layers = [event for event in found["X"] if event["cat"] == "layer" and event["pid"] == 0]
    assert [event["args"]["layer"] for event in layers] == list(range(32))
    assert all(one["ts"] + one["dur"] <= after["ts"] + 1e-9 for one, after in itertools.pairwise(layers))
    around = {event["args"]["layer"]: event for event in layers}
    ops = [event for event in found["X"] if event["cat"] in ("kernel", "comm") and event["pid"] == 0]
    assert {event["name"] for event in ops} >= {"qkv_proj", "o_proj.all_reduce", "embedding", "lm_head"}
    for event in ops:
        if "layer" in event["args"]:
            layer = around[event["args"]["layer"]]
            assert layer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= layer["ts"] + layer["dur"] + 1e-9


@pytest.mark.parametrize(("model", "num_layers"), [("gpt-oss-20b", 24), ("deepseek-v2-lite", 27), ("qwen2.5-7b", 28)])
def test_layers_that_repeat_in_groups_are_each_named_once(model, num_layers):
    """Windows in every second layer (gpt-oss), a dense layer before 26 of experts (DeepSeek-V2-Lite)."""
    _, found = step_of(model, num_decodes=4, decode_context=4096)
    assert [event["args"]["layer"] for event in found if event.get("cat") == "layer"] == list(range(num_layers))


def test_rates_are_amounts_over_time():
    result, found = step_of("llama-3.1-8b", num_decodes=8, decode_context=8000)
    gemms = [event for event in found if event.get("cat") == "kernel" and event["args"]["call"] == "gemm"]
    assert len(gemms) == 4 * 32 + 1
    for event in gemms:
        args = event["args"]
        assert args["flops"] == 2 * args["m"] * args["n"] * args["k"]
        assert args["TFLOP/s"] * 1e12 * event["dur"] * US == pytest.approx(args["flops"], rel=1e-3)  # times are rounded to ns
        assert args["GB/s"] * 1e9 * event["dur"] * US == pytest.approx(args["read_bytes"] + args["written_bytes"], rel=1e-3)
    moved = sum(op["work"]["read_bytes"] + op["work"]["written_bytes"] for op in _core.plan_ops(result.plan_text) if "work" in op)
    counters = [event for event in found if event["ph"] == "C" and event["name"] == "memory, GB/s"]
    assert integral(counters) * 1e9 == pytest.approx(moved, rel=1e-3)
    assert max(event["args"]["GB/s"] for event in counters) < 4800  # the H200's


@pytest.mark.skipif(not _core.has_simgrid(), reason="links are simulated by SimGrid")
def test_links_count_the_bytes_that_cross_them_and_collectives_are_joined():
    result, found = step_of("llama-3.1-8b", tp=2, num_decodes=8, decode_context=8000)
    columns = result.timeline.link_columns()
    for link in set(columns["link"]):
        sent = sum(size for name, size in zip(columns["link"], columns["bytes"]) if name == link)
        assert integral([event for event in found if event["name"] == f"{link}, GB/s"]) * 1e9 == pytest.approx(sent, rel=1e-2)
    # All layers are one run here, so that a name with a number would say layer 0 of every transfer.
    assert {event["name"] for event in found if event.get("cat") == "link"} == {
        "embedding.all_reduce", "o_proj.all_reduce", "down_proj.all_reduce", "logits.all_gather"}  # fmt: skip
    num_collectives = sum(op["body"]["kind"] == "comm" for op in _core.plan_ops(result.plan_text))
    begins, ends = ([event for event in found if event["ph"] == phase] for phase in "sf")
    assert len(begins) == len(ends) == num_collectives  # one arrow for each, from rank 0 to rank 1
    assert {event["pid"] for event in begins} == {0} and {event["pid"] for event in ends} == {1}
    assert [event["id"] for event in begins] == [event["id"] for event in ends]


def test_requests_are_their_phases_and_steps_what_ran(workdir):
    assert workdir.run().returncode == 0
    found = traced(workdir, "service", "out")
    requests = [event for event in found["X"] if event["cat"] == "request"]
    assert sorted(event["args"]["id"] for event in requests) == [0, 1, 2, 3, 4]
    for event in requests:
        phases = [part for part in found["X"] if part["cat"] == "phase" and part["args"]["id"] == event["args"]["id"]]
        assert sum(part["dur"] for part in phases) == pytest.approx(event["dur"], abs=0.01)
        assert event["dur"] * US == pytest.approx(event["args"]["e2e_s"], abs=1e-8)
    summary = json.loads((workdir.directory / "out" / "summary.json").read_text(encoding="utf-8"))
    steps = [event for event in found["X"] if event["cat"] == "step"]
    assert sum(event["args"]["num_steps"] for event in steps) == summary["num_steps"]
    assert {event["name"] for event in found["C"]} == {"sequences", "KV blocks in use"}
    for rows in (steps, requests):  # no two on one row at once
        by_row = collections.defaultdict(list)
        for event in rows:
            by_row[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        for spans in by_row.values():
            assert all(one[1] <= after[0] + 1e-6 for one, after in itertools.pairwise(sorted(spans)))


def test_a_window_keeps_what_touches_it(workdir):
    found = traced(workdir, "service", workdir.scenario, "--from", "2.9", "--to", "3.1")
    assert {event["args"]["id"] for event in found["X"] if event["cat"] == "request"} == {4}
    for words, says in ((("--from", "900", "--to", "901"), "found nothing between 900 and 901 s"), (("--from", "2", "--to", "1"), "expected a later time for --to")):
        result = workdir.orrery("trace", "service", workdir.scenario, *words)
        assert result.returncode == 2 and says in result.stderr


def test_a_transfer_between_prefill_and_decode_is_a_phase(workdir):
    workdir.replace("placement: {replicas: 2, tp: 2}", "disaggregation: {prefill: {replicas: 1}, decode: {replicas: 1}}")
    found = traced(workdir, "service", workdir.scenario)
    phases = collections.Counter(event["name"] for event in found["X"] if event["cat"] == "phase")
    assert phases["transfer and wait"] == 4  # of five requests one makes a single token


def test_a_file_that_is_there_stays(workdir):
    for expected in (0, 2):
        result = workdir.orrery("trace", "step", workdir.scenario, "--decodes", "1")
        assert result.returncode == expected
    assert "'scenario.step.trace.json' exists" in result.stderr


def test_more_events_than_a_browser_shows_are_refused(monkeypatch):
    monkeypatch.setattr(events, "MOST_EVENTS", 3)
    trace = events.Trace()
    trace.process(0, "one")
    trace.process(1, "two")
    with pytest.raises(ValueError, match="found 4 events; expected at most 3.*--from and --to"):
        trace.text()


def test_rates_that_overlap_are_summed():
    assert events.summed([(0, 2, 1.0), (1, 3, 2.0)]) == [(0, 1.0), (1, 3.0), (2, 2.0), (3, 0.0)]


INSTRUCTIONS = """\
sm,kind,name,start_us,ready_us,end_us,weights_us
0,qkv,"layers.0 qkv rows 0..24",0.000,2.000,5.000,1.000
0,attention,"layers.0 attention of sequence 0, kv head 0, part 0 of 1",5.500,8.000,10.000,0.000
1,qkv,"layers.0 qkv rows 24..48",0.000,1.000,10.000,4.000
"""


def test_a_step_that_is_one_kernel_has_a_row_for_each_sm(workdir):
    words = ("step", orrery_scenario("megakernel_1b"), "--decodes", "1", "--context", "512", "--set", "engine.launch_mode=megakernel")
    found = traced(workdir, *words)
    (of_sms,) = (event["pid"] for event in found["M"] if event["args"].get("name") == "SMs of rank 0")
    names = {event["args"]["name"] for event in found["M"] if event["name"] == "thread_name" and event["pid"] == of_sms}
    assert names == {f"SM {sm}" for sm in range(132)}
    spans = [event for event in found["X"] if event["pid"] == of_sms and event["cat"] != "wait"]
    for sm in (0, 131):
        row = sorted((event["ts"], event["dur"]) for event in spans if event["tid"] == sm)
        assert len(row) > 16 * 4  # four instructions of each layer and more
        assert all(ts + duration <= after + 1e-6 for (ts, duration), (after, _) in itertools.pairwise(row))
    assert {event["cat"] for event in spans} == {"qkv", "attention", "output", "gate_up", "down", "logits", "pick"}
    last = max(event["ts"] + event["dur"] for event in spans)
    assert last == pytest.approx(664.7, rel=0.01)  # as measured on an H200, which its price is fitted to


def orrery_scenario(name):
    return pathlib.Path(__file__).resolve().parents[2] / "scenarios/validate" / f"{name}.yaml"


def test_instructions_as_they_ran_on_a_gpu_become_rows_and_shares(workdir):
    (workdir.directory / "step.csv").write_text(INSTRUCTIONS, encoding="utf-8")
    result = workdir.orrery("trace", "instructions", "step.csv")
    assert result.returncode == 0, result.stderr
    shares = {line.split("  ")[0]: line.split()[-3:] for line in result.stdout.splitlines()}
    # Of 20 us on two SMs: 2 + 1 for values, 1 + 4 for weights, 7 of products in qkv; 2.5 for values and 2 in attention.
    assert shares["qkv"] == ["15.0%", "25.0%", "35.0%"]
    assert shares["attention"] == ["12.5%", "0.0%", "10.0%"]
    assert shares["all"] == ["27.5%", "25.0%", "45.0%"]
    events = json.loads((workdir.directory / "step.instructions.trace.json").read_text(encoding="utf-8"))["traceEvents"]
    waits = [event for event in events if event.get("cat") == "wait"]
    assert [(event["tid"], event["ts"], event["dur"]) for event in waits] == [(0, 0, 2), (0, 5.5, 2.5), (1, 0, 1)]


@pytest.mark.parametrize(("text", "said"), [
    ("", "step.csv:1: found columns ''; expected sm,kind,name"),
    (INSTRUCTIONS.splitlines()[0] + "\n", "step.csv: holds no instruction"),
    (INSTRUCTIONS + "2,qkv,rows,0,1\n", "step.csv:5: found 5 cells; expected 7"),
    (INSTRUCTIONS + "2,qkv,rows,0,nan,2,0\n", "step.csv:5: found 'nan' in column ready_us; expected a number"),
    (INSTRUCTIONS + "2,qkv,rows,0,3,2,0\n", "step.csv:5: found SM 2, times 0, 3, 2, 0; expected a whole number, start, ready and end in order"),
])  # fmt: skip
def test_a_file_that_holds_no_instructions_is_refused(workdir, text, said):
    (workdir.directory / "step.csv").write_text(text, encoding="utf-8")
    result = workdir.orrery("trace", "instructions", "step.csv")
    assert result.returncode == 2
    assert said in result.stderr
    assert not (workdir.directory / "step.instructions.trace.json").exists()
