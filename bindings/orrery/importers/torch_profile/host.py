"""What an engine does between and around kernels, from its steps: the figures of an engine profile.

Timed by a profiler the host is slower than without one, by as much as half. Rows of --timings, which say how long the same engine's steps
took unwatched, give the host's figures in their place; the profile's sources say which it was.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import math
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np

from ... import _core
from .matching import StepMatch
from .plan import core_batch
from .steps import BatchOf, parse_batch
from .trace import TraceError

_STALL_US, _STALL = 2000.0, 50.0  # a pause between two launches that is a stall: at least so long, and so many times the median
_HELD_UP = 1.25  # times what its GPU computes: a step that launches for longer waits for the host


@dataclasses.dataclass(frozen=True)
class Timing:
    """An unwatched step, seconds: all of it, and the part that launches."""

    batch: BatchOf
    step_s: float
    compute_s: float
    is_new: bool = False  # no step before had as many queries and keys
    has_new_rows: bool = False  # no step before had as many queries


@dataclasses.dataclass(frozen=True)
class Figure:
    seconds: float
    source: str


@dataclasses.dataclass(frozen=True)
class Host:
    launch_mode: str  # graph or eager
    eager_launch: Figure
    stall: Figure  # in the middle of a step's launches: the GPU runs dry and waits
    new_attention: Figure  # of the same, what steps have whose attention has a new shape, and others have not
    new_rows: Figure  # of steps with prompts and a new number of rows, besides new_attention
    scheduler_base: Figure  # with the stall of all steps
    scheduler_per_sequence: Figure
    prefill_base: Figure  # of steps with prompts besides
    is_async: bool
    graph_batch_sizes: tuple[int, ...]
    pause_us: float  # median between kernels of one graph, or of one stream that does not wait for the host


def read_timings(path: pathlib.Path) -> list[Timing]:
    """Lines of prefill (`512+0 128+64`), num_decodes, decode_context and seconds: step_s, or prepare_s, compute_s and update_s.

    Lines are in the order in which the engine took the steps. Those with traced 1 were watched: of them counts only that their attention has been
    seen from there on. Raises TraceError with the line of what is wrong.
    """
    found = []
    seen: set[tuple[int, int]] = set()
    seen_rows: set[int] = set()
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.DictReader(stream), start=2):
                try:
                    chunks = ",".join(row["prefill"].split())
                    words = [f"prefill={chunks}"] * bool(chunks) + [f"decode={row['num_decodes']}@{row['decode_context']}"] * bool(
                        int(row["num_decodes"])
                    )
                    batch = parse_batch(" ".join(words))
                    shape = (batch.queries, batch.keys)
                    is_new, has_new_rows = shape not in seen, batch.queries not in seen_rows
                    seen.add(shape)
                    seen_rows.add(batch.queries)
                    if row.get("traced") == "1":
                        continue
                    compute = float(row["compute_s"]) if "compute_s" in row else float(row["step_s"])
                    whole = float(row["step_s"]) if "step_s" in row else compute + float(row["prepare_s"]) + float(row["update_s"])
                    if not 0 < whole < 1e4:
                        raise TraceError(f"found a step of {whole} s")
                    found.append(Timing(batch, whole, compute, is_new, has_new_rows))
                except (KeyError, TypeError, ValueError) as error:
                    raise TraceError(f"{path}:{number}: {error}; expected prefill, num_decodes, decode_context and step_s") from None
    except OSError as error:
        raise TraceError(f"{path}: {error}; expected timings of steps") from None
    if not found:
        raise TraceError(f"{path}: found no step that was not traced; expected some")
    return found


def host_of(matches: Sequence[StepMatch], timings: Sequence[Timing], num_ops: dict[BatchOf, int]) -> Host:
    """The figures of steps and timings; `num_ops` counts the GPU ops of the plan of each batch."""
    graphs = [each for each in matches if each.step.is_graph]
    eager = [each for each in matches if not each.step.is_graph]
    planning = _new_attention(eager)
    stall = Figure(0.0, "") if planning.seconds else _stall(eager)
    launch = _eager_launch(eager, timings, num_ops, stall.seconds, planning.seconds)
    base, per_sequence = _scheduler(matches, timings, launch.seconds)
    if stall.seconds > 0:
        base = Figure(base.seconds + stall.seconds, f"{stall.seconds * 1e3:.3g} ms: {stall.source}; the rest: {base.source}")
    return Host(
        launch_mode="graph" if graphs else "eager",
        eager_launch=launch,
        stall=stall,
        new_attention=planning,
        new_rows=_new_rows(timings, planning.seconds),
        scheduler_base=base,
        scheduler_per_sequence=per_sequence,
        prefill_base=_prefill_base(timings, base.seconds, per_sequence.seconds),
        is_async=_is_async(matches),
        graph_batch_sizes=tuple(sorted({each.step.batch.num_decodes for each in graphs if each.step.batch and not each.step.batch.prefill})),
        pause_us=_pause(matches),
    )


def _forward_us(each: StepMatch) -> float:
    """From the launch of the step's first kernel of the model to that of its last."""
    launched = [kernel.launched for op in each.ops for kernel in op.kernels]
    return max(launched) - min(launched)


