"""One layer of routed experts: designs against each other, and what cannot be."""

import contextlib
import json

import pytest

import orrery
from orrery import _core, cli, moe

SCOUT = "llama-4-scout-17b-16e"


def test_designs_differ_in_syncs_launches_and_memory() -> None:
    layers = {found.design: found for found in moe.designs(SCOUT, tokens=64)}
    assert {name: found.num_syncs for name, found in layers.items()} == {
        "padding": 0, "slicing": 1, "concatenation": 1, "shuffling": 0}  # fmt: skip
    # Router, shuffle and three of the shared expert; then two gemms for each of 16 experts and three more, ...
    assert layers["slicing"].num_kernels == 5 + 2 * 16 + 3
    assert layers["concatenation"].num_kernels == 5 + 16 + 4
    assert layers["shuffling"].num_kernels == layers["padding"].num_kernels == 5 + 5
    assert layers["padding"].activations_bytes > layers["shuffling"].activations_bytes
    assert len({found.weights_bytes for found in layers.values()}) == 1
    assert min(layers.values(), key=lambda found: found.duration_s) is layers["shuffling"]
    assert [layers[name].mode for name in moe.DESIGNS] == ["graph", "eager", "eager", "graph"]


def test_one_kernel_stands_beside_the_designs_where_it_takes_the_model(capsys) -> None:
    assert [found.design for found in moe.designs("qwen3-30b-a3b", tokens=64)] == [*moe.DESIGNS, "persistent"]
    assert [found.design for found in moe.designs("qwen3-30b-a3b", tokens=64, weights="fp8")] == [*moe.DESIGNS, "persistent"]
    (skewed,) = moe.persistent("qwen3-30b-a3b", tokens=16384, dp=2, ep=2, machine="hgx-h200", expert_load="{zipf: 1.0, seed: 3}")
    (even,) = moe.persistent("qwen3-30b-a3b", tokens=16384, dp=2, ep=2, machine="hgx-h200")
    assert skewed.duration_s > 1.02 * even.duration_s and skewed.roofline_share == 1  # by tiles, over rows of even loads
    assert moe.late_rank(skewed, delay_s=50e-6).on_time_s > 1.02 * moe.late_rank(even, delay_s=50e-6).on_time_s
    with pytest.raises(ValueError, match="2 hosts, expected one host"):
        moe.on_hosts(moe.persistent("qwen3-30b-a3b", tokens=64, dp=2, ep=2, machine="h200-cluster", expert_load="{zipf: 1.0}")[0], hosts=2)
    assert cli.main(["moe", "qwen3-30b-a3b", "--tokens", "4096", "--dp", "2", "--ep", "2", "--machine", "hgx-h200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["shuffling", "persistent"]
    (one,) = moe.persistent("qwen3-30b-a3b", tokens=128, dp=2, ep=2, machine="hgx-h200")
    assert (one.num_kernels, one.num_syncs, one.roofline_share) == (1, 0, 0)
    assert one.duration_s == pytest.approx(211.9e-6, rel=0.05)  # 64 tokens on each GPU: a row of the table
    # A shape that no row is of: its tiles are simulated, which is no measurement.
    (other,) = moe.persistent("mixtral-8x22b-v0.1", tokens=4096)
    assert other.roofline_share == 1
    with pytest.raises(orrery.ScenarioError, match="unknown model"):
        moe.persistent("no-model", tokens=64)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--expert-load", "{zipf: 1.0}", "--dp", "2", "--ep", "2", "--redundant", "2", "--machine", "hgx-h200"],
         "num_redundant_experts is 2, expected 0, or design shuffling"),
        (["--dp", "16", "--ep", "16", "--machine", "h200-cluster"], "ep is 16, expected at most 8"),
        (["--tp", "2", "--machine", "hgx-h200"], "tp is 2, expected 1"),
    ],
)
def test_one_kernel_that_is_left_out_says_why(options: list[str], words: str, capsys) -> None:
    command = ["moe", "qwen3-30b-a3b", "--tokens", "4096", *options]
    assert cli.main(command) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("persistent")]
    assert line.startswith("persistent, the layer as one kernel, is left out: ") and words in line
    assert cli.main([*command, "--json"]) == 0
    found = capsys.readouterr()
    assert all(one["design"] != "persistent" for one in json.loads(found.out)) and words in found.err


