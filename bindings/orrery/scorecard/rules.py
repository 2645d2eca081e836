"""How a published case becomes a scenario, where its columns do not say it: one table, each line with its reason.

For each setting the first rule counts whose `when` matches: column name (or `family`, or a setting found
before) to a regular expression that must match the whole cell. Rules know sources, checkpoints and engines'
defaults; none is about a single case, and none was chosen by looking at its error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

# gpu_key -> machine of one NVLink domain and its GPUs, machine of several (None: not shipped).
MACHINES = {
    "a100": ("hgx-a100", 8, None),
    "h100": ("hgx-h100", 8, "dgx-h100-superpod"),
    "h200": ("hgx-h200", 8, "h200-cluster"),
    "h800": ("hgx-h800", 8, "h800-cluster"),
    "h20": ("hgx-h20", 8, None),
    "b200": ("hgx-b200", 8, "b200-cluster"),
    "gb200": ("gb200-nvl72", 72, None),
    "mi300x": ("mi300x-node", 8, None),
}

# What rows without `model_file` call their model.
MODELS = {
    "LLaMA v3.1 8B": "llama-3.1-8b",
    "LLaMA 3.1 8B": "llama-3.1-8b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "LLaMA v3.1 70B": "llama-3.1-70b",
    "LLaMA 3.1 70B": "llama-3.1-70b",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    setting: str
    value: str  # {column} stands for the cell; "" leaves the setting out
    when: Mapping[str, str]
    reason: str


# Cells that other statements of the same source contradict: (when, cells, reason).
CORRECTIONS = (
    ({"family": "SILIX", "notes": ".*row id \\S*_tp4_ep4_.*", "tp": "4", "attention_dp": "4"},
     {"attention_dp": "1", "moe_ep": "4", "num_gpus": "4"},
     "the row id says tp4 ep4, and the times equal those of the same source's rows of 4 GPUs within 1 % at every load"),
)  # fmt: skip

RULES = (
    Rule("provider", "vllm-0.24.0", {"engine": "vllm"}, "measured kernels of the engine, newest tables"),
    Rule("provider", "trtllm-1.3.0rc20", {"engine": "trtllm"}, "measured kernels of the engine, newest tables"),
    Rule("provider", "sglang-0.5.14", {"engine": "sglang"}, "measured kernels of the engine, newest tables"),
    Rule("profile", "vllm", {"family": "SILIX", "model_file": ".*Llama-3.1-70B", "engine": "vllm"}, "InferenceX sets --async-scheduling"),
    Rule("profile", "sglang_mixed", {"family": "SILGA", "engine": "sglang"},
         "AIConfigurator's generator (rule_plugin/sglang.rule) sets enable_mixed_chunk"),
    Rule("profile", "vllm_sync", {"engine": "vllm", "engine_version": r"0\.(\d|1[0-3])(\..*)?"}, "asynchronous scheduling is the default since 0.14"),
    Rule("profile", "{engine}", {"engine": "vllm|sglang|trtllm"}, "host behaviour of the engine"),
    # Formats
    Rule("weights", "fp8_block", {"model_file": ".*(MiniMax-M2.5|DeepSeek-V3|DeepSeek-R1).*", "weights_dtype": "fp8"},
         "the published checkpoint is block scaled (128 x 128)"),
    Rule("weights", "fp8_block", {"model": ".*235B-A22B-FP8", "weights_dtype": "fp8"}, "the checkpoint is block scaled"),
    Rule("weights", "fp8_block", {"notes": ".*gemm fp8_block.*"}, "the notes state the format of the products"),
    Rule("weights", "bf16", {"model_file": ".*gpt-oss.*"}, "the checkpoint has bf16 attention and mxfp4 experts"),
    Rule("weights", "bf16", {"model_file": ".*Kimi-K2.*", "weights_dtype": "int4"},
         "the checkpoint has bf16 attention and int4 experts"),
    Rule("weights", "bf16", {"weights_dtype": "fp16|bf16"}, "fp16 and bf16 run at the same rate"),
    Rule("weights", "nvfp4", {"weights_dtype": "fp4|nvfp4"}, "TensorRT-LLM's FP4 is NVFP4"),
    Rule("weights", "{weights_dtype}", {"weights_dtype": ".+"}, "stated"),
    Rule("expert_weights", "mxfp4", {"model_file": ".*gpt-oss.*"}, "the checkpoint's experts are mxfp4"),
    Rule("expert_weights", "int4", {"model_file": ".*Kimi-K2.*", "weights_dtype": "int4"}, "the checkpoint's experts are int4"),
    Rule("activations", "bf16", {"weights": "bf16"}, "weights of 16 bit are multiplied in 16 bit"),
    Rule("activations", "{weights}", {}, "products run in the weights' format"),
    Rule("kv_cache", "{kv_dtype}", {"kv_dtype": ".+"}, "stated"),
    Rule("kv_cache", "bf16", {"family": "SILIX", "model_file": ".*Llama-3.1-70B", "engine": "vllm", "gpu_key": "h100"},
         "at TP2 requests queue for seconds at loads that an FP8 cache would hold and a BF16 cache does not (8192/1024, C = 32)"),
    Rule("kv_cache", "fp8", {"family": "SILIX", "model_file": ".*Llama-3.1-70B"}, "InferenceX sets --kv-cache-dtype fp8"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "weights": "fp8"}, "TensorRT-LLM's FP8 checkpoints carry KV scales"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "weights": "nvfp4"}, "TensorRT-LLM's FP4 checkpoints carry FP8 KV scales"),
    Rule("kv_cache", "bf16", {}, "the engines' default: the model's 16-bit format"),
    # Engine
    Rule("max_num_seqs", "{max_batch}", {"max_batch": ".+"}, "stated"),
    Rule("max_num_seqs", "{load_value}", {"family": "SILIX|IX832", "engine": "vllm"}, "InferenceX sets max-num-seqs = C"),
    Rule("max_num_seqs", "{one_fewer}", {"family": "SILGA", "engine": "trtllm", "model_file": ".*Llama-3.1-8B"},
         "TTFT grows with the output length by 0.9 of one C-th of a request's duration at every TP, length and C: one of C always waits"),
    Rule("max_num_seqs", "{load_value}", {"family": "SILGA"}, "AIConfigurator's generator sends workers x max_batch_size at once"),
    Rule("max_num_seqs", "{load_value}", {"load_kind": "static_batch"}, "the batch itself"),
    Rule("max_num_seqs", "2048", {"engine": "trtllm"}, "default max_batch_size of trtllm-bench and trtllm-serve"),
    Rule("max_num_seqs", "1024", {"engine": "vllm"}, "vLLM's default for an API server on 80 GB GPUs and larger"),
    Rule("max_num_seqs", "2048", {"engine": "sglang"}, "SGLang limits by memory; its default upper bound is not below"),
    Rule("max_num_batched_tokens", "{max_num_tokens}", {"max_num_tokens": ".+"}, "stated"),
    Rule("max_num_batched_tokens", "{generated_tokens}", {"family": "SILGA"},
         "AIConfigurator's generator (rule_plugin/*.rule): max_num_tokens = max_batch_size + isl + 1500"),
    Rule("max_num_batched_tokens", "{prefill_of_batch}", {"load_kind": "static_batch"}, "the whole batch is one prefill"),
    Rule("max_num_batched_tokens", "16384", {"family": "SILIX", "engine": "trtllm"}, "InferenceX sets max_num_tokens"),
    Rule("max_num_batched_tokens", "8192", {}, "vLLM on 80 GB GPUs (API server), TensorRT-LLM and SGLang: default"),
    Rule("gpu_memory_utilization", "0.95", {"family": "TRT017"}, "kv_cache_free_gpu_mem_fraction of the source"),
    Rule("gpu_memory_utilization", "0.9", {}, "default of vLLM and of TensorRT-LLM's free memory fraction"),
)  # fmt: skip


def corrected(fields: Mapping[str, str]) -> dict[str, str]:
    """The columns after `CORRECTIONS`."""
    result = dict(fields)
    for when, cells, _ in CORRECTIONS:
        if _matches(when, fields):
            result |= cells
    return result


def settings(fields: Mapping[str, str]) -> dict[str, str]:
    """Every setting of the table that has a rule for these columns; settings see those found before them."""
    known = dict(fields)
    found: dict[str, str] = {}
    for rule in RULES:
        if rule.setting not in found and _matches(rule.when, known):
            found[rule.setting] = known[rule.setting] = rule.value.format_map(known)
    return found


def _matches(when: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    return all(re.fullmatch(pattern, fields.get(column, "")) for column, pattern in when.items())
