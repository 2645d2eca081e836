"""Launches by kernel and stream and the share of communication, simulated and measured."""

import copy
import json
import pathlib
import pickle

import orrery
import pytest
from orrery import cli, launches, moe
from orrery.validation import launched, terminal
from orrery.validation.directory import Span
from validation_runs import SCENARIO, step

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCOUT = "llama-4-scout-17b-16e"


def op(name, kernel, kind="kernel", *, stream=0, ranks=(0,)):
    return {"op": name, "copy": 0, "stream": stream, "ranks": list(ranks), "body": {"kind": kind, "name": kernel}}


def span(name, start, end, kind="kernel", *, rank=0, stream=0, number=0):
    return Span(op=name, copy=number, rank=rank, stream=stream, kind=kind, basis="measured", start_s=start, end_s=end)


OPS = [op("a", "gemm"), op("b", "gemm"), op("n", "rms_norm"), op("r", "all_reduce", "comm", stream=1)]


def counts(found):
    return {row.key: row.launches for row in found.rows}


def test_ops_of_a_kernel_on_a_stream_are_one_row():
    found = launches.of_spans(OPS, [span("a", 0, 4), span("b", 4, 5), span("b", 5, 6, number=1), span("n", 6, 8)], rank=0)
    assert [(row.kernel, row.stream, row.launches, row.time_s) for row in found.rows] == [("gemm", 0, 3, 6), ("rms_norm", 0, 1, 2)]


def test_a_launch_counts_from_the_end_of_the_one_before_on_its_stream():
    found = launches.of_spans(OPS, [span("a", 0, 4), span("n", 1, 6), span("r", 1, 3, "comm", stream=1)], rank=0)
    assert {row.kernel: row.time_s for row in found.rows} == {"gemm": 4, "rms_norm": 2, "all_reduce": 2}


def test_communication_is_exposed_where_no_kernel_runs_beside_it():
    # From 3 to 7 and from 9 to 10; kernels cover 0 to 4 and 5 to 6. Of ten seconds 5 are communication, 3 of them exposed.
    spans = [span("a", 0, 4), span("r", 3, 7, "comm", stream=1), span("b", 5, 6), span("r", 9, 10, "comm", stream=1, number=1)]
    found = launches.of_spans(OPS, spans, rank=0).communication
    assert (found.time_s, found.exposed_s, found.share, found.exposed_share) == (5, 3, 0.5, 0.3)


def test_other_ranks_and_the_host_are_left_out_but_the_step_ends_with_the_last():
    found = launches.of_spans(OPS, [span("a", 0, 4), span("r", 4, 5, "comm", stream=1), span("a", 0, 10, rank=1), span("h", 0, 9, "host")], rank=0)
    assert counts(found) == {("gemm", 0): 1, ("all_reduce", 1): 1}
    assert found.communication.share == 0.1


@pytest.fixture(scope="module")
def result():
    return orrery.simulate(orrery.load(ROOT / "scenarios/validate/llama_8b.yaml", overrides=["machine=hgx-h200", "placement.tp=2"]))


def test_a_step_launches_what_its_layers_are_made_of(result):
    found = launches.listing(result.timeline, result.plan_text)
    # 32 layers of four products, and the logits; two norms a layer, the first with nothing to add, and the last norm.
    expected = {"gemm": 4 * 32 + 1, "rope": 32, "silu_mul": 32, "kv_append": 32, "attention_decode": 32, "embedding": 1, "sample": 1}
    of_kernel = {row.kernel: row.launches for row in found.rows}
    assert {name: of_kernel[name] for name in expected} == expected
    assert of_kernel["all_reduce"] >= 2 * 32
    assert sum(of_kernel.values()) == (result.timeline.to_pandas().query("rank == 0 and kind != 'host'").shape[0])


def test_the_share_of_communication_is_in_the_summary(result):
    found, timeline = result.summary["step"]["communication"], result.timeline
    assert 0 < found["exposed_share"] <= found["share"] < 1
    assert found["share"] == pytest.approx(timeline.busy_s()["comm"] / timeline.makespan_s)
    assert found["exposed_s"] == pytest.approx(timeline.exposed_communication_s())
    assert launches.listing(timeline, result.plan_text).communication.to_dict() == pytest.approx(found)
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.summary["step"]["communication"] == found


def test_one_gpu_has_nobody_to_talk_to():
    alone = orrery.simulate(orrery.load(ROOT / "scenarios/validate/llama_8b.yaml"))
    assert set(alone.summary["step"]["communication"].values()) == {0}


def test_the_report_and_the_table_of_a_run_say_how_much_of_the_step_is_communication(workdir):
    ran = workdir.orrery("run", workdir.scenario, "-o", "out")
    assert ran.returncode == 0, ran.stderr
    share = json.loads((workdir.directory / "out/summary.json").read_text())["step"]["communication"]["share"]
    assert f"{100 * share:.1f} % of the chosen step, exposed" in ran.stdout
    assert "of it communication (" in (workdir.directory / "out/report.html").read_text()


@pytest.mark.parametrize("design", moe.DESIGNS)
def test_the_listing_of_a_layer_has_all_its_launches(design):
    one = moe.layer(SCOUT, tokens=64, design=design, streams=2, tp=2, machine="hgx-h200")
    found = launches.listing(one.timeline, one.plan_text)
    assert sum(row.launches for row in found.rows if row.kind == "kernel") == one.num_kernels
    assert sum(row.launches for row in found.rows if row.kind == "comm") == one.num_collectives
    # The shared expert is on the second stream.
    assert {row.kernel: row.launches for row in found.rows if row.stream == 1} == {"gemm": 2, "silu_mul": 1}


