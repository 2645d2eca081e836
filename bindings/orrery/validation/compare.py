"""Predicted against measured, as plain dicts: the content of validation.json.

Errors are predicted / measured - 1, differences predicted - measured: negative where the prediction is too short. Times
are seconds, amounts bytes. A step lasts, by the host's clock, from its first launch until its tokens are on the host
(predicted: makespan and the engine profile's host time), on the device from the first rank's start to the last one's
end (predicted: makespan); measured is the median of its iterations. Layers of experts by themselves are compared by their
time on the device.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..report.run_directory import BASES
from .attribution import Parts, Tasks, parts_of, tasks_of
from .directory import Case, Span, Step
from .launched import listings
from .layers import agreement, layer, with_places
from .routing import routing
from .serving import error, serving
from .sides import sides

# Causes of a step's error, in the order of the report; each is a difference, and they add up to that of the whole step.
CAUSES = {
    "kernel": "Kernels take another time than their tables say: each op copy once, the mean over its ranks.",
    "launch_gap": "Idle time between ops on the critical path: launching, the space between graph nodes.",
    "overlap": "More or less runs at the same time: what is hidden behind others, off the critical path.",
    "communication": "Collectives take another time, from the arrival of their last rank to their end.",
    "imbalance": "Ranks differ: what ops on the critical path take there, less the mean over their ranks.",
    "scheduler": "The host around the device's step: measured, the host's clock less the device's; predicted, the "
    "engine profile's scheduler time; and host ops of the plan.",
    "edges": "Before the first op and after the last one: launching, copies of inputs and results. Measured, the step "
    "without tracing less its traced ops, so what tracing itself adds counts here, too.",
}
# What the project aims at, as absolute errors (median and p95 over steps; the others each).
AIMS = {
    "step_median": 0.03,
    "step_p95": 0.08,
    "tpot_mean": 0.05,
    "tpot_p99": 0.10,
    "ttft_mean": 0.08,
    "ttft_p99": 0.15,
    "memory_total": 0.03,
}
TERMS = ("context", "weights", "kv_cache", "activations", "workspace", "graphs", "communication", "other", "total")


def compare(case: Case) -> dict[str, Any]:
    """Everything that can be said of `case`."""
    steps = [_step(step) for step in case.steps if step.was_executed and not step.layers]
    # Of a layer the host's clock says little: it starts and ends a run of several.
    on_device = [dataclasses.replace(step, wall_s=step.device_s) for step in case.steps if step.was_executed and step.layers]
    found = with_places([layer(step, _step(step)) for step in on_device])
    result: dict[str, Any] = {
        "status": case.status,
        "is_complete": case.is_complete,
        "environment": dict(case.environment),
        "provenance": dict(case.provenance),
        "calibration": [dict(row) for row in case.calibration],
        "calibration_revisions": sorted({row["revision"] for row in case.calibration if row["revision"]}),
        "steps": steps,
        "layers": found,
        "layer_order": agreement(found),
        "steps_not_executed": [step.name for step in case.steps if not step.was_executed],
        "kernels": _families([*steps, *found]),
        "memory": _memory(case),
        "serving": serving(case),
        "recalibrate": [{**row, "is_measured_again": row["call"] in case.measured_again} for row in rows_to_measure([*steps, *found])],
    }
    result["errors"] = _errors(result)
    return result


def _step(step: Step) -> dict[str, Any]:
    device = statistics.median(step.device_s)
    wall = statistics.median(step.wall_s)
    predicted = tasks_of(step.ops, step.predicted)
    measured = tasks_of(step.ops, step.measured)
    result: dict[str, Any] = {
        "name": step.name,
        "mode": step.mode,
        "batch": step.batch,
        "predicted_s": step.duration_s + step.host_s,
        "low_s": step.low_s + step.host_s,
        "high_s": step.high_s + step.host_s,
        "measured_s": wall,
        "spread": _spread(step.wall_s),
        "iterations": len(step.wall_s),
        "error": error(step.duration_s + step.host_s, wall),
        "is_in_interval": step.low_s + step.host_s <= wall <= step.high_s + step.host_s,
        "predicted_device_s": step.duration_s,
        "measured_device_s": device,
        "device_error": error(step.duration_s, device),
        "basis": _basis_shares(step.predicted),
        "is_traced": bool(step.measured),
        "routing": routing(step.ops, step.experts, step.expert_shares),
        "listings": listings(step.ops, step.predicted, step.measured, step.kernels),
        "sides": sides(step.ops, step.num_ffn_ranks, step.predicted, step.measured),
        "causes_s": None,
        "ops": [],
    }
    if step.measured:
        result["causes_s"] = _causes(
            parts_of(step.ops, predicted), parts_of(step.ops, measured), step.host_s, device, wall
        )
        result["ops"] = _ops(step, predicted, measured)
    return result


def _causes(predicted: Parts, measured: Parts, host_s: float, device_s: float, wall_s: float) -> dict[str, float]:
    """Differences predicted - measured by cause; their sum is that of the step by the host's clock."""
    return {
        "kernel": predicted.kernel - measured.kernel,
        "launch_gap": predicted.gap - measured.gap,
        "overlap": predicted.overlap - measured.overlap,
        "communication": predicted.communication - measured.communication,
        "imbalance": predicted.imbalance - measured.imbalance,
        "scheduler": host_s + predicted.host - (wall_s - device_s) - measured.host,
        "edges": predicted.lead - (device_s - (measured.makespan - measured.lead)),
    }


