"""The benchmark that offers an engine what the run offered the simulator."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..simulation import project_root
from . import flags
from .deployment import FIRST_PORT, Deployment
from .plan import Plan

REQUESTS = "requests.jsonl"  # Mooncake's format: timestamp in ms, input_length, output_length, hash_ids of CHUNK tokens each
CHUNK = 512
Lengths = tuple[int, int]  # uniform between


@dataclasses.dataclass(frozen=True)
class Traffic:
    """A scenario's workload as clients can be told it."""

    kind: str  # trace, mooncake, requests, poisson, gamma, closed_loop, offline, static_batch
    num_requests: int
    rate: float  # requests per second; 0: as fast as concurrency allows
    cv: float  # of the times between arrivals
    concurrency: int  # 0: no limit
    prompt: Lengths | None  # none: of another distribution, or of a trace
    output: Lengths | None
    distinct_prompts: int

    @property
    def is_timed(self) -> bool:
        """Whether requests come at times of their own, whatever the service does."""
        return self.kind in ("trace", "mooncake", "requests", "poisson", "gamma")


@dataclasses.dataclass(frozen=True)
class Benchmark:
    commands: tuple[flags.Command, ...]  # the first is the engine's own where it can do it
    needs_requests: bool  # the file that `write_requests` writes
    notes: tuple[str, ...]

    @property
    def writes(self) -> str:
        """The file in which the first command leaves its results."""
        words = self.commands[0].words
        return next((words[words.index(name) + 1] for name in ("--result-filename", "--output-file") if name in words), _AIPERF)


_AIPERF = "bench/profile_export_aiperf.json"


def traffic_of(plan: Plan) -> Traffic:
    """What the scenario offers."""
    workload = plan.run.scenario["workload"]
    kind = next(key for key in workload if key in _KINDS)
    content = workload[kind] if isinstance(workload[kind], dict) else {}
    is_batch = kind == "static_batch"
    return Traffic(
        kind=kind,
        num_requests=len(plan.run.requests["id"]),
        rate=float(content.get("requests_per_s", 0)),
        cv=float(content.get("cv", 1)) if kind == "gamma" else 1.0,
        concurrency=int(content["batch" if is_batch else "concurrency"]) if is_batch or kind == "closed_loop" else 0,
        prompt=_lengths(content.get("prompt_tokens")),
        output=_lengths(content.get("output_tokens")),
        distinct_prompts=int(content.get("distinct_prompts", 0)),
    )


_KINDS = ("trace", "mooncake", "requests", "poisson", "gamma", "closed_loop", "offline", "static_batch")


def _lengths(found: Any) -> Lengths | None:
    if isinstance(found, str):
        return int(found), int(found)
    if isinstance(found, Mapping) and set(found) == {"min", "max"}:
        return int(found["min"]), int(found["max"])
    return None


def benchmark_of(deployment: Deployment) -> Benchmark:
    """Commands of clients against the deployment's first port."""
    plan, version = deployment.plan, deployment.version
    traffic = traffic_of(plan)
    commands = []
    notes = []
    replays = traffic.prompt is None or traffic.output is None
    engine = deployment.engine.name
    if engine == "vllm":
        command, remark = _vllm(plan, traffic, version, replays)
    elif engine == "sglang":
        command, remark = _sglang(plan, traffic, version, replays)
    else:
        command, remark = None, "TensorRT-LLM is measured by AIPerf."
    if command:
        commands.append(command)
    if remark:
        notes.append(remark)
    commands.append(_aiperf(plan, traffic, replays))
    if guidellm := _guidellm(plan, traffic):
        commands.append(guidellm)
    else:
        notes.append("GuideLLM draws Poisson arrivals and closed loops of fixed lengths only, so that no command of its own stands here.")
    if plan.run.warmup_requests:
        notes.append(f"The run leaves its first {plan.run.warmup_requests} requests out of all figures; 'orrery compare' does so in the benchmark too.")
    if plan.run.drain_requests:
        notes.append(f"The run leaves its last {plan.run.drain_requests} requests out of all figures, likewise; its rates are those before them.")
    if traffic.kind == "offline":
        notes.append("The run has no front end: all requests are queued at 0. Clients reach the engine through its HTTP server.")
    if not replays and traffic.is_timed:
        notes.append(f"Clients draw arrivals and lengths anew; to send the very requests of the run, write them with --requests {REQUESTS} and"
                     " replay that file.")  # fmt: skip
    return Benchmark(tuple(commands), replays, tuple(notes))


