"""Events of the Chrome trace format, which Perfetto reads: https://ui.perfetto.dev."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

MOST_EVENTS = 2_000_000  # beyond, browsers run out of memory
Arguments = Mapping[str, Any]


class Trace:
    """Events in the order of their rows; times in seconds."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def process(self, process: int, name: str) -> None:
        self._add({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        self._add({"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}})

    def thread(self, process: int, thread: int, name: str) -> None:
        self._add({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}})
        self._add({"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}})

    def span(self, process: int, thread: int, name: str, category: str, start_s: float, end_s: float, arguments: Arguments) -> None:
        """One that stands inside another on its row is shown below it. Start and end are rounded alike, so that neighbours do not overlap."""
        start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
        self._add({"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3,
                   "args": {key: value for key, value in arguments.items() if _is_known(value)}})  # fmt: skip

    def counter(self, process: int, name: str, time_s: float, values: Mapping[str, float]) -> None:
        self._add({"ph": "C", "name": name, "pid": process, "ts": _us(time_s), "args": dict(values)})

    def arrow(self, number: int, name: str, begin: tuple[int, int, float], end: tuple[int, int, float]) -> None:
        """From one span to another, each as process, thread and a time inside it."""
        for phase, (process, thread, time_s) in (("s", begin), ("f", end)):
            binding = {"bp": "e"} if phase == "f" else {}
            self._add({"ph": phase, "id": number, "name": name, "cat": "flow", "pid": process, "tid": thread, "ts": _us(time_s), **binding})

    def text(self) -> str:
        """The file's content. Raises ValueError beyond MOST_EVENTS."""
        if len(self._lines) > MOST_EVENTS:
            raise ValueError(f"found {len(self._lines):,} events; expected at most {MOST_EVENTS:,}, which a browser can show: narrow them with --from and --to")
        return '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(self._lines) + "\n]}\n"

    def _add(self, event: Mapping[str, Any]) -> None:
        self._lines.append(json.dumps(event, separators=(",", ":")))


class Lanes:
    """Rows for spans that overlap: each goes to the first that is free at its start."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []

    def of(self, start_s: float, end_s: float) -> int:
        lane = next((index for index, end in enumerate(self._ends_s) if end <= start_s), len(self._ends_s))
        if lane == len(self._ends_s):
            self._ends_s.append(end_s)
        self._ends_s[lane] = end_s
        return lane

    def __len__(self) -> int:
        return len(self._ends_s)


def summed(rates: Iterable[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """The sum of rates that hold from a start to an end, as (time, sum) from each change on."""
    changes: dict[float, float] = {}
    for start_s, end_s, rate in rates:
        changes[start_s] = changes.get(start_s, 0.0) + rate
        changes[end_s] = changes.get(end_s, 0.0) - rate
    total, found = 0.0, []
    for time_s in sorted(changes):
        total += changes[time_s]
        found.append((time_s, total if total > 1e-6 else 0.0))
    return found


def _us(seconds: float) -> float:
    return round(seconds * 1e9) / 1e3


def _is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


__all__ = ["MOST_EVENTS", "Lanes", "Trace", "summed"]
