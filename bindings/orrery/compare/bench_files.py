"""What benchmark clients write, as one form: figures in seconds and, where the file has them, the single requests.

    format          read from (repository, file, version)
    vllm            vllm-project/vllm, vllm/benchmarks/serve.py of 0.11.0 to 0.33.0: one JSON object (a line each with --append-result)
    sglang          sgl-project/sglang, python/sglang/bench_serving.py of 0.5.14: a JSON object in each line
    guidellm        vllm-project/guidellm, guidellm/benchmark/schemas/ and schemas/base/request_stats.py of 0.8.1: benchmarks.json
    aiperf          ai-dynamo/aiperf, aiperf/common/models/export_models.py and record_models.py of 0.13.0: profile_export_aiperf.json,
                    profile_export.jsonl; genai-perf 0.0.16 writes the first as profile_export_genai_perf.json

A request's TPOT is (last token - first token) / (tokens - 1), which vLLM and SGLang call TPOT, GuideLLM and AIPerf inter-token latency.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import json_values

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
FORMATS = "what 'vllm bench serve --save-result', SGLang's bench_serving, GuideLLM or AIPerf write"
_MOST = 1e9  # seconds of a request, tokens of one; more are of no benchmark
Columns = dict[str, np.ndarray]
Figures = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Bench:
    path: pathlib.Path
    tool: str
    model: str  # "" where the file does not say
    figures: Figures  # ttft_s, tpot_s, itl_s, e2e_s: the statistics that the file has or its requests give
    rates: dict[str, float]  # requests_per_s, output_tokens_per_s
    num_requests: int  # that ended well
    num_failed: int
    requests: Columns | None  # start_s (nan where unknown), prompt_tokens, output_tokens, ttft_s, tpot_s, e2e_s; those that ended well
    itl_s: np.ndarray | None  # every time between two tokens
    notes: tuple[str, ...] = ()

    @property
    def has_times(self) -> bool:
        """Whether it is known when each request was sent and how long it was."""
        names = ("start_s", "prompt_tokens", "output_tokens")
        return self.requests is not None and all(bool(np.isfinite(self.requests[name]).all()) for name in names)


def read(path: pathlib.Path) -> Bench:
    """Raises ValueError saying what was found and what is expected."""
    if not path.is_file():
        raise ValueError(f"found no file '{path}'; expected {FORMATS}")
    objects = _objects(path)
    if not is_bench(objects[0]):
        keys = cut(", ".join(list(objects[0])[:8])) or "nothing"
        raise ValueError(f"{path}: found an object with {keys}; expected {FORMATS}")
    return of_objects(path, objects)


def is_bench(first: Mapping[str, Any]) -> bool:
    """Whether an object is the first of a benchmark's file."""
    return any(recognises(first) for recognises, _ in _READERS)


def of_objects(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    """The benchmark of `path`, whose first object `is_bench`. Raises as `read`."""
    reader = next(reader for recognises, reader in _READERS if recognises(objects[0]))
    try:
        return _checked(reader(path, objects))
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, ValueError) as error:
        if str(error).startswith(str(path)):  # says already what is wrong
            raise
        what = cut(f"no {error}" if isinstance(error, KeyError) else str(error))
        raise ValueError(f"{path}: damaged, or of a version that is not known: {what}") from None


