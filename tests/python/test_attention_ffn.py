"""Attention and FFNs on GPUs of their own: what a step, a run and a launch command say of it."""

import json

import pytest

import orrery
from orrery import cli, explain

SCENARIO = "scenarios/llama_8b_closed_loop.yaml"
DECODES = orrery.Batch(num_decodes=48, decode_context=48 * 2000)


def step(placement, batch=DECODES):
    scenario = orrery.load(SCENARIO, overrides=["machine=hgx-h200", f"placement={placement}"])
    return explain.step(scenario, batch)


def test_a_step_says_how_idle_both_sides_are():
    locked = step("{ffn_instances: 1, num_micro_batches: 3, ffn_schedule: lock}")
    overlapped = step("{ffn_instances: 1, num_micro_batches: 3}")
    assert overlapped["device_s"] < locked["device_s"]
    for found in (locked, overlapped):
        assert [side["side"] for side in found["sides"]] == ["attention", "ffn"]
        for side in found["sides"]:
            assert 0 <= side["exposed_transfer_s"] <= side["bubble_s"]
            assert 0 <= side["bubble_share"] < 1
    # One side works while the other waits, so that at most one of them is busy at any time.
    assert sum(side["bubble_share"] for side in locked["sides"]) >= 1
    assert sum(side["bubble_share"] for side in overlapped["sides"]) < 1
    # In turn, a micro-batch takes its work on both sides and its ways in each of 32 layers; the rest is embedding and LM head.
    of_layers = 32 * 3 * sum(side["turn_s"] + side["way_s"] for side in locked["sides"])
    assert 0.94 * locked["device_s"] < of_layers < locked["device_s"]
    assert any(op["name"].endswith("down_proj") for op in overlapped["ops"])
    assert step("{tp: 2}")["sides"] == []


def test_a_run_says_it_too_and_no_engine_is_launched_so(tmp_path, capsys):
    placement = "placement={ffn_instances: 1, num_micro_batches: 3}"
    few = "workload={closed_loop: {concurrency: 8, num_requests: 16, prompt_tokens: 200, output_tokens: 10}}"
    arguments = ["--set", "machine=hgx-h200", "--set", placement, "--set", few]
    assert cli.main(["run", SCENARIO, "-o", str(tmp_path / "run"), *arguments]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [side["num_gpus"] for side in summary["step_sides"]] == [1, 1]
    assert cli.main(["emit", str(tmp_path / "run"), "--engine", "vllm"]) == 2
    assert "found ffn_instances 1" in capsys.readouterr().err


@pytest.mark.parametrize("placement", ["{ffn_tp: 2}", "{ffn_instances: 3}"])
def test_what_cannot_be_is_refused_with_the_nearest_legal_choice(placement):
    with pytest.raises(orrery.ScenarioError, match="nearest legal ffn_instances"):
        step(placement)