def test_communication_of_one_kernel_is_inside_it(capsys) -> None:
    command = ["moe", "qwen3-30b-a3b", "--tokens", "4096", "--launches", "--machine", "hgx-h200"]
    assert cli.main([*command, "--dp", "2", "--ep", "2"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("communication")]
    assert not lines[0].startswith("communication: 0.0 %")  # of the pipeline, by collectives
    assert lines[1] == "communication: inside fused_moe, not told apart; beside it 0.0 % of the time, exposed 0.0 %"
    assert cli.main(command) == 0  # on one GPU there is none
    assert "inside" not in capsys.readouterr().out


def test_tiles_of_one_kernel_are_simulated_with_times_of_ones_own() -> None:
    shape = {"tokens": 1024, "hidden": 2048, "ffn": 1408, "experts": 64, "topk": 6}
    found = _core.moe_tiles(**shape)
    assert 0 < found["routed_s"] < found["tiles_s"] < found["duration_s"] and 0 < found["busy"] <= 1
    times = _core.moe_tile_times()
    assert _core.moe_tiles(**shape, times=times) == found
    slower = _core.moe_tiles(**shape, times={**times, "hbm": times["hbm"] / 2})
    assert found["duration_s"] < slower["duration_s"] < 2 * found["duration_s"]
    assert _core.moe_tiles(**shape, ranks=2)["duration_s"] < found["duration_s"]  # half the weights on each
    fp8 = _core.moe_tiles(**shape, is_fp8=True)
    assert 0.5 * found["duration_s"] < fp8["duration_s"] < 0.8 * found["duration_s"]  # half the bytes
    assert _core.moe_tiles(**shape, is_fp8=True, times=_core.moe_tile_times(is_fp8=True)) == fp8
    of_more_bytes = _core.moe_tiles(**shape, shared=2)
    assert found["duration_s"] < of_more_bytes["duration_s"] < 1.5 * found["duration_s"]
    kernels = ({"topk": 9}, {"experts": 513}, {"hidden": 2047}, {"ranks": 16}, {"shared": 5}, {"ffn": 1400, "is_fp8": True})
    for wrong in (*kernels, {"activation": 3}, {"ranks": 3}, {"tokens": 0}, {"order": "fifo"}, {"times": {"hbm": 1.0}}, {"times": {**times, "sm": 0.0}}):
        with pytest.raises(ValueError, match=r"expected|missing"):
            _core.moe_tiles(**{**shape, **wrong})


def test_what_one_kernel_allocates_stands_beside_the_published_layout(capsys) -> None:
    # 4,096 tokens of Qwen3-30B-A3B on each of two GPUs: 2 * 4,096 * 8 rows of 2,048 bf16 and of 768, half as many results.
    shape = {"tokens": 4096, "hidden": 2048, "ffn": 768, "experts": 128, "topk": 8, "ranks": 2}
    found = _core.fused_moe_memory(**shape)
    assert (found["rows"], found["between_layers"], found["results"]) == (65536 * 4096, 65536 * 1536, 32768 * 4096)
    assert 0 < found["tables"] + found["counters"] < 0.011 * sum(found.values())
    (one,) = moe.persistent("qwen3-30b-a3b", tokens=8192, dp=2, ep=2, machine="hgx-h200")
    assert one.buffers_bytes == found and one.to_dict()["buffers_bytes"] == found
    # 32 tokens an expert are a fourth of a tile: 4 * 4 * 4,096 * 2,048 bf16.
    layout = _core.symmetric_layout(tokens=4096, hidden=2048, experts=128, element_bytes=2)
    assert layout["estimate_bytes"] == layout["bytes"] == one.symmetric_layout_bytes == 16 * 4096 * 2048 * 2
    other = moe.layer("qwen3-30b-a3b", tokens=64)
    assert (other.buffers_bytes, other.symmetric_layout_bytes, moe.memory(other)) == ({}, 0, "")
    assert cli.main(["moe", "qwen3-30b-a3b", "--tokens", "8192", "--dp", "2", "--ep", "2", "--machine", "hgx-h200"]) == 0
    assert "persistent allocates 484.9 MiB on each GPU: rows 256.0, results 128.0, between the layers 96.0" in capsys.readouterr().out
    for wrong in ({"ranks": 3}, {"hidden": 12}, {"num_sms": 0}):
        with pytest.raises(ValueError, match="expected"):
            _core.fused_moe_memory(**{**shape, **wrong})
    with pytest.raises(ValueError, match="more than 0"):
        _core.symmetric_layout(tokens=0, hidden=1, experts=1)


def test_a_capacity_takes_less_time_and_room_than_none():
    """Room for rows that nobody drops goes first, then time; one that is never exceeded takes neither."""
    keys = {"tokens": 16384, "dp": 2, "ep": 2, "machine": "hgx-h200"}
    (whole,) = moe.persistent("qwen3-30b-a3b", **keys)
    found = [moe.persistent("qwen3-30b-a3b", **keys, overrides=[f"moe.capacity_factor={factor}"])[0] for factor in (16, 1.25, 1, 0.5)]
    assert (found[0].duration_s, found[0].buffers_bytes) == (whole.duration_s, whole.buffers_bytes)
    times = [one.duration_s for one in found]
    assert times == sorted(times, reverse=True) and times[-1] < 0.7 * times[0]
    assert found[1].buffers_bytes["rows"] == whole.buffers_bytes["rows"] * 1.25 / 2  # 64 experts, 1.25 * 8 / 128 rows a token: 5 of 8


def test_a_late_rank_costs_one_kernel_its_delay_and_two_exchanges_twice_as_much(capsys) -> None:
    keys = {"dp": 2, "ep": 2, "machine": "hgx-h200"}
    (one,) = moe.persistent("qwen3-30b-a3b", tokens=8192, **keys)
    late = moe.late_rank(one, delay_s=200e-6, rank=1)
    assert late.kernel_s == pytest.approx(late.on_time_s + 200e-6)
    assert late.bulk_s == pytest.approx(late.bulk_on_time_s + 400e-6)
    assert late.kernel_s < late.stalled_s < late.kernel_s + 200e-6  # results that wait for the link hide a part
    assert late.on_time_s < late.bulk_on_time_s
    with pytest.raises(ValueError, match="fp8 experts, whose tiles are not simulated"):
        moe.late_rank(*moe.persistent("qwen3-30b-a3b", tokens=64, weights="fp8", **keys), delay_s=200e-6)
    on_time = moe.late_rank(one, delay_s=0)
    assert on_time.kernel_s == on_time.stalled_s == on_time.on_time_s == late.on_time_s
    for delay, rank in ((-1e-6, 0), (1e-6, 2), (float("nan"), 0)):
        with pytest.raises(ValueError, match="expected"):
            moe.late_rank(one, delay_s=delay, rank=rank)
    with pytest.raises(ValueError, match="expected design persistent"):
        moe.late_rank(moe.layer(SCOUT, tokens=8), delay_s=1e-6)
    mild, wild = (moe.stragglers(one, jitter=name) for name in ("supercomputer", "vm"))
    for name, found in mild.items():
        assert found["on_time_s"] < found["median_s"] < found["p95_s"] < wild[name]["p95_s"]
    command = ["moe", "qwen3-30b-a3b", "--tokens", "8192", "--dp", "2", "--ep", "2", "--machine", "hgx-h200"]
    assert cli.main([*command, "--straggler-delay", "200us", "--jitter", "vm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("simulated")] == [
        "simulated, rank 0 late by 200.0 us", "simulated, jitter of the vm"]  # fmt: skip
    assert cli.main([*command, "--straggler-delay", "1 ms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["late_rank"]["delay_s"] == 1e-3
    beyond = ["--straggler-delay", "1us", "--straggler-rank", "2"]
    for wrong in (["--straggler-delay", "-1us"], beyond, ["--straggler-delay", "fast"], ["--jitter", "vm", "--ablation"], ["--nic-queue", "8"]):
        with contextlib.suppress(SystemExit):
            assert cli.main([*command, *wrong]) == 2
        assert "expected" in capsys.readouterr().err


def test_ranks_on_two_hosts_send_rows_by_their_network_cards(capsys) -> None:
    keys = {"dp": 4, "ep": 4, "machine": "h200-cluster"}
    (one,) = moe.persistent("qwen3-30b-a3b", tokens=8192, **keys)
    two = moe.on_hosts(one, hosts=2)
    # 2,048 * 8 rows of 4,096 bytes on each rank, half of them to the other host, by 400 Gbit/s each way.
    assert (two.nic_bytes_per_s, two.most_outstanding) == (50e9, 2048 * 8 // 2)
    assert two.duration_s > two.one_host_s and two.duration_s > 2 * 8192 * 4096 / 50e9
    assert moe.on_hosts(one, hosts=1).duration_s == two.one_host_s
    few = moe.on_hosts(one, hosts=2, nic_queue=16)
    assert few.duration_s > two.duration_s and few.most_outstanding == 16
    command = ["moe", "qwen3-30b-a3b", "--tokens", "8192", "--dp", "4", "--ep", "4", "--machine"]
    assert cli.main([*command, "h200-cluster", "--hosts", "2", "--nic-queue", "16"]) == 0
    text = capsys.readouterr().out
    assert "simulated, 2 hosts, NICs of 50 GB/s" in text
    # The table's price is of rows, one host's time below it of tiles: the line says both, and how far they are apart.
    assert f"in the table persistent takes {one.duration_s * 1e6:,.1f} us" in text and f"{two.one_host_s * 1e6:,.1f} us on one host" in text
    for machine, hosts, words in (("hgx-h200", "2", "expected one that has it"), ("h200-cluster", "3", "expected as many on each")):
        assert cli.main([*command, machine, "--hosts", hosts]) == 2
        assert words in capsys.readouterr().err


def test_experts_without_rows_are_not_launched() -> None:
    # Top-1 of one token: one expert, two gemms.
    assert moe.layer(SCOUT, tokens=1, design="slicing").num_kernels == 5 + 2 + 3


def test_few_tokens_read_few_experts() -> None:
    times = [moe.layer(SCOUT, tokens=tokens).duration_s for tokens in (1, 4, 16, 64)]
    assert times == sorted(times)
    # One of 16 experts and the shared one against (nearly) all 17.
    assert times[0] < 0.35 * times[-1]


def test_skewed_choices_read_fewer_experts() -> None:
    even, skewed = (moe.layer(SCOUT, tokens=16, expert_load=load) for load in ("uniform", "{zipf: 1.5}"))
    assert skewed.moved_bytes < even.moved_bytes


def test_a_routing_trace_is_read_and_its_errors_have_a_place(tmp_path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("expert,count\n3,90\n7,10\n")
    found = moe.layer(SCOUT, tokens=64, expert_load=f'{{trace: "{trace}"}}')
    assert "active=2:" in found.plan_text
    trace.write_text("expert,count\n16,1\n")
    with pytest.raises(orrery.ScenarioError, match=r"trace.csv: line 2|trace.csv.*2"):
        moe.layer(SCOUT, tokens=64, expert_load=f'{{trace: "{trace}"}}')


def test_tensor_parallel_ranks_share_columns() -> None:
    whole, half = moe.layer(SCOUT, tokens=64), moe.layer(SCOUT, tokens=64, tp=2, machine="hgx-h200")
    assert half.num_collectives == 1
    assert half.weights_bytes == pytest.approx(whole.weights_bytes / 2, rel=0.01)  # all but the router
    assert half.duration_s < whole.duration_s


def test_balanced_experts_and_copies_make_the_slowest_rank_faster() -> None:
    def slowest(**keys) -> float:
        return moe.layer(SCOUT, tokens=16384, dp=4, ep=4, machine="hgx-h200", expert_comm="eager",
                         expert_load="{zipf: 1.2, seed: 0}", **keys).duration_s  # fmt: skip

    in_order, balanced = slowest(), slowest(experts="balanced")
    assert balanced < 0.95 * in_order
    # One expert has 2 of 5 choices, more than the share of a rank: only a copy helps.
    assert slowest(experts="balanced", num_redundant_experts=4) < 0.95 * balanced


def test_eager_collectives_have_one_sync_and_a_graph_none() -> None:
    keys = {"tokens": 256, "dp": 2, "ep": 2, "machine": "hgx-h200"}
    eager, graph = (moe.layer(SCOUT, expert_comm=comm, **keys) for comm in ("eager", "graph"))
    assert (eager.num_syncs, eager.num_collectives, eager.mode) == (1, 3, "eager")
    assert (graph.num_syncs, graph.num_collectives, graph.mode) == (0, 3, "graph")


def test_rows_that_are_copied_are_those_of_eager_and_take_a_sync_too() -> None:
    keys = {"tokens": 8192, "dp": 2, "ep": 2, "machine": "hgx-h200", "chunks": 2}
    eager, copies = (moe.layer("qwen3-30b-a3b", expert_comm=comm, **keys) for comm in ("eager", "copies"))
    assert (copies.num_syncs, copies.num_kernels, copies.num_collectives) == (eager.num_syncs, eager.num_kernels, eager.num_collectives)
    assert copies.plan_text.replace(" copied", "") == eager.plan_text.replace(" leaves 24", "")  # copies take no SMs
    assert copies.roofline_share == pytest.approx(eager.roofline_share, abs=0.02)  # copies are priced by measured rows as well
    with pytest.raises(ValueError, match="copies"):
        moe.layer("qwen3-30b-a3b", expert_comm="copies", mode="graph", **keys)


def test_ablation_is_never_faster_without_a_thing_in_decode() -> None:
    layers = moe.ablation(SCOUT, tokens=64)
    assert layers[0].label == "all of it"
    assert all(found.duration_s >= 0.999 * layers[0].duration_s for found in layers)
    assert "a host sync" in moe.table(layers)


def test_a_second_stream_runs_the_shared_expert_beside_the_routing() -> None:
    one, two = (moe.layer(SCOUT, tokens=64, streams=streams) for streams in (1, 2))
    assert two.duration_s < one.duration_s
    # Both read every weight: no more than the small kernels is hidden.
    assert two.duration_s > 0.7 * one.duration_s


def test_imposed_scores_are_an_input_of_the_plan() -> None:
    plan = moe.layer(SCOUT, tokens=8, imposes_scores=True).plan_text
    assert "imposed_scores input fp32 [tokens=8,router=16]" in plan


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"design": "shufling"}, "nearest is \"shuffling\""),
        ({"streams": 3}, "moe.streams"),
        ({"chunks": 0}, "moe.chunks"),
        ({"chunks": 1.5}, "moe.chunks"),
        ({"chunks": 2}, "expected dp of at least 2"),
        ({"chunks": 2, "design": "padding"}, "expected design shuffling"),
        ({"design": "padding", "fuse_scatter_add": True}, "expected design shuffling or concatenation"),
        ({"design": "slicing", "mode": "graph"}, "which no graph can hold"),
        ({"weights": "fp8_block"}, "expert weights are fp8_block"),
        ({"design": "fused", "expert_load": "{zipf: 1}"}, "another moe.design"),
        ({"expert_load": "{zipf: -1}"}, "zipf"),
        ({"expert_load": "{zipf: 1, trace: a.csv}"}, "expected one of zipf"),
        ({"expert_load": "{trace: nowhere.csv}"}, "found no routing trace"),
        ({"expert_load": "{trace: a.csv, seed: 3}"}, "belongs to zipf"),
        ({"tokens": 0}, "at least one"),
        ({"mode": "captured"}, "expected one of eager graph"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(keys: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moe.layer(SCOUT, **{"tokens": 8, **keys})


@pytest.mark.parametrize(
    ("model", "message"), [("llama-3.1-8b", "has no routed experts"), ("gpt-oss-20b", "biases")]
)
def test_models_without_such_experts_are_refused(model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moe.layer(model, tokens=8)


def test_results_are_frozen_and_equal_when_repeated() -> None:
    one, two = (moe.layer(SCOUT, tokens=8) for _ in range(2))
    assert one == two
    with pytest.raises(AttributeError):
        one.tokens = 9  # type: ignore[misc]


def test_the_command_line_prints_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["moe", SCOUT, "--tokens", "8", "64"]) == 0
    assert capsys.readouterr().out.count("\nshuffling ") == 2
    assert cli.main(["moe", SCOUT, "--ablation", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["label"] == "all of it"
    assert cli.main(["moe", "nothing"]) == 2
    assert "unknown model" in capsys.readouterr().err


def test_chunks_win_with_many_tokens_and_cost_with_few() -> None:
    of_eight = {"machine": "hgx-h200", "dp": 8, "ep": 8}
    for tokens, is_won in ((131072, True), (64, False)):
        whole, cut = (moe.layer("qwen3-30b-a3b", tokens=tokens, chunks=chunks, **of_eight) for chunks in (1, 2))
        assert (cut.duration_s < whole.duration_s) == is_won, tokens
        assert cut.num_syncs == whole.num_syncs
        assert cut.num_kernels > whole.num_kernels


def test_the_command_line_sets_chunks_beside_the_layer_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["moe", "qwen3-30b-a3b", "--machine", "hgx-h200", "--dp", "2", "--ep", "2", "--chunks", "3", "--json"]) == 0
    labels = [one["label"] for one in json.loads(capsys.readouterr().out)]
    assert labels[:2] == ["shuffling", "shuffling, 3 chunks"]


def test_a_scenario_with_a_design_comes_back_from_its_yaml(tmp_path) -> None:
    scenario = orrery.load(orrery.project_root() / "scenarios" / "moe_scout_designs.yaml",
                           overrides=["model.expert_load={zipf: 1.1, seed: 4}"])  # fmt: skip
    again = tmp_path / "again.yaml"
    again.write_text(scenario.to_yaml())
    assert orrery.load(again) == scenario
    assert "moe: {design: shuffling, streams: 2, fuse_scatter_add: false, experts: in_order}" in scenario.to_yaml()
