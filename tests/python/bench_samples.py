"""Files as benchmark clients write them, of requests that the simulator served: what a perfect measurement would have found.

The keys are those of the sources that orrery.compare.bench_files names.
"""

from __future__ import annotations

import json

import numpy as np
import orrery


def served(scenario, *, sets=()):
    """Columns of requests.csv of a scenario, as arrays."""
    result = orrery.simulate(orrery.load(scenario, overrides=list(sets)))
    return {name: np.array(values, dtype=float) for name, values in result.requests.columns().items()}


def slowed(columns, *, first_s=0.0, per_prompt_token_s=0.0, gap=1.0):
    """The same requests with first tokens later and times between tokens longer, whatever queues would make of it."""
    tokens = np.maximum(columns["output_tokens"] - 1, 0)
    ttft = columns["ttft_s"] + first_s + per_prompt_token_s * columns["prompt_tokens"]
    tpot = columns["tpot_s"] * gap
    return {**columns, "ttft_s": ttft, "tpot_s": tpot, "e2e_s": ttft + tokens * np.nan_to_num(tpot)}


def _gaps(columns):
    """Equal times between the tokens of a request."""
    counts = np.maximum(columns["output_tokens"] - 1, 0).astype(int)
    return [[float(tpot)] * count for tpot, count in zip(np.nan_to_num(columns["tpot_s"]), counts)]


def _span(columns):
    return float((columns["arrival_s"] + columns["e2e_s"]).max() - columns["arrival_s"].min())


def _flat(columns, e2e, quantiles=(90, 99)):
    found = {}
    for name, values in (("ttft", columns["ttft_s"]), ("tpot", columns["tpot_s"]), (e2e, columns["e2e_s"])):
        values = 1e3 * values[np.isfinite(values)]
        found |= {f"mean_{name}_ms": values.mean(), f"median_{name}_ms": np.median(values)}
        found |= {f"p{q}_{name}_ms": np.quantile(values, q / 100) for q in quantiles}
    return found


def vllm(path, columns, *, model="meta-llama/Meta-Llama-3.1-8B", detailed=True, failed=0):
    """vllm bench serve --save-result, and --save-detailed."""
    count = len(columns["ttft_s"])
    content = {
        "date": "20260101-000000", "endpoint_type": "vllm", "backend": "vllm", "label": None, "model_id": model, "tokenizer_id": model,
        "num_prompts": count + failed, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None, "duration": _span(columns),
        "completed": count, "failed": failed, "total_input_tokens": int(columns["prompt_tokens"].sum()),
        "total_output_tokens": int(columns["output_tokens"].sum()), "request_throughput": count / _span(columns),
        "output_throughput": columns["output_tokens"].sum() / _span(columns), **_flat(columns, "e2el"),
    }  # fmt: skip
    if detailed:
        content |= {
            "input_lens": [*map(int, columns["prompt_tokens"]), *[10] * failed], "output_lens": [*map(int, columns["output_tokens"]), *[0] * failed],
            "ttfts": [*map(float, columns["ttft_s"]), *[0.0] * failed], "itls": [*_gaps(columns), *[[]] * failed],
            "start_times": [*(1000.0 + float(at) for at in columns["arrival_s"]), *[1000.0] * failed], "generated_texts": [""] * (count + failed),
            "errors": [*[""] * count, *["refused"] * failed],
        }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def sglang(path, columns, *, model="meta-llama/Llama-3.1-8B-Instruct", detailed=True):
    """sglang.bench_serving --output-file, and --output-details; one object a line."""
    count = len(columns["ttft_s"])
    content = {
        "tag": None, "backend": "sglang", "dataset_name": "random-ids", "request_rate": "trace", "max_concurrency": None,
        "server_info": {"model_path": model}, "duration": _span(columns), "completed": count,
        "total_input_tokens": int(columns["prompt_tokens"].sum()), "total_output_tokens": int(columns["output_tokens"].sum()),
        "request_throughput": count / _span(columns), "output_throughput": columns["output_tokens"].sum() / _span(columns),
        **_flat(columns, "e2e_latency"),
    }  # fmt: skip
    if detailed:
        content |= {"input_lens": [*map(int, columns["prompt_tokens"])], "output_lens": [*map(int, columns["output_tokens"])],
                    "ttfts": [*map(float, columns["ttft_s"])], "itls": _gaps(columns), "errors": [""] * count}  # fmt: skip
    path.write_text(json.dumps(content) + "\n")
    return path


