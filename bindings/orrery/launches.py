"""Launches and time of a step by kernel and stream, and how much of it is communication.

    from orrery import launches, moe

    layer = moe.layer("llama-4-scout-17b-16e", tokens=64, streams=2)
    print(launches.table(launches.listing(layer.timeline, layer.plan_text)))

Simulated, each op of the plan is one launch. A GPU may take several for one op (a product with split k and the sum of its
parts): `orrery validate` sets those that were recorded beside these.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from . import _core
from .spans import timeline_spans
from .text_table import aligned

if TYPE_CHECKING:
    from .simulation import TimelineTable


class Span(Protocol):
    """An op copy on a rank; seconds from the start of the step."""

    @property
    def op(self) -> str: ...
    @property
    def copy(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Row:
    """A kernel or collective on a stream of one rank."""

    kernel: str
    kind: str  # kernel or comm
    stream: int
    launches: int
    time_s: float  # each from when what is before it on the stream has ended

    @property
    def key(self) -> tuple[str, int]:
        return self.kernel, self.stream


@dataclasses.dataclass(frozen=True)
class Communication:
    """Of one rank: while collectives run, and the part of it in which no kernel does."""

    time_s: float
    exposed_s: float
    step_s: float

    @property
    def share(self) -> float:
        """Of the step."""
        return self.time_s / self.step_s if self.step_s > 0 else 0.0

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.step_s if self.step_s > 0 else 0.0

    def to_dict(self) -> dict[str, float]:
        return {"time_s": self.time_s, "exposed_s": self.exposed_s, "share": self.share, "exposed_share": self.exposed_share}


@dataclasses.dataclass(frozen=True)
class Listing:
    rank: int
    rows: tuple[Row, ...]  # by stream, the most time first
    communication: Communication  # of collectives alone
    inside: tuple[str, ...] = ()  # kernels that send rows between ranks themselves, of whose time no part is told apart

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "communication": self.communication.to_dict(),
            "inside": list(self.inside),
        }


def listing(timeline: TimelineTable, plan_text: str, *, rank: int = 0) -> Listing:
    """Of a simulated step and its plan. Raises ValueError for a rank on which nothing was simulated."""
    spans = timeline_spans(timeline._timeline.columns())
    if rank not in (ranks := sorted({span.rank for span in spans})):
        raise ValueError(f"found no rank {rank} in the timeline; it has {', '.join(map(str, ranks)) or 'none'}")
    return of_spans(_core.plan_ops(plan_text), spans, rank=rank)


def communication(timeline: TimelineTable, *, rank: int = 0) -> Communication:
    """Of a simulated step. Raises ValueError for a rank on which nothing was simulated."""
    return Communication(timeline.busy_s(rank)["comm"], timeline.exposed_communication_s(rank), timeline.makespan_s)


def of_spans(ops: Sequence[Mapping[str, Any]], spans: Iterable[Span], *, rank: int) -> Listing:
    """Of one rank of a timeline, predicted or measured; `ops` as _core.plan_ops gives them."""
    every = list(spans)
    own = sorted((span for span in every if span.rank == rank and span.kind != "host"), key=lambda span: span.start_s)
    rows = tuple(_rows(ops, own))
    inside = sorted({row.kernel for row in rows} & _that_send(ops, rank))
    return Listing(rank, rows, _communication(own, max((span.end_s for span in every), default=0.0)), tuple(inside))


def table(found: Listing) -> str:
    """In plain text."""
    rows = [(row.kernel, str(row.stream), str(row.launches), f"{row.time_s * 1e6:.1f}") for row in found.rows]
    shares = text(found.communication)
    if found.inside:
        shares = f"communication: inside {' and '.join(found.inside)}, not told apart; beside it {shares.removeprefix('communication: ')}"
    return f"{aligned(('kernel', 'stream', 'launches', 'us'), rows, right=(1, 2, 3))}\n{shares}"


def text(found: Communication) -> str:
    """The shares in a line."""
    return f"communication: {100 * found.share:.1f} % of the time, exposed {100 * found.exposed_share:.1f} %"


def _rows(ops: Sequence[Mapping[str, Any]], spans: Sequence[Span]) -> list[Row]:
    kernels = {op["op"]: op["body"]["name"] for op in ops}
    found: dict[tuple[str, str, int], list[float]] = collections.defaultdict(list)
    reached: dict[int, float] = collections.defaultdict(float)  # by stream
    for span in spans:
        # A step that is one kernel has a span that is no op of its plan.
        times = found[kernels.get(span.op, span.op), span.kind, span.stream]
        times.append(max(0.0, span.end_s - max(span.start_s, reached[span.stream])))
        reached[span.stream] = max(reached[span.stream], span.end_s)
    rows = [Row(*key, len(times), sum(times)) for key, times in found.items()]
    return sorted(rows, key=lambda row: (row.stream, -row.time_s, row.kernel))


def _that_send(ops: Sequence[Mapping[str, Any]], rank: int) -> set[str]:
    """Kernels that are layers of experts over several ranks: each has a part of the experts."""
    bodies = [op["body"] for op in ops if rank in op["ranks"] and op["body"]["name"] == "fused_moe"]
    return {body["name"] for body in bodies if body["dims"]["experts"] < body["dims"]["experts_total"]}


def _communication(spans: Sequence[Span], step_s: float) -> Communication:
    collectives = [span for span in spans if span.kind == "comm"]
    kernels = [span for span in spans if span.kind == "kernel"]
    return Communication(_covered(collectives), _covered(spans) - _covered(kernels), step_s)


def _covered(spans: Sequence[Span]) -> float:
    """Time in which any of `spans`, by start, runs."""
    total = reached = 0.0
    for span in spans:
        total += max(0.0, span.end_s - max(span.start_s, reached))
        reached = max(reached, span.end_s)
    return total


__all__ = ["Communication", "Listing", "Row", "Span", "communication", "listing", "of_spans", "table", "text"]
