"""A layer of experts as several kernels and as one, beside each other: ops by rank and stream, blocks of the one kernel by SM."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from .. import layer_trace, moe, spans
from ..layer_trace import BlockSpan
from .events import Lanes, Trace

_STREAMS = 1000  # rows of a rank's streams lie so far from those of the next


def beside(pairs: Mapping[str, tuple[moe.MoeLayer, moe.MoeLayer]], measured: pathlib.Path | None = None) -> Trace:
    """Simulated layers by name, each as several kernels and as one, and what of them was measured in a directory: files of spans
    of ops (`orrery-gpu execute`) and of blocks (`orrery-gpu moe_trace`), by their columns, whatever their names. Of layers one after the other,
    each with weights of its own, the one in the middle. Each begins at 0. Raises ValueError where the directory has neither, and as readers of these files do."""
    trace = Trace()
    processes = itertools.count()
    for name, (several, one) in pairs.items():
        ops = spans.timeline_spans(several._result.timeline.columns())
        add_ops(trace, ops, next(processes), f"{name}: {several.label}, {several.mode}, simulated, {_us(several.duration_s)}")
        add_blocks(trace, one_kernel(one), next(processes), f"{name}: {one.label}, simulated tile by tile")
    if measured is not None:
        _add_measured(trace, measured, processes)
    return trace


def one_kernel(one: moe.MoeLayer) -> list[BlockSpan]:
    """The simulated blocks of a layer that is one kernel, of one of its ranks, which are alike. Raises ValueError for others."""
    if not one._result.tiles:
        raise ValueError(f"blocks of one kernel: found {one.label}, expected design persistent")
    return layer_trace.simulated(**one._result.tiles)


def _add_measured(trace: Trace, directory: pathlib.Path, processes: Iterator[int]) -> None:
    if not directory.is_dir():
        raise ValueError(f"'{directory}' is no directory; expected one that orrery-gpu execute or moe_trace wrote")
    found = 0
    for file in sorted(directory.rglob("*.csv")):
        name = f"{file.relative_to(directory)}, measured"
        if spans.are_spans(file):
            ops = one_layer(spans.read_spans(file))
            add_ops(trace, ops, next(processes), f"{name}, {_us(max((span.end_s for span in ops), default=0.0))}")
        elif layer_trace.is_trace(file):
            blocks = layer_trace.read(file)
            for rank in sorted({span.rank for span in blocks}):
                add_blocks(trace, [span for span in blocks if span.rank == rank], next(processes), f"{name}, rank {rank}")
        else:
            continue
        found += 1
    if not found:
        raise ValueError(f"'{directory}' holds no spans of ops or blocks; expected what orrery-gpu execute or moe_trace wrote")


def one_layer(ops: Sequence[spans.TimelineSpan]) -> list[spans.TimelineSpan]:
    """Of layers in a chain (sim/plan/chain.h: names end in "#<layer>") the one in the middle, from 0 on; other ops as they are."""
    layers = [name[2] if (name := span.op.rpartition("#"))[1] and name[2].isdecimal() else "" for span in ops]
    if not ops or not all(layers):
        return list(ops)
    middle = str(max(map(int, layers)) // 2)
    own = [span for span, layer in zip(ops, layers) if layer == middle]
    begin_s = min(span.start_s for span in own)
    return [dataclasses.replace(span, op=span.op.removesuffix(f"#{middle}"), start_s=span.start_s - begin_s, end_s=span.end_s - begin_s)
            for span in own]  # fmt: skip


def add_ops(trace: Trace, ops: Sequence[spans.TimelineSpan], process: int, name: str) -> None:
    """A row for each stream of each rank."""
    trace.process(process, name)
    for rank, stream in sorted({(span.rank, span.stream) for span in ops}):
        trace.thread(process, rank * _STREAMS + stream, f"rank {rank}, stream {stream}")
    for span in ops:
        arguments = {"op": span.op, "copy": span.copy, "basis": span.basis}
        trace.span(process, span.rank * _STREAMS + span.stream, span.op, span.kind, span.start_s, span.end_s, arguments)


def add_blocks(trace: Trace, blocks: Sequence[BlockSpan], process: int, name: str) -> None:
    """A row for each SM, of tasks of both layers, waits for what they need, and phases of routing; below them rows of the sums of
    its warps, as many as there are at once."""
    whole_s = max((span.end_s for span in blocks if span.what == "block"), default=0.0)
    trace.process(process, f"{name}, {_us(whole_s)}")
    lanes: dict[int, Lanes] = {}
    for block in sorted({span.block for span in blocks}):
        trace.thread(process, _row(block, 0), f"SM {block}")
        lanes[block] = Lanes()
    for span in sorted(blocks, key=lambda one: (one.block, one.begin_s)):
        if span.what in layer_trace.PHASES:
            trace.span(process, _row(span.block, 0), span.what, "routing", span.begin_s, span.end_s, {})
        elif span.what in ("sums", "quantize"):
            lane = 1 + lanes[span.block].of(span.begin_s, span.end_s)
            trace.span(process, _row(span.block, lane), span.what, span.what, span.begin_s, span.end_s, {"tile": span.tile})
    for block, of_block in lanes.items():
        for lane in range(len(of_block)):
            trace.thread(process, _row(block, 1 + lane), f"SM {block}, sums")
    for work in layer_trace.works(blocks):
        task = work.task
        arguments = {"layer": task.layer, "expert": task.expert, "tile": task.tile, "column": task.column}
        what = f"layer {task.layer}, expert {task.expert}"
        kind = "wait" if work.is_wait else f"layer {task.layer}"
        trace.span(process, _row(work.block, 0), f"waits: {what}" if work.is_wait else what, kind, work.start_s, work.end_s, arguments)


def _row(block: int, lane: int) -> int:
    most = 16  # warps of a block
    return block * most + lane


def _us(time_s: float) -> str:
    return f"{time_s * 1e6:,.1f} us"


__all__ = ["add_blocks", "add_ops", "beside", "one_kernel"]
