"""Simulates published cases and sets the simulated metrics beside the published ones."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import simulation
from . import apart, drafts, intervals, metrics, scenarios, steady
from .cases import Case

GPUS_PER_NODE = 8  # where the source does not say

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One metric of one case; `published` and `simulated` in seconds or per second."""

    metric: str  # label of metrics.METRICS
    unit: str
    published: float
    simulated: float

    @property
    def error(self) -> float:
        """Simulated over published, less 1."""
        return self.simulated / self.published - 1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A case with its comparisons, or with the reason why there are none."""

    case: Case
    reason: str = ""
    comparisons: tuple[Comparison, ...] = ()
    left_out: tuple[str, ...] = ()  # metrics that have no simulated counterpart
    basis: Mapping[str, float] = dataclasses.field(default_factory=dict)  # shares of simulated time
    split: Mapping[str, float] = dataclasses.field(default_factory=dict)  # where the time goes, see _split
    is_carried: bool = False  # whether rows of another architecture stand in
    nodes: int = 1  # of a replica
    unlike: str = ""  # what no published case has (intervals.Standing)

    def simulated(self, metric: str) -> Comparison | None:
        return next((c for c in self.comparisons if c.metric == metric), None)


def compare(
    cases: Sequence[Case],
    *,
    threads: int,
    progress: Progress | None = None,
    engines: pathlib.Path | None = None,
) -> list[Outcome]:
    """One outcome per case, in the order of `cases`, whatever `threads` is.

    Engine profiles are those of `engines`, a directory, where it is given. `progress(done, total)` is called per case.
    """
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(threads) as pool:
        futures = [
            pool.submit(_outcome, case, pathlib.Path(folder) / f"{number}.yaml", engines)
            for number, case in enumerate(cases)
        ]
        if progress:
            for done, _ in enumerate(concurrent.futures.as_completed(futures), 1):
                progress(done, len(futures))
        return [future.result() for future in futures]


def profile_of(text: str) -> str:
    """Name of the engine profile of a scenario's text."""
    found = re.search(r'^engine: \{profile: "([^"]+)"', text, re.MULTILINE)
    return found[1] if found else ""


def _outcome(case: Case, path: pathlib.Path, engines: pathlib.Path | None) -> Outcome:
    if case.problem:
        return Outcome(case, case.problem)
    left_out = tuple(m.metric for m in case.measurements if not metrics.find(m.metric, m.unit))
    if len(left_out) == len(case.measurements):
        return Outcome(case, f"no simulated counterpart of {left_out[0]}", left_out=left_out)
    try:
        summary = _simulated(case, path, engines) | {"gpus_per_node": _gpus_per_node(case)}
    except (scenarios.CannotSimulate, ValueError) as error:
        return Outcome(case, _reason(error), left_out=left_out)
    comparisons = []
    for measurement in case.measurements:
        if metric := metrics.find(measurement.metric, measurement.unit):
            simulated = metric.simulated(summary)
            # What is served of a stated rate is that rate: such a figure would say nothing.
            is_offered = case.fields["load_kind"] == "poisson" and metric.unit == "1/s"
            if simulated is not None and not is_offered:
                published = measurement.value * metrics.UNITS[measurement.unit][1]
                comparisons.append(Comparison(metric.label, metric.unit, published, simulated))
    found = intervals.standing_of(summary)
    is_carried = found.tables == intervals.CARRIED
    return Outcome(case, "", tuple(comparisons), left_out, summary["basis"], summary["split"], is_carried, found.nodes, found.unlike)


def _simulated(case: Case, path: pathlib.Path, engines: pathlib.Path | None) -> dict[str, Any]:
    """The summary of the case's run with its `split`, or of its step."""
    if load := steady.read(case):
        if drafts.read(case.fields):
            raise scenarios.CannotSimulate("attention of several tokens at once (speculative decoding)")
        return steady.summary(case, load, path)
    text = scenarios.scenario_text(case)
    path.write_text(text, encoding="utf-8")
    scenario = simulation.load(path, overrides=[f"engine.profile={engines / profile_of(text)}.yaml"] if engines else [])
    result = simulation.simulate(scenario)
    return apart.as_clients_see(case, dict(result.summary)) | {"split": _split(result)}


def _gpus_per_node(case: Case) -> float:
    nodes = case.fields["num_nodes"]
    return case.whole("num_gpus", GPUS_PER_NODE) / int(nodes) if nodes.isdecimal() and int(nodes) else GPUS_PER_NODE


def _reason(error: Exception) -> str:
    """The message without the place in a temporary file."""
    return getattr(error, "message", str(error))


def _split(result: simulation.RunResult) -> dict[str, Any]:
    """Mean wait and TTFT, share of engine time in steps with prefill, mean time of a step with and without
    prefill, and FLOP of the model's GEMMs per token."""
    requests, steps = result.requests.columns(), result.steps.columns()
    has_prefill = steps["prefill_tokens"] > 0
    busy = max(float(steps["duration_s"].sum()), 1e-300)
    return {
        "flops_per_token": 2.0 * result.scenario.model.num_active_parameters,
        "wait_s": float(np.mean(requests["first_scheduled_s"] - requests["arrival_s"])),
        "ttft_s": float(np.mean(requests["ttft_s"])),
        "prefill_share": float(steps["duration_s"][has_prefill].sum()) / busy,
        "prefill_step_s": _mean(steps["duration_s"][has_prefill], steps["num_steps"][has_prefill]),
        "decode_step_s": _mean(steps["duration_s"][~has_prefill], steps["num_steps"][~has_prefill]),
    }


def _mean(durations: np.ndarray, counts: np.ndarray) -> float | None:
    return float(durations.sum() / counts.sum()) if counts.size else None