def _vllm(plan: Plan, traffic: Traffic, version: str, replays: bool) -> tuple[flags.Command | None, str]:
    found = flags.table("vllm_bench")
    known, _ = found.nearest(version)
    if replays and not found.has("--dataset-name", known, "timed_trace"):
        return None, f"vllm bench serve {version} cannot replay lengths from a file (timed_trace is there since 0.24.0); AIPerf can."
    command = flags.Command(found, known, "vllm", "bench", "serve")
    command.add("--backend", "vllm").add("--model", plan.checkpoint.name).add("--host", "127.0.0.1").add("--port", FIRST_PORT)
    if replays:
        command.add("--dataset-name", "timed_trace").add("--dataset-path", REQUESTS)
        command.add("--timed-trace-chunk-hash-size", CHUNK).add("--timed-trace-sec-multiplier", 0.001)
        command.add("--self-timed", traffic.is_timed)
    else:
        (prompt, prompt_ratio), (output, output_ratio) = _centred(traffic.prompt), _centred(traffic.output)
        command.add("--dataset-name", "random").add("--random-input-len", prompt).add("--random-output-len", output).add("--ignore-eos")
        if prompt_ratio == output_ratio:
            ratio = f"{prompt_ratio:.6g}"
        elif flags.order(known) < flags.order("0.24.0"):
            return None, f"vllm bench serve {version} has one --random-range-ratio for prompts and outputs; AIPerf replays both."
        else:
            ratio = json.dumps({"input": round(prompt_ratio, 6), "output": round(output_ratio, 6)})
        if ratio != "0":
            command.add("--random-range-ratio", ratio)
    _load(command, traffic, is_self_timed=replays and traffic.is_timed)
    if traffic.kind == "gamma" and not replays:
        command.add("--burstiness", 1 / traffic.cv**2)
    command.add("--num-prompts", traffic.num_requests).add("--seed", plan.seed)
    command.add("--percentile-metrics", "ttft,tpot,itl,e2el").add("--metric-percentiles", "50,90,95,99")
    return command.add("--save-result").add("--save-detailed").add("--result-filename", "bench.json"), ""


def _sglang(plan: Plan, traffic: Traffic, version: str, replays: bool) -> tuple[flags.Command | None, str]:
    if replays:
        return None, ("SGLang's bench_serving ignores the prompt lengths of a trace (its mooncake dataset makes prompts of the hash_ids alone), so"
                      " AIPerf replays it.")  # fmt: skip
    if traffic.kind == "gamma":
        return None, "SGLang's bench_serving knows Poisson arrivals only; AIPerf draws gamma."
    assert traffic.prompt and traffic.output, "lengths that are not uniform are replayed"
    ratios = {low / high for low, high in (traffic.prompt, traffic.output)}
    if len(ratios) > 1:
        return None, "SGLang's bench_serving has one --random-range-ratio for prompts and outputs; AIPerf replays both."
    found = flags.table("sglang_bench")
    known, _ = found.nearest(version)
    command = flags.Command(found, known, "python3", "-m", "sglang.bench_serving")
    command.add("--backend", "sglang").add("--model", plan.checkpoint.name).add("--host", "127.0.0.1").add("--port", FIRST_PORT)
    command.add("--dataset-name", "random-ids").add("--random-input-len", traffic.prompt[1]).add("--random-output-len", traffic.output[1])
    command.add("--random-range-ratio", ratios.pop())
    _load(command, traffic, is_self_timed=False)
    command.add("--num-prompts", traffic.num_requests).add("--seed", plan.seed)
    return command.add("--output-file", "bench.jsonl").add("--output-details"), ""


def _aiperf(plan: Plan, traffic: Traffic, replays: bool) -> flags.Command:
    found = flags.table("aiperf")
    command = flags.Command(found, found.default, "aiperf", "profile")
    command.add("--model", plan.checkpoint.name).add("--url", f"http://127.0.0.1:{FIRST_PORT}")
    command.add("--endpoint-type", "completions").add("--streaming").add("--use-server-token-count")
    is_uniform = traffic.prompt is None or traffic.output is None or traffic.prompt[0] != traffic.prompt[1] or traffic.output[0] != traffic.output[1]
    if replays or is_uniform:
        command.add("--input-file", REQUESTS).add("--custom-dataset-type", "mooncake_trace").add("--isl-block-size", CHUNK)
        command.add("--fixed-schedule" if traffic.is_timed else "--no-fixed-schedule")
    else:
        assert traffic.prompt and traffic.output, "of fixed lengths"
        command.add("--isl", traffic.prompt[0]).add("--osl", traffic.output[0])
        if traffic.is_timed:
            command.add("--request-rate", f"{traffic.rate:.6g}").add("--arrival-pattern", "gamma" if traffic.kind == "gamma" else "poisson")
            if traffic.kind == "gamma":
                command.add("--arrival-smoothness", 1 / traffic.cv**2)
    if not traffic.is_timed:
        command.add("--concurrency", traffic.concurrency or traffic.num_requests)
    command.add("--request-count", traffic.num_requests).add("--extra-inputs", "ignore_eos:true").add("--random-seed", plan.seed)
    return command.add("--output-artifact-dir", "bench")


