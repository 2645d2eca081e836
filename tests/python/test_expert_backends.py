"""Whose rows price routed experts, and what brings tokens to them."""

import csv
import pathlib

import numpy as np
import orrery
import pytest
from orrery import _core, explain

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICES = ROOT / "topologies" / "devices"
WIDE = {mode: f"sglang-0.5.10-deepep-{mode}" for mode in ("normal", "low-latency")}


def ops(tmp_path, batch, **values):
    file = tmp_path / "scenario.yaml"
    keys = {"workload": "{closed_loop: {concurrency: 1, num_requests: 1, prompt_tokens: 1, output_tokens: 1}}"} | values
    file.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()), encoding="utf-8")
    return {op["name"]: op for op in explain.step(orrery.load(file), batch)["ops"]}


def decodes(count, context=1000):
    return _core.Batch(num_decodes=count, decode_context=count * context)


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("ep", "provider"), [(1, "vllm-0.24.0"), (4, "trtllm-1.3.0rc20")])
def test_mxfp4_experts_split_by_column_take_the_rows_of_the_same_kernels(tmp_path, ep, provider):
    found = ops(
        tmp_path,
        decodes(64),
        model="{config: gpt-oss-120b, weights: bf16, activations: bf16, expert_weights: mxfp4}",
        machine="hgx-h200",
        provider="trtllm-1.3.0rc20",
        placement=f"{{tp: 4, ep: {ep}}}",
        engine="{profile: trtllm}",
    )
    experts = found["layers.0.experts"]
    assert experts["provider"] == provider
    assert experts["basis"] != "roofline"


@pytest.mark.parametrize("provider", ["sglang-0.5.14", "vllm-0.24.0", "trtllm-1.3.0rc20"])
@pytest.mark.parametrize("tokens", [64, 2048, 16384])
def test_even_routing_is_never_slower_than_skewed(tmp_path, provider, tokens):
    def time(load):
        found = ops(
            tmp_path,
            decodes(tokens, 1),
            model=f"{{config: deepseek-v3, weights: fp8_block, activations: fp8_block, expert_load: {load}}}",
            machine="hgx-h200",
            provider=provider,
            placement="{tp: 8, ep: 8}",
            engine=f"{{profile: vllm, max_num_seqs: {tokens}, max_num_batched_tokens: {tokens + 1}}}",
        )
        return found["layers.3.experts"]["row_s"]

    assert time("balanced") <= min(time("power_law_1.01"), time("power_law_1.2"))


@pytest.mark.parametrize("machine", ["hgx-h200", "hgx-b200"])
@pytest.mark.parametrize(
    ("config", "placement", "slow"),
    [("mixtral-8x22b-v0.1", "{tp: 8}", "trtllm-1.3.0rc20"), ("mixtral-8x7b-v0.1", "{tp: 8, ep: 8}", "sglang-0.5.14")],
)
def test_experts_that_were_timed_untuned_take_no_more_than_twice_what_two_others_do(tmp_path, config, placement, slow, machine):
    """Bf16 experts of Mixtral: TensorRT-LLM's by columns six times as long as both others', SGLang's by expert three times."""

    def experts(provider):
        found = ops(tmp_path, decodes(4096), model=f"{{config: {config}}}", machine=machine, provider=provider,
                    placement=placement, engine="{profile: vllm, max_num_seqs: 4096, max_num_batched_tokens: 8192}")  # fmt: skip
        return found["layers.0.experts"]

    providers = {"vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20"}
    slower = max(experts(other)["time_s"] for other in providers - {slow})
    bounded = experts(slow)
    assert bounded["time_s"] == pytest.approx(2 * slower)
    assert bounded["basis"] == ("interpolated" if machine == "hgx-h200" else "roofline")
    assert "untuned experts" in [correction["name"] for correction in bounded["corrections"]]


@pytest.mark.parametrize("mode", WIDE)
def test_rows_of_experts_behind_deepep_are_possible(mode):
    # H200: 1979 TFLOP/s in FP8; each of `experts` has an equal part of the choices.
    for row in rows(DEVICES / "h200-sxm" / WIDE[mode] / "moe.csv"):
        tokens, hidden, inter, topk, experts, total = (int(row[name]) for name in
                                                       ("tokens", "hidden", "inter", "topk", "experts", "experts_total"))  # fmt: skip
        assert float(row["time_us"]) * 1e-6 > 6 * tokens * topk * experts / total * hidden * inter / 1979e12