def _device_us(each: StepMatch) -> float:
    return sum(op.time for op in each.ops)


def _computing(batch: BatchOf, eager: Sequence[StepMatch]) -> float:
    """Seconds that the GPU computes in the traced decode step nearest to a batch of decodes."""

    def distance(each: StepMatch) -> float:
        traced = each.step.batch
        assert traced is not None
        return abs(math.log(traced.num_decodes / batch.num_decodes)) + abs(math.log(traced.decode_context / batch.decode_context))

    decodes = [each for each in eager if each.step.batch is not None and not each.step.batch.prefill]
    return _device_us(min(decodes, key=distance)) / 1e6 if decodes else 0.0


def _eager_launch(eager: Sequence[StepMatch], timings: Sequence[Timing], num_ops: dict[BatchOf, int], stall_s: float,
                  planning_s: float) -> Figure:  # fmt: skip
    """Host time for each op of the plan; an engine that launches several kernels for one needs as much longer."""
    if timings and eager:

        def launching(timing: Timing) -> float:
            return max(timing.compute_s - stall_s - (planning_s if timing.is_new else 0.0), 0.0)

        decodes = [timing for timing in timings if timing.batch in num_ops and not timing.batch.prefill]
        held_up = [each for each in decodes if launching(each) > _HELD_UP * _computing(each.batch, eager)]
        if held_up:
            source = f"median of {len(held_up)} of {len(decodes)} decode steps without a profiler, those that the host holds up, over the plan's ops"
            return Figure(statistics.median(launching(each) / num_ops[each.batch] for each in held_up), source)
    if not eager:
        return Figure(0.0, "no step of the trace was launched eagerly")
    stall_s += planning_s  # of every traced decode step, nearly
    per_op = [max(_forward_us(each) - stall_s * 1e6, 0.0) / len(each.ops) / 1e6 for each in eager if _forward_us(each) > 0]
    return Figure(statistics.median(per_op), f"median of {len(per_op)} traced steps, over the plan's ops; the profiler's own time is in it")


def _before_attention_us(each: StepMatch) -> float:
    """The longest pause of a step's launches before a kernel of packed attention, us; 0 where it is no longer than many others."""
    launches = sorted((kernel.launched, op.op.kernel == "attention_packed") for op in each.ops for kernel in op.kernels)
    gaps = [(after - before, is_attention) for (before, _), (after, is_attention) in zip(launches, launches[1:])]
    longest = max((gap for gap, is_attention in gaps if is_attention), default=0.0)
    return longest if longest > max(_STALL_US, _STALL * statistics.median(gap for gap, _ in gaps)) else 0.0


def _new_attention(eager: Sequence[StepMatch]) -> Figure:
    """What a library takes to plan packed attention of a shape that no step before had: a call of nearly every traced step of such a shape holds
    the host up, and of nearly none whose shape came earlier in the traces."""
    seen: set[tuple[int, int]] = set()
    first, again = [], []
    for each in sorted(eager, key=lambda each: (each.step.trace.base_ns or 0) / 1e3 + each.step.begin):
        batch = each.step.batch
        if batch is None or not any(op.op.kernel == "attention_packed" for op in each.ops):
            continue
        shape = (batch.queries, batch.keys)
        (again if shape in seen else first).append(_before_attention_us(each))
        seen.add(shape)
    held_up = [pause for pause in first if pause]
    is_planned = len(held_up) > 0.8 * len(first) and sum(pause > 0 for pause in again) < 0.2 * len(again)
    if not is_planned:
        return Figure(0.0, "no call that attention of a new shape alone makes")
    source = f"median of {len(held_up)} of {len(first)} traced steps whose queries and keys came for the first time, in the call of attention; {len(again)} others do without"
    return Figure(statistics.median(held_up) / 1e6, source)


_FEWEST_PAIRS = 3


def _new_rows(timings: Sequence[Timing], planning_s: float) -> Figure:
    """What libraries take to look up products of a number of rows that no step before had: prompts that came twice took so much longer the first time."""
    later: dict[BatchOf, list[float]] = collections.defaultdict(list)
    for timing in timings:
        if timing.batch.prefill and not timing.is_new:
            later[timing.batch].append(timing.step_s)
    longer = [
        timing.step_s - planning_s - statistics.median(later[timing.batch])
        for timing in timings
        if timing.has_new_rows and timing.batch in later
    ]
    if len(longer) < _FEWEST_PAIRS:
        return Figure(0.0, f"{len(longer)} prompts without a profiler came for the first time and again; it takes {_FEWEST_PAIRS}")
    source = f"median of {len(longer)} prompts without a profiler: what they took longer the first time than again, less new_attention"
    return Figure(max(statistics.median(longer), 0.0), source)


