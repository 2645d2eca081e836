"""`orrery validate` with a stand-in for orrery-gpu: distortions that it puts in must come out as causes."""

import json
import re
import subprocess

import pytest
from validation_runs import SCENARIO, step

from orrery.validation import directory, serving


def test_what_was_executed_as_predicted_has_no_error(validation):
    result = validation.result(host_s=0.0)
    assert result["is_complete"] and result["status"] == "complete"
    for found in result["steps"]:
        assert found["device_error"] == pytest.approx(0, abs=1e-9)
        causes = found["causes_s"]
        # The profile's host time is predicted and was not measured.
        assert causes.pop("scheduler") == pytest.approx(found["predicted_s"] - found["predicted_device_s"])
        assert all(abs(difference) < 1e-9 for difference in causes.values()), causes


def test_the_causes_of_a_step_add_up_to_its_error(validation):
    result = validation.result(
        kernels={"all": 1.03, "qkv_proj": 1.2},
        gap_s=2e-7,
        communication=1.3,
        slow_rank=[1, 1.02],
        untraced_s=5e-6,
        host_s=7e-5,
    )
    for found in result["steps"]:
        assert sum(found["causes_s"].values()) == pytest.approx(found["predicted_s"] - found["measured_s"], rel=1e-9)
    assert sum(result["causes"].values()) == pytest.approx(
        sum(s["error"] for s in result["steps"]) / len(result["steps"]), abs=1e-9
    )


def test_a_slower_kernel_is_found_as_kernel_time_and_as_the_call_to_measure_again(validation):
    result = validation.result(kernels={"qkv_proj": 1.1})
    found = step(result, "decode_graph")
    op = next(op for op in found["ops"] if op["op"] == "layers.*.qkv_proj")
    assert op["error"] == pytest.approx(1 / 1.1 - 1)
    assert op["count"] == 32  # layers
    assert found["causes_s"]["kernel"] == pytest.approx(-0.1 * op["predicted_s"])
    assert found["causes_s"]["communication"] == pytest.approx(0, abs=1e-10)
    assert {row["call"] for row in result["recalibrate"] if row["explains"] > 1e-6} == {
        "gemm bf16 m=8 n=3072 k=4096",
        "gemm bf16 m=512 n=3072 k=4096",
    }
    assert result["recalibrate"][0]["ops"] == ["layers.*.qkv_proj"]
    assert sum(row["explains"] for row in result["recalibrate"]) == pytest.approx(1)
    family = next(row for row in result["kernels"] if row["kernel"] == "gemm")
    assert -0.1 < family["error"] < 0
    assert next(row for row in result["kernels"] if row["kernel"] == "rope")["error"] == pytest.approx(0, abs=1e-9)


def test_time_between_kernels_is_a_launch_gap(validation):
    found = step(validation.result(gap_s=1e-6), "decode_graph")
    # Each op of a rank starts 1 us later than the end of the one before; the first op starts the step.
    num_ops = sum(op["count"] for op in found["ops"])
    assert found["causes_s"]["launch_gap"] == pytest.approx(-1e-6 * num_ops, rel=0.01)
    assert found["causes_s"]["kernel"] == pytest.approx(0, abs=1e-9)


def test_slower_collectives_are_communication(validation):
    found = step(validation.result(communication=1.5), "decode_graph")
    predicted = sum(op["predicted_s"] for op in found["ops"] if op["kind"] == "comm")
    assert predicted > 0
    assert found["causes_s"]["communication"] == pytest.approx(-0.5 * predicted)
    assert found["causes_s"]["imbalance"] == pytest.approx(0, abs=1e-10)


def test_a_slower_rank_is_imbalance_and_half_of_it_kernel_time(validation):
    found = step(validation.result(slow_rank=[1, 1.1]), "decode_graph")
    kernels = sum(op["predicted_s"] for op in found["ops"] if op["kind"] == "kernel")
    # Rank 1 takes 10 % more, the mean of both 5 %.
    assert found["causes_s"]["kernel"] == pytest.approx(-0.05 * kernels, rel=1e-6)
    assert found["causes_s"]["imbalance"] == pytest.approx(-0.05 * kernels, rel=1e-6)
    assert found["causes_s"]["communication"] == pytest.approx(0, abs=1e-9)


def test_the_host_and_what_no_op_takes_stand_apart(validation):
    found = step(validation.result(host_s=1e-3, untraced_s=2e-4), "decode_graph")
    host = found["predicted_s"] - found["predicted_device_s"]
    assert found["causes_s"]["scheduler"] == pytest.approx(host - 1e-3)
    assert found["causes_s"]["edges"] == pytest.approx(-2e-4)


