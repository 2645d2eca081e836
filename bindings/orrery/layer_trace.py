"""A layer of experts that is one kernel, from inside: when each block did what, and where the time of SMs goes.

    from orrery import layer_trace

    measured = layer_trace.read(pathlib.Path("fused_moe_8192_2048_2048_64_2_bf16_1gpu.blocks.csv"))
    print(layer_trace.text(layer_trace.splits(measured)))
    print(layer_trace.text(layer_trace.splits(layer_trace.simulated(tokens=8192, hidden=2048, ffn=2048, experts=64, topk=2))))

A block is an SM. Measured spans are what `orrery-gpu moe_trace` wrote (kernels/experts/fused_moe/trace.h), simulated ones
those of sim/cost/moe_tiles.h.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _core, text_table
from .spans import plain
from .validation import typed_csv
from .validation.typed_csv import Column, one_of, whole

PHASES = ("logits", "choice", "counts", "tables", "rows", "routing")
"""Of routing, in order; simulated it is one."""
_OTHERS = ("block", "task", "quantize", "sums", "tail")
_NOTICED_S = 1e-6  # a copying thread that needs longer to see that a task is ready has waited


@dataclasses.dataclass(frozen=True)
class BlockSpan:
    """Seconds from the begin of the rank's first block; None: a span of its kind has none."""

    rank: int
    block: int
    what: str
    begin_s: float
    end_s: float
    layer: int | None = None  # of a task 1 or 2, of an expert; the next likewise
    expert: int | None = None
    tile: int | None = None  # of rows, of all experts; also of quantize
    column: int | None = None  # the first
    taken_s: float | None = None  # of a task: its ticket is the block's
    turn_s: float | None = None  # what was before it is copied
    ready_s: float | None = None  # the block knows that what it needs is there
    counted_s: float | None = None  # others may know that it has ended


def _or_none(column: Column) -> Column:
    return lambda cell: column(cell) if cell else None


_NS = typed_csv.number("ns, 0 or more", lambda value: 0 <= value <= 1e15)
_COLUMNS = {
    "rank": whole(0, 1000), "block": whole(0, 100_000), "what": one_of(*_OTHERS, *PHASES[:-1]), "begin_ns": _NS, "end_ns": _NS,
    "layer": _or_none(whole(1, 2)), "expert": _or_none(whole(0)), "tile": _or_none(whole(0)), "column": _or_none(whole(0)),
    "taken_ns": _or_none(_NS), "turn_ns": _or_none(_NS), "ready_ns": _or_none(_NS), "counted_ns": _or_none(_NS),
}  # fmt: skip
_OF_TASK = ("layer", "expert", "tile", "column", "taken_ns", "turn_ns", "ready_ns", "counted_ns")


def is_trace(file: pathlib.Path) -> bool:
    """Whether the file's columns are those of such spans."""
    return set(_COLUMNS) <= set(typed_csv.header(file))


def read(file: pathlib.Path) -> list[BlockSpan]:
    """What `orrery-gpu moe_trace` wrote. Raises ValueError naming file, line and column of what is none of it."""
    found = []
    for line, row in typed_csv.rows(file, _COLUMNS):
        if lacking := [name for name in _OF_TASK if row["what"] == "task" and row[name] is None]:
            raise ValueError(f"{file}:{line}: a task without {', '.join(lacking)}")
        times = [row[name] for name in ("taken_ns", "turn_ns", "ready_ns", "end_ns") if row[name] is not None]
        if times != sorted(times) or row["end_ns"] < row["begin_ns"]:
            raise ValueError(f"{file}:{line}: found a {row['what']} whose times {times} are not in order, or that ends before it begins")
        found.append(BlockSpan(**{_field(name): _seconds(name, value) for name, value in row.items()}))
    if not any(span.what == "block" for span in found):
        raise ValueError(f"{file}: holds no block; expected one in each launch that was traced")
    return found


def _field(column: str) -> str:
    return column.removesuffix("_ns") + "_s" if column.endswith("_ns") else column


def _seconds(column: str, value: Any) -> Any:
    return value * 1e-9 if column.endswith("_ns") and value is not None else value