def _stall(eager: Sequence[StepMatch]) -> Figure:
    """A single call that holds the host up for long, in most decode steps: cuDNN planning a new shape, a synchronisation, an allocation."""
    found = []
    for each in eager:
        if each.step.batch is not None and each.step.batch.prefill:
            continue
        launched = sorted(kernel.launched for op in each.ops for kernel in op.kernels)
        gaps = [b - a for a, b in zip(launched, launched[1:])]
        longest = max(_STALL_US, _STALL * statistics.median(gaps)) if gaps else 0.0
        found.append(sum(gap for gap in gaps if gap > longest))
    if not found or statistics.median(found) == 0:
        return Figure(0.0, "no call of the traced decode steps holds the host up")
    return Figure(
        statistics.median(found) / 1e6, f"median of {len(found)} traced decode steps, calls that hold the host up in the middle of launching"
    )


def _scheduler(matches: Sequence[StepMatch], timings: Sequence[Timing], launch_s: float) -> tuple[Figure, Figure]:
    """What a step takes besides launching and computing: base and for each sequence, least squares."""
    points: list[tuple[int, float]] = []
    if timings:
        points = [
            (timing.batch.sequences, timing.step_s - timing.compute_s)
            for timing in timings
            if timing.step_s > timing.compute_s and not timing.batch.prefill
        ]
        source = f"least squares of {len(points)} decode steps without a profiler: what they took besides computing"
    if not points:
        for each in matches:
            if each.step.follows and each.step.batch is not None:
                launching = 0.0 if each.step.is_graph else max(_forward_us(each), len(each.ops) * launch_s * 1e6)
                rest = each.step.end - each.step.begin - max(_device_us(each), launching)
                points.append((each.step.batch.sequences, max(rest, 0.0) / 1e6))
        source = f"least squares of {len(points)} traced steps: what they took besides launching and computing; the profiler's own time is in it"
    if not points:
        nothing = "no step of the trace is followed by another at once"
        return Figure(0.0, nothing), Figure(0.0, nothing)
    counts, rests = np.array([count for count, _ in points], float), np.array([rest for _, rest in points])
    slope = 0.0
    if np.ptp(counts) > 0:
        slope = max(float(np.polyfit(counts, rests, 1)[0]), 0.0)
    base = max(float(np.median(rests - slope * counts)), 0.0)
    return Figure(base, source), Figure(slope, source)


def _prefill_base(timings: Sequence[Timing], base_s: float, per_sequence_s: float) -> Figure:
    """What steps with prompts take besides computing and what the same sequences take as decodes."""
    more = [
        timing.step_s - timing.compute_s - base_s - per_sequence_s * timing.batch.sequences
        for timing in timings
        if timing.step_s > timing.compute_s and timing.batch.prefill
    ]
    if not more:
        return Figure(0.0, "no step with prompts was timed without a profiler")
    return Figure(max(statistics.median(more), 0.0), f"median of {len(more)} steps with prompts without a profiler: what they took besides computing")


def _is_async(matches: Sequence[StepMatch]) -> bool:
    """Whether most steps are launched while the one before still computes."""
    pairs = [(a, b) for a, b in zip(matches, matches[1:]) if a.step.follows and a.ops and b.ops]
    early = sum(min(k.launched for op in b.ops for k in op.kernels) < max(k.end for op in a.ops for k in op.kernels) for a, b in pairs)
    return bool(pairs) and early > 0.5 * len(pairs)


def _pause(matches: Sequence[StepMatch]) -> float:
    pauses = []
    for each in matches:
        kernels = sorted((kernel for op in each.ops for kernel in op.kernels), key=lambda kernel: kernel.start)
        pauses += [b.start - a.end for a, b in zip(kernels, kernels[1:]) if b.launched <= a.end and b.stream == a.stream]
    return max(statistics.median(pauses), 0.0) if pauses else 0.0


def serve_base(scenario: _core.Scenario, served: Sequence[Timing]) -> Figure:
    """What decode steps of a load take longer than `scenario`, with the import's own provider and profile, predicts of them."""
    more = [
        timing.step_s - float(_core.explain_step(scenario, core_batch(timing.batch), not timing.is_new)["duration_s"])
        for timing in served
        if not timing.batch.prefill
    ]
    if not more:
        raise TraceError("found no step of decodes alone among those of the load; expected some")
    return Figure(max(statistics.median(more), 0.0), f"median of {len(more)} decode steps of a load: what they took longer than the same steps by themselves")
