"""Several runs beside each other, and what makes two of them differ."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..finished_run import FinishedRun

# Columns of the table: a title, and where in summary.json the figure stands.
COLUMNS: dict[str, str] = {
    "GPUs": "num_gpus",
    "requests/s": "requests_per_s",
    "goodput": "goodput",
    "TTFT mean": "ttft_s.mean",
    "TTFT p95": "ttft_s.p95",
    "TTFT p99": "ttft_s.p99",
    "TPOT mean": "tpot_s.mean",
    "TPOT p95": "tpot_s.p95",
    "TPOT p99": "tpot_s.p99",
    "end to end p95": "e2e_s.p95",
    "end to end p99": "e2e_s.p99",
    "tokens/s": "output_tokens_per_s",
    "tokens/s/GPU": "output_tokens_per_s_per_gpu",
    "KV cache": "kv_utilisation.mean",
    "preemptions": "preemptions",
    "J per token": "energy.j_per_output_token",
}
TTFT_CAUSES = ("queue", "prefill", "stream")
TPOT_CAUSES = ("decode_steps", "mixed_steps", "transfer", "between_steps")


def side_by_side(runs: Sequence[FinishedRun], sort: str | None = None) -> list[dict[str, Any]]:
    """One row per run: name, plan, and every figure of the summary that is a number, by its path.

    Sorted by `sort`, a path such as tpot_s.p99, smallest first, largest first with a dash before it. Raises ValueError for a path
    that no run has.
    """
    rows = [
        {
            "run": run.name,
            "plan": plan_text(run.scenario),
            "question": run.summary["question"],
            "is_overloaded": run.summary.get("load", {}).get("is_overloaded"),  # of a run of a version before, unknown
            **numbers(run.summary),
        }
        for run in runs
    ]
    if sort is None:
        return rows
    key, is_falling = (sort[1:], True) if sort.startswith("-") else (sort, False)
    key = COLUMNS.get(key, key)
    if not any(key in row for row in rows):
        known = sorted({name for row in rows for name in row})
        near = ", ".join(difflib.get_close_matches(key, known, n=3, cutoff=0.3)) or ", ".join(COLUMNS.values())
        raise ValueError(f"found --sort {sort}; expected a figure of summary.json such as {near}")
    present = sorted((row for row in rows if row.get(key) is not None), key=lambda row: row[key], reverse=is_falling)
    return present + [row for row in rows if row.get(key) is None]


def numbers(summary: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Numbers of nested objects by their paths with dots; of provenance and lists nothing."""
    found: dict[str, Any] = {}
    for key, value in summary.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{key}.")
        elif (isinstance(value, (int, float)) and not isinstance(value, bool)) or value is None:
            found[prefix + key] = value
    return found


def plan_text(scenario: Mapping[str, Any]) -> str:
    """The placement in a few characters: 2 x tp4, or 1 x tp1 + 1 x tp1 for prefill and decode."""
    if "disaggregation" in scenario:
        return " + ".join(_mesh(side) + _machine(side) for side in (scenario["disaggregation"][name] for name in ("prefill", "decode")))
    return _mesh(scenario["placement"])


def _machine(side: Mapping[str, Any]) -> str:
    """Of a side that has one of its own."""
    return f" of {side['machine']['name']}" if "machine" in side else ""


def _mesh(placement: Mapping[str, str]) -> str:
    ways = [f"tp{placement['tp']}", *(f"{name}{placement[name]}" for name in ("pp", "dp", "ep") if placement[name] != "1")]
    return f"{placement['replicas']} x {' '.join(ways)}" + (" sp" if placement["sp"] == "true" else "")


def scenario_differences(a: FinishedRun, b: FinishedRun) -> list[dict[str, Any]]:
    """The keys of the resolved scenarios whose values differ, with both; None where a side has no such key."""
    left, right = _leaves(a.scenario), _leaves(b.scenario)
    keys = [*left, *(key for key in right if key not in left)]
    return [{"key": key, "a": left.get(key), "b": right.get(key)} for key in keys if left.get(key) != right.get(key)]


