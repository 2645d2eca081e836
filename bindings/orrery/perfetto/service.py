"""A simulated service: requests from arrival to last token, the steps of each replica, what waits, runs and is cached."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..finished_run import FinishedRun
from .events import Lanes, Trace

_STEPS, _REQUESTS = 0, 1  # threads of a replica: its steps, and from 1 on lanes of requests
Columns = Mapping[str, np.ndarray]


def service(run: FinishedRun, from_s: float, to_s: float) -> Trace:
    """What of the run lies between two times, in whole or in part. Raises ValueError where nothing does."""
    steps = run.steps()
    requests = run.requests
    ends_s = steps["start_s"] + steps["duration_s"]
    of_steps = np.flatnonzero((steps["start_s"] < to_s) & (ends_s > from_s))
    of_requests = np.flatnonzero((requests["arrival_s"] < to_s) & (requests["finish_s"] > from_s))
    if not len(of_steps) and not len(of_requests):
        raise ValueError(f"found nothing between {from_s:g} and {to_s:g} s; the run is from {requests['arrival_s'].min():g} to {ends_s.max():g} s")
    trace = Trace()
    for replica in np.unique(np.concatenate([steps["replica"][of_steps], requests["replica"][of_requests]])):
        process = int(replica)
        trace.process(process, f"replica {process}")
        trace.thread(process, _STEPS, "steps")
        for row in of_steps[steps["replica"][of_steps] == replica]:
            _add_step(trace, process, steps, row)
        _add_requests(trace, process, requests, of_requests[requests["replica"][of_requests] == replica])
    return trace


def _add_step(trace: Trace, process: int, steps: Columns, row: int) -> None:
    found = {name: steps[name][row].item() for name in steps}
    start_s, end_s = found["start_s"], found["start_s"] + found["duration_s"]
    parts = [f"{found['prefill_tokens']:,} prompt tokens"] * bool(found["num_prefills"]) + [f"{found['num_decodes']:,} decodes"] * bool(found["num_decodes"])
    times = f"{found['num_steps']:,} x " if found["num_steps"] > 1 else ""
    arguments = {name: value for name, value in found.items() if name not in ("replica", "start_s", "duration_s")}
    trace.span(process, _STEPS, times + " + ".join(parts), "step", start_s, end_s, arguments)
    trace.counter(process, "sequences", start_s, {"running": found["num_prefills"] + found["num_decodes"], "waiting": found["num_waiting"]})
    trace.counter(process, "KV blocks in use", start_s, {"blocks": found["kv_blocks_used"]})


def _add_requests(trace: Trace, process: int, requests: Columns, rows: np.ndarray) -> None:
    lanes = Lanes()
    for row in rows[np.argsort(requests["arrival_s"][rows], kind="stable")]:
        found = {name: values[row].item() for name, values in requests.items()}
        lane = _REQUESTS + lanes.of(found["arrival_s"], found["finish_s"])
        if lane == len(lanes):  # the first on its row
            trace.thread(process, lane, "requests")
        times = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
        arguments = {name: value for name, value in found.items() if name not in (*times, "replica")}
        trace.span(process, lane, f"request {found['id']}", "request", found["arrival_s"], found["finish_s"], arguments)
        for name, start_s, end_s in _phases(found):
            if end_s > start_s:
                trace.span(process, lane, name, "phase", start_s, end_s, {"id": found["id"]})


def _phases(found: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Until the first token a request waits and is computed; where it decodes on other GPUs, its KV blocks move there and wait for a step."""
    queue = ("queue", found["arrival_s"], found["first_scheduled_s"])
    if np.isfinite(found.get("decode_start_s", np.nan)):
        return [queue, ("prefill", found["first_scheduled_s"], found["prefill_end_s"]),
                ("transfer and wait", found["prefill_end_s"], found["decode_start_s"]), ("decode", found["decode_start_s"], found["finish_s"])]  # fmt: skip
    return [queue, ("prefill", found["first_scheduled_s"], found["first_token_s"]), ("decode", found["first_token_s"], found["finish_s"])]


__all__ = ["service"]