def test_moe_and_explain_print_listings(capsys):
    assert cli.main(["moe", SCOUT, "--launches"]) == 0
    assert "index_shuffling       0         1" in capsys.readouterr().out
    assert cli.main(["moe", SCOUT, "--launches", "--json"]) == 0
    assert all(sum(row["launches"] for row in one["listing"]["rows"]) == one["num_kernels"] for one in json.loads(capsys.readouterr().out))
    explain = ["explain", str(ROOT / "scenarios/validate/llama_8b.yaml"), "--decodes", "8", "--launches"]
    assert cli.main(explain) == 0
    assert "communication: 0.0 % of the time" in capsys.readouterr().out
    assert cli.main([*explain, "--op", "o_proj"]) == 2
    assert "found --launches with options of prices" in capsys.readouterr().err


def test_a_rank_that_was_not_simulated_is_named(result):
    with pytest.raises(ValueError, match="found no rank 7 in the timeline; it has 0, 1"):
        launches.listing(result.timeline, result.plan_text, rank=7)


def rows(found, name="decode_graph"):
    (one,) = step(found, name)["listings"]
    assert one["ranks"] == [0, 1]
    return {row["kernel"]: row for row in one["rows"]}


def test_what_was_executed_as_predicted_has_the_same_listing(validation):
    for row in rows(validation.result()).values():
        assert row["measured_launches"] == row["measured_ops"] == row["predicted_launches"] > 0
        assert row["measured_s"] == pytest.approx(row["predicted_s"])


def test_launches_are_those_of_the_gpu_where_an_op_takes_several(validation):
    names = ["void ns::gemm<128, (Mode)2>(float const*)".replace(",", ";"), "split_k_sum"]
    found = rows(validation.result(gpu_kernels={"o_proj": names}))
    # 32 layers: o_proj is one of the four products of each.
    assert found["gemm"]["predicted_launches"] == found["gemm"]["measured_ops"] == 4 * 32 + 1
    assert found["gemm"]["measured_launches"] == 5 * 32 + 1
    assert {one["kernel"]: one["launches"] for one in found["gemm"]["gpu_kernels"]} == {"kernel": 3 * 32 + 1, names[0]: 32, "split_k_sum": 32}
    assert sum(one["time_s"] for one in found["gemm"]["gpu_kernels"]) == pytest.approx(found["gemm"]["measured_s"])
    code, out, err = validation.run("--compare", "out", "--launches")
    assert code == 0, err
    assert "decode_graph, GPU 0, 1" in out and "  split_k_sum" in out and "  gemm " in out
    page = (validation.folder / "out/validation.html").read_text()
    assert "decode_graph, launches by kernel and stream" in page and "split_k_sum" in page


def test_programs_that_recorded_no_kernels_leave_the_ops_that_ran(validation):
    found = rows(validation.result(gpu_kernels=None))
    assert all(row["measured_launches"] is None and row["measured_ops"] == row["predicted_launches"] for row in found.values())
    assert terminal.launches(found["gemm"]) == "129 ops" and terminal.launches(found["sample"]) == "1 op"


def test_without_a_trace_a_listing_is_of_the_prediction_alone(validation):
    found = rows(validation.result(traces=False))
    assert all(row["measured_ops"] is None and row["measured_s"] is None for row in found.values())
    assert found["gemm"]["predicted_launches"] == 129


def test_the_share_of_communication_stands_beside_the_predicted_one(validation):
    (one,) = step(validation.result(communication=2.0), "decode_graph")["listings"]
    predicted, measured = one["communication"]["predicted"], one["communication"]["measured"]
    assert measured["time_s"] == pytest.approx(2 * predicted["time_s"])
    assert 0 < predicted["exposed_share"] < measured["exposed_share"] < 1
    code, out, err = validation.run("--compare", "out")
    assert code == 0, err
    assert "communication of the step" in out
    assert 'id="communication-table"' in (validation.folder / "out/validation.html").read_text()


def test_ranks_that_launch_otherwise_have_listings_of_their_own(validation):
    validation.scenario.write_text(SCENARIO.replace("{tp: 2}", "{pp: 2}"), encoding="utf-8")
    first, last = step(validation.result(), "decode_eager")["listings"]
    assert (first["ranks"], last["ranks"]) == ([0], [1])
    kernels = [{row["kernel"] for row in one["rows"]} for one in (first, last)]
    assert "embedding" in kernels[0] - kernels[1] and "sample" in kernels[1] - kernels[0]


@pytest.mark.parametrize(("kernel", "short"), [
    ("void orrery::(anonymous namespace)::gemm_kernel<128, (Mode)2>(float const*, int)", "gemm_kernel"),
    ("nvjet_tst_128x64", "nvjet_tst_128x64"),
    ("void cutlass::Kernel2<foo<a>, b>(P::Q)", "Kernel2"),
    ("memcpy", "memcpy"),
])  # fmt: skip
def test_names_of_gpu_kernels_are_shown_without_types(kernel, short):
    assert launched.short_name(kernel) == short


def test_ranks_are_told_in_words():
    assert [launched.ranks_text(ranks) for ranks in ([0], [0, 1], [0, 1, 2, 3], [0, 2, 3])] == ["0", "0, 1", "0 to 3", "0, 2, 3"]