def test_memory_is_compared_by_rank_and_term(validation):
    result = validation.result(memory={"context": 5e8})
    rows = {(row["rank"], row["term"]): row for row in result["memory"]}
    assert {rank for rank, _ in rows} == {0, 1}
    assert rows[1, "context"]["measured_bytes"] - rows[1, "context"]["predicted_bytes"] == pytest.approx(5e8)
    assert rows[0, "weights"]["error"] == pytest.approx(0)
    # bf16 weights of 8.03 G parameters over two ranks: 8 GB each.
    assert 7.9e9 < rows[0, "weights"]["predicted_bytes"] < 8.3e9
    total = rows[0, "total"]
    assert result["errors"]["memory_total"]["value"] == pytest.approx(5e8 / total["measured_bytes"])


def test_requests_are_compared_by_percentile_without_the_warm_up(validation):
    validation.scenario.write_text(SCENARIO.replace("serve: false", "serve: true"))
    found = validation.result(tpot=1.25)["serving"]
    assert found["requests"] == found["requests_predicted"] == 16  # 20 less 4
    rows = {(row["latency"], row["quantile"]): row for row in found["latencies"]}
    for quantile in serving.QUANTILES:
        assert rows["tpot_s", quantile]["error"] == pytest.approx(1 / 1.25 - 1)
        assert rows["itl_s", quantile]["error"] == pytest.approx(1 / 1.25 - 1)
        assert rows["ttft_s", quantile]["error"] == pytest.approx(0)
    assert validation.log.read_text().splitlines() == ["execute out --repeats 5", "serve out"]


def test_the_three_steps_run_apart(validation):
    code, out, err = validation.run(validation.scenario, "--plan-only", "-o", "out")
    assert code == 0, err
    assert "orrery-gpu execute out --repeats 5" in out and "orrery validate --compare out" in out
    assert not validation.log.exists(), "--plan-only needs no program"
    assert (validation.folder / "out" / "steps" / "decode_graph.plan").is_file()
    subprocess.run([validation.program, "execute", "out", "--repeats", "3"], cwd=validation.folder, check=True)
    code, out, err = validation.run("--compare", "out")
    assert code == 0, err
    assert "decode_graph" in out and "report: out/validation.html" in out
    assert {"validation.json", "validation.html", "timelines.trace.json"} <= {
        path.name for path in (validation.folder / "out").iterdir()
    }


def test_json_goes_to_stdout_alone(validation):
    code, out, err = validation.run(validation.scenario, "-o", "out", "--json", text="what the program says")
    assert code == 0, err
    assert json.loads(out) == json.loads((validation.folder / "out" / "validation.json").read_text())
    assert "what the program says" in err


def test_one_trace_holds_both_timelines(validation):
    validation.result(gap_s=1e-6)
    events = json.loads((validation.folder / "out" / "timelines.trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == [
        "measured rank 0",
        "measured rank 1",
        "predicted rank 0",
        "predicted rank 1",
        "steps",
    ]
    steps = {event["name"]: event for event in events if event.get("cat") == "step"}
    assert list(steps) == ["decode_graph", "decode_eager", "prefill_eager"]
    # The first kernels of both sides stand where their step begins.
    begin = steps["prefill_eager"]["ts"]
    for side in ("predicted rank 0", "measured rank 0"):
        firsts = [
            event["ts"]
            for event in events
            if names.get(event["pid"]) == side and event["ph"] == "X" and event["ts"] >= begin
        ]
        assert min(firsts) == pytest.approx(begin, abs=60)  # us: an eager launch
    for event in events:
        assert event["ph"] == "M" or event["dur"] >= 0


def test_without_traces_there_are_errors_but_no_causes(validation):
    result = validation.result(traces=False, kernels={"all": 1.1})
    assert all(found["causes_s"] is None and found["error"] < 0 for found in result["steps"])
    assert result["recalibrate"] == [] and result["kernels"] == []
    assert "No step was traced" in (validation.folder / "out" / "validation.html").read_text()


def test_the_page_names_both_revisions_and_every_step(validation):
    result = validation.result(kernels={"all": 1.2})
    page = (validation.folder / "out" / "validation.html").read_text()
    head = page[: page.index("</header>")]
    assert "0123456789ab" in head and "NVIDIA H200" in head and "driver 580.159.04" in head
    assert re.search(r"tables of orrery, (\d+ revisions|revision [0-9a-f]{12})", head)
    for revision in result["calibration_revisions"]:
        assert f"revision {revision}" in page
    for name in ("decode_graph", "decode_eager", "prefill_eager"):
        assert f'<tr data-key="{name}">' in page


def test_batches_are_told_in_words(executed):
    words = {found.name: found.batch for found in directory.read(executed).steps}
    assert words == {
        "decode_graph": "8 decodes at 512",
        "decode_eager": "8 decodes at 512",
        "prefill_eager": "prefill of 512 tokens",
    }