def simulated(**tiles: Any) -> list[BlockSpan]:
    """The same of one rank, simulated tile by tile. Keywords are those of `_core.moe_tile_tasks`, among them num_sms and order;
    raises ValueError as that does."""
    layer = _core.moe_tiles(**tiles)
    columns = _core.moe_tile_tasks(**tiles)
    num_sms = tiles.get("num_sms", 132)
    found = [BlockSpan(0, sm, "block", 0.0, layer["duration_s"]) for sm in range(num_sms)]
    found += [BlockSpan(0, sm, "routing", 0.0, layer["routed_s"]) for sm in range(num_sms)]
    names = ("sm", "layer", "expert", "tile", "column", "taken_s", "ready_s", "end_s", "counted_s")
    for row in zip(*(columns[name] for name in names), strict=True):
        one = {name: plain(value) for name, value in zip(names, row, strict=True)}
        found.append(BlockSpan(0, one.pop("sm"), "task", one["ready_s"], one.pop("end_s"), turn_s=one["taken_s"], **one))
    return found


@dataclasses.dataclass(frozen=True)
class Work:
    """What a block's multiplying warps did from one time to another: a task, or nothing while the next one is not ready."""

    block: int
    start_s: float
    end_s: float
    task: BlockSpan
    is_wait: bool


def works(spans: Iterable[BlockSpan]) -> list[Work]:
    """Of the spans of one rank, by block in order of time. A task lasts from when it is ready and the one before has ended, its
    copies on their way included."""
    spans = list(spans)
    tasks: dict[int, list[BlockSpan]] = collections.defaultdict(list)
    for span in spans:
        if span.what == "task":
            tasks[span.block].append(span)
    routed = _routed(spans)
    found = []
    for block in sorted(tasks):
        free_s = routed.get(block, 0.0)
        for task in sorted(tasks[block], key=lambda one: one.end_s):
            ready_s = min(_known(task.ready_s), task.end_s)
            if ready_s > free_s:
                found.append(Work(block, free_s, ready_s, task, is_wait=True))
            start_s = max(ready_s, free_s)
            free_s = max(task.end_s, start_s)
            found.append(Work(block, start_s, free_s, task, is_wait=False))
    return found


@dataclasses.dataclass(frozen=True)
class Split:
    """Of the time of a rank's SMs, from the begin of the first block to the end of the last. The shares but `sums` add up to one."""

    rank: int
    duration_s: float
    routing: float  # until the block's own rows are sent, blocks that have not begun included
    first_layer: float  # tasks
    second_layer: float
    task_ready: float  # waiting while there is a task that is ready and whose ticket no block has
    task_queued: float  # else, while one is ready that a block has not begun, this one included, which notices it a little later
    none_ready: float  # else
    no_task_left: float  # from the block's last task on
    sums: float | None  # any of its warps adds up tokens, beside or behind tasks; None: no span says (simulated)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


SHARES = ("routing", "first_layer", "second_layer", "task_ready", "task_queued", "none_ready", "no_task_left")


def splits(spans: Iterable[BlockSpan]) -> list[Split]:
    """Of each rank. Raises ValueError for one that has no block."""
    by_rank: dict[int, list[BlockSpan]] = collections.defaultdict(list)
    for span in spans:
        by_rank[span.rank].append(span)
    num_ranks = len(by_rank)
    return [_split(rank, by_rank[rank], num_ranks) for rank in sorted(by_rank)]


def _split(rank: int, spans: Sequence[BlockSpan], num_ranks: int) -> Split:
    blocks = {span.block: span for span in spans if span.what == "block"}
    if not blocks:
        raise ValueError(f"found no block of rank {rank}, expected one for each SM")
    begin_s, end_s = min(block.begin_s for block in blocks.values()), max(block.end_s for block in blocks.values())
    whole_s = (end_s - begin_s) * len(blocks)
    done = works(spans)
    begun = {id(work.task): work.start_s for work in done if not work.is_wait}
    tasks = [work.task for work in done if not work.is_wait]
    ready = _ready_times(spans, tasks, num_ranks)
    untaken = _Counted((ready[id(task)], _known(task.taken_s)) for task in tasks)
    unbegun = _Counted((ready[id(task)], begun[id(task)]) for task in tasks)
    sums: dict[str, float] = dict.fromkeys(SHARES, 0.0)
    last = {block: begin_s for block in blocks} | _routed(spans)
    sums["routing"] = sum(last[block] - begin_s for block in blocks)
    for work in done:
        last[work.block] = max(last[work.block], work.end_s)
        if not work.is_wait:
            sums["first_layer" if work.task.layer == 1 else "second_layer"] += work.end_s - work.start_s
            continue
        task_ready_s = untaken.positive_s(work.start_s, work.end_s)
        any_ready_s = unbegun.positive_s(work.start_s, work.end_s)  # whose ticket is free has not begun
        sums["task_ready"] += task_ready_s
        sums["task_queued"] += any_ready_s - task_ready_s
        sums["none_ready"] += work.end_s - work.start_s - any_ready_s
    sums["no_task_left"] = sum(end_s - last[block] for block in blocks)
    adding: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    for span in spans:
        if span.what == "sums":
            adding[span.block].append((span.begin_s, span.end_s))
    adding_s = sum(map(_union_s, adding.values())) if adding else None
    return Split(rank, end_s - begin_s, **{name: value / whole_s for name, value in sums.items()}, sums=None if adding_s is None else adding_s / whole_s)