def _guidellm(plan: Plan, traffic: Traffic) -> flags.Command | None:
    """None for what it does not draw: its lengths, where they differ, are of a normal distribution. It asks for all output tokens."""
    is_drawn = traffic.kind in ("poisson", "closed_loop", "offline", "static_batch") and not traffic.distinct_prompts
    lengths = (traffic.prompt, traffic.output)
    if not is_drawn or not all(found and found[0] == found[1] for found in lengths):
        return None
    assert traffic.prompt and traffic.output, "of fixed lengths"
    found = flags.table("guidellm")
    command = flags.Command(found, found.default, "guidellm", "run")
    command.add("--backend", {"kind": "openai_http", "target": f"http://127.0.0.1:{FIRST_PORT}", "model": plan.checkpoint.name})
    if traffic.rate:
        command.add("--profile", {"kind": "poisson", "rate": f"{traffic.rate:.6g}"})
    elif traffic.concurrency:
        command.add("--profile", {"kind": "concurrent", "streams": traffic.concurrency})
    else:
        command.add("--profile", {"kind": "throughput", "max_concurrency": traffic.num_requests})
    command.add("--data", {"kind": "synthetic_text", "prompt_tokens": traffic.prompt[0], "output_tokens": traffic.output[0]})
    command.add("--constraint", {"kind": "max_requests", "count": traffic.num_requests})
    return command.add("--seed", {"kind": "static", "value": plan.seed}).add("--output", {"kind": "json", "path": "benchmarks.json"})


def _load(command: flags.Command, traffic: Traffic, *, is_self_timed: bool) -> None:
    if not is_self_timed:
        command.add("--request-rate", f"{traffic.rate:.6g}" if traffic.rate else "inf")
    if traffic.concurrency:
        command.add("--max-concurrency", traffic.concurrency)


def _centred(lengths: Lengths | None) -> tuple[int, float]:
    """Middle and half width over middle."""
    assert lengths is not None, "lengths that are not uniform are replayed"
    low, high = lengths
    middle = (low + high) // 2
    return middle, (high - low) / (2 * middle)


def request_lines(plan: Plan) -> Iterator[str]:
    """The requests of the run in Mooncake's format. Prompts share chunks only where the run's prompts do."""
    requests = plan.run.requests
    prompts = np.asarray(requests["prompt_tokens"]).astype(int)
    outputs = np.asarray(requests["output_tokens"]).astype(int)
    arrivals = np.asarray(requests["arrival_s"])
    shared = _shared_chunks(plan)
    next_id = 0
    firsts: dict[int, int] = {}
    distinct = traffic_of(plan).distinct_prompts
    for i in np.argsort(arrivals, kind="stable"):
        if shared is not None:
            ids = shared[int(requests["id"][i])]
        else:
            count = -(-int(prompts[i]) // CHUNK)
            prompt = int(requests["id"][i]) % distinct if distinct else -1
            first = firsts.get(prompt, next_id)
            if distinct:
                firsts.setdefault(prompt, first)
            next_id = max(next_id, first + count)
            ids = list(range(first, first + count))
        line = {"timestamp": round(1000 * float(arrivals[i] - arrivals.min()), 3), "input_length": int(prompts[i]),
                "output_length": int(outputs[i]), "hash_ids": ids}  # fmt: skip
        yield json.dumps(line)


def _shared_chunks(plan: Plan) -> list[list[int]] | None:
    """hash_ids of the trace that the run replayed, where it has some."""
    name = plan.run.scenario["workload"].get("mooncake")
    if name is None:
        return None
    path = next((base / name for base in (pathlib.Path(), project_root()) if (base / name).is_file()), None)
    if path is None:
        raise ValueError(f"found no trace '{name}', which the run replayed; expected it here or in {project_root()}")
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["hash_ids"] for line in file if line.strip()]


__all__ = ["REQUESTS", "Benchmark", "Traffic", "benchmark_of", "request_lines", "traffic_of"]
