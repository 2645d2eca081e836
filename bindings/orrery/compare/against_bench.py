"""A run against what a benchmark measured: the same figures of both, and what their difference is made of."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..emit.plan import plan_of
from ..finished_run import FinishedRun
from . import bench_files, split
from .bench_files import STATISTICS, Bench
from .replay import replay

METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "end to end"}
RATES = {"requests_per_s": "requests/s", "output_tokens_per_s": "tokens/s"}
_TOLD = 0.1  # of mean lengths and counts: how much more another traffic differs than chance does
# Words of a checkpoint's name that do not say which model it is.
_NO_MODEL = frozenset("meta instruct chat it hf base fp8 fp4 nvfp4 mxfp4 awq gptq int4 int8 w8a8 w4a16 bf16 fp16 quantized dynamic block kv".split())


def compare(run: FinishedRun, bench: Bench, *, any_model: bool = False) -> dict[str, Any]:
    """Figures, errors (predicted / measured - 1) and the split of their difference, as plain data.

    Raises ValueError when the benchmark is of another model, unless `any_model`.
    """
    notes = [*bench.notes, *_traffic_notes(run, bench)]
    if not any_model:
        notes += _check_model(run, bench)
    measured = _without_warm_up(run, bench)
    figures = bench_files.figures_of(run.measured, None)  # by the same definition of a quantile as the benchmark's
    predicted = {name: figures.get(name) or {key: run.summary[name][key] for key in STATISTICS} for name in METRICS}
    replayed = None
    if bench.has_times:
        with replay(run, bench) as again:
            columns = again.simulate()
        parts = split.split(run, bench, columns)
        counted = split.measured_part(run, bench)
        replayed = bench_files.figures_of({name: values[counted] for name, values in columns.items()}, None)
        notes += _replay_notes(run)
    else:
        parts = split.without_replay(run, bench)
    return {
        "run": run.name,
        "bench": str(bench.path),
        "tool": bench.tool,
        "requests": {"run": int(run.summary["requests"]), "bench": bench.num_requests, "failed": bench.num_failed},
        "figures": _figures(predicted, measured, replayed),
        "rates": {name: _pair(run.summary[name], bench.rates[name]) for name in RATES},
        "split": parts.to_dict(),
        "notes": [*notes, *parts.notes],
    }


def _figures(predicted: Any, measured: Any, replayed: Any) -> dict[str, dict[str, Any]]:
    return {
        metric: {key: _pair(predicted[metric][key], measured[metric][key]) | {"replayed": ((replayed or {}).get(metric) or {}).get(key)}
                 for key in STATISTICS if key in measured[metric]}
        for metric in METRICS if metric in measured
    }  # fmt: skip


def _pair(predicted: float | None, measured: float) -> dict[str, float | None]:
    is_known = predicted is not None and measured > 0
    return {"predicted": predicted, "measured": measured, "error": predicted / measured - 1 if is_known else None}


def _without_warm_up(run: FinishedRun, bench: Bench) -> bench_files.Figures:
    """The benchmark's figures of the requests that the run has figures of."""
    if bench.requests is None or not (run.warmup_requests or run.drain_requests):
        return bench.figures
    counted = split.measured_part(run, bench)
    if counted.all():
        return bench.figures
    return bench.figures | bench_files.figures_of({name: values[counted] for name, values in bench.requests.items()}, None)


def _check_model(run: FinishedRun, bench: Bench) -> list[str]:
    expected = plan_of(run).checkpoint.name
    if not bench.model:
        return [f"{bench.path.name} does not say which model was measured; the run is of {expected}."]
    if _words(bench.model) != _words(expected):
        raise ValueError(f"{bench.path}: found a benchmark of {bench.model}; expected one of {expected}, which the run is of (--any-model compares"
                         " them all the same)")  # fmt: skip
    return []


def _words(name: str) -> list[str]:
    """The words of a checkpoint's name that tell models apart: Meta-Llama-3.1-8B-Instruct-FP8 is llama 3.1 8b."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return [word for word in re.split(r"[-_ ]+", last) if word and word not in _NO_MODEL]


def _traffic_notes(run: FinishedRun, bench: Bench) -> list[str]:
    notes = []
    if bench.num_failed:
        notes.append(f"{bench.num_failed:,} requests of the benchmark failed and are left out.")
    if abs(bench.num_requests + bench.num_failed - len(run.requests["id"])) > _TOLD * len(run.requests["id"]):
        notes.append(f"The benchmark has {bench.num_requests:,} requests, the run {len(run.requests['id']):,}: figures of both are of other samples.")
    if bench.requests is not None:
        for name, words in (("prompt_tokens", "prompts"), ("output_tokens", "outputs")):
            found, expected = float(np.nanmean(bench.requests[name])), float(np.mean(run.measured[name]))
            if abs(found - expected) > _TOLD * expected:
                notes.append(f"{words.capitalize()} of the benchmark have {found:,.0f} tokens on average, those of the run {expected:,.0f}.")
    return notes


def _replay_notes(run: FinishedRun) -> list[str]:
    if run.scenario["engine"]["enable_prefix_caching"] == "true":
        return ["The benchmark's file does not say which prompts begin alike, so its requests are simulated without hits of the prefix cache."]
    return []


__all__ = ["METRICS", "RATES", "compare"]
