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

from typing import TYPE_CHECKING, Any

from ._core import Batch, ModelConfig, PrefillChunk, ScenarioError, __version__
from .scenarios import Scenario, load, project_root, schema
from .simulation import RunResult, Summary, Table, TimelineTable, simulate, step
from .sweeps import Sweep, sweep

if TYPE_CHECKING:
    from .search.api import Answer, explore

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
    "schema",
    "simulate",
    "step",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """What takes long to import comes when it is asked for."""
    if name in ("Answer", "explore"):
        from .search import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
