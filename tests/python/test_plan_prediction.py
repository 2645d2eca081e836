"""A plan by its text form, simulated with a scenario's machine and tables."""

import pathlib

import pytest

import orrery
from orrery import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Two gemms in a chain, x [64, 4096] through [8192, 4096] and back.
CHAIN = """\
group g0 0
tensor t0 x input bf16 [tokens=64,hidden=4096] g0
tensor t1 up.weight weight bf16 [ffn=8192,hidden=4096] g0
tensor t2 up activation bf16 [tokens=64,ffn=8192] g0
tensor t3 down.weight weight bf16 [hidden=4096,ffn=8192] g0
tensor t4 y output bf16 [tokens=64,hidden=4096] g0
op o0 up kernel gemm bf16 m=64:tokens n=8192:ffn k=4096:hidden g0 s0 reads t0,t1 writes t2
op o1 down kernel gemm bf16 m=64:tokens n=4096:hidden k=8192:ffn g0 s0 reads t2,t3 writes t4
"""


@pytest.fixture(scope="module")
def scenario() -> orrery.Scenario:
    return orrery.load(ROOT / "scenarios/validate/llama_8b.yaml")


def test_copies_of_a_chain_in_a_graph_take_as_long_each_and_one_apart_no_less(scenario: orrery.Scenario) -> None:
    one, ten = (_core.predict_plan(scenario, CHAIN, graph=True, copies=copies)["duration_s"] for copies in (1, 10))
    # Copies are as far apart as the two ops of one are: nine more gaps over ten copies.
    assert one * (1 - 1e-12) <= ten <= 2 * one
    assert ten == pytest.approx(_core.predict_plan(scenario, CHAIN, graph=True, copies=1000)["duration_s"], rel=0.2)


def test_launching_op_by_op_takes_longer_than_a_graph(scenario: orrery.Scenario) -> None:
    graph, eager = (_core.predict_plan(scenario, CHAIN, graph=graph)["duration_s"] for graph in (True, False))
    assert eager > graph


def test_buffers_are_those_that_live_at_once(scenario: orrery.Scenario) -> None:
    found = _core.predict_plan(scenario, CHAIN, graph=True)
    # x and the wide activation live together, then that and y: 64 (4096 + 8192 + 4096) 2 bytes at most.
    assert 64 * (4096 + 8192) * 2 <= found["buffer_bytes"] <= 64 * (4096 + 8192 + 4096) * 2
    assert 0 <= found["measured_share"] + found["interpolated_share"] <= 1


def test_no_copies_and_no_plan_are_errors(scenario: orrery.Scenario) -> None:
    with pytest.raises(ValueError, match="found 0 copies"):
        _core.predict_plan(scenario, CHAIN, graph=True, copies=0)
    with pytest.raises(ValueError, match="line 1|1:"):
        _core.predict_plan(scenario, "nonsense", graph=True)
