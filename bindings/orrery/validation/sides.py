"""How busy attention ranks and FFN ranks are where they are not the same: predicted beside measured.

Of the first rank of a side: the bubble is the time of the step in which it neither computes nor talks to ranks of its own
side; of these, exposed is what has rows on the way between the sides. Rows are on their way from when they have been
written until the other side, if it waits, goes on: of copies that no rank takes part in but the one that sends, a trace
says no more.
"""

from __future__ import annotations

import bisect
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
    found = {
        name: _Timeline(ops, first_ffn, spans).shares() if spans else None
        for name, spans in (("predicted", predicted), ("measured", measured))
    }
    return [
        {"side": side, "ranks": count, **{name: of[rank] if of else None for name, of in found.items()}}
        for side, rank, count in (("attention", 0, first_ffn), ("ffn", first_ffn, num_ffn_ranks))
    ]


class _Timeline:
    def __init__(self, ops: Sequence[Mapping[str, Any]], first_ffn: int, spans: Sequence[Span]) -> None:
        self._ops = ops
        self._first_ffn = first_ffn
        self._step = max(span.end_s for span in spans)
        self._ends: dict[Key, float] = collections.defaultdict(float)  # of the last rank
        exchanges = {(op["op"], op["copy"]) for op in ops if self._is_exchange(op)}
        works: dict[int, list[Interval]] = {0: [], first_ffn: []}
        for span in spans:
            key = span.op, span.copy
            self._ends[key] = max(self._ends[key], span.end_s)
            if span.rank in works and span.kind != "host" and key not in exchanges:
                works[span.rank].append((span.start_s, span.end_s))
        self._works = {rank: _joined(intervals) for rank, intervals in works.items()}

    def shares(self) -> dict[int, dict[str, float]]:
        """By the first rank of a side."""
        ways = list(self._ways())
        result = {}
        for rank, works in self._works.items():
            busy = _length(works)
            with_ways = _length(_joined([*works, *ways]))
            result[rank] = {"bubble": (self._step - busy) / self._step, "exposed": (with_ways - busy) / self._step}
        return result

    def _is_exchange(self, op: Mapping[str, Any]) -> bool:
        return op["body"]["kind"] == "comm" and min(op["ranks"]) < self._first_ffn <= max(op["ranks"])

    def _ways(self) -> Iterable[Interval]:
        writers: dict[int, Mapping[str, Any]] = {}  # by tensor
        for op in self._ops:
            key = op["op"], op["copy"]
            written_by = [writers[tensor] for tensor in op["reads"] if tensor in writers]
            if self._is_exchange(op) and key in self._ends and written_by:
                start = max(self._ends[by["op"], by["copy"]] for by in written_by)
                to = self._first_ffn if min(written_by[0]["ranks"]) < self._first_ffn else 0
                yield start, max(start, self._goes_on(to, self._ends[key]))
            writers.update(dict.fromkeys(op["writes"], op))

    def _goes_on(self, rank: int, time: float) -> float:
        """`time` where the rank is busy then, else when it is next."""
        works = self._works[rank]
        at = bisect.bisect_right(works, (time, float("inf")))
        if at > 0 and works[at - 1][1] >= time:
            return time
        return works[at][0] if at < len(works) else time


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Their union, in order."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union


def _length(union: Iterable[Interval]) -> float:
    return sum(end - start for start, end in union)
