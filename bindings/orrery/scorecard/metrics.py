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
    unit: str  # of `simulated`: "s" or "1/s"
    simulated: Callable[[Summary], float]


def _latency(label: str, key: str, quantile: str) -> Metric:
    suffix = "" if quantile == "mean" else f" {quantile}"
    return Metric(label + suffix, "s", lambda summary: summary[key][quantile])


def _rate(label: str, of: Callable[[Summary], float], *, per_gpu: bool = False) -> Metric:
    return Metric(label, "1/s", lambda s: of(s) / s["duration_s"] / (s["num_gpus"] if per_gpu else 1))


def _table() -> dict[str, Metric]:
    table = {}
    for name, label, key in (
        ("ttft", "TTFT", "ttft_s"),
        ("tpot", "TPOT", "tpot_s"),
        ("itl", "ITL", "itl_s"),
        ("e2e_latency", "end to end", "e2e_s"),
        ("latency", "end to end", "e2e_s"),
    ):
        for prefix, quantile in (("", "mean"), ("mean_", "mean"), ("median_", "p50"), ("p90_", "p90"), ("p99_", "p99")):
            table[prefix + name] = _latency(label, key, quantile)
    table["prompt_time"] = table["first_token_latency"] = _latency("prefill time", "ttft_s", "mean")
    table["token_time"] = _latency("decode time", "tpot_s", "mean")
    output, prompt = (lambda s: s["output_tokens"]), (lambda s: s["prompt_tokens"])
    both = lambda s: s["prompt_tokens"] + s["output_tokens"]
    table["total_output_throughput"] = table["output_throughput"] = _rate("output throughput", output)
    table["output_throughput_per_gpu"] = _rate("output throughput", output, per_gpu=True)
    table["input_throughput"] = _rate("input throughput", prompt)
    table["total_token_throughput"] = _rate("total throughput", both)
    table["total_throughput_per_gpu"] = _rate("total throughput", both, per_gpu=True)
    table["request_throughput"] = _rate("request throughput", lambda s: s["requests"])
    return table


METRICS = _table()

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
    "req/s": ("1/s", 1.0),
    "samples/s": ("1/s", 1.0),
}


def known(metric: str, unit: str) -> bool:
    """Whether a published number has a simulated counterpart."""
    return metric in METRICS and unit in UNITS and UNITS[unit][0] == METRICS[metric].unit
