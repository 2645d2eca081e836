"""Sweeps over collectives, placements and links of expert parallelism."""

from __future__ import annotations

import pathlib

import expert_parallel as ep
import pytest

import orrery
from orrery import moe

QWEN = "qwen3-30b-a3b"  # 128 experts, top-8, no shared one
SCOUT = "llama-4-scout-17b-16e"  # 16 experts, top-1, a shared one


def times(tokens: int, eager_s: float, graph_s: float) -> ep.FlowTimes:
    return ep.FlowTimes(tokens, 1, 1, 1, 1, eager_s, graph_s, graph_s)


def test_the_crossover_is_where_eager_stays_the_faster_one() -> None:
    rows = [times(8, 3, 2), times(64, 1, 2), times(512, 3, 2), times(4096, 1, 2), times(32768, 1, 2)]
    assert ep.crossover(rows) == 4096
    assert ep.crossover(rows[::-1]) == 4096
    assert ep.crossover([times(8, 2, 1)]) is None
    assert ep.crossover([times(8, 1, 2)]) == 8


def test_a_graph_wins_with_few_tokens_and_padding_costs_no_work() -> None:
    rows = ep.flows(QWEN, tokens=[8, 8192], ep=8, streams=1)
    assert rows[0].graph_s < rows[0].eager_s and rows[1].eager_s < rows[1].graph_s
    assert ep.crossover(rows) == 8192
    for row in rows:
        # 8 ranks, each with room for min(16 experts, top-8) rows of every token
        assert row.room == 8 * row.tokens
        assert row.tokens < row.rows < row.room  # of the fullest rank, with even choices
        assert row.padded_s > row.graph_s
    # All 16 experts of a rank are read where padding is computed, few where it is not.
    assert rows[0].active < rows[0].experts == 16
    assert rows[0].padded_s > 1.1 * rows[0].graph_s


def test_computing_padding_changes_experts_kernels_alone() -> None:
    graph = ep._layer(SCOUT, 64, ep._placement(dp=4, ep=4, expert_comm="graph"), mode="graph")
    lines = zip(graph.plan_text.splitlines(), ep.computing_padding(graph.plan_text).splitlines(), strict=True)
    changed = [after for before, after in lines if before != after]
    assert [line.split()[2] for line in changed] == [
        "combine",
        "experts.gate_up",
        "experts.act",
        "experts.down",
        "split",
    ]
    assert all("=64:routed_rows" in line for line in changed)


def test_placing_and_copying_experts_helps_many_tokens_and_not_few() -> None:
    many = ep.placements(QWEN, tokens=16384, redundant=[0, 8], streams=1)
    assert [row.order for row in many] == ["even", "in_order", "balanced", "balanced"]
    even, before, placed, copied = many
    assert before.imbalance > 1.3 > placed.imbalance > copied.imbalance - 0.01
    assert before.duration_s > placed.duration_s > 0.99 * copied.duration_s
    assert copied.duration_s < 1.1 * even.duration_s
    # Few tokens: a skewed load reads fewer experts, and copies are more experts to read.
    few = ep.placements(QWEN, tokens=64, redundant=[0, 32], streams=1)
    assert few[1].duration_s < 1.02 * few[0].duration_s
    assert few[3].duration_s > few[2].duration_s


def test_dedup_sends_an_eighth_between_nodes() -> None:
    eager, dedup, graph, dedup_graph = ep.dedup(SCOUT, tokens=[4096])
    assert eager.between_nodes_bytes == pytest.approx(8 * dedup.between_nodes_bytes, rel=1e-9)
    assert graph.between_nodes_bytes == pytest.approx(8 * dedup_graph.between_nodes_bytes, rel=1e-9)
    # 2 nodes, 16 ranks, half of 2048 rows of 5120 bf16 each way, there and back
    assert eager.between_nodes_bytes == pytest.approx(2 * 16 * 1024 * 5120 * 2, rel=1e-9)
    assert dedup.duration_s < eager.duration_s and dedup_graph.duration_s < graph.duration_s


def test_the_shared_expert_in_two_parts_exposes_less() -> None:
    (row,) = ep.shared_split(SCOUT, tokens=[512])
    assert row.split.num_syncs == row.whole.num_syncs == 1
    assert row.split.num_kernels == row.whole.num_kernels
    assert row.split.timeline.exposed_communication_s() < row.whole.timeline.exposed_communication_s()


def test_both_timelines_of_the_shared_expert_are_drawn(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (row,) = ep.shared_split(SCOUT, tokens=[512])
    ep.draw_split(row, tmp_path / "split.svg")
    assert "shared expert split" in (tmp_path / "split.svg").read_text()


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("{dp: 4, ep: 4, expert_comm: eager, num_redundant_experts: 3}", "num_redundant_experts"),
        ("{dp: 4, ep: 4, expert_comm: dedup}", "expected two levels"),
        ("{dp: 4, ep: 4, expert_comm: all_gather}", "expected eager, graph"),
        ("{dp: 4, ep: 4, expert_comm: egger}", "eager"),
    ],
)
def test_a_placement_that_cannot_be_is_an_error(placement: str, message: str) -> None:
    with pytest.raises(orrery.ScenarioError, match=message):
        moe.layer(SCOUT, tokens=64, machine="hgx-h200", overrides=[f"placement={placement}"])


def test_tables_have_a_row_for_each_result() -> None:
    assert ep.flows_table([times(8, 1e-6, 2e-6)]).splitlines()[1].split()[-3:] == ["1.0", "2.0", "2.0"]
    assert "in_order" in ep.placements_table([ep.PlacementTimes("in_order", 0, 1.5, 1e-3)])
    assert "dedup" in ep.dedup_table([ep.DedupTimes("dedup", 64, 1e6, 1e-3)])


def test_a_page_gets_its_tables_anew() -> None:
    page = "a\n<!-- one -->\n```\nold\n```\nb\n<!-- two -->\nc\n"
    renewed = ep.renewed(page, {"one": "1", "two": "2"})
    assert renewed == "a\n<!-- one -->\n```\n1\n```\nb\n<!-- two -->\n```\n2\n```\nc\n"
    assert ep.renewed(renewed, {"two": "2"}) == renewed
    with pytest.raises(ValueError, match="three"):
        ep.renewed(page, {"three": "3"})
