"""Random services: scenarios as trees of plain values, whose YAML is written as JSON.

Small enough that one takes a fraction of a second; placements are legal ones of the model at hand, so that nearly all
of them run.
"""

from __future__ import annotations

import json
import random
from typing import Any

Tree = dict[str, Any]

# Models by the attention heads that bound their tp, whether they are mixtures of experts, and the most GPUs they need.
DENSE = {"llama-3.1-8b": 8, "qwen3-8b": 8, "llama-3.2-1b": 8}
EXPERTS = {"qwen3-30b-a3b": 4, "gpt-oss-20b": 8, "deepseek-v2-lite": 4}
PROFILES = ("vllm", "vllm_sync", "vllm_eager", "trtllm", "trtllm_engine", "sglang", "sglang_mixed")
PROVIDERS = ("vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20", "none")
ROUTERS = ("round_robin", "least_loaded", "prefix_aware")


def lengths(rng: random.Random, largest: int) -> Any:
    """Of prompts or outputs, in any of the forms that scenarios know."""
    some = max(2, largest // rng.choice((2, 4, 10)))
    return rng.choice(
        (
            some,
            {"min": 1, "max": some},
            {"values": [1, some // 2 + 1, some]},
            {"mean": some, "cv": rng.choice((0, 0.3, 0.6)), "min": 1, "max": 4 * largest},
            {"mean": some, "p50": max(1, some * 4 // 5), "min": 1, "max": 8 * largest},
        )
    )


def workload(rng: random.Random, *, num_requests: int, largest: int) -> Tree:
    """Arrivals of every kind but traces, with requests of at most `largest` prompt and as many output tokens."""
    tokens = {"prompt_tokens": lengths(rng, largest), "output_tokens": lengths(rng, max(2, largest // 4))}
    rate = rng.choice((0.5, 3, 20, 200))
    kind = rng.choice(("poisson", "gamma", "closed_loop", "offline", "static_batch"))
    if kind == "static_batch":
        return {kind: {"batch": rng.randint(1, 16)} | tokens}
    what = {
        "poisson": {"requests_per_s": rate},
        "gamma": {"requests_per_s": rate, "cv": rng.choice((0.3, 1, 4))},
        "closed_loop": {"concurrency": rng.randint(1, 40)} | ({"distinct_prompts": 3} if rng.random() < 0.3 else {}),
        "offline": {},
    }[kind]
    warm_up = {"warmup_requests": rng.randint(0, num_requests - 1)} if rng.random() < 0.2 else {}
    return {kind: what | {"num_requests": num_requests} | tokens} | warm_up


def placement(rng: random.Random, model: str, largest: int = 8) -> Tree:
    """At most `largest` GPUs."""
    most = {**DENSE, **EXPERTS}[model]
    tp = rng.choice([n for n in (1, 2, 4, 8) if n <= min(most, largest)])
    place = {"tp": tp}
    if tp * 2 <= largest and rng.random() < 0.25:
        place["dp"] = 2
    if tp * place.get("dp", 1) * 2 <= largest and rng.random() < 0.2:
        place["pp"] = 2
    used = tp * place.get("dp", 1) * place.get("pp", 1)
    if used * 2 <= largest and rng.random() < 0.4:
        place["replicas"] = largest // used if rng.random() < 0.5 else 2
    if model in EXPERTS and "pp" not in place and rng.random() < 0.5:
        place["ep"] = tp * place.get("dp", 1)
    return place


def engine(rng: random.Random) -> Tree:
    choices = {
        "max_num_seqs": (1, 4, 64, 256),
        "max_num_batched_tokens": (512, 2048, 8192),
        "block_size": (16, 32, 64),
        "enable_prefix_caching": (True, False),
        "enable_chunked_prefill": (True, True, False),
        "scheduler_reserve_full_isl": (True, False),
        "stream_interval": (1, 5),
        "max_prefill_tokens": (0, 3000),
        "gpu_memory_utilization": (0.9, 0.8, 0.95),
    }
    chosen = {"profile": rng.choice(PROFILES)} | {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.35}
    if "max_num_batched_tokens" in chosen:
        chosen.setdefault("max_num_seqs", 128)  # some profiles seat more than that
        if "trtllm" in chosen["profile"] or not chosen.get("enable_chunked_prefill", True):
            chosen["max_num_batched_tokens"] = 8192  # the longest prompt, computed again with its output, is one chunk
    return chosen


def service(rng: random.Random, *, largest: int = 2000) -> Tree:
    """A whole scenario."""
    model = rng.choice((*DENSE, *EXPERTS))
    config = {"config": model}
    if rng.random() < 0.3 and model != "gpt-oss-20b":
        config |= {"weights": "fp8", "activations": "fp8"}
    scenario = {
        "question": "a random service",
        "model": config,
        "machine": "hgx-h200",
        "provider": rng.choice(PROVIDERS),
        "engine": engine(rng),
        "workload": workload(rng, num_requests=rng.randint(2, 60), largest=rng.choice((16, 200, largest))),
        "slo": {"ttft": "500 ms", "tpot": "30 ms"},
        "seed": rng.randint(0, 2**31),
    }
    if rng.random() < 0.1:
        scenario["step_level"] = rng.choice(("heap", "representative", "all_ranks"))
        scenario["workload"] = workload(rng, num_requests=rng.randint(2, 8), largest=200)
    # Served as they come: what is disaggregated takes no batch that is there at once.
    if rng.random() < 0.2 and not {"static_batch", "offline"} & set(scenario["workload"]):
        tp = rng.choice((1, 2))
        scenario["disaggregation"] = {"prefill": {"replicas": rng.randint(1, 2), "tp": tp},
                                      "decode": {"replicas": rng.randint(1, 2), "tp": tp}}  # fmt: skip
    else:
        scenario["placement"] = placement(rng, model)
    if rng.random() < 0.5:
        scenario["router"] = rng.choice(ROUTERS)
        if scenario["router"] == "prefix_aware":
            scenario["engine"]["enable_prefix_caching"] = True
    return scenario


def yaml_of(tree: Tree) -> str:
    """One top-level key a line."""
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in tree.items())


def csv_trace(rng: random.Random, *, num_requests: int, largest: int) -> str:
    at, rows = 0.0, ["arrival_s,prompt_tokens,output_tokens"]
    for _ in range(num_requests):
        at += rng.expovariate(20)
        rows.append(f"{at:.6f},{rng.randint(1, largest)},{rng.randint(1, max(1, largest // 8))}")
    return "\n".join(rows) + "\n"


def mooncake_trace(rng: random.Random, *, num_requests: int) -> str:
    at, rows = 0, []
    for _ in range(num_requests):
        at += rng.randint(0, 200)
        tokens = rng.randint(1, 4000)
        hashes = [rng.randint(0, 5) if i == 0 else rng.randint(0, 10**6) for i in range((tokens + 511) // 512)]
        rows.append(json.dumps({"timestamp": at, "input_length": tokens, "output_length": rng.randint(1, 200), "hash_ids": hashes}))
    return "\n".join(rows) + "\n"
