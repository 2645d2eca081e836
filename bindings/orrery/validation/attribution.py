"""Where the time of a step goes, in parts that add up exactly: what a timeline's makespan is made of.

The parts of one timeline, over the tasks (an op copy on a rank) of its plan:

  kernel         each kernel op copy once: its time, the mean over its ranks. A kernel that starts before the one
                 before it on its stream has ended (programmatic dependent launch) counts from that end on.
  communication  each collective once: from when the last of its ranks arrived until it ends, the mean over its ranks.
                 Waiting for others inside the call is none of it.
  host           each host op of the plan once.
  gap            time on the critical path between two ops, in which nothing that the next one waits for runs:
                 launching, the space between graph nodes.
  lead           from the start of the step to the first op of the path.
  imbalance      on the critical path, what an op takes on the rank that the path runs through, less the mean over its
                 ranks: time lost because ranks differ.
  overlap        negative: kernels and collectives that are not on the critical path, hidden behind others.

      makespan = kernel + communication + host + gap + lead + imbalance + overlap

The critical path is followed backwards from the last end, each time to the latest to end of what the op waits for: the
op before it on its stream, the latest writers of what it reads, its `after`; of a collective those of all its ranks.
Along the path pieces and gaps join without holes, so the sum is exact whatever the clocks say.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .directory import Span

Key = tuple[str, int]  # op, copy


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds; see above."""

    kernel: float = 0.0
    communication: float = 0.0
    host: float = 0.0
    gap: float = 0.0
    lead: float = 0.0
    imbalance: float = 0.0
    overlap: float = 0.0

    @property
    def makespan(self) -> float:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass
class _Task:
    start: float  # effective: after the one before on the stream, after the last rank's arrival
    end: float
    time: float = 0.0


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Times of each op copy by rank; `mean_s` over its ranks."""

    by_key: Mapping[Key, Mapping[int, _Task]]
    kinds: Mapping[Key, str]

    def mean_s(self, key: Key) -> float:
        tasks = self.by_key.get(key, {})
        return sum(task.time for task in tasks.values()) / len(tasks) if tasks else 0.0


def tasks_of(ops: Sequence[Mapping[str, Any]], spans: Iterable[Span]) -> Tasks:
    """`spans` as tasks of `ops` (_core.plan_ops); several spans of one task count from first start to last end."""
    found: dict[Key, dict[int, _Task]] = collections.defaultdict(dict)
    for span in spans:
        task = found[span.op, span.copy].setdefault(span.rank, _Task(span.start_s, span.end_s))
        task.start, task.end = min(task.start, span.start_s), max(task.end, span.end_s)
    kinds = {(op["op"], op["copy"]): op["body"]["kind"] for op in ops}
    streams: dict[tuple[int, int], list[_Task]] = collections.defaultdict(list)
    for op in ops:
        for rank, task in found.get((op["op"], op["copy"]), {}).items():
            streams[rank, op["stream"]].append(task)
    for stream in streams.values():  # in the order of the plan, which is that of the stream
        reached = float("-inf")
        for task in stream:
            task.start = min(max(task.start, reached), task.end)
            reached = max(reached, task.end)
    for key, tasks in found.items():
        arrival = max(task.start for task in tasks.values())
        for task in tasks.values():
            if kinds[key] == "comm":
                task.start = min(arrival, task.end)
            task.time = task.end - task.start
    return Tasks(by_key=found, kinds=kinds)


def parts_of(ops: Sequence[Mapping[str, Any]], tasks: Tasks) -> Parts:
    """The parts of a timeline. All zero for an empty one."""
    if not tasks.by_key:
        return Parts()
    sums = dict.fromkeys(("kernel", "comm", "host"), 0.0)
    for key in tasks.by_key:
        sums[tasks.kinds[key]] += tasks.mean_s(key)
    # Hidden: what is off the path, and the pieces by which neighbours on it overlap.
    hidden = sum(sums.values())
    gap = imbalance = 0.0
    path, lead = _critical_path(ops, tasks)
    for key, rank, piece, gap_before in path:
        time, mean = tasks.by_key[key][rank].time, tasks.mean_s(key)
        hidden += time - piece - mean
        imbalance += time - mean
        gap += gap_before
    return Parts(
        kernel=sums["kernel"],
        communication=sums["comm"],
        host=sums["host"],
        gap=gap,
        lead=lead,
        imbalance=imbalance,
        overlap=-hidden,
    )


def _critical_path(ops: Sequence[Mapping[str, Any]], tasks: Tasks) -> tuple[list[tuple[Key, int, float, float]], float]:
    """(op copy, rank, its piece of the path, the gap before it), from the last to the first, and the first's start."""
    waits = _dependencies(ops, tasks)
    key, rank = max(
        ((key, rank) for key, of in tasks.by_key.items() for rank in of), key=lambda at: tasks.by_key[at[0]][at[1]].end
    )
    end = tasks.by_key[key][rank].end
    path = []
    while True:
        start = min(tasks.by_key[key][rank].start, end)
        before = waits(key, rank)
        if not before:
            path.append((key, rank, end - start, 0.0))
            return path, start
        previous = max(before, key=lambda at: tasks.by_key[at[0]][at[1]].end)
        reached = min(tasks.by_key[previous[0]][previous[1]].end, end)
        path.append((key, rank, end - max(start, reached), max(start - reached, 0.0)))
        (key, rank), end = previous, reached


def _dependencies(ops: Sequence[Mapping[str, Any]], tasks: Tasks):
    """A function (op copy, rank) -> tasks that it waits for, among those that have a time."""
    at: dict[tuple[Key, int], list[tuple[Key, int]]] = {}
    last_on_stream: dict[tuple[int, int], tuple[Key, int]] = {}
    writers: dict[tuple[int, int], tuple[Key, int]] = {}  # by tensor and rank
    any_writer: dict[int, list[tuple[Key, int]]] = {}  # by tensor: of its latest op
    keys = [(op["op"], op["copy"]) for op in ops]
    for op, key in zip(ops, keys, strict=True):
        ranks = [rank for rank in op["ranks"] if rank in tasks.by_key.get(key, ())]
        for rank in ranks:
            found = [last_on_stream.get((rank, op["stream"]))]
            for tensor in op["reads"]:
                here = writers.get((tensor, rank))
                found += [here] if here else any_writer.get(tensor, [])
            for index in op["after"]:
                found += [(keys[index], rank) if rank in tasks.by_key.get(keys[index], ()) else None]
            at[key, rank] = [task for task in dict.fromkeys(found) if task and task[0] != key]
        for rank in ranks:
            last_on_stream[rank, op["stream"]] = (key, rank)
            for tensor in op["writes"]:
                writers[tensor, rank] = (key, rank)
        if ranks:
            for tensor in op["writes"]:
                any_writer[tensor] = [(key, rank) for rank in ranks]

    def waits(key: Key, rank: int) -> list[tuple[Key, int]]:
        if tasks.kinds[key] != "comm":
            return at.get((key, rank), [])
        # A collective waits for all its ranks; through the rank that came last the path goes on.
        return [task for other in tasks.by_key[key] for task in at.get((key, other), [])]

    return waits
