"""What the metrics of published measurements are called here, and the simulated value of each.

A metric without "mean", "median" or a percentile is taken as a mean: sources that do not say it report the
output of benchmark clients, and means agree better with their other figures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Summary = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Metric:
    label: str  # in tables
    unit: str  # of `simulated`: "s", "1/s" or "B/s"
    simulated: Callable[[Summary], float | None]  # None: this run has none


def _latency(label: str, key: str, quantile: str) -> Metric:
    suffix = "" if quantile == "mean" else f" {quantile}"
    return Metric(label + suffix, "s", lambda summary: summary[key][quantile])


def _of_user(quantile: str) -> Metric:
    """Tokens a second that a request gets once it has its first: 1 / TPOT."""
    suffix = "" if quantile == "mean" else f" {quantile}"
    return Metric("rate of a user" + suffix, "1/s", lambda summary: 1 / summary["tpot_s"][quantile] if summary["tpot_s"][quantile] else None)


def _rate(label: str, of: Callable[[Summary], float], *, per_gpu: bool = False) -> Metric:
    return Metric(label, "1/s", lambda s: of(s) / s["duration_s"] / (s["num_gpus"] if per_gpu else 1))


def _transfer(label: str, unit: str, of: Callable[[Summary], float]) -> Metric:
    """Of KV caches between prefill and decode instances; none of an aggregated service."""
    return Metric(label, unit, lambda s: of(s["disaggregation"]["transfer"]) if "disaggregation" in s else None)


QUANTILES = (("", "mean"), ("mean_", "mean"), ("median_", "p50"), ("p50_", "p50"), ("p90_", "p90"), ("p95_", "p95"), ("p99_", "p99"))


def _table() -> dict[str, Metric]:
    table = {}
    for name, label, key in (
        ("ttft", "TTFT", "ttft_s"),
        ("tpot", "TPOT", "tpot_s"),
        ("itl", "ITL", "itl_s"),
        ("e2e_latency", "end to end", "e2e_s"),
        ("e2el", "end to end", "e2e_s"),
        ("latency", "end to end", "e2e_s"),
    ):
        for prefix, quantile in QUANTILES:
            table[prefix + name] = _latency(label, key, quantile)
    for name in ("output_throughput_per_user", "output_speed_per_user", "throughput_per_user", "interactivity", "intvty"):
        for prefix, quantile in QUANTILES[:4]:
            table[prefix + name] = _of_user(quantile)
    table["prompt_time"] = table["first_token_latency"] = _latency("prefill time", "ttft_s", "mean")
    table["token_time"] = _latency("decode time", "tpot_s", "mean")
    output, prompt = (lambda s: s["output_tokens"]), (lambda s: s["prompt_tokens"])
    both = lambda s: s["prompt_tokens"] + s["output_tokens"]
    table["total_output_throughput"] = table["output_throughput"] = _rate("output throughput", output)
    table["output_throughput_per_gpu"] = _rate("output throughput", output, per_gpu=True)
    table["input_throughput"] = _rate("input throughput", prompt)
    table["input_throughput_per_gpu"] = _rate("input throughput", prompt, per_gpu=True)
    table["total_token_throughput"] = _rate("total throughput", both)
    table["total_throughput_per_gpu"] = _rate("total throughput", both, per_gpu=True)
    table["request_throughput"] = _rate("request throughput", lambda s: s["requests"])
    table["kv_transfer_time"] = _transfer("KV transfer time", "s", lambda t: t["time_s"]["mean"])
    table["kv_transfer_bandwidth"] = _transfer(
        "KV transfer rate", "B/s", lambda t: t["bytes"] / t["count"] / t["time_s"]["mean"]
    )
    return table


METRICS = _table()

# Of metrics that leave open what is counted, which the unit says: its first word -> the whole's metric.
OF_UNIT = {
    "throughput_per_gpu": {"input": "input_throughput", "output": "output_throughput", "tok/s/GPU": "total_token_throughput",
                           "tok/s": "total_token_throughput"},
    "throughput_per_node": {"input": "input_throughput", "output": "output_throughput", "tok/s/node": "total_token_throughput"},
}  # fmt: skip

# Published unit -> (unit of the simulated value, factor).
UNITS = {
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "output tok/s": ("1/s", 1.0),
    "output tok/s (whole TP group)": ("1/s", 1.0),
    "output tok/s (whole group)": ("1/s", 1.0),
    "output tok/s/GPU": ("1/s", 1.0),
    "input tok/s": ("1/s", 1.0),
    "tok/s": ("1/s", 1.0),
    "tok/s/GPU": ("1/s", 1.0),
    "tok/s/user": ("1/s", 1.0),
    "output tok/s/user": ("1/s", 1.0),
    "req/s": ("1/s", 1.0),
    "samples/s": ("1/s", 1.0),
    "GB/s": ("B/s", 1e9),
    "input tok/s/GPU": ("1/s", 1.0),
    "input tok/s/node": ("1/s", 1.0),
    "output tok/s/node": ("1/s", 1.0),
    "tok/s/node": ("1/s", 1.0),
}


def find(metric: str, unit: str) -> Metric | None:
    """What simulates a published number; None: nothing does."""
    found = METRICS.get(metric)
    if metric in OF_UNIT:
        whole = METRICS.get(OF_UNIT[metric].get(unit.partition(" ")[0], ""))
        found = _share(whole, per_node=metric.endswith("node")) if whole else None
    return found if found and unit in UNITS and UNITS[unit][0] == found.unit else None


def _share(whole: Metric, *, per_node: bool) -> Metric:
    """Of one GPU, or of all of a node."""
    return Metric(
        whole.label,
        whole.unit,
        lambda s: whole.simulated(s) / s["num_gpus"] * (s["gpus_per_node"] if per_node else 1),
    )
