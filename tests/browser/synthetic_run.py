"""Writes run directories for the report's tests, in the layout of `orrery run`.

The service is a toy with the laws that the report relies on: steps of a replica do not overlap,
each request's first token comes with its last prefill token and the others one per decode step, so
tokens are conserved. Its times are made up; no figure of a real GPU is in it.
"""

from __future__ import annotations

import json
import pathlib
import random
import statistics

SCENARIO = """\
question: "How does Llama-3.1-70B FP8 serve a synthetic conversation trace on one HGX H200 node?"
model:
  config: "llama-3.1-70b"
  weights: fp8
  activations: fp8
  kv_cache: fp8
  lm_head: bf16
machine: "hgx-h200"
provider: "vllm-0.24.0"
placement:
  replicas: 2
  dp: 1
  tp: 4
  cp: 1
  ep: 1
  pp: 1
  sp: false
  num_micro_batches: 1
engine:
  profile: "vllm"
  max_num_seqs: 256
  max_num_batched_tokens: 8192
  block_size: 16
  gpu_memory_utilization: 0.9
  enable_prefix_caching: false
router: round_robin
workload: {trace: "data/traces/synthetic_conversation.csv", warmup_requests: 0}
slo:
  ttft: 2 s
  tpot: 0.05 s
step_level: closed_form
chosen_step: median_decode
seed: 1
"""
BLOCK_SIZE = 16
NUM_KV_BLOCKS = 9000
MAX_BATCHED_TOKENS = 8192
MAX_SEQS = 256


class _Request:
    def __init__(self, idx: int, rng: random.Random, arrival_s: float) -> None:
        self.id = idx
        self.arrival_s = arrival_s
        self.prompt = min(14000, max(8, int(rng.lognormvariate(6.6, 1.0))))
        self.output = 1 if idx % 97 == 0 else min(1200, max(2, int(rng.lognormvariate(4.9, 0.8))))
        self.computed = 0
        self.emitted = 0
        self.first_scheduled_s = self.first_token_s = self.finish_s = 0.0
        self.replica = 0


def _arrivals(num: int, rate_per_s: float, rng: random.Random) -> list[_Request]:
    now, requests = 0.0, []
    for i in range(num):
        burst = 2.2 if 0.55 < i / num < 0.68 else 1.0
        now += rng.expovariate(rate_per_s * burst)
        requests.append(_Request(i, rng, now))
    return requests


