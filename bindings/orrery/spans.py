"""What a simulated timeline has of each op copy on a rank, as records."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from .validation import typed_csv
from .validation.typed_csv import one_of, seconds, whole, word

SPAN_COLUMNS: typed_csv.Columns = {
    "op": word, "copy": whole(0), "rank": whole(0, 1_000_000), "stream": whole(0), "kind": one_of("kernel", "comm", "host"),
    "basis": one_of("measured", "interpolated", "borrowed", "roofline"), "start_s": seconds, "end_s": seconds,
}  # fmt: skip
"""Of a file of spans, as `orrery-gpu` writes it (kernels/execute/executed_files.h, spans_csv)."""


@dataclasses.dataclass(frozen=True)
class TimelineSpan:
    """Seconds from the start of the step."""

    op: str
    copy: int
    rank: int
    stream: int
    kind: str
    basis: str
    start_s: float
    end_s: float


def timeline_spans(columns: Mapping[str, Sequence[Any]]) -> list[TimelineSpan]:
    """Of the columns of a timeline, as its `columns()` gives them."""
    fields = [field.name for field in dataclasses.fields(TimelineSpan)]
    return [TimelineSpan(*map(plain, row)) for row in zip(*(columns[name] for name in fields), strict=True)]


def are_spans(file: pathlib.Path) -> bool:
    """Whether the file's columns are those of spans."""
    return set(SPAN_COLUMNS) <= set(typed_csv.header(file))


def read_spans(file: pathlib.Path) -> list[TimelineSpan]:
    """Of a file of spans. Raises ValueError naming file, line and column of what is none of it."""
    found = []
    for line, row in typed_csv.rows(file, SPAN_COLUMNS):
        if row["end_s"] < row["start_s"]:
            raise ValueError(f"{file}:{line}: op {typed_csv.shown(row['op'])} ends at {row['end_s']:g} s, before its start at {row['start_s']:g} s")
        found.append(TimelineSpan(**row))
    return found


def plain(value: Any) -> Any:
    """A NumPy scalar as Python's."""
    return value.item() if hasattr(value, "item") else value


__all__ = ["SPAN_COLUMNS", "TimelineSpan", "are_spans", "plain", "read_spans", "timeline_spans"]
