"""Requests served by the simulation and on GPUs: latencies by percentile, throughput, steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .directory import Case, Service
from .kv_tiers import kv_tiers
from .service_steps import are_measured, by_class

QUANTILES = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
# Where prefill and decode are apart: the move of a KV cache, from the first token to the second, and by how much decoding
# would have begun earlier if moves took no time.
HANDOVER = ("transfer_s", "second_token_s", "exposed_s")


def error(predicted: float, measured: float) -> float | None:
    """predicted / measured - 1; None where nothing was measured."""
    return predicted / measured - 1 if measured > 0 and math.isfinite(predicted) else None


def serving(case: Case) -> dict[str, Any] | None:
    """Both sides over the requests that were served on GPUs, warm-up left out; None where nothing was served.

    Raises ValueError when no predicted request was served.
    """
    if case.service is None or case.measured_service is None:
        return None
    measured_ids = set(case.measured_service.requests["id"])
    common = {
        request
        for request in case.service.requests["id"]
        if request in measured_ids and request >= case.warmup_requests
    }
    if not common:
        raise ValueError(f"{case.directory / 'executed' / 'requests.csv'}: no request that was predicted is in it")
    predicted, measured = (_service_figures(service, common) for service in (case.service, case.measured_service))
    latencies = [
        {
            "latency": name,
            "quantile": quantile,
            "predicted_s": predicted[name][quantile],
            "measured_s": measured[name][quantile],
            "error": error(predicted[name][quantile], measured[name][quantile]),
        }
        for name in (*LATENCIES, *HANDOVER)
        if name in predicted and name in measured
        for quantile in QUANTILES
        if name in LATENCIES or measured[name][quantile] > 0
    ]
    rates = [
        {
            "metric": name,
            "predicted": predicted[name],
            "measured": measured[name],
            "error": error(predicted[name], measured[name]),
        }
        for name in ("output_tokens_per_s", "requests_per_s", "num_steps", "mean_decodes", "mean_step_s", "token_balance")
        if name in predicted and name in measured
    ]
    return {
        "requests": len(common),
        "requests_predicted": sum(request >= case.warmup_requests for request in case.service.requests["id"]),
        "warmup_requests": case.warmup_requests,
        "latencies": latencies,
        "rates": rates,
        "kv_tiers": kv_tiers(case.directory),
        "steps": by_class(case, common),
        "curves": {
            name: {"predicted_s": predicted["values"][name], "measured_s": measured["values"][name]}
            for name in ("ttft_s", "tpot_s")
        },
    }


def _service_figures(service: Service, ids: set[float]) -> dict[str, Any]:
    """Of the requests `ids`, and of the steps that compute their tokens. ITL: the time of each such step, as often as sequences decode in it."""
    requests, steps = service.requests, service.steps
    chosen = [i for i, request in enumerate(requests["id"]) if request in ids]

    def column(name: str) -> np.ndarray:
        return np.array([requests[name][i] for i in chosen])

    is_measured = are_measured(service, ids, steps["replica"], steps["start_s"])
    counts = np.array(steps["num_steps"])[is_measured]
    step_s = np.array(steps["duration_s"])[is_measured] / counts
    decodes = np.array(steps["num_decodes"])[is_measured] * counts
    values = {"ttft_s": column("ttft_s"), "tpot_s": column("tpot_s"), "e2e_s": column("e2e_s")}
    if "transfer_start_s" in requests:
        values["transfer_s"] = column("transfer_end_s") - column("transfer_start_s")
        values["second_token_s"] = column("second_token_s") - column("prefill_end_s")
        values["exposed_s"] = column("exposed_transfer_s")
    values = {name: of[np.isfinite(of)] for name, of in values.items()}
    span = float(column("finish_s").max() - column("arrival_s").min())
    figures: dict[str, Any] = {name: _quantiles(of, np.ones_like(of)) for name, of in values.items()}
    figures["itl_s"] = _quantiles(step_s, decodes)
    figures["output_tokens_per_s"] = float(column("output_tokens").sum()) / span
    figures["requests_per_s"] = len(chosen) / span
    figures["num_steps"] = float(counts.sum())
    figures["mean_decodes"] = float(decodes.sum() / counts.sum())
    figures["mean_step_s"] = float((step_s * counts).sum() / counts.sum())
    if "token_balance" in steps:
        figures["token_balance"] = float((np.array(steps["token_balance"])[is_measured] * counts).sum() / counts.sum())
    figures["values"] = {name: np.sort(of).tolist() for name, of in values.items()}
    return figures


def _quantiles(values: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Mean and the least values that so large a part of the weight does not exceed; NaN without weight."""
    if not weights.sum() > 0:
        return dict.fromkeys(QUANTILES, math.nan)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()

    def at(share: float) -> float:
        return float(values[order][min(int(np.searchsorted(reached, share - 1e-12)), len(values) - 1)])

    return {"mean": float((values * weights).sum() / weights.sum()), "p50": at(0.5), "p90": at(0.9), "p95": at(0.95), "p99": at(0.99)}