def _spread(values: Sequence[float]) -> float:
    """Interquartile range over the median."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / middle) if middle > 0 else 0.0


def _basis_shares(spans: Iterable[Span]) -> dict[str, float]:
    sums: dict[str, float] = dict.fromkeys(BASES, 0.0)
    for span in spans:
        if span.kind != "host":
            sums[span.basis] += span.end_s - span.start_s
    total = sum(sums.values())
    return {basis: time / total if total > 0 else 0.0 for basis, time in sums.items()}


def call_text(op: Mapping[str, Any]) -> str:
    """As `orrery-gpu calibrate --ops` reads it: gemm bf16 m=64 n=4096 k=4096; or all_reduce bf16 bytes=8192 ranks=2."""
    body = op["body"]
    dims = body["dims"] | ({"ranks": len(op["ranks"])} if body["kind"] == "comm" else {})
    return " ".join(filter(None, [body["name"], body["dtype"], *(f"{name}={size}" for name, size in dims.items())]))


def _ops(step: Step, predicted: Tasks, measured: Tasks) -> list[dict[str, Any]]:
    """One row for each op of the model with its layers together, the most time first."""
    bases: dict[tuple[str, int], str] = {(span.op, span.copy): span.basis for span in step.predicted}
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for op in step.ops:
        key = (op["op"], op["copy"])
        name = re.sub(r"\blayers\.\d+\.", "layers.*.", op["op"])
        name = re.sub(r"#\d+$", "", name) if step.layers else name
        row = groups.setdefault(
            (name, call_text(op)),
            {
                "op": name,
                "kind": op["body"]["kind"],
                "kernel": op["body"]["name"],
                "call": call_text(op),
                "dtype": op["body"]["dtype"],
                "dims": dict(op["body"]["dims"]),
                "ranks": len(op["ranks"]),
                "count": 0,
                "basis": bases.get(key, "roofline"),
                "predicted_s": 0.0,
                "measured_s": 0.0,
            },
        )
        row["count"] += 1
        row["predicted_s"] += predicted.mean_s(key)
        row["measured_s"] += measured.mean_s(key)
    total = sum(row["measured_s"] for row in groups.values())
    for row in groups.values():
        row["error"] = error(row["predicted_s"], row["measured_s"])
        row["share"] = row["measured_s"] / total if total > 0 else 0.0
    return sorted(groups.values(), key=lambda row: (-max(row["measured_s"], row["predicted_s"]), row["op"]))


def _families(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By kernel and dtype over all traced steps, with the share of the measured time on each basis."""
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for step in steps:
        for op in step["ops"]:
            row = groups.setdefault(
                (op["kind"], op["kernel"], op["dtype"]),
                {
                    "kind": op["kind"],
                    "kernel": op["kernel"],
                    "dtype": op["dtype"],
                    "calls": 0,
                    "predicted_s": 0.0,
                    "measured_s": 0.0,
                    "errors": [],
                    "basis": dict.fromkeys(BASES, 0.0),
                },
            )
            row["calls"] += op["count"]
            row["predicted_s"] += op["predicted_s"]
            row["measured_s"] += op["measured_s"]
            row["basis"][op["basis"]] += op["measured_s"]
            row["errors"] += [] if op["error"] is None else [op["error"]]
    total = sum(row["measured_s"] for row in groups.values())
    for row in groups.values():
        errors = row.pop("errors")
        row["error"] = error(row["predicted_s"], row["measured_s"])
        row["median_error"] = statistics.median(map(abs, errors)) if errors else None
        row["share"] = row["measured_s"] / total if total > 0 else 0.0
        row["basis"] = {
            name: time / row["measured_s"] if row["measured_s"] > 0 else 0.0 for name, time in row["basis"].items()
        }
    return sorted(groups.values(), key=lambda row: (-row["measured_s"], row["kernel"], row["dtype"]))


