"""Predicted and measured timelines side by side in one Chrome trace (Perfetto).

Two processes for each rank, "predicted rank 0" and "measured rank 0", one thread for each stream. The steps follow each
other, all starting at the same time on both sides; a process "steps" names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .directory import Case, Span

_GAP_S = 1e-3  # between two steps
_STEPS_PID = 1


def text(case: Case) -> str:
    """The trace of every step; measured rows only where a step was traced."""
    events = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in _events(case))
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{events}\n]}}\n'


def _pid(rank: int, *, is_measured: bool) -> int:
    return 2 + 2 * rank + is_measured


def _events(case: Case) -> Iterator[dict[str, Any]]:
    rows: dict[tuple[int, int], str] = {}  # (process, thread) -> process name
    begin_s = 0.0
    yield from _process(_STEPS_PID, "steps")
    for step in case.steps:
        end_s = max([step.duration_s, *(span.end_s for span in (*step.predicted, *step.measured))])
        yield _event(
            step.name, "step", _STEPS_PID, 0, begin_s, begin_s + end_s, {"batch": step.batch, "mode": step.mode}
        )
        for is_measured, spans in ((False, step.predicted), (True, step.measured)):
            for span in spans:
                pid = _pid(span.rank, is_measured=is_measured)
                rows[pid, span.stream] = f"{'measured' if is_measured else 'predicted'} rank {span.rank}"
                yield _span(span, pid, begin_s, is_measured)
        begin_s += end_s + _GAP_S
    for pid, name in sorted({pid: name for (pid, _), name in rows.items()}.items()):
        yield from _process(pid, name)
    for pid, stream in sorted(rows):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": stream, "args": {"name": f"stream {stream}"}}


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}


def _span(span: Span, pid: int, begin_s: float, is_measured: bool) -> dict[str, Any]:
    arguments = {"copy": span.copy, "basis": "measured here" if is_measured else span.basis}
    return _event(span.op, span.kind, pid, span.stream, begin_s + span.start_s, begin_s + span.end_s, arguments)


def _event(
    name: str, category: str, pid: int, tid: int, start_s: float, end_s: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    # Microseconds, rounded to Perfetto's nanosecond; start and end alike, so that neighbours do not overlap.
    start, end = round(start_s * 1e6, 3), round(end_s * 1e6, 3)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": round(end - start, 3),
        "args": arguments,
    }