def cut(text: str, most: int = 200) -> str:
    """What an error quotes of a file: its head where it is long."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _objects(path: pathlib.Path) -> list[dict[str, Any]]:
    """The file as one object, or one in each line."""
    found = json_values.read(path, FORMATS)
    for one in found:
        if not isinstance(one, dict):
            raise ValueError(f"{path}: found {type(one).__name__}; expected an object, {FORMATS}")
    return found


def _checked(bench: Bench) -> Bench:
    """Raises ValueError for figures that no benchmark can have."""
    for metric, statistics in bench.figures.items():
        for name, value in statistics.items():
            if not 0 <= value <= _MOST:
                raise ValueError(f"{bench.path}: found {value} for {name} of {metric}; expected seconds from 0 to {_MOST:g}")
    for name, value in bench.rates.items():
        if not 0 <= value <= 1e12:
            raise ValueError(f"{bench.path}: found {value} {name}; expected a rate of 0 or more")
    if bench.num_requests < 1 or not bench.figures:
        raise ValueError(f"{bench.path}: found {bench.num_requests} requests that ended well; expected at least one with its times")
    if bench.requests is not None:
        for name, values in bench.requests.items():
            bad = np.isnan(values) if name in ("ttft_s", "e2e_s") else np.zeros(len(values), bool)
            if bad.any() or (name != "start_s" and not ((values >= 0) & (values <= _MOST) | np.isnan(values)).all()):
                raise ValueError(f"{bench.path}: found a missing, negative or endless {name} of a request that ended well")
    return bench


def statistics(values: np.ndarray) -> dict[str, float]:
    """Mean and quantiles of what is finite; empty of nothing."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    quantiles = np.quantile(values, (0.5, 0.9, 0.95, 0.99))
    return {"mean": float(values.mean()), **dict(zip(STATISTICS[1:], map(float, quantiles)))}


def figures_of(requests: Columns, itl_s: np.ndarray | None) -> Figures:
    """The statistics of single requests."""
    found = {name: statistics(requests[name]) for name in ("ttft_s", "tpot_s", "e2e_s")}
    if itl_s is not None:
        found["itl_s"] = statistics(itl_s)
    return {name: values for name, values in found.items() if values}


# --- vllm bench serve, sglang.bench_serving: flat keys such as p99_ttft_ms, and lists of requests


def _is_vllm(found: Mapping[str, Any]) -> bool:
    return "completed" in found and "request_throughput" in found and "model_id" in found


def _is_sglang(found: Mapping[str, Any]) -> bool:
    return "completed" in found and "dataset_name" in found and "backend" in found


