"""One spelling for cells that sources write in many: "TensorRT-LLM" is trtllm, "NVIDIA H200 SXM" h200, "1,024 tokens" 1024.

What is not known stays as it was written, and is refused where it is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from . import lengths

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrtllm": "trtllm", "trt": "trtllm", "tensorrt": "trtllm"}
# Of a GPU's name without its vendor, form factor and memory.
GPUS = ("a10", "a40", "a100", "a800", "b200", "b300", "gb200", "gb300", "h20", "h100", "h200", "h800", "l4", "l40s", "mi300x", "mi325x",
        "mi355x", "rtx4090", "rtx5090")  # fmt: skip
GPU_WORDS = r"nvidia|amd|instinct|geforce|hgx|dgx|sxm\d?|tensor|core|gpu|oam|nvl72|\d+ ?gi?b"
FORMATS = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "fp8_e4m3": "fp8", "fp8_e4m3fn": "fp8", "e4m3": "fp8",
    "float8_e4m3fn": "fp8", "fp8_e5m2": "fp8", "e5m2": "fp8", "float8_e5m2": "fp8", "w8a8_fp8": "fp8", "fp8_w8a8": "fp8",
    "fp8_blockwise": "fp8_block", "blockwise_fp8": "fp8_block", "block_fp8": "fp8_block", "nv_fp4": "nvfp4", "mx_fp4": "mxfp4",
    "w4a16": "int4", "int4_w4a16": "int4", "w4a16_int4": "int4", "awq": "int4", "int4_awq": "int4", "awq_int4": "int4", "gptq": "int4",
    "int4_gptq": "int4", "gptq_int4": "int4", "w8a8": "int8", "w8a16": "int8", "w8a8_int8": "int8", "int8_w8a8": "int8",
}  # fmt: skip
KNOWN_FORMATS = ("bf16", "fp16", "fp8", "fp8_block", "mxfp4", "nvfp4", "fp4", "int4", "int8")
LOADS = {"concurrency": "closed_loop", "offline": "all_at_once", "static": "static_batch"}
UNITS = {"seconds": "s", "second": "s", "sec": "s", "milliseconds": "ms", "millisecond": "ms", "msec": "ms", "microseconds": "us",
         "microsecond": "us", "usec": "us", "µs": "us", "requests/s": "req/s", "request/s": "req/s"}  # fmt: skip
WHOLE = ("num_gpus", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "replicas", "max_batch", "max_num_tokens", "load_value", "num_nodes")


def spelled(row: Mapping[str, str]) -> dict[str, str]:
    """The row with cells in the words that the rules use."""
    found = {name: (cell or "").strip() for name, cell in row.items()}
    changes = {name: _number(found[name]) for name in WHOLE if name in found}
    changes |= {name: _length(found[name]) for name in ("isl", "osl")}
    changes |= {"engine": engine(found["engine"]), "engine_version": _version(found["engine_version"]), "gpu_key": gpu(found["gpu_key"])}
    changes |= {"weights_dtype": data_format(found["weights_dtype"]), "kv_dtype": _cache_format(found["kv_dtype"])}
    changes["layout"] = found["layout"].lower()
    load = re.sub(r"[ -]", "_", found["load_kind"].lower())
    changes["load_kind"] = LOADS.get(load, load)
    if changes["load_kind"] == "poisson" and found["load_value"].lower() in ("inf", "infinity", "infinite"):
        # benchmarks/benchmark_serving.py of vLLM, --request-rate inf: all requests are sent at once.
        changes |= {"load_kind": "all_at_once", "load_value": ""}
    return found | changes


def metric(text: str) -> str:
    """ "Mean TTFT (ms)" is mean_ttft, "tput per GPU" throughput_per_gpu."""
    name = re.sub(r"[\s-]+", "_", re.sub(r"\(.*\)", "", text).strip().lower())
    name = re.sub(r"\btput(?=_|$)|(?<=_)tput(?=_|$)", "throughput", name)
    return re.sub(r"^(.*?)_(p\d+|mean|median)$", r"\2_\1", name)


def unit(text: str) -> str:
    """ "milliseconds" is ms, "output tokens/s/gpu" output tok/s/GPU."""
    if text.lower() in (*UNITS, *UNITS.values()):
        return UNITS.get(text.lower(), text.lower())
    name = re.sub(r"\b(tokens?|tok)(/| per )s(ec|econd)?\b", "tok/s", text, flags=re.IGNORECASE)
    return re.sub(r"(?<=tok/s)/(gpu|node|user)\b", lambda found: "/GPU" if found[1].lower() == "gpu" else f"/{found[1].lower()}", name,
                  flags=re.IGNORECASE)  # fmt: skip


def engine(text: str) -> str:
    return ENGINES.get(re.sub(r"[ _-]", "", text.lower()), text)


def gpu(text: str) -> str:
    name = re.sub(r"[\s_-]+", " ", re.sub(rf"\b({GPU_WORDS})\b", " ", re.sub(r"[_-]", " ", text.lower()))).strip()
    if name == "a100" and re.search(r"\b40 ?gb", text.lower()):
        return text  # the shipped one is the larger
    if name.replace(" ", "") in GPUS:
        return name.replace(" ", "")
    return {"h100 nvl": "h100-nvl", "rtx pro 6000": "rtx-pro-6000"}.get(name, text)


def data_format(text: str) -> str:
    name = re.sub(r"[\s-]+", "_", text.lower())
    return FORMATS.get(name, name if name in KNOWN_FORMATS else text)


def _cache_format(text: str) -> str:
    """ "auto" is what an engine does where nothing is stated."""
    return "" if text.lower() == "auto" else data_format(text)


def _number(text: str) -> str:
    """ "8.0" is 8, "1,024" 1024."""
    found = re.fullmatch(r"(\d{1,3}(?:,\d{3})+|\d+)(?:\.0+)?", text)
    return found[1].replace(",", "") if found else text


def _length(text: str) -> str:
    """A single length as digits; others as they stand."""
    found = None if text.startswith("~") else lengths.read(text)
    return str(found.most) if found and found.least == found.most else text


def _version(text: str) -> str:
    """ "v0.18.0" and "vllm/vllm-openai:v0.18.0" are 0.18.0."""
    found = re.search(r"^v(\d+\.[\w.]+)|[:@ ]v?(\d+\.\d+\.\d+[\w.]*)", text)
    return (found[1] or found[2]) if found else text


def positive(text: str) -> float | None:
    """The number above 0 that a cell is; None where it is none."""
    try:
        value = float(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