def _serve(requests: list[_Request], replica: int, steps: list[dict]) -> None:
    """Continuous batching with chunked prefill; like decode steps are recorded as one fast-forward."""
    waiting, running, now, idx = [], [], 0.0, 0
    while idx < len(requests) or waiting or running:
        if not waiting and not running:
            now = max(now, requests[idx].arrival_s)
        while idx < len(requests) and requests[idx].arrival_s <= now:
            waiting.append(requests[idx])
            idx += 1
        budget, prefills, tokens = MAX_BATCHED_TOKENS - len(running), [], 0
        while waiting and budget > 0 and len(running) + len(prefills) < MAX_SEQS:
            request = waiting[0]
            if request.computed == 0:
                request.first_scheduled_s = now
            chunk = min(budget, request.prompt - request.computed)
            request.computed += chunk
            budget -= chunk
            tokens += chunk
            prefills.append(request)
            if request.computed < request.prompt:
                break
            waiting.pop(0)
        context = sum(r.prompt + r.emitted for r in running)
        num_steps = 1
        if not prefills:
            left = min(r.output - r.emitted for r in running)
            step_s = 0.011 + 3e-5 * len(running) + 6e-9 * context
            gap = requests[idx].arrival_s - now if idx < len(requests) else 1e9
            num_steps = max(1, min(left, int(gap / step_s)))
        duration = num_steps * (0.011 + 3e-5 * len(running) + 6e-9 * context + 3.1e-5 * tokens)
        finished = now + duration
        num_decodes = len(running)
        for request in running:
            request.emitted += num_steps
        for request in prefills:
            if request.computed == request.prompt:
                request.emitted, request.first_token_s = 1, finished
                running.append(request)
        for request in running:
            if request.emitted >= request.output:
                request.finish_s = finished
        running = [r for r in running if r.emitted < r.output]
        blocks = sum(-(-(r.prompt + r.emitted) // BLOCK_SIZE) for r in running)
        steps.append(
            dict(
                replica=replica,
                start_s=now,
                duration_s=duration,
                num_steps=num_steps,
                prefill_tokens=tokens,
                num_prefills=len(prefills),
                num_decodes=num_decodes,
                decode_context=context,
                num_waiting=len(waiting),
                kv_blocks_used=min(blocks, NUM_KV_BLOCKS),
            )
        )
        now = finished


def _quantiles(values: list[float]) -> dict:
    ordered = sorted(values)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return {
        "mean": statistics.fmean(values),
        "p50": at(0.5),
        "p90": at(0.9),
        "p95": at(0.95),
        "p99": at(0.99),
        "max": ordered[-1],
    }


_LAYER = [  # name, kind, microseconds, basis
    ("attn_norm", "kernel", 4.1, "measured"),
    ("qkv_proj", "kernel", 12.5, "measured"),
    ("rope", "kernel", 3.0, "interpolated"),
    ("kv_append", "kernel", 2.2, "roofline"),
    ("attention", "kernel", 21.0, "interpolated"),
    ("o_proj", "kernel", 10.4, "measured"),
    ("attn_all_reduce", "comm", 14.8, "measured"),
    ("ffn_norm", "kernel", 4.1, "measured"),
    ("gate_up_proj", "kernel", 34.9, "measured"),
    ("silu_mul", "kernel", 3.6, "interpolated"),
    ("down_proj", "kernel", 18.2, "measured"),
    ("ffn_all_reduce", "comm", 14.8, "measured"),
]
_NUM_LAYERS = 80


def _trace() -> dict:
    events = []
    for rank in range(4):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "pid": rank, "tid": 0, "name": "thread_name", "args": {"name": "stream 0"}})
    events.append({"ph": "M", "pid": 4, "name": "process_name", "args": {"name": "links"}})
    for link in range(4):
        events.append(
            {"ph": "M", "pid": 4, "tid": link, "name": "thread_name", "args": {"name": f"nvlink gpu{link}"}}
        )

    def add(pid: int, tid: int, name: str, start: float, dur: float, kind: str, **args: str) -> None:
        events.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "name": name,
                "cat": kind,
                "ts": round(start, 3),
                "dur": round(dur, 3),
                "args": args,
            }
        )

    now = 0.0
    for rank in range(4):
        add(rank, 0, "scheduler", 0.0, 1500.0, "host", basis="measured")
    now = 1500.0
    for rank in range(4):
        add(rank, 0, "embedding", now, 5.0, "kernel", basis="roofline")
    now += 5.0
    for _ in range(_NUM_LAYERS):
        for name, kind, microseconds, basis in _LAYER:
            for rank in range(4):
                add(rank, 0, name, now, microseconds, kind, basis=basis)
                if kind == "comm":
                    add(4, rank, name, now + 1.5, microseconds - 1.5, "link", bytes="262144")
            now += microseconds + 0.8
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write(
    directory: pathlib.Path,
    *,
    num_requests: int = 1500,
    rate_per_s: float = 7.0,
    num_replicas: int = 2,
    seed: int = 1,
) -> pathlib.Path:
    """Writes the five files of a run into `directory` and returns it; same arguments, same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    requests = _arrivals(num_requests, rate_per_s, random.Random(seed))
    steps: list[dict] = []
    for replica in range(num_replicas):
        mine = requests[replica::num_replicas]
        for request in mine:
            request.replica = replica
        _serve(mine, replica, steps)
    steps.sort(key=lambda step: (step["start_s"], step["replica"]))

    rows = []
    for r in requests:
        tpot = (
            (r.finish_s - r.first_token_s) / (r.output - 1) if r.output > 1 else ""
        )  # as the simulator writes it
        rows.append(
            dict(
                id=r.id,
                replica=r.replica,
                prompt_tokens=r.prompt,
                output_tokens=r.output,
                cached_tokens=0,
                num_preemptions=0,
                arrival_s=r.arrival_s,
                first_scheduled_s=r.first_scheduled_s,
                first_token_s=r.first_token_s,
                finish_s=r.finish_s,
                ttft_s=r.first_token_s - r.arrival_s,
                tpot_s=tpot,
                e2e_s=r.finish_s - r.arrival_s,
            )
        )
    _write_csv(directory / "requests.csv", rows)
    _write_csv(directory / "steps.csv", steps)
    (directory / "step.trace.json").write_text(json.dumps(_trace()))
    (directory / "scenario.yaml").write_text(SCENARIO)
    (directory / "summary.json").write_text(json.dumps(_summary(rows, steps, num_replicas), indent=2))
    return directory


def _summary(rows: list[dict], steps: list[dict], num_replicas: int) -> dict:
    duration = max(row["finish_s"] for row in rows) - rows[0]["arrival_s"]
    output = sum(row["output_tokens"] for row in rows)
    good = sum(row["ttft_s"] <= 2.0 and (row["tpot_s"] or 0.0) <= 0.05 for row in rows)
    tpot = [row["tpot_s"] for row in rows if row["output_tokens"] > 1]
    gaps = [s["duration_s"] / s["num_steps"] for s in steps if s["num_decodes"]]
    breakdown = [
        dict(op="host", kind="host", time_s=1500e-6, basis="measured"),
        dict(op="embedding", kind="kernel", time_s=5e-6, basis="roofline"),
    ]
    breakdown += [
        dict(op=name, kind=kind, time_s=_NUM_LAYERS * us * 1e-6, basis=basis)
        for name, kind, us, basis in _LAYER
    ]
    total = sum(entry["time_s"] for entry in breakdown)
    gib = 2**30
    return {
        "requests": len(rows),
        "output_tokens": output,
        "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
        "ttft_s": _quantiles([row["ttft_s"] for row in rows]),
        "tpot_s": _quantiles(tpot) if tpot else dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max")),
        "itl_s": _quantiles(gaps) if gaps else dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max")),
        "e2e_s": _quantiles([row["e2e_s"] for row in rows]),
        "output_tokens_per_s": output / duration,
        "output_tokens_per_s_per_gpu": output / duration / (4 * num_replicas),
        "requests_per_s": len(rows) / duration,
        "goodput": good / duration,
        "slo_attainment": good / len(rows),
        "kv_utilisation": {
            "mean": sum(s["kv_blocks_used"] * s["duration_s"] for s in steps)
            / (NUM_KV_BLOCKS * num_replicas * duration),
            "max": max(s["kv_blocks_used"] for s in steps) / NUM_KV_BLOCKS,
        },
        "preemptions": 0,
        "num_steps": sum(s["num_steps"] for s in steps),
        "basis": {"measured": 0.712, "interpolated": 0.259, "borrowed": 0.0, "roofline": 0.029},
        "duration_s": duration,
        "num_gpus": 4 * num_replicas,
        "memory_per_gpu": {
            "weights_bytes": 16.5 * gib,
            "kv_cache_bytes": 92.25 * gib,
            "activations_bytes": 3.0 * gib,
            "graphs_bytes": 1.5 * gib,
            "communication_bytes": 0.75 * gib,
            "hbm_bytes": 131.0 * gib,
        },
        "num_kv_blocks": NUM_KV_BLOCKS,
        "step": {
            "level": "representative",
            "prefill_tokens": 0,
            "num_prefills": 0,
            "num_decodes": 18,
            "decode_context": 23400,
            "makespan_s": total,
        },
        "warnings": [],
        "step_breakdown": [entry | {"share": entry["time_s"] / total} for entry in breakdown],
        "provenance": {"provider": "a toy, no GPU", "licences": ["synthetic data of the tests"]},
    }


def _write_csv(path: pathlib.Path, rows: list[dict]) -> None:
    lines = [",".join(rows[0])]
    lines += [
        ",".join(f"{value:.17g}" if isinstance(value, float) else str(value) for value in row.values())
        for row in rows
    ]
    path.write_text("\n".join(lines) + "\n")


def inflate_steps(directory: pathlib.Path, num_rows: int) -> None:
    """Cuts each row of steps.csv in equal parts, at least `num_rows` in all. For timing the report:
    counts of steps and tokens are repeated in each part, so they no longer add up."""
    path = directory / "steps.csv"
    header, *lines = path.read_text().splitlines()
    parts = -(-num_rows // len(lines))
    rows = []
    for line in lines:
        cells = dict(zip(header.split(","), line.split(",")))
        start, duration = float(cells["start_s"]), float(cells["duration_s"])
        for i in range(parts):
            rows.append(cells | {"start_s": start + i * duration / parts, "duration_s": duration / parts})
    _write_csv(path, rows)
