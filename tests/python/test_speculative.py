"""engine.speculative: figures of a run, and what changes nothing."""

import orrery
import pytest

DRAFTS = {"method": "eagle", "num_speculative_tokens": 2, "acceptance": [0.8, 0.5, 0.5]}


def service(**engine):
    return orrery.Scenario(
        model={"config": "llama-3.1-8b"},
        machine="single-h200",
        provider="vllm-0.24.0",
        engine={"max_num_seqs": 64, **engine},
        workload={"closed_loop": {"concurrency": 4, "num_requests": 40, "prompt_tokens": 100, "output_tokens": 200}},
    )


def test_no_drafts_are_as_no_section():
    """K = 0 leaves every figure as it is, the draft's memory included."""
    plain = orrery.simulate(service()).summary.to_dict()
    none = orrery.simulate(service(speculative={**DRAFTS, "num_speculative_tokens": 0})).summary.to_dict()
    plain.pop("warnings"), none.pop("warnings")
    assert none == plain


def test_the_summary_says_what_drafts_make_and_cost():
    plain = orrery.simulate(service()).summary
    found = orrery.simulate(service(speculative=DRAFTS)).summary
    drafts = found["speculative"]
    assert drafts["acceptance_length"] == pytest.approx(1 + 0.8 + 0.8 * 0.5, rel=0.05)
    assert 0 < drafts["draft_share"] < 0.5
    # A layer's keys and values beside 32.
    assert drafts["draft_kv_block_bytes"] / drafts["kv_block_bytes"] == pytest.approx(1 / 33)
    # q, k, v, o, gate, up, down, two norms and the last one; two norms before, and the projection of 2 H to H; bf16.
    hidden, kv, ffn = 4096, 1024, 14336
    elements = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn + 5 * hidden + 2 * hidden * hidden
    assert drafts["draft_weights_bytes"] == 2 * elements
    weights = [summary["memory_per_gpu"]["weights_bytes"] for summary in (plain, found)]
    assert weights[1] - weights[0] == 2 * elements
    assert found["tpot_s"]["mean"] < plain["tpot_s"]["mean"]


def test_a_resolved_scenario_gives_the_same_run():
    scenario = service(speculative={**DRAFTS, "method": "draft_model", "model": "llama-3.2-1b"})
    again = orrery.Scenario.from_yaml(orrery.Scenario.from_dict(scenario.to_dict()).to_yaml())
    assert orrery.simulate(again).summary["tpot_s"] == orrery.simulate(scenario).summary["tpot_s"]
