"""KV blocks of models that keep a fixed part of a sequence in some layers: states, or the tokens of a short window."""

import orrery
import pytest
from orrery import _core

SCENARIO = (
    "model: {{config: {model}, weights: {weights}, activations: {weights}}}\nmachine: hgx-h200\nprovider: vllm-0.24.0\n"
    "placement: {{tp: {tp}}}\nengine: {{max_num_seqs: 64}}\n"
    "workload: {{closed_loop: {{concurrency: 1, num_requests: 1, prompt_tokens: {tokens}, output_tokens: 2}}}}\n"
)


def run(tmp_path, **values):
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO.format(**({"weights": "bf16", "tokens": 16} | values)), encoding="utf-8")
    return orrery.simulate(orrery.load(file)).summary


def block_bytes(summary):
    return summary["memory_per_gpu"]["kv_cache_bytes"] / summary["num_kv_blocks"]


def blocks_in_use(summary):
    return round(summary["kv_utilisation"]["max"] * summary["num_kv_blocks"])


def test_a_block_holds_tokens_of_the_layers_that_attend_and_a_sequence_its_states_besides(tmp_path):
    values = {"model": "qwen3.5-397b-a17b", "weights": "fp8_block", "tp": 8}
    one = run(tmp_path, **values)
    # 15 layers of 60, a key and a value of one head of 256 bf16 elements on each rank, 16 tokens.
    block = 15 * 2 * 256 * 2 * 16
    assert block_bytes(one) == block
    # 45 layers: 64 heads of 128 x 128 fp32 and 3 tokens of 12,288 bf16 columns, an eighth of them on a rank.
    states = 45 * (64 * 128 * 128 * 4 + 3 * 12288 * 2) / 8
    assert blocks_in_use(one) == -(-states // block) + 2  # 16 tokens of the prompt, and the next
    assert blocks_in_use(run(tmp_path, **values, tokens=1600)) == blocks_in_use(one) + 99


@pytest.mark.parametrize("tp", [2, 8])
def test_layers_of_a_short_window_keep_that_window_alone(tmp_path, tp):
    one = run(tmp_path, model="gpt-oss-120b", tp=tp, tokens=160)
    # 18 layers of 36 attend to all tokens: 2 x 8 heads of 64 bf16 elements, split over the ranks; 16 tokens.
    assert block_bytes(one) == 18 * 2 * (8 / tp) * 64 * 2 * 16
    # The others keep 128 tokens: as many layers, so 8 blocks. 160 tokens are 10 blocks, the next one more.
    assert blocks_in_use(one) == 8 + 10 + 1


def test_a_step_has_room_for_the_states_of_its_sequences(tmp_path):
    one = run(tmp_path, model="qwen3.5-397b-a17b", weights="fp8_block", tp=8)
    of_states = blocks_in_use(one) - 2
    most = one["num_kv_blocks"] // (of_states + 1)  # decodes of one block of tokens each
    assert of_states > 1  # without them twice as many would be let in
    scenario = orrery.load(tmp_path / "scenario.yaml")
    with pytest.raises(ValueError, match=f"has {2 * most * (of_states + 1)} KV blocks; memory allows {one['num_kv_blocks']}"):
        _core.simulate_step(scenario, orrery.Batch(prefill=[], num_decodes=2 * most, decode_context=2 * most * 16), "all_ranks")
