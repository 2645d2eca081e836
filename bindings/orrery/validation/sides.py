"""How busy attention ranks and FFN ranks are where they are not the same: predicted beside measured.

As sim/scenario/step_sides.h has it, of the first rank of a side: the bubble is the time of the step in which it neither
computes nor talks to ranks of its own side; of these, exposed is what has rows on the way between the sides.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .attribution import Key
from .directory import Span

Interval = tuple[float, float]


def sides(
    ops: Sequence[Mapping[str, Any]], num_ffn_ranks: int, predicted: Sequence[Span], measured: Sequence[Span]
) -> list[dict[str, Any]]:
    """A row for each side: side, ranks; of both timelines bubble and exposed, shares of the step. Empty without sides.

    `ops` as _core.plan_ops gives them; FFN ranks are the last. Measured shares are None where the step was not traced.
    """
    if num_ffn_ranks == 0 or not ops:
        return []
    num_ranks = 1 + max(max(op["ranks"]) for op in ops)
    first_ffn = num_ranks - num_ffn_ranks
    exchanges = {
        (op["op"], op["copy"])
        for op in ops
        if op["body"]["kind"] == "comm" and min(op["ranks"]) < first_ffn <= max(op["ranks"])
    }
    rows = []
    for side, rank, count in (("attention", 0, first_ffn), ("ffn", first_ffn, num_ffn_ranks)):
        row: dict[str, Any] = {"side": side, "ranks": count}
        for name, spans in (("predicted", predicted), ("measured", measured)):
            row[name] = _shares(spans, exchanges, rank) if spans else None
        rows.append(row)
    return rows


def _shares(spans: Sequence[Span], exchanges: set[Key], rank: int) -> dict[str, float]:
    moving: dict[Key, float] = collections.defaultdict(float)  # from when all ranks are there
    for span in spans:
        if (span.op, span.copy) in exchanges:
            moving[span.op, span.copy] = max(moving[span.op, span.copy], span.start_s)
    works: list[Interval] = []
    ways: list[Interval] = []
    for span in spans:
        if span.rank != rank or span.kind == "host":
            continue
        if (span.op, span.copy) in exchanges:
            ways.append((min(moving[span.op, span.copy], span.end_s), span.end_s))
        else:
            works.append((span.start_s, span.end_s))
    step = max(span.end_s for span in spans)
    works_s = _covered(works)
    return {
        "bubble": (step - works_s) / step if step > 0 else 0.0,
        "exposed": (_covered(works + ways) - works_s) / step if step > 0 else 0.0,
    }


def _covered(intervals: Iterable[Interval]) -> float:
    """Length of their union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
