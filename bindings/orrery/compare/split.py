"""The difference between a prediction and a benchmark, by where it comes from.

With the benchmark's requests simulated as they were sent (replay.py), request by request, predicted - measured is

    arrival    the run's figure less the replay's: other times and lengths than the scenario's
    queue      what is left of the first token's difference after prefill
    prefill    a + b x prompt tokens: what first tokens differ by of requests that found no prompt before them
    decode     (tokens - 1) x the difference of TPOT

and end to end they add up. Which requests found none follows from arrivals alone, the same on both sides: to choose by waits that were
simulated would choose those that wait longer when measured. Waiting for the step in progress counts as prefill.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..finished_run import FinishedRun
from . import bench_files
from .bench_files import Bench, Columns

_LATE = 0.9  # quantile of the first token's time: a request that comes so long after the one before finds no prompt before it
_LEAST = 8  # requests on which a line may rest
_FAR = 5.0  # times the median distance from the line


@dataclasses.dataclass(frozen=True)
class Split:
    """Means in seconds, predicted - measured; None where the data do not tell."""

    ttft: dict[str, float | None]  # total, arrival, queue, prefill
    tpot: dict[str, float | None]  # total, arrival, decode
    e2e: dict[str, float | None]  # total, arrival, queue, prefill, decode
    prefill_line: tuple[float, float] | None  # seconds, and seconds per prompt token
    offered_per_s: tuple[float, float] | None  # by the scenario, and really
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def measured_part(run: FinishedRun, bench: Bench) -> np.ndarray:
    """Which of the benchmark's requests count: without the warm-up and the drain, where it sent as many as the run has."""
    assert bench.requests is not None, "asked of benchmarks with requests"
    count = len(bench.requests["ttft_s"])
    is_same = count + bench.num_failed == len(run.requests["id"])
    if not is_same:
        return np.ones(count, dtype=bool)
    ids = np.arange(count)
    return (ids >= run.warmup_requests) & (ids < len(run.requests["id"]) - run.drain_requests)


def split(run: FinishedRun, bench: Bench, replayed: Columns) -> Split:
    """`replayed` are the benchmark's requests as the simulator says they would have gone."""
    assert bench.requests is not None, "replays are of requests"
    counted = measured_part(run, bench) & np.isfinite(bench.requests["e2e_s"])
    measured = {name: values[counted] for name, values in bench.requests.items()}
    again = {name: values[counted] for name, values in replayed.items()}
    notes: list[str] = []
    line, why = _prefill_line(again, measured)
    notes += [why] * bool(why)
    first = again["ttft_s"] - measured["ttft_s"]
    gap = _gap(again, measured)
    prefill = float(np.mean(line[0] + line[1] * measured["prompt_tokens"])) if line else None
    arrival = {name: _mean(run.measured[name]) - _mean(again[name]) for name in ("ttft_s", "tpot_s", "e2e_s")}
    streamed = again["e2e_s"] - again["ttft_s"] - (measured["e2e_s"] - measured["ttft_s"])
    queue = None if prefill is None else float(first.mean()) - prefill
    ttft = {"total": arrival["ttft_s"] + float(first.mean()), "arrival": arrival["ttft_s"], "queue": queue, "prefill": prefill}
    e2e = {"total": arrival["e2e_s"] + float(first.mean() + streamed.mean()), "arrival": arrival["e2e_s"], "queue": queue, "prefill": prefill,
           "decode": float(streamed.mean())}  # fmt: skip
    tpot = {"total": arrival["tpot_s"] + gap, "arrival": arrival["tpot_s"], "decode": gap}
    if "closed_loop" in run.scenario["workload"]:
        notes.append("In a closed loop a client sends its next request when one ends, so arrivals follow from the service: the share of arrival is the"
                     " service's own error fed back.")  # fmt: skip
    return Split(ttft, tpot, e2e, line, (rate_of(run.measured["arrival_s"]), rate_of(measured["start_s"])), tuple(notes))


def without_replay(run: FinishedRun, bench: Bench) -> Split:
    """What summaries alone tell."""
    predicted = bench_files.figures_of(run.measured, None)
    total = {name: predicted[name]["mean"] - bench.figures[name]["mean"] if name in predicted and "mean" in bench.figures.get(name, {}) else None
             for name in ("ttft_s", "tpot_s", "e2e_s")}  # fmt: skip
    decode = None
    if total["e2e_s"] is not None and total["ttft_s"] is not None:
        decode = total["e2e_s"] - total["ttft_s"]
    unknown: dict[str, float | None] = {"arrival": None, "queue": None, "prefill": None}
    note = ("The benchmark's file does not say when each request was sent: arrival, queue and prefill cannot be told apart, and decode contains"
            " what arrived otherwise.")  # fmt: skip
    return Split(
        {"total": total["ttft_s"], **unknown},
        {"total": total["tpot_s"], "arrival": None, "decode": total["tpot_s"]},
        {"total": total["e2e_s"], **unknown, "decode": decode},
        None,
        None,
        (note,),
    )


def rate_of(arrivals: np.ndarray) -> float:
    """Requests per second between the first and the last."""
    span = float(arrivals.max() - arrivals.min()) if len(arrivals) else 0.0
    return (len(arrivals) - 1) / span if span > 0 else float("inf")


def _prefill_line(again: Columns, measured: Columns) -> tuple[tuple[float, float] | None, str]:
    """a and b of the requests that came late enough after the one before."""
    late = float(np.quantile(np.maximum(again["ttft_s"], measured["ttft_s"]), _LATE))
    free = _gaps_before(again) > late
    if free.sum() < _LEAST:
        return None, (f"{int(free.sum())} of {len(free)} requests came {1e3 * late:,.0f} ms or more after the one before on their replica, {_LEAST} would"
                      " do: queue and prefill cannot be told apart.")  # fmt: skip
    return _line(measured["prompt_tokens"][free], (again["ttft_s"] - measured["ttft_s"])[free]), ""


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Constant and slope by least squares, once more without what lies far off."""
    kept = np.ones(len(x), bool)
    for _ in range(2):
        spread = float(((x[kept] - x[kept].mean()) ** 2).sum())
        slope = float(((x[kept] - x[kept].mean()) * (y[kept] - y[kept].mean())).sum()) / spread if spread > 0 else 0.0
        constant = float((y[kept] - slope * x[kept]).mean())
        off = np.abs(y - constant - slope * x)
        kept = off <= max(_FAR * float(np.median(off)), 1e-12)
    return constant, slope


def _gaps_before(again: Columns) -> np.ndarray:
    """Seconds since the request before arrived at the same replica, as the simulation routes."""
    gaps = np.full(len(again["arrival_s"]), np.inf)
    for replica in np.unique(again["replica"]):
        mine = np.flatnonzero(again["replica"] == replica)
        gaps[mine[1:]] = np.diff(again["arrival_s"][mine])
    return gaps


def _gap(again: Columns, measured: Columns) -> float:
    """Mean difference of TPOT, of requests of two tokens and more."""
    difference = again["tpot_s"] - measured["tpot_s"]
    difference = difference[np.isfinite(difference)]
    return float(difference.mean()) if len(difference) else 0.0


def _mean(values: np.ndarray) -> float:
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else 0.0


__all__ = ["Split", "measured_part", "rate_of", "split", "without_replay"]
