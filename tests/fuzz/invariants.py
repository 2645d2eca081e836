"""What holds of every run that ended well, read from its run directory."""

from __future__ import annotations

import csv
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

ROUNDING = 1e-9  # of sums of some thousand numbers


def violations(directory: pathlib.Path) -> list[str]:
    """In words; empty when all holds."""
    try:
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"), parse_constant=_no_number)
        requests = _rows(directory / "requests.csv")
        steps = _rows(directory / "steps.csv")
    except (OSError, ValueError) as error:
        return [f"the run directory cannot be read: {error}"]
    found = [f"summary.{path} is {value}" for path, value in _numbers(summary) if not (math.isfinite(value) and value >= 0)]
    return found + _of_summary(summary) + _of_requests(requests, summary) + _of_steps(requests, steps, summary)


def _no_number(text: str) -> float:
    raise ValueError(f"summary.json has {text}")


def _rows(file: pathlib.Path) -> list[dict[str, float]]:
    """Empty cells are left out."""
    with file.open(encoding="utf-8", newline="") as lines:
        return [{key: float(cell) for key, cell in row.items() if cell} for row in csv.DictReader(lines)]


def _numbers(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        yield path, tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _numbers(value, f"{path}.{key}" if path else str(key))


def _of_summary(summary: dict[str, Any]) -> list[str]:
    found = []
    basis = sum(summary["basis"].values())
    if abs(basis - 1) > ROUNDING:
        found.append(f"basis adds up to {basis!r}")
    if summary["kv_utilisation"]["max"] > 1 or summary["kv_utilisation"]["mean"] > summary["kv_utilisation"]["max"] + ROUNDING:
        found.append(f"kv_utilisation is {summary['kv_utilisation']}")
    if not summary["slo_attainment"] <= 1:
        found.append(f"slo_attainment is {summary['slo_attainment']}")
    memory = summary["memory_per_gpu"]
    used = sum(value for key, value in memory.items() if key != "hbm_bytes")
    if used > memory["hbm_bytes"]:
        found.append(f"memory in use is {used} of {memory['hbm_bytes']}")
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        quantiles = [summary[name][key] for key in ("p50", "p90", "p95", "p99", "max")]
        if None not in quantiles and quantiles != sorted(quantiles):
            found.append(f"{name} is {summary[name]}")
    return found


def _of_requests(requests: list[dict[str, float]], summary: dict[str, Any]) -> list[str]:
    found = []
    for row in requests:
        bad = [f"{key} {value}" for key, value in row.items() if not (math.isfinite(value) and value >= 0)]
        times = [row["arrival_s"], row["first_scheduled_s"], row["first_token_s"], row["finish_s"]]
        if times != sorted(times):
            bad.append(f"times are {times}")
        if abs(row["finish_s"] - row["arrival_s"] - row["e2e_s"]) > ROUNDING * max(1.0, row["finish_s"]):
            bad.append(f"e2e_s is {row['e2e_s']}")
        if row["ttft_s"] > row["e2e_s"]:
            bad.append(f"ttft_s {row['ttft_s']} is more than e2e_s {row['e2e_s']}")
        if row["cached_tokens"] > row["prompt_tokens"] or row["prompt_tokens"] < 1 or row["output_tokens"] < 1:
            bad.append("tokens do not add up")
        found += [f"request {row['id']:.0f}: {what}" for what in bad]
    if sorted(row["id"] for row in requests) != list(range(len(requests))):
        found.append("requests are not numbered 0 to n-1, each once")
    if summary["requests"] > len(requests):  # warm-up is in the table alone
        found.append(f"the summary has {summary['requests']} requests, the table {len(requests)}")
    if summary["requests"] == len(requests):
        for name in ("prompt_tokens", "output_tokens", "cached_tokens"):
            if sum(row[name] for row in requests) != summary[name]:
                found.append(f"{name} of all requests are not the summary's {summary[name]}")
    return found


def _of_steps(requests: list[dict[str, float]], steps: list[dict[str, float]], summary: dict[str, Any]) -> list[str]:
    found = []
    ends: dict[float, float] = {}
    for row in steps:
        if any(not (math.isfinite(value) and value >= 0) for value in row.values()) or row["num_steps"] < 1:
            found.append(f"a step is {row}")
        if row["start_s"] < ends.get(row["replica"], 0.0) - ROUNDING * max(1.0, row["start_s"]):
            found.append(f"replica {row['replica']:.0f}: the step at {row['start_s']} begins before the one before has ended")
        ends[row["replica"]] = row["start_s"] + row["duration_s"]
    prefilled = sum(row["num_steps"] * row["prefill_tokens"] for row in steps)
    asked = sum(row["prompt_tokens"] - row["cached_tokens"] for row in requests)
    recomputed = any(row["num_preemptions"] for row in requests)
    if prefilled < asked or (prefilled > asked and not recomputed):
        found.append(f"{prefilled:.0f} prompt tokens were computed, {asked:.0f} asked for")
    decoded = sum(row["num_steps"] * row["num_decodes"] for row in steps)
    wanted = sum(row["output_tokens"] - 1 for row in requests)
    if decoded > wanted or (decoded < wanted and not recomputed):
        found.append(f"{decoded:.0f} tokens were decoded, {wanted:.0f} asked for")
    if summary["num_kv_blocks"] and any(row["kv_blocks_used"] > summary["num_kv_blocks"] for row in steps) and "disaggregation" not in summary:
        found.append(f"more than the {summary['num_kv_blocks']} KV blocks are in use")
    return found