def rows_to_measure(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls whose times explain most of the error of ops, each with its share of all that is to explain.

    The share is that of the summed absolute differences, over all steps relative to each step's time.
    """
    groups: dict[str, dict[str, Any]] = {}
    for step in steps:
        for op in step["ops"]:
            if op["kind"] == "host" or not op["count"]:
                continue
            row = groups.setdefault(
                op["call"],
                {
                    "call": op["call"],
                    "kind": op["kind"],
                    "kernel": op["kernel"],
                    "dtype": op["dtype"],
                    "dims": op["dims"],
                    "ranks": op["ranks"],
                    "basis": op["basis"],
                    "ops": [],
                    "steps": 0,
                    "count": 0,
                    "predicted_s": 0.0,
                    "measured_s": 0.0,
                    "explains": 0.0,
                },
            )
            row["ops"] += [op["op"]] if op["op"] not in row["ops"] else []
            row["steps"] += 1
            row["count"] += op["count"]
            row["predicted_s"] += op["predicted_s"]
            row["measured_s"] += op["measured_s"]
            row["explains"] += abs(op["predicted_s"] - op["measured_s"]) / step["measured_s"]
    total = sum(row["explains"] for row in groups.values())
    for row in groups.values():
        row["explains"] = row["explains"] / total if total > 0 else 0.0
        row["predicted_s"] /= row["count"]  # of one call
        row["measured_s"] /= row["count"]
        row["error"] = error(row["predicted_s"], row["measured_s"])
    return sorted(groups.values(), key=lambda row: (-row["explains"], row["call"]))


def _memory(case: Case) -> list[dict[str, Any]]:
    """A row for each rank and term; measured None where it is not known."""
    ranks = sorted({rank for rank, _ in case.memory})
    rows = []
    for rank in ranks:
        for term in TERMS:
            predicted, measured = case.memory.get((rank, term)), case.measured_memory.get((rank, term))
            if predicted is None and measured is None:
                continue
            rows.append(
                {
                    "rank": rank,
                    "term": term,
                    "predicted_bytes": predicted or 0.0,
                    "measured_bytes": measured,
                    "error": None if measured is None else error(predicted or 0.0, measured),
                }
            )
    return rows


def _errors(result: Mapping[str, Any]) -> dict[str, Any]:
    """The headline figures, each {value, aim, is_met}: absolute errors."""
    found: dict[str, float] = {}
    steps = [abs(step["error"]) for step in result["steps"] if step["error"] is not None]
    if steps:
        found["step_median"] = float(np.median(steps))
        found["step_p95"] = float(np.quantile(steps, 0.95))
        found["step_worst"] = max(steps)
    if devices := [abs(step["device_error"]) for step in result["steps"] if step["device_error"] is not None]:
        found["device_median"] = float(np.median(devices))
    if layers := [abs(one["error"]) for one in result["layers"] if one["error"] is not None]:
        found["layer_median"] = float(np.median(layers))
        found["layer_worst"] = max(layers)
    if result["serving"]:
        for row in result["serving"]["latencies"]:
            name = f"{row['latency'].removesuffix('_s')}_{row['quantile']}"
            if name in AIMS and row["error"] is not None:
                found[name] = abs(row["error"])
    totals = [abs(row["error"]) for row in result["memory"] if row["term"] == "total" and row["error"] is not None]
    if totals:
        found["memory_total"] = max(totals)
    return {
        name: {"value": value, "aim": AIMS.get(name), "is_met": value <= AIMS[name] if name in AIMS else None}
        for name, value in found.items()
    }


def summed_causes(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean over traced steps of each cause relative to the measured step."""
    traced = [step for step in steps if step["causes_s"]]
    sums: dict[str, float] = collections.defaultdict(float)
    for step in traced:
        for cause, difference in step["causes_s"].items():
            sums[cause] += difference / step["measured_s"] / len(traced)
    return dict(sums)


__all__ = ["AIMS", "CAUSES", "TERMS", "call_text", "compare", "error", "rows_to_measure", "summed_causes"]
