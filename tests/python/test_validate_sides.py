"""Bubbles of attention and FFN ranks, from timelines to validation.json and the page."""

import json

import pytest
from validation_runs import SCENARIO, Validation

from orrery.validation.directory import Span
from orrery.validation.sides import sides


def op(name, kind, ranks, reads=(), writes=()):
    return {"op": name, "copy": 0, "ranks": list(ranks), "body": {"kind": kind}, "reads": list(reads), "writes": list(writes)}


def span(name, rank, start, end, kind="kernel"):
    return Span(op=name, copy=0, rank=rank, stream=0, kind=kind, basis="measured", start_s=start, end_s=end)


OPS = [
    op("attend", "kernel", [0], writes=[1]),
    op("to_ffn", "comm", [0, 1], reads=[1], writes=[2]),
    op("ffn", "kernel", [1, 2], reads=[2], writes=[3]),
    op("reduce", "comm", [1, 2], reads=[3], writes=[4]),
]


def test_a_bubble_is_what_neither_kernels_nor_collectives_of_the_side_cover():
    # Rank 1 is there first, at 1, and waits until rank 0 is, at 4: the rows are on their way from 4 to 6.
    spans = [
        span("attend", 0, 0, 4),
        span("to_ffn", 0, 4, 6, "comm"),
        span("to_ffn", 1, 1, 6, "comm"),
        span("ffn", 1, 6, 9),
        span("reduce", 1, 8.5, 10, "comm"),
    ]
    attention, ffn = sides(OPS, 2, spans, ())
    assert (attention["side"], attention["ranks"], ffn["side"], ffn["ranks"]) == ("attention", 1, "ffn", 2)
    assert attention["predicted"] == pytest.approx({"bubble": 0.6, "exposed": 0.2})
    assert ffn["predicted"] == pytest.approx({"bubble": 0.6, "exposed": 0.2})
    assert attention["measured"] is None


def test_rows_are_on_their_way_from_their_writer_to_who_waits_for_them():
    # The copy runs from 4.5 to 5 and is the only one traced; the other side goes on at 6.
    spans = [span("attend", 0, 0, 4), span("to_ffn", 0, 4.5, 5, "comm"), span("ffn", 1, 6, 10)]
    _, ffn = sides(OPS, 2, spans, spans)
    assert ffn["measured"] == ffn["predicted"] == pytest.approx({"bubble": 0.6, "exposed": 0.2})


def test_what_runs_beside_a_transfer_hides_it():
    # The FFN rank is at other work until 8, so its rows wait there, and no side for them.
    spans = [span("attend", 0, 0, 4), span("to_ffn", 0, 4, 5, "comm"), span("reduce", 1, 3, 8, "comm"), span("ffn", 1, 8, 10)]
    attention, ffn = sides(OPS, 2, spans, spans)
    assert attention["measured"] == pytest.approx({"bubble": 0.6, "exposed": 0.1})
    assert ffn["measured"] == pytest.approx({"bubble": 0.3, "exposed": 0.0})


def test_ranks_that_do_both_have_no_sides():
    assert sides(OPS, 0, [span("attend", 0, 0, 1)], ()) == []


def test_the_comparison_shows_both_sides(tmp_path):
    validation = Validation(tmp_path)
    validation.scenario.write_text(SCENARIO.replace("{tp: 2}", "{ffn_instances: 1}"), encoding="utf-8")
    for step in validation.result()["steps"]:
        assert [side["side"] for side in step["sides"]] == ["attention", "ffn"]
        for side in step["sides"]:
            assert 0 < side["predicted"]["exposed"] <= side["predicted"]["bubble"] < 1
    code, out, err = validation.run("--compare", "out")
    assert code == 0, err
    assert "shares of the step" in out
    page = (tmp_path / "out" / "validation.html").read_text(encoding="utf-8")
    assert 'id="sides-table"' in page
    assert json.loads((tmp_path / "out" / "validation.json").read_text())["steps"][0]["sides"]
