"""Experts whose load drifts and that are placed anew while a service runs, from a scenario to its report."""

import json

import orrery
import pytest
from orrery import report

EPLB = {"step_interval": 40, "window_size": 20}
ZIPF = {"zipf": 1.0, "seed": 3}
DRIFT = {**ZIPF, "drift": {"interval": "1 s", "share": 0.3}}


def scenario(*, load, seed=1, speculative=None, **moe):
    return orrery.Scenario(
        model={"config": "qwen3-30b-a3b", "expert_load": load},
        machine="hgx-h200",
        provider="orrery",
        placement={"dp": 8, "ep": 8, "expert_comm": "eager", "num_redundant_experts": 8},
        moe={"design": "shuffling", **moe},
        engine={"profile": "orrery", "max_num_seqs": 64, **({"speculative": speculative} if speculative else {})},
        workload={"poisson": {"requests_per_s": 40, "num_requests": 120, "prompt_tokens": 1024, "output_tokens": 64}},
        seed=seed,
    )


@pytest.fixture(scope="module")
def found():
    return {
        "in_order": orrery.simulate(scenario(load=ZIPF)),
        "balanced": orrery.simulate(scenario(load=ZIPF, experts="balanced")),
        "rebalanced": orrery.simulate(scenario(load=ZIPF, eplb=EPLB)),
        "drifted": orrery.simulate(scenario(load=DRIFT, experts="balanced")),
        "followed": orrery.simulate(scenario(load=DRIFT, experts="balanced", eplb=EPLB)),
    }


def experts(run):
    return run.summary["expert_balance"]


def test_without_the_keys_nothing_is_said_of_experts(found):
    assert "expert_balance" not in found["in_order"].summary
    assert "expert_balance" not in found["balanced"].summary


def test_one_rebalance_ends_where_experts_are_placed_by_a_load_that_stays(found):
    first, *others = experts(found["rebalanced"])["rebalances"]
    assert first["step"] == 40
    assert first["balance_before"] < 0.7 < 0.99 < first["balance_after"]
    assert all(move["slots"] == 0 and move["held_up_s"] == 0 for move in others)
    tpot = {name: found[name].summary["tpot_s"]["mean"] for name in ("in_order", "rebalanced", "balanced")}
    assert tpot["balanced"] < tpot["rebalanced"] < tpot["in_order"]


def test_bytes_are_those_of_the_slots_that_change(found):
    for move in experts(found["followed"])["rebalances"]:
        # 48 layers, three matrices of 2048 x 768 in bf16 an expert
        assert move["bytes"] == move["slots"] * 48 * 3 * 2048 * 768 * 2
        assert move["slots"] <= 128 + 8
    assert experts(found["followed"])["moved_bytes"] == sum(move["bytes"] for move in experts(found["followed"])["rebalances"])


def test_steps_are_held_up_by_at_least_what_a_port_takes(found):
    for move in experts(found["followed"])["rebalances"]:
        # All eight ports at once, 450 GB/s each; copies within a rank take none.
        assert move["held_up_s"] <= move["bytes"] / 450e9 + 48 * 1e-5


def test_rebalancing_follows_a_drift_that_a_placement_does_not(found):
    assert experts(found["drifted"])["num_rebalances"] == 0
    assert experts(found["drifted"])["balance"] < experts(found["followed"])["balance"]
    # A load, then another one each second.
    balances = experts(found["drifted"])["balances"]
    assert [int(time) for _, time, _ in balances] == list(range(len(balances)))
    assert balances[0][2] > 0.99 > max(balance for _, _, balance in balances[1:])


def test_the_seed_of_the_scenario_says_how_the_load_drifts(found):
    again, other = (orrery.simulate(scenario(load=DRIFT, experts="balanced", seed=seed)) for seed in (1, 2))
    assert experts(again) == experts(found["drifted"])
    assert [row[2] for row in experts(other)["balances"]] != [row[2] for row in experts(again)["balances"]]


def test_overhead_of_layers_holds_steps_up(found):
    run = orrery.simulate(scenario(load=ZIPF, eplb={**EPLB, "layer_overhead": "2 ms"}))
    first, *others = experts(run)["rebalances"]
    plain = experts(found["rebalanced"])["rebalances"][0]
    assert others and all(move["held_up_s"] == 0 for move in others)  # nothing moves
    assert first["held_up_s"] == pytest.approx(plain["held_up_s"] + 48 * 2e-3)