def _routed(spans: Iterable[BlockSpan]) -> dict[int, float]:
    """By block when its own rows are sent."""
    found: dict[int, float] = {}
    for span in spans:
        if span.what in PHASES:
            found[span.block] = max(found.get(span.block, 0.0), span.end_s)
    return found


def _ready_times(spans: Sequence[BlockSpan], tasks: Sequence[BlockSpan], num_ranks: int) -> dict[int, float]:
    """By id of each task, from when it could have begun. Of the first layer when rows of its tile were there: as some block has
    seen, or at the latest when all were; of the second when the last task of the first was counted and, of fp8, its rows made that."""
    first = [task for task in tasks if task.layer == 1]
    all_there_s = max((span.end_s for span in spans if span.what in PHASES), default=0.0)
    if num_ranks > 1:  # rows of other ranks: nobody waited for any any more
        waited = [_known(task.ready_s) for task in first if _known(task.ready_s) - _known(task.turn_s) > _NOTICED_S]
        all_there_s = max([all_there_s, *waited])
    seen: dict[tuple[int | None, int | None], float] = {}
    for task in tasks:
        key = (task.layer, task.tile)
        seen[key] = min(seen.get(key, _known(task.ready_s)), _known(task.ready_s))
    made: dict[int | None, float] = collections.defaultdict(float)
    for task in first:
        made[task.tile] = max(made[task.tile], _known(task.counted_s))
    for span in spans:
        if span.what == "quantize":
            made[span.tile] = max(made[span.tile], span.end_s)
    return {id(task): min(seen[task.layer, task.tile], all_there_s if task.layer == 1 else made[task.tile]) for task in tasks}


class _Counted:
    """How many of some intervals hold at a time."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        changes: dict[float, int] = collections.defaultdict(int)
        for start_s, end_s in intervals:
            if end_s > start_s:
                changes[start_s] += 1
                changes[end_s] -= 1
        self._times = sorted(changes)
        counts = list(itertools.accumulate(changes[time] for time in self._times))
        lasting = [(after - time) * (count > 0) for time, after, count in zip(self._times, self._times[1:], counts)]
        self._is_positive = [count > 0 for count in counts]
        self._sums = [0.0, *itertools.accumulate(lasting)]

    def positive_s(self, start_s: float, end_s: float) -> float:
        """Of the time between, that in which any holds."""
        return self._until(end_s) - self._until(start_s)

    def _until(self, time_s: float) -> float:
        at = bisect.bisect_right(self._times, time_s) - 1
        if at < 0:
            return 0.0
        return self._sums[at] + (time_s - self._times[at]) * self._is_positive[at]


def _union_s(intervals: Iterable[tuple[float, float]]) -> float:
    total, reached = 0.0, -1.0
    for start_s, end_s in sorted(intervals):
        total += max(end_s - max(start_s, reached), 0.0)
        reached = max(reached, end_s)
    return total


def _known(value: float | None) -> float:
    assert value is not None  # of a task: read() and simulated() leave none out
    return value


def text(found: Mapping[str, Split] | Sequence[Split]) -> str:
    """In plain text: a line for each, by name or by rank."""
    named = found if isinstance(found, Mapping) else {f"rank {one.rank}": one for one in found}
    header = ("of the time of SMs", "us", "routing", "first layer", "second layer", "waits, a task ready", "a task queued", "none ready", "no task left", "sums")
    rows = [[name, f"{one.duration_s * 1e6:,.1f}", *(f"{getattr(one, share):.2%}" for share in SHARES), "" if one.sums is None else f"{one.sums:.2%}"] for name, one in named.items()]
    return text_table.aligned(header, rows, right=range(1, len(header)))


__all__ = ["PHASES", "SHARES", "BlockSpan", "Split", "Work", "is_trace", "read", "simulated", "splits", "text", "works"]
