"""`orrery alternatives`: a step under each choice of where weights and collectives stand."""

import json

import pytest

import orrery
from orrery import alternatives, cli, explain

SCENARIO = "scenarios/deepseek_v3_one_node.yaml"
DECODES = orrery.Batch(num_decodes=64, decode_context=64 * 2000)
OVER_DP = "placement={dp: 4, tp: 2, ep: 8}"


def by_choice(*overrides):
    return {each.choice: each for each in alternatives.alternatives(SCENARIO, DECODES, overrides=overrides)}


def test_every_value_of_every_key_but_the_scenarios_own_is_priced_or_refused():
    of_exchanges = ("expert_comm", "split_shared_expert")
    of_plans = {key: values for key, values in alternatives.CHOICES.items() if key not in of_exchanges}
    own = {f"{key}: {values[0]}" for key, values in of_plans.items()}
    every = {f"{key}: {value}" for key, values in of_plans.items() for value in values}
    assert set(by_choice()) == {""} | every - own  # dp 1: nothing is sent to experts


def test_exchanges_that_the_design_has_not_are_refused():
    found = by_choice(OVER_DP)
    assert found["expert_comm: all_gather"].step_s > 0
    assert "fused" in found["expert_comm: tokens"].refusal


def test_a_choice_costs_what_its_scenario_costs():
    found = by_choice(OVER_DP)
    replicated = orrery.load(SCENARIO, overrides=["placement={dp: 4, tp: 2, ep: 8, shared_expert: replicated}"])
    step = explain.step(replicated, DECODES)
    assert found["shared_expert: replicated"].step_s == step["device_s"]
    # The other half of 58 layers of 3 * 7168 * 2048 elements of one byte, and a scale for each 128 x 128 of them.
    more = found["shared_expert: replicated"].weights_bytes - found[""].weights_bytes
    assert more == pytest.approx(58 * 3 * 7168 * 2048 / 2 * (1 + 4 / 128**2), rel=1e-12)


SLICE = "scenarios/validate/deepseek_v3_slice_tp2.yaml"


def test_choices_that_are_simulated_alone_say_so():
    step = orrery.Batch(num_decodes=16, decode_context=16 * 2048)
    overrides = ["placement={dp: 2, ep: 2, expert_comm: graph}"]
    found = {each.choice: each for each in alternatives.alternatives(SLICE, step, overrides=overrides)}
    for choice in ("", "o_proj: sharded", "lm_head: joined", "expert_comm: tokens", "two_batch_overlap: true"):
        assert not found[choice].not_executed
    assert found["split_shared_expert: false"].step_s != found[""].step_s
    assert "simulated only" not in alternatives.table(list(found.values()))

    fused = by_choice(OVER_DP)
    assert "deepep_dispatch" in fused["expert_comm: deepep"].not_executed
    assert "moe fp8_block" in fused["expert_comm: all_gather"].not_executed
    assert "simulated only: expert_comm: deepep: " in alternatives.table(list(fused.values()))


def test_sequence_parallelism_is_among_the_choices():
    found = {each.choice: each for each in alternatives.alternatives(SLICE, orrery.Batch(prefill=[orrery.PrefillChunk(query=1024)] * 2))}
    own = orrery.load(SLICE, overrides=["placement.sp=true"])
    assert found["sp: true"].step_s == explain.step(own, orrery.Batch(prefill=[orrery.PrefillChunk(query=1024)] * 2))["device_s"]
    assert not found["sp: true"].not_executed


def test_choices_that_are_not_legal_say_why(capsys):
    file = "scenarios/llama_8b_closed_loop.yaml"
    assert cli.main(["alternatives", file, "--decodes", "8"]) == 0
    printed = capsys.readouterr().out
    assert "not legal: shared_expert: replicated" in printed
    assert "the model has no shared expert; expected split" in printed
    assert "no choice is faster" in printed
    assert cli.main(["alternatives", file, "--decodes", "8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert "step_s" not in rows[1]
    assert rows[1]["refusal"]


QWEN = "scenarios/qwen3_30b_expert_parallel.yaml"


# Chosen unevenly, experts give ranks other numbers of rows in a large step, though not in a small one.
def test_exchanges_of_rows_that_ranks_have_unevenly_are_priced():
    prompt = orrery.Batch(prefill=[orrery.PrefillChunk(query=4096)])
    found = {each.choice: each for each in alternatives.alternatives(QWEN, prompt)}
    assert found["expert_comm: graph"].step_s > found[""].step_s
    assert found["expert_comm: tokens"].step_s > 0


TWO_GPUS = ("model={config: qwen3-30b-a3b}", "placement={dp: 2, ep: 2, expert_comm: graph}")


def halves_of(batch, *overrides):
    found = {each.choice: each for each in alternatives.alternatives(QWEN, batch, overrides=[*TWO_GPUS, *overrides])}
    return found[""], found["two_batch_overlap: true"]


def test_two_halves_win_with_long_prompts_and_lose_with_few_decodes():
    prompts = orrery.Batch(prefill=[orrery.PrefillChunk(query=4096)] * 4)
    own, halves = halves_of(prompts)
    assert halves.step_s < own.step_s - 1.28 * halves.deviation_s
    assert halves.weights_bytes == own.weights_bytes
    own, halves = halves_of(orrery.Batch(num_decodes=4, decode_context=4000))
    assert halves.step_s > 1.2 * own.step_s + 1.28 * halves.deviation_s


def test_what_cannot_be_halved_is_no_alternative():
    one_each = orrery.Batch(num_decodes=2, decode_context=2000)
    with pytest.raises(KeyError):
        halves_of(one_each)


def test_a_price_that_is_hidden_counts_less():
    prompts = orrery.Batch(prefill=[orrery.PrefillChunk(query=4096)] * 4)
    whole, halves = (
        explain.step(orrery.load(QWEN, overrides=[*TWO_GPUS, f"placement.two_batch_overlap={on}"]), prompts)
        for on in ("false", "true")
    )
    for found in (whole, halves):
        assert set(found["deviations_s"]) == {op["call"].split()[0] for op in found["ops"]}
    summed = sum(op["copies"] * op["time_s"] * op["spread"] for op in whole["ops"] if op["call"].startswith("all_gather"))
    assert whole["deviations_s"]["all_gather"] == pytest.approx(summed, rel=1e-12)
    # A longer gather keeps its SMs longer from blocks that wait for them.
    assert 0 <= halves["deviations_s"]["all_gather"] < 0.75 * summed


def test_several_prompts_of_a_step_need_their_length(capsys):
    arguments = ["alternatives", QWEN, "--set", TWO_GPUS[0], "--set", TWO_GPUS[1]]
    assert cli.main([*arguments, "--prompts", "4"]) == 2
    assert "--prompts 4 without their length; expected --prefill" in capsys.readouterr().err
    assert cli.main([*arguments, "--prompts", "4", "--prefill", "4096"]) == 0
    assert "two_batch_overlap: true" in capsys.readouterr().out


def test_sides_apart_are_refused():
    with pytest.raises(ValueError, match="found disaggregation.*expected placement"):
        alternatives.alternatives("scenarios/llama_8b_disaggregated.yaml", DECODES)


def test_a_winner_says_whether_the_prices_can_tell():
    own = alternatives.Alternative("", 1.0, 0.0, 1.0)
    sure = alternatives.Alternative("a: b", 0.9, 0.05, 1.0)
    unsure = alternatives.Alternative("a: b", 0.9, 0.09, 1.0)
    assert "a: b wins by 10.00 %" in alternatives.table([own, sure])
    assert "measure it" in alternatives.table([own, unsure])
