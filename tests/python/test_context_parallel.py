"""Services whose ranks share the context of a request."""

import orrery
import pytest

SCENARIO = (
    "model: {{config: llama-3.1-8b, weights: bf16, activations: bf16}}\nmachine: hgx-h200\nprovider: vllm-0.24.0\n"
    "placement: {placement}\nengine: {{max_num_seqs: 8, max_num_batched_tokens: 2048, enable_prefix_caching: false}}\n"
    "workload: {{closed_loop: {{concurrency: 2, num_requests: 4, prompt_tokens: 5000, output_tokens: 64}}}}\n"
)


def summary(tmp_path, placement):
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO.format(placement=placement), encoding="utf-8")
    return orrery.simulate(orrery.load(file)).summary


def blocks_in_use(of):
    return round(of["kv_utilisation"]["max"] * of["num_kv_blocks"])


@pytest.mark.parametrize("weights", ["split", "replicated"])
def test_a_block_holds_the_tokens_of_all_ranks_that_share_a_context(tmp_path, weights):
    one = summary(tmp_path, "{tp: 1}")
    cp = summary(tmp_path, f"{{cp: 4, cp_weights: {weights}}}")
    # 5,000 tokens of a prompt and 63 of its answer that are read again, of two requests; 16 tokens in a block of a rank.
    assert blocks_in_use(one) == 2 * -(-5063 // 16)
    assert blocks_in_use(cp) == 2 * -(-5063 // (4 * 16))
    # A block is as large on a GPU as without cp: there are as many as its memory holds, of four times the tokens.
    per_block = [of["memory_per_gpu"]["kv_cache_bytes"] / of["num_kv_blocks"] for of in (one, cp)]
    assert per_block[0] == per_block[1] == 32 * 2 * 8 * 128 * 2 * 16
    assert cp["output_tokens"] == one["output_tokens"] == 4 * 64


def test_instances_apart_do_not_share_contexts(tmp_path):
    file = tmp_path / "scenario.yaml"
    sides = "disaggregation: {prefill: {replicas: 1}, decode: {replicas: 1, cp: 2}}"
    file.write_text(SCENARIO.format(placement="X").replace("placement: X", sides), encoding="utf-8")
    with pytest.raises(orrery.ScenarioError, match="disaggregation.decode: cp is 2.*nearest legal cp: 1"):
        orrery.load(file)