def _read_vllm(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    return _flat(path, objects, "vllm bench serve", str(objects[-1].get("model_id", "")), "e2el")


def _read_sglang(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    info = objects[-1].get("server_info")
    model = str(info.get("model_path", "")) if isinstance(info, dict) else ""
    return _flat(path, objects, "sglang.bench_serving", model, "e2e_latency")


def _flat(path: pathlib.Path, objects: Sequence[dict[str, Any]], tool: str, model: str, e2e: str) -> Bench:
    found = objects[-1]
    notes = () if len(objects) == 1 else (f"{path} has {len(objects)} runs of the benchmark; this is the last.",)
    requests, itl = _listed(path, found) if "ttfts" in found else (None, None)
    figures: Figures = {}
    for metric, name in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("e2e_s", e2e)):
        keys = {"mean": f"mean_{name}_ms", "p50": f"median_{name}_ms", "p90": f"p90_{name}_ms", "p95": f"p95_{name}_ms", "p99": f"p99_{name}_ms"}
        stated = {statistic: float(found[key]) / 1e3 for statistic, key in keys.items() if found.get(key) is not None}
        if stated:
            figures[metric] = stated
    if requests is not None:
        figures |= figures_of(requests, itl)
    completed = int(found["completed"])
    rates = {"requests_per_s": float(found["request_throughput"]), "output_tokens_per_s": float(found["output_throughput"])}
    listed = len(found["ttfts"]) if requests is not None else int(found.get("num_prompts") or completed)
    return Bench(path, tool, model, figures, rates, completed, max(listed - completed, 0), requests, itl, notes)


def _listed(path: pathlib.Path, found: Mapping[str, Any]) -> tuple[Columns, np.ndarray]:
    """Requests that ended well; those that failed have no token or an error."""
    names = ("input_lens", "output_lens", "ttfts", "itls")
    counts = {name: len(found[name]) for name in names}
    if len(set(counts.values())) > 1:
        raise ValueError(f"{path}: found lists of different lengths: {counts}; expected one entry for each request")
    errors = found.get("errors") or [""] * counts["ttfts"]
    ended = np.array([float(first) > 0 and not error for first, error in zip(found["ttfts"], errors)], dtype=bool)
    starts = found.get("start_times") or [np.nan] * counts["ttfts"]
    gaps = [np.asarray(each, dtype=float) for each in found["itls"]]
    ttft = np.asarray(found["ttfts"], dtype=float)
    outputs = np.asarray(found["output_lens"], dtype=float)
    streamed = np.array([each.sum() for each in gaps])
    columns = {
        "start_s": np.asarray(starts, dtype=float),
        "prompt_tokens": np.asarray(found["input_lens"], dtype=float),
        "output_tokens": outputs,
        "ttft_s": ttft,
        "tpot_s": np.where(outputs > 1, streamed / np.maximum(outputs - 1, 1), np.nan),
        "e2e_s": ttft + streamed,
    }
    kept = [each for each, is_kept in zip(gaps, ended) if is_kept]
    return _by_start({name: values[ended] for name, values in columns.items()}), np.concatenate(kept) if kept else np.array([])


def _by_start(columns: Columns) -> Columns:
    order = np.argsort(columns["start_s"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


# --- GuideLLM


def _is_guidellm(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("benchmarks"), list)


def _read_guidellm(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    benchmarks = objects[0]["benchmarks"]
    if len(benchmarks) != 1:
        raise ValueError(f"{path}: found {len(benchmarks)} benchmarks; expected one, at the load of the run (a sweep has one for each load)")
    found = benchmarks[0]
    metrics = found["metrics"]
    figures: Figures = {}
    for metric, name, scale in (("ttft_s", "time_to_first_token_ms", 1e-3), ("tpot_s", "inter_token_latency_ms", 1e-3),
                                ("e2e_s", "request_latency", 1.0)):  # fmt: skip
        summary = (metrics.get(name) or {}).get("successful")
        if summary:
            quantiles = {key: value for key in STATISTICS[1:] if (value := summary["percentiles"].get(key)) is not None}
            figures[metric] = {key: scale * float(value) for key, value in {"mean": summary["mean"], **quantiles}.items()}
    rates = {"requests_per_s": float(metrics["requests_per_second"]["successful"]["mean"]),
             "output_tokens_per_s": float(metrics["output_tokens_per_second"]["successful"]["mean"])}  # fmt: skip
    ended = found["requests"]["successful"] or []
    requests = _guidellm_requests(ended) if ended else None
    if requests is not None:
        figures |= figures_of(requests, None)
    totals = metrics["request_totals"]
    failed = int(totals.get("errored") or 0) + int(totals.get("incomplete") or 0)
    model = str((found.get("config") or {}).get("backend", {}).get("model") or "")
    return Bench(path, "GuideLLM", model, figures, rates, int(totals["successful"]), failed, requests, None)


def _guidellm_requests(ended: Sequence[Mapping[str, Any]]) -> Columns:
    def column(name: str, scale: float = 1.0) -> np.ndarray:
        return np.array([np.nan if one.get(name) is None else scale * float(one[name]) for one in ended])

    return _by_start(
        {
            # start_time until 0.3 (benchmark/objects.py, GenerativeRequestStats)
            "start_s": column("start_time" if "request_start_time" not in ended[0] else "request_start_time"),
            "prompt_tokens": column("prompt_tokens"),
            "output_tokens": column("output_tokens"),
            "ttft_s": column("time_to_first_token_ms", 1e-3),
            "tpot_s": column("inter_token_latency_ms", 1e-3),
            "e2e_s": column("request_latency"),
        }
    )


# --- AIPerf and genai-perf

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_AIPERF = {"ttft_s": "time_to_first_token", "tpot_s": "inter_token_latency", "itl_s": "inter_chunk_latency", "e2e_s": "request_latency"}
_RECORDS = "profile_export.jsonl"


def _is_aiperf(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("request_latency"), dict) and "unit" in found["request_latency"]


def _is_aiperf_record(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("metadata"), dict) and "request_start_ns" in found["metadata"]


def _is_raw(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("experiments"), list)


def _read_raw(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    raise ValueError(f"{path}: found the raw export of perf_analyzer, which has no counts of tokens; expected profile_export_genai_perf.json,"
                     " which lies beside it")  # fmt: skip


def _read_aiperf(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    found = objects[0]
    figures: Figures = {}
    for metric, name in _AIPERF.items():
        if entry := found.get(name):
            scale = _UNITS[str(entry["unit"]).lower()]
            figures[metric] = {key: scale * float(entry[theirs])
                               for key, theirs in (("mean", "avg"), *((name, name) for name in STATISTICS[1:]))
                               if entry.get(theirs) is not None}  # fmt: skip
    rates = {"requests_per_s": float(found["request_throughput"]["avg"]), "output_tokens_per_s": float(found["output_token_throughput"]["avg"])}
    beside = next((file for name in (_RECORDS, f"{_RECORDS}.gz") if (file := path.with_name(name)).is_file()), path)
    requests = None
    if beside != path:
        requests, _, _ = _records(beside, _objects(beside))
        figures |= figures_of(requests, None)
    count = int(found["request_count"]["avg"]) if "request_count" in found else len(requests["ttft_s"]) if requests else 0
    failed = int((found.get("error_request_count") or {}).get("avg") or 0)
    return Bench(path, "AIPerf" if "aiperf_version" in found else "AIPerf or genai-perf", _aiperf_model(found), figures, rates, count, failed, requests, None)


def _aiperf_model(found: Mapping[str, Any]) -> str:
    """The first model of input_config, whose form changed over the versions."""
    config = found.get("input_config") or {}
    for holder in (config.get("endpoint"), config):
        for key in ("model_names", "models", "model"):
            names = holder.get(key) if isinstance(holder, dict) else None
            if isinstance(names, dict):
                names = names.get("items") or names.get("name")
            if isinstance(names, list) and names:
                names = names[0]
            if isinstance(names, dict):
                names = names.get("name")
            if isinstance(names, str):
                return names
    return ""


def _read_aiperf_records(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> Bench:
    requests, failed, ends = _records(path, objects)
    if not len(ends):
        raise ValueError(f"{path}: found no request that ended well; expected at least one")
    span = max(float(ends.max() - requests["start_s"].min()), 1e-9)
    rates = {"requests_per_s": len(ends) / span, "output_tokens_per_s": float(np.nansum(requests["output_tokens"])) / span}
    return Bench(path, "AIPerf", "", figures_of(requests, None), rates, len(ends), failed, requests, None)


def _records(path: pathlib.Path, objects: Sequence[dict[str, Any]]) -> tuple[Columns, int, np.ndarray]:
    ended = [one for one in objects if not one.get("error") and one["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    failed = sum(bool(one.get("error")) for one in objects)

    def column(name: str, is_time: bool = True) -> np.ndarray:
        entries = [one["metrics"].get(name) for one in ended]
        return np.array([np.nan if e is None else float(e["value"]) * (_UNITS[str(e["unit"]).lower()] if is_time else 1) for e in entries])

    columns = {
        "start_s": np.array([int(one["metadata"]["request_start_ns"]) * 1e-9 for one in ended]),
        "prompt_tokens": column("input_sequence_length", False),
        "output_tokens": column("output_sequence_length", False),
        "ttft_s": column("time_to_first_token"),
        "tpot_s": column("inter_token_latency"),
        "e2e_s": column("request_latency"),
    }
    return _by_start(columns), failed, columns["start_s"] + columns["e2e_s"]


_READERS = (
    (_is_vllm, _read_vllm),
    (_is_sglang, _read_sglang),
    (_is_guidellm, _read_guidellm),
    (_is_aiperf, _read_aiperf),
    (_is_aiperf_record, _read_aiperf_records),
    (_is_raw, _read_raw),
)

__all__ = ["FORMATS", "STATISTICS", "Bench", "cut", "figures_of", "is_bench", "of_objects", "read", "statistics"]