def test_prefill_and_decode_replicas_have_experts_of_their_own():
    side = {"dp": 4, "ep": 4, "expert_comm": "eager"}
    run = orrery.simulate(
        orrery.Scenario(
            model={"config": "qwen3-30b-a3b", "expert_load": ZIPF},
            machine="hgx-h200",
            provider="orrery",
            disaggregation={"prefill": side, "decode": side},
            moe={"design": "shuffling", "eplb": {"step_interval": 10, "window_size": 10}},
            engine={"profile": "orrery", "max_num_seqs": 64},
            workload={"poisson": {"requests_per_s": 20, "num_requests": 40, "prompt_tokens": 1024, "output_tokens": 32}},
        )
    )
    assert {move["replica"] for move in experts(run)["rebalances"] if move["slots"]} == {0, 1}


def test_the_command_line_and_the_report_show_them(tmp_path, capsys):
    from orrery import cli

    file = tmp_path / "drift.yaml"
    file.write_text(scenario(load=DRIFT, eplb=EPLB).to_yaml(), encoding="utf-8")
    assert cli.main(["run", str(file), "-o", str(tmp_path / "out")]) == 0
    assert "rebalances, on average from" in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Rebalances of experts" in page and "Rebalance at" in page
    assert cli.main(["emit", str(tmp_path / "out"), "--engine", "vllm"]) == 2
    assert "found experts placed anew" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    summary["expert_balance"]["rebalances"][0]["bytes"] = "much"
    (tmp_path / "out" / "SHA256SUMS").unlink()
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=r"expert_balance\.rebalances\[0\]\.bytes"):
        report.render(tmp_path / "out")


def test_what_is_not_executed_is_not_validated(tmp_path, capsys):
    from orrery import cli

    file = tmp_path / "drift.yaml"
    file.write_text(scenario(load=ZIPF, eplb=EPLB).to_yaml(), encoding="utf-8")
    assert cli.main(["validate", str(file), "--plan-only", "-o", str(tmp_path / "out")]) == 2
    assert "simulated and not executed; expected neither" in capsys.readouterr().err


@pytest.mark.parametrize(
    "placement",
    [
        {"tp": 8, "ep": 8},
        {"tp": 4, "ep": 2},
        {"dp": 2, "tp": 4, "ep": 8, "expert_comm": "eager"},
        {"dp": 2, "tp": 4, "ep": 2, "expert_comm": "dedup"},
        {"dp": 4, "ep": 4, "pp": 2, "expert_comm": "eager"},
        {"tp": 2, "cp": 4, "ep": 8},
    ],
    ids=str,
)
def test_a_rebalance_moves_the_same_bytes_however_ranks_share_experts(placement):
    run = orrery.simulate(
        orrery.Scenario(
            model={"config": "qwen3-30b-a3b", "expert_load": ZIPF},
            machine="hgx-h200",
            provider="none",
            placement=placement,
            moe={"design": "shuffling", "eplb": {"step_interval": 5}},
            engine={"profile": "orrery", "max_num_seqs": 16, "max_num_batched_tokens": 2048},
            workload={"offline": {"num_requests": 8, "prompt_tokens": 256, "output_tokens": 16}},
        )
    )
    first = experts(run)["rebalances"][0]
    assert first["slots"] > 0 and first["balance_after"] > first["balance_before"]
    assert first["bytes"] == first["slots"] * 48 * 3 * 2048 * 768 * 2
    # Links of eight GPUs, or of the four of each stage, carry it at once; the busiest no more than all of it.
    assert first["bytes"] / 8 / 450e9 * 0.5 < first["held_up_s"] < first["bytes"] / 450e9


def test_steps_that_verify_drafts_are_rebalanced_too():
    drafts = {"method": "draft_model", "model": "qwen3-8b", "num_speculative_tokens": 2, "acceptance": [0.8, 0.6]}
    run = orrery.simulate(scenario(load=ZIPF, speculative=drafts, eplb=EPLB))
    first, *others = experts(run)["rebalances"]
    assert first["balance_before"] < 0.7 < 0.99 < first["balance_after"]
    assert all(move["slots"] == 0 for move in others)