def _leaves(node: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(node, dict):
        return {key: value for name, item in node.items() for key, value in _leaves(item, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): node if isinstance(node, str) else str(node)}


def causes(run: FinishedRun) -> dict[str, dict[str, float]]:
    """Where the mean TTFT and the mean time between tokens go, in seconds; the parts of each add up to its `mean`.

    TTFT of the requests after the warm-up: queue, from arrival to the first step with any of the prompt, front end included;
    prefill, from there to the end of the step with the last of it, waits between chunks included; stream, until the client has
    the token. Time between tokens of all requests, each token counting once: decode_steps, in steps of decodes alone; mixed_steps,
    in steps that compute prompts as well; transfer, from the first token until the decode replica may go on; between_steps, the rest:
    waiting for steps of prompts alone, for the host, after preemption. steps.csv has steps with what their host takes besides and
    does not hide, so the host is no cause of its own here.
    """
    requests = run.measured
    queue = requests["first_scheduled_s"] - requests["arrival_s"]
    prefill = requests["first_token_s"] - requests["first_scheduled_s"]
    ttft = {"mean": _mean(requests["ttft_s"]), "queue": _mean(queue), "prefill": _mean(prefill)}
    ttft["stream"] = ttft["mean"] - ttft["queue"] - ttft["prefill"]
    return {"ttft": ttft, "tpot": _between_tokens(run)}


def _between_tokens(run: FinishedRun) -> dict[str, float]:
    requests = run.requests
    gaps = np.maximum(requests["output_tokens"] - 1, 0)
    count = float(gaps.sum())
    if not count:
        return dict.fromkeys(("mean", *TPOT_CAUSES), 0.0)
    total = float((gaps * np.nan_to_num(requests["tpot_s"])).sum())
    steps = run.steps()
    spent = steps["num_decodes"] * steps["duration_s"]
    is_mixed = steps["num_prefills"] > 0
    transfer = 0.0
    if "decode_start_s" in requests:
        transfer = float(np.nansum(requests["decode_start_s"] - requests["first_token_s"]))
    parts = {"decode_steps": float(spent[~is_mixed].sum()), "mixed_steps": float(spent[is_mixed].sum()), "transfer": transfer}
    parts["between_steps"] = total - sum(parts.values())
    return {"mean": total / count, **{name: seconds / count for name, seconds in parts.items()}}


def step_facts(run: FinishedRun) -> dict[str, float | None]:
    """What steps are like: decodes and seconds of a step of decodes alone, prompt tokens and seconds of one with prompts."""
    steps = run.steps()
    counts = steps["num_steps"].astype(float)
    has_prompts = steps["num_prefills"] > 0
    return {
        "decodes_per_step": _weighted(steps["num_decodes"], counts, ~has_prompts),
        "decode_step_s": _weighted(steps["duration_s"] / np.maximum(counts, 1), counts, ~has_prompts),
        "prompt_tokens_per_step": _weighted(steps["prefill_tokens"], counts, has_prompts),
        "prompt_step_s": _weighted(steps["duration_s"] / np.maximum(counts, 1), counts, has_prompts),
        "share_with_prompts": float(counts[has_prompts].sum() / counts.sum()) if counts.sum() else None,
    }


def compare(runs: Sequence[FinishedRun], sort: str | None = None) -> dict[str, Any]:
    """Everything that is said of several runs; of two also why they differ."""
    result: dict[str, Any] = {"runs": side_by_side(runs, sort)}
    if len(runs) == 2:
        a, b = runs
        parts = [causes(run) for run in runs]
        result["scenario"] = scenario_differences(a, b)
        result["causes"] = {
            metric: {part: {"a": parts[0][metric][part], "b": parts[1][metric][part], "difference": parts[1][metric][part] - parts[0][metric][part]}
                     for part in parts[0][metric]}
            for metric in ("ttft", "tpot")
        }  # fmt: skip
        facts = [step_facts(run) for run in runs]
        result["steps"] = {name: {"a": facts[0][name], "b": facts[1][name]} for name in facts[0]}
    return result


def beside(runs: Sequence[FinishedRun], sort: str | None = None) -> dict[str, Any]:
    """What is said of any number of runs, each as `side_by_side` orders them: the figures of each, where its latencies come from, what
    its steps are like, and the keys of the resolved scenarios that are not the same in all, with the value of each."""
    rows = side_by_side([dataclasses.replace(run, name=f"{i} {run.name}") for i, run in enumerate(runs)], sort)
    order = [int(row["run"].partition(" ")[0]) for row in rows]
    rows = [row | {"run": name} for row, name in zip(rows, _distinct([runs[i].name for i in order]))]
    leaves = [_leaves(runs[i].scenario) for i in order]
    keys = dict.fromkeys(key for found in leaves for key in found)
    return {
        "runs": rows,
        "causes": [causes(runs[i]) for i in order],
        "steps": [step_facts(runs[i]) for i in order],
        "scenario": [{"key": key, "values": [found.get(key) for found in leaves]} for key in keys if len({found.get(key) for found in leaves}) > 1],
    }


def _distinct(names: Sequence[str]) -> list[str]:
    """Names with a number where they are not the only ones."""
    return [f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _weighted(values: np.ndarray, weights: np.ndarray, chosen: np.ndarray) -> float | None:
    total = float(weights[chosen].sum())
    return float((values[chosen] * weights[chosen]).sum()) / total if total else None


__all__ = ["COLUMNS", "TPOT_CAUSES", "TTFT_CAUSES", "beside", "causes", "compare", "numbers", "plan_text", "scenario_differences", "side_by_side", "step_facts"]