def _distribution(values):
    values = values[np.isfinite(values)]
    percentiles = {f"p{name}": float(np.quantile(values, share)) for name, share in (("50", 0.5), ("90", 0.9), ("95", 0.95), ("99", 0.99))}
    return {"mean": float(values.mean()), "median": float(np.median(values)), "count": len(values), "percentiles": percentiles}


def guidellm(path, columns, *, model="meta-llama/Llama-3.1-8B", benchmarks=1):
    """GuideLLM's benchmarks.json."""
    metrics = {"time_to_first_token_ms": 1e3 * columns["ttft_s"], "inter_token_latency_ms": 1e3 * columns["tpot_s"],
               "request_latency": columns["e2e_s"], "requests_per_second": np.array([len(columns["ttft_s"]) / _span(columns)]),
               "output_tokens_per_second": np.array([columns["output_tokens"].sum() / _span(columns)])}  # fmt: skip
    requests = [
        {"type_": "generative_request_stats", "request_id": str(i), "request_start_time": 1.7e9 + float(columns["arrival_s"][i]),
         "prompt_tokens": int(columns["prompt_tokens"][i]), "output_tokens": int(columns["output_tokens"][i]),
         "time_to_first_token_ms": 1e3 * float(columns["ttft_s"][i]),
         "inter_token_latency_ms": None if np.isnan(columns["tpot_s"][i]) else 1e3 * float(columns["tpot_s"][i]),
         "request_latency": float(columns["e2e_s"][i])}
        for i in range(len(columns["ttft_s"]))
    ]  # fmt: skip
    one = {
        "type_": "generative_benchmark",
        "config": {"backend": {"kind": "openai_http", "model": model}},
        "metrics": {name: {"successful": _distribution(values), "errored": None, "incomplete": None} for name, values in metrics.items()}
        | {"request_totals": {"successful": len(requests), "errored": 0, "incomplete": 0, "total": len(requests)}},
        "requests": {"successful": requests, "errored": [], "incomplete": []},
    }
    path.write_text(json.dumps({"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [one] * benchmarks}))
    return path


def _metric(values, unit):
    values = values[np.isfinite(values)]
    return {"unit": unit, "avg": float(values.mean()), **{f"p{q}": float(np.quantile(values, q / 100)) for q in (50, 90, 95, 99)}}


def aiperf(path, columns, *, model="meta-llama/Llama-3.1-8B", is_genai_perf=False):
    """AIPerf's profile_export_aiperf.json; genai-perf's has the same metrics."""
    span = _span(columns)
    content = {
        "request_throughput": {"unit": "requests/sec", "avg": len(columns["ttft_s"]) / span},
        "output_token_throughput": {"unit": "tokens/sec", "avg": float(columns["output_tokens"].sum() / span)},
        "request_count": {"unit": "requests", "avg": float(len(columns["ttft_s"]))},
        "request_latency": _metric(1e3 * columns["e2e_s"], "ms"),
        "time_to_first_token": _metric(1e3 * columns["ttft_s"], "ms"),
        "inter_token_latency": _metric(1e3 * columns["tpot_s"], "ms"),
    }
    names = {"model_names": [model]} if is_genai_perf else {"models": {"items": [{"name": model}]}}
    content |= {"input_config": names} | ({} if is_genai_perf else {"schema_version": "1.4", "aiperf_version": "0.13.0"})
    path.write_text(json.dumps(content))
    return path


def aiperf_records(path, columns):
    """AIPerf's profile_export.jsonl, requests as they end."""
    lines = []
    for i in np.argsort(columns["arrival_s"] + columns["e2e_s"], kind="stable"):
        metrics = {"input_sequence_length": (columns["prompt_tokens"][i], "tokens"), "output_sequence_length": (columns["output_tokens"][i], "tokens"),
                   "time_to_first_token": (1e3 * columns["ttft_s"][i], "ms"), "request_latency": (1e3 * columns["e2e_s"][i], "ms"),
                   "inter_token_latency": (1e3 * columns["tpot_s"][i], "ms")}  # fmt: skip
        start = int(1.7e18 + round(1e9 * columns["arrival_s"][i]))
        lines.append({"metadata": {"request_start_ns": start, "request_end_ns": start + int(1e9 * columns["e2e_s"][i]), "benchmark_phase": "profiling"},
                      "metrics": {name: {"value": float(value), "unit": unit} for name, (value, unit) in metrics.items() if np.isfinite(value)},
                      "error": None})  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


__all__ = ["aiperf", "aiperf_records", "guidellm", "served", "sglang", "slowed", "vllm"]
