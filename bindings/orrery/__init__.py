"""Orrery: how will this traffic be served, by which placement, and how long does one step take?

    import orrery

    scenario = orrery.load("scenarios/quickstart.yaml")
    result = orrery.simulate(scenario)
    result.summary["ttft_s"]["p99"]
    result.requests.to_pandas()

    plans = orrery.sweep(scenario, {"placement.tp": [2, 4, 8]})
    plans.best("output_tokens_per_s_per_gpu")

    answer = orrery.explore(scenario, {"placement": "auto"})
    answer.best["words"], answer.text

Times are seconds and amounts are bytes, under names that say so (`ttft_s`, `weights_bytes`).
"""

from __future__ import annotations

from ._core import Batch, ModelConfig, PrefillChunk, ScenarioError, __version__
from .scenarios import Scenario, load, project_root
from .search import Answer, explore
from .simulation import RunResult, Summary, Table, TimelineTable, simulate, step
from .sweeps import Sweep, sweep

__all__ = [
    "Answer",
    "Batch",
    "ModelConfig",
    "PrefillChunk",
    "RunResult",
    "Scenario",
    "ScenarioError",
    "Summary",
    "Sweep",
    "Table",
    "TimelineTable",
    "__version__",
    "explore",
    "load",
    "project_root",
    "simulate",
    "step",
    "sweep",
]
