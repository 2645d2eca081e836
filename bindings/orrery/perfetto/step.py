"""One engine step: ops by layer on ranks and streams with what they compute and move, arrows between ranks, rates of memory and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core, layers
from ..spans import TimelineSpan, plain, timeline_spans
from . import instructions
from .events import Lanes, Trace, summed

Key = tuple[str, int]  # an op's name and copy


def step(result: _core.StepResult) -> Trace:
    """The step as simulated; where a rank stands for others, itself alone."""
    ops = {(op["op"], op["copy"]): op for op in _core.plan_ops(result.plan_text)}
    columns = result.timeline.columns()
    spans = timeline_spans(columns)
    layer_of = _layers(ops)
    trace = Trace()
    for rank in sorted({span.rank for span in spans}):
        of_rank = [span for span in spans if span.rank == rank]
        trace.process(rank, f"rank {rank}")
        for stream in sorted({span.stream for span in of_rank}):
            row = [span for span in of_rank if span.stream == stream]
            trace.thread(rank, stream, f"stream {stream}")
            _add_layers(trace, row, layer_of)
            for span in row:
                op = ops[span.op, span.copy]
                trace.span(rank, stream, _of_any_layer(span.op), span.kind, span.start_s, span.end_s, _arguments(span, op, layer_of))
        _add_memory(trace, rank, of_rank, ops)
    _add_arrows(trace, spans)
    process = max(span.rank for span in spans) + 1
    _add_links(trace, result.timeline.link_columns(), process=process)
    if of_sms := instructions.simulated(result.timeline.instruction_columns()):
        instructions.add_instructions(trace, of_sms, process + 1, "SMs of rank 0")
    return trace


def _of_any_layer(op: str) -> str:
    """An op's name without its layer: those of a run of layers have one name, that of its first."""
    return found[2] if (found := layers.OF_LAYER.fullmatch(op)) else op


def _layers(ops: Mapping[Key, Any]) -> dict[Key, int]:
    """The layer of each op that has one."""
    copies: dict[str, int] = {}
    for name, copy in ops:
        copies[name] = max(copies.get(name, 0), copy + 1)
    apart = layers.lengths(copies)
    found = {key: match for key in ops if (match := layers.OF_LAYER.fullmatch(key[0]))}
    return {key: int(match[1]) + key[1] * apart[int(match[1])] for key, match in found.items()}


def _add_layers(trace: Trace, row: Sequence[TimelineSpan], layer_of: Mapping[Key, int]) -> None:
    """A span around the ops of each layer, on rows where no layer begins before another has ended."""
    around: dict[int, tuple[float, float]] = {}
    for span in row:
        if (layer := layer_of.get((span.op, span.copy))) is not None:
            start_s, end_s = around.get(layer, (span.start_s, span.end_s))
            around[layer] = (min(start_s, span.start_s), max(end_s, span.end_s))
    others = [(span.start_s, span.end_s) for span in row if (span.op, span.copy) not in layer_of]
    ordered = sorted([*around.values(), *others])
    if any(after[0] < before[1] for before, after in zip(ordered, ordered[1:])):
        return
    for layer, (start_s, end_s) in around.items():
        trace.span(row[0].rank, row[0].stream, f"layer {layer}", "layer", start_s, end_s, {"layer": layer})


def _arguments(span: TimelineSpan, op: Mapping[str, Any], layer_of: Mapping[Key, int]) -> dict[str, Any]:
    body, time_s = op["body"], span.end_s - span.start_s
    found = {"op": span.op, "layer": layer_of.get((span.op, span.copy)), "call": body["name"], "dtype": body["dtype"], "basis": span.basis, **body["dims"]}
    if work := op.get("work"):
        found |= work
        if time_s > 0:
            found |= {"TFLOP/s": work["flops"] / time_s / 1e12, "GB/s": _moved(work) / time_s / 1e9}
    elif time_s > 0 and "bytes" in body["dims"]:
        found["GB/s"] = body["dims"]["bytes"] / time_s / 1e9
    return found


def _moved(work: Mapping[str, float]) -> float:
    return work["read_bytes"] + work["written_bytes"]


def _add_memory(trace: Trace, rank: int, spans: Sequence[TimelineSpan], ops: Mapping[Key, Any]) -> None:
    """What kernels read and write at least, over their time."""
    rates = []
    for span in spans:
        work = ops[span.op, span.copy].get("work")
        if work and span.end_s > span.start_s:
            rates.append((span.start_s, span.end_s, _moved(work) / (span.end_s - span.start_s) / 1e9))
    for time_s, rate in summed(rates):
        trace.counter(rank, "memory, GB/s", time_s, {"GB/s": rate})


def _add_arrows(trace: Trace, spans: Sequence[TimelineSpan]) -> None:
    """Between the parts of a collective, from each rank to the next."""
    parts: dict[Key, list[TimelineSpan]] = {}
    for span in spans:
        if span.kind == "comm":
            parts.setdefault((span.op, span.copy), []).append(span)
    number = 0
    for (name, _), of_op in parts.items():
        by_rank = sorted(of_op, key=lambda span: span.rank)
        for one, other in zip(by_rank, by_rank[1:]):
            if one.rank == other.rank:
                continue
            number += 1
            trace.arrow(number, _of_any_layer(name), (one.rank, one.stream, one.start_s), (other.rank, other.stream, (other.start_s + other.end_s) / 2))


def _add_links(trace: Trace, columns: Mapping[str, Any], *, process: int) -> None:
    transfers: dict[str, list[tuple[float, float, float, str]]] = {}
    names = ("link", "op", "bytes", "start_s", "end_s")
    for link, op, size, start_s, end_s in zip(*(columns[name] for name in names), strict=True):
        transfers.setdefault(link, []).append((plain(start_s), plain(end_s), plain(size), op))
    if transfers:
        trace.process(process, "links")
    thread = 0
    for link, of_link in sorted(transfers.items()):
        lanes, rows = Lanes(), []
        for start_s, end_s, size, op in sorted(of_link):
            rows.append((lanes.of(start_s, end_s), start_s, end_s, size, op))
        for lane in range(len(lanes)):
            trace.thread(process, thread + lane, link if lane == 0 else f"{link} ({lane + 1})")
        rates = [(start_s, end_s, size / (end_s - start_s) / 1e9) for _, start_s, end_s, size, _ in rows if end_s > start_s]
        for lane, start_s, end_s, size, op in rows:
            rate = size / (end_s - start_s) / 1e9 if end_s > start_s else None
            trace.span(process, thread + lane, _of_any_layer(op), "link", start_s, end_s, {"bytes": size, "GB/s": rate})
        for time_s, total in summed(rates):
            trace.counter(process, f"{link}, GB/s", time_s, {"GB/s": total})
        thread += len(lanes)


__all__ = ["step"]
