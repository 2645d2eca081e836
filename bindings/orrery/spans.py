"""What a simulated timeline has of each op copy on a rank, as records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


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


def plain(value: Any) -> Any:
    """A NumPy scalar as Python's."""
    return value.item() if hasattr(value, "item") else value


__all__ = ["TimelineSpan", "plain", "timeline_spans"]