def wide(tmp_path, batch, mode, ranks, machine="dgx-h100-superpod"):
    return ops(
        tmp_path,
        batch,
        model="{config: deepseek-v3, weights: fp8_block, activations: fp8_block, expert_load: uniform}",
        machine=f"{{name: {machine}, num_gpus: {ranks}}}",
        provider=WIDE[mode],
        placement=f"{{dp: {ranks}, ep: {ranks}, expert_comm: deepep}}",
        engine="{profile: sglang_deepep, max_num_seqs: 256, max_num_batched_tokens: 16384}",
    )


@pytest.mark.parametrize("part", ["dispatch", "combine"])
def test_prompts_over_nodes_travel_in_the_times_of_deepep(tmp_path, part):
    prompts = _core.Batch(prefill=[_core.PrefillChunk(query=4096)] * 64)  # 8,192 tokens on each of 32 GPUs
    op = wide(tmp_path, prompts, "normal", 32)[f"layers.3.experts.{part}"]
    (row,) = [r for r in rows(DEVICES / "h100-sxm" / WIDE["normal"] / f"deepep_{part}.csv") if (r["ranks"], r["tokens"]) == ("32", "8192")]
    assert op["row_s"] == pytest.approx(1e-6 * float(row["time_us"]))
    assert (op["provider"], op["basis"]) == (WIDE["normal"], "measured")


def test_decodes_over_nodes_travel_by_the_low_latency_kernels(tmp_path):
    found = wide(tmp_path, decodes(128 * 64, 2000), "low-latency", 64)
    # docs/legacy.md of DeepEP: 64 GPUs, 128 tokens each.
    assert found["layers.3.experts.dispatch"]["row_s"] == pytest.approx(173e-6)
    assert found["layers.3.experts.combine"]["row_s"] == pytest.approx(314e-6)


def test_more_decodes_and_more_nodes_travel_longer(tmp_path):
    """Rows of several nodes are of 128 tokens alone, rows of other numbers of one node alone."""

    def travel_s(ranks, tokens):
        found = wide(tmp_path, decodes(tokens * ranks, 2000), "low-latency", ranks)
        return np.array([found[f"layers.3.experts.{part}"]["row_s"] for part in ("dispatch", "combine")])

    for ranks in (16, 64, 128):
        grown = np.array([travel_s(ranks, tokens) for tokens in (1, 16, 32, 64, 100, 128, 129, 192, 256)])
        assert (grown[1:] > grown[:-1]).all()
        assert (grown[-1] > 1.6 * grown[5]).all()  # 256 tokens, 128
    # What leaves a node at the rate of its NIC: 64 tokens' 8 rows, 7 of 8 nodes.
    far = 64 * 8 * 7168 * np.array([1 + 4 / 128, 2]) * 7 / 8 / 50e9
    assert ((travel_s(64, 64) > far) & (travel_s(64, 64) < 1.7 * far)).all()


def test_links_between_nodes_are_as_fast_with_a_faster_memory(tmp_path):
    h100, h200 = (
        wide(tmp_path, decodes(128 * 64, 2000), "low-latency", 64, machine)
        for machine in ("dgx-h100-superpod", "h200-cluster")
    )
    for part in ("dispatch", "combine"):
        op = f"layers.3.experts.{part}"
        assert h200[op]["row_s"] == pytest.approx(h100[op]["row_s"], rel=0.03)


def test_deepep_needs_whole_experts_on_every_gpu(tmp_path):
    with pytest.raises(ValueError, match="expert_comm is deepep with ep 4, expected dp . tp = 8"):
        ops(tmp_path, decodes(64), model="{config: deepseek-v3, weights: fp8_block, activations: fp8_block}", machine="hgx-h200",
            provider=WIDE["low-latency"], placement="{dp: 8, ep: 4, expert_comm: deepep}")  # fmt: skip
