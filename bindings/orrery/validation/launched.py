"""Launches and time by kernel and stream, and the share of communication: predicted beside measured (orrery/launches.py).

Predicted, each op is one launch. Measured launches are those that the GPU recorded, by op (kernels/execute/step_trace.h);
programs that wrote no <step>.kernels.csv leave the number of ops that ran.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import launches
from .typed_csv import seconds, shown, whole, word

COLUMNS = {"op": word, "rank": whole(0), "stream": whole(0), "kernel": word, "launches": whole(1), "time_s": seconds}


@dataclasses.dataclass(frozen=True)
class GpuKernel:
    """A kernel of the GPU, or a copy, that an op launched on a rank, in all the op's copies."""

    op: str
    rank: int
    stream: int  # of the plan
    kernel: str
    launches: int
    time_s: float


def executed_kernels(
    path: pathlib.Path, lines: Iterable[tuple[int, Mapping[str, Any]]], ops: Sequence[Mapping[str, Any]], measured: Sequence[launches.Span]
) -> tuple[GpuKernel, ...]:
    """The lines of <step>.kernels.csv, each with its number. Raises ValueError for what the step's spans do not have."""
    streams = {(op["op"], rank): op["stream"] for op in ops for rank in op["ranks"]}
    lacking = collections.Counter((span.op, span.rank) for span in measured)
    found = []
    for number, line in lines:
        one = GpuKernel(**line)
        if streams.get((one.op, one.rank)) != one.stream:
            raise ValueError(
                f"{path}:{number}: op {shown(one.op)} on rank {one.rank}, stream {one.stream}, is not in the plan of this step: "
                "these results are of another plan"
            )
        lacking[one.op, one.rank] -= one.launches
        found.append(one)
    for (op, rank), count in lacking.items():
        if count > 0:
            raise ValueError(f"{path}: op '{op}' on rank {rank} has {count} launches fewer than spans: the file is cut or of another run")
    return tuple(found)


def listings(
    ops: Sequence[Mapping[str, Any]], predicted: Sequence[launches.Span], measured: Sequence[launches.Span], kernels: Sequence[GpuKernel]
) -> list[dict[str, Any]]:
    """A listing for each set of ranks that launch the same: ranks, rows and communication; times are means over the ranks.

    Of a step without a trace what was measured is None, without `kernels` the launches of the GPU.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = {}
    for rank in sorted({span.rank for span in predicted}):
        sides = {name: launches.of_spans(ops, spans, rank=rank) if spans else None
                 for name, spans in (("predicted", predicted), ("measured", measured))}  # fmt: skip
        own = [one for one in kernels if one.rank == rank]
        one = {
            "rows": _rows(ops, sides["predicted"], sides["measured"], own if kernels else None),
            "communication": {name: side and side.communication.to_dict() for name, side in sides.items()},
        }
        groups.setdefault(_without_times(one["rows"]), []).append((rank, one))
    return [_together(group) for group in groups.values()]


def short_name(kernel: str) -> str:
    """A function's name of the source without namespaces, arguments and what it returns."""
    depth = 0
    kept = ""
    for c in kernel.replace("(anonymous namespace)::", "").replace("->", ""):
        depth -= c == ">"
        if depth == 0 and c == "(":
            break
        if depth == 0 and c != ">":
            kept += c if c != "<" else ""
        depth += c == "<"
    return kept.strip().rpartition(" ")[2].rpartition("::")[2] or kernel


def ranks_text(ranks: Sequence[int]) -> str:
    """ "0 to 3", or "0, 2"."""
    is_run = len(ranks) > 2 and ranks[-1] - ranks[0] + 1 == len(ranks)
    return f"{ranks[0]} to {ranks[-1]}" if is_run else ", ".join(map(str, ranks))


def _rows(
    ops: Sequence[Mapping[str, Any]], predicted: launches.Listing, measured: launches.Listing | None, kernels: Sequence[GpuKernel] | None
) -> list[dict[str, Any]]:
    of_plan = {row.key: row for row in predicted.rows}
    of_gpu = {row.key: row for row in measured.rows} if measured else {}
    recorded = _recorded(ops, kernels or ())
    rows = []
    for key, row in (of_gpu | of_plan).items():
        plan, gpu = of_plan.get(key), of_gpu.get(key)
        rows.append(
            {
                "kernel": row.kernel,
                "kind": row.kind,
                "stream": row.stream,
                "predicted_launches": plan.launches if plan else 0,
                "measured_launches": None if kernels is None else sum(one["launches"] for one in recorded[key]),
                "measured_ops": None if measured is None else gpu.launches if gpu else 0,
                "predicted_s": plan.time_s if plan else 0.0,
                "measured_s": None if measured is None else gpu.time_s if gpu else 0.0,
                "gpu_kernels": recorded[key],
            }
        )
    return sorted(rows, key=lambda row: (row["stream"], -row["predicted_s"], row["kernel"]))


def _recorded(ops: Sequence[Mapping[str, Any]], kernels: Iterable[GpuKernel]) -> Mapping[tuple[str, int], list[dict[str, Any]]]:
    """By kernel of the plan and stream: what the GPU launched for it, by name."""
    names = {op["op"]: op["body"]["name"] for op in ops}
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = collections.defaultdict(dict)
    for one in kernels:
        row = found[names[one.op], one.stream].setdefault(one.kernel, {"kernel": one.kernel, "launches": 0, "time_s": 0.0})
        row["launches"] += one.launches
        row["time_s"] += one.time_s
    return collections.defaultdict(list, {key: [of[name] for name in sorted(of)] for key, of in found.items()})


def _without_times(value: Any) -> Any:
    """What ranks have in common that launch the same."""
    if isinstance(value, list):
        return tuple(_without_times(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _without_times(item)) for name, item in value.items() if not name.endswith("_s"))
    return value


def _together(group: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    one = _mean([one for _, one in group])
    for row in one["rows"]:
        row["gpu_kernels"].sort(key=lambda gpu: -gpu["time_s"])
    return {"ranks": [rank for rank, _ in group], **one}


def _mean(values: Sequence[Any]) -> Any:
    """Of numbers that differ; what is in them is alike."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [_mean(items) for items in zip(*values, strict=True)]
    return statistics.fmean(values) if isinstance(first, float) else first


__all__ = ["COLUMNS", "GpuKernel", "executed_kernels", "listings", "ranks_text", "short_name"]
