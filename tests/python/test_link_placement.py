"""The table of experts placed by links, and its page."""

from __future__ import annotations

import pathlib

import link_placement
import pytest

import orrery
from orrery import _core

NVLINK = orrery.project_root() / "topologies" / "hgx-h200" / "links" / "nvlink.csv"


def test_the_page_has_the_table_that_the_tool_prints() -> None:
    page = (orrery.project_root() / "docs" / "moe.md").read_text(encoding="utf-8")
    assert link_placement.table(NVLINK).rstrip() in page


def test_links_of_each_ordered_pair_are_read(tmp_path: pathlib.Path) -> None:
    latency, rate = link_placement.pair_links(NVLINK, 4)
    assert latency[0][1] == latency[1][0] == pytest.approx(1.199e-6) and rate[0][1] == pytest.approx(363.4e9)
    assert all(value > 0 for a, row in enumerate(rate) for b, value in enumerate(row) if a != b)
    with pytest.raises(KeyError):
        link_placement.pair_links(NVLINK, 5)  # four GPUs were measured


def test_any_order_has_each_expert_once_and_its_rows() -> None:
    latency, rate = link_placement.pair_links(NVLINK, 4)
    choices = [0.5 / (1 + expert) for expert in range(32)]
    for order in ("in_order", "balanced", "by_links"):
        found = link_placement.placed(link_placement.slowed(rate, 2, 3), latency, choices, order)
        assert sorted(found["expert_of_slot"]) == list(range(32)) and len(found["times_s"]) == 4
        assert sum(found["choices"]) == pytest.approx(sum(choices))
    with pytest.raises(ValueError, match="expected in_order, balanced or by_links"):
        link_placement.placed(rate, latency, choices, "sorted")
    with pytest.raises(ValueError, match="a positive rate"):
        _core.experts_by_links(choices=choices, latency_s=latency, rate_bytes_per_s=[[0.0] * 4] * 4, tokens=1, sent_row_bytes=1,
                               returned_row_bytes=1, row_s=1, expert_s=1)  # fmt: skip
