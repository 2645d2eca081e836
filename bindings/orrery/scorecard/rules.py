"""How a published case becomes a scenario, where its columns do not say it: one table, each line with its reason.

For each setting the first rule counts whose `when` matches: column name (or `family`, or a setting found
before) to a regular expression that must match the whole cell. What has no rule is the profile's default. Rules
know sources, checkpoints and engines' defaults; none is about a single case. Where a rule was inferred from the
measurements themselves, its reason says from what.
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

# What rows without `model_file` call their model. Mistral 7B without the window of v0.1: rows of v0.8 and v0.9 stay
# within it, and those of v0.17 with prompts of 20,000 tokens are as slow as full attention is.
MODELS = {
    "LLaMA v3.1 8B": "llama-3.1-8b",
    "LLaMA 3.1 8B": "llama-3.1-8b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "Mistral 7B": "mistralai--Mistral-7B-v0.2",
    "LLaMA v3.1 70B": "llama-3.1-70b",
    "LLaMA 3.1 70B": "llama-3.1-70b",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    setting: str
    value: str  # {column} stands for the cell
    when: Mapping[str, str]
    reason: str


# Where SILGA's engines got their settings: it launches them by these rules when it checks its own predictions.
AICONFIGURATOR = "AIConfigurator at 2b264ba, generator/rule_plugin/benchmark/*.rule"
TRTLLM_TOKENS, TRTLLM_BATCH = 8192, 2048  # TensorRT-LLM's default max_num_tokens and max_batch_size

# Cells that other statements of the same source contradict: (when, cells, reason).
CORRECTIONS = (
    ({"family": "SILIX", "notes": ".*row id \\S*_tp4_ep4_.*", "tp": "4", "attention_dp": "4"},
     {"attention_dp": "1", "moe_ep": "4", "num_gpus": "4"},
     "the row id says tp4 ep4, and TPOT is that of the same source's rows of 4 GPUs within 1.5 % at 13 of 15 loads"),
)  # fmt: skip

# Rows that contradict physics, their own source or another one, whatever the simulator says of them: (when, reason).
# They count in every figure; the scorecard prints its main figures without them as well.
CONTRADICTIONS = (
    ({"family": "SILIX", "model_file": ".*gpt-oss-120b", "load_value": "512"},
     "512 clients with the TPOT of 64 or fewer of the same source and 20 to 460 s to the first token: far fewer ran at a time"),
    ({"family": "IXPOS"},
     "TTFT is 4 to 7 times that of the same model, engine and GPU in SILIX (TP8), and falls with more clients"),
)  # fmt: skip

RULES = (
    Rule("provider", "vllm-0.24.0", {"engine": "vllm"}, "the engine's own kernels, newest tables"),
    Rule("provider", "trtllm-1.3.0rc20", {"engine": "trtllm"}, "the engine's own kernels, newest tables"),
    Rule("provider", "sglang-0.5.14", {"engine": "sglang"}, "the engine's own kernels, newest tables"),
    Rule("profile", "vllm_sync", {"engine": "vllm", "engine_version": r"0\.(\d|1[0-3])(\..*)?"},
         "asynchronous scheduling is on by default from vLLM 0.14 on"),
    Rule("profile", "vllm_eager", {"family": "SPLITWISE"}, "vLLM of 2023 (Splitwise, ISCA 2024), before its CUDA graphs"),
    Rule("profile", "vllm", {"engine": "vllm"},
         "0.14 or later, or InferenceX without a version, which sets --async-scheduling"),
    Rule("profile", "sglang_mixed", {"family": "SILGA", "engine": "sglang"}, f"{AICONFIGURATOR}: enable_mixed_chunk = true"),
    Rule("profile", "trtllm_engine", {"engine": "trtllm", "engine_version": r"0\..*"}, "built engines until 1.0"),
    Rule("profile", "{engine}", {"engine": "trtllm|sglang"}, "the engine's profile"),
    # Formats
    Rule("weights", "fp8_block", {"model_file": ".*(MiniMax-M2.5|DeepSeek-V3|DeepSeek-R1).*", "weights_dtype": "fp8"},
         "the published checkpoint is block scaled (128 x 128)"),
    Rule("weights", "fp8_block", {"model": ".*235B-A22B-FP8", "weights_dtype": "fp8"},
         "the checkpoint is block scaled"),
    Rule("weights", "fp8_block", {"model_file": ".*Qwen3-32B", "weights_dtype": "fp8"},
         "the published FP8 checkpoint is block scaled (models/Qwen--Qwen3-32B-FP8.config.json)"),
    Rule("weights", "fp8_block", {"notes": ".*gemm fp8_block.*"}, "the notes state the format of the products"),
    Rule("weights", "bf16", {"model_file": ".*gpt-oss.*"}, "the checkpoint has bf16 attention and mxfp4 experts"),
    Rule("weights", "bf16", {"model_file": ".*Kimi-K2.*", "weights_dtype": "int4"},
         "the checkpoint has bf16 attention and int4 experts"),
    Rule("weights", "bf16", {"weights_dtype": "fp16|bf16"}, "fp16 and bf16 run at the same rate"),
    Rule("weights", "nvfp4", {"weights_dtype": "fp4|nvfp4"}, "TensorRT-LLM's FP4 is NVFP4"),
    Rule("weights", "{weights_dtype}", {"weights_dtype": ".+"}, "stated"),
    Rule("expert_weights", "mxfp4", {"model_file": ".*gpt-oss.*"}, "the checkpoint's experts are mxfp4"),
    Rule("expert_weights", "int4", {"model_file": ".*Kimi-K2.*", "weights_dtype": "int4"},
         "the checkpoint's experts are int4"),
    Rule("activations", "bf16", {"weights": "bf16"}, "weights of 16 bit are multiplied in 16 bit"),
    Rule("activations", "{weights}", {}, "products run in the weights' format"),
    Rule("kv_cache", "{kv_dtype}", {"kv_dtype": ".+"}, "stated"),
    Rule("kv_cache", "bf16", {"family": "SILIX", "model_file": ".*Llama-3.1-70B", "engine": "vllm", "gpu_key": "h100"},
         "at TP2 requests queue for seconds where an FP8 cache would hold all and a BF16 cache not (8192/1024, C = 32)"),
    Rule("kv_cache", "fp8", {"family": "SILIX", "model_file": ".*Llama-3.1-70B"},
         "InferenceX sets --kv-cache-dtype fp8"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "model_file": ".*Qwen3-32B", "weights": "fp8_block"},
         "at TP1 and C = 128, 2048 tokens queue with 512 output tokens and not with 128: the capacity of an FP8 cache"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "weights": "fp8"}, "TensorRT-LLM's FP8 checkpoints carry KV scales"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "weights": "nvfp4"},
         "TensorRT-LLM's FP4 checkpoints carry FP8 KV scales"),
    Rule("kv_cache", "bf16", {}, "the engines' default: the model's 16-bit format"),
    # Engine
    Rule("max_num_seqs", "{max_batch}", {"max_batch": ".+"}, "stated"),
    Rule("max_num_seqs", "{load_value}", {"family": "SILIX|IX832", "engine": "vllm"},
         "InferenceX sets max-num-seqs = C"),
    Rule("max_num_seqs", "{one_fewer}", {"family": "SILGA", "engine": "trtllm", "model_file": ".*Llama-3.1-8B"},
         "TTFT grows with the output by 0.9 of one C-th of a request's duration at every TP, length and C: one of C waits"),
    Rule("max_num_seqs", "{load_value}", {"family": "SILGA", "load_value": ".+"},
         f"{AICONFIGURATOR}: max_batch_size is the batch that the run is for"),
    Rule("max_num_seqs", "1024", {"engine": "vllm"}, "vLLM's default for an API server on 80 GB GPUs and larger"),
    Rule("max_num_batched_tokens", "{max_num_tokens}", {"max_num_tokens": ".+"}, "stated"),
    Rule("max_num_batched_tokens", "{prompt_plus_1500}", {"family": "SILGA", "engine": "sglang"},
         f"{AICONFIGURATOR}: max_prefill_tokens = isl + 1500"),
    Rule("max_num_batched_tokens", "{batch_plus_prompt_plus_1500}", {"family": "SILGA"},
         f"{AICONFIGURATOR}: max_num_tokens = max_batch_size + isl + 1500"),
    Rule("max_num_batched_tokens", "16384", {"family": "SILIX", "engine": "trtllm"}, "InferenceX sets max_num_tokens"),
    Rule("max_num_batched_tokens", "{whole_prompt}", {"engine": "trtllm"},
         "default 8192; without chunked prefill a step must hold the longest prompt beside a full batch of decodes"),
    Rule("max_model_len", "{longest}", {"load_kind": "static_batch"},
         "these runs go past the model's own limit (Llama 2: 4096)"),
    Rule("stream_interval", "20", {"family": "SILIX", "engine": "trtllm"},
         "InferenceX sets stream_interval 20: published TTFT lies 20 TPOT above a prefill at TP1 and TP4 alike"),
    Rule("distinct_prompts", "100", {"family": "SILGA", "notes": ".*measured 2026-01.*"},
         "TPOT leaves no room for the prefill of the stated load (with it one GPU would do over 1,500 TFLOP/s); AIPerf draws "
         "prompts from 100 entries unless told otherwise"),
    Rule("distinct_prompts", "100", {"family": "SILGA", "engine": "vllm", "model_file": ".*Llama-3.1-8B"}, "likewise"),
    Rule("enable_prefix_caching", "true", {"distinct_prompts": ".+"}, "default of the engines"),
    Rule("gpu_memory_utilization", "0.95", {"family": "TRT017"}, "kv_cache_free_gpu_mem_fraction of the source"),
    Rule("gpu_memory_utilization", "0.98", {"family": "SPLITWISE"},
         "Llama-2-70B in 16 bits was run on two 80 GB GPUs, whose weights alone take 69 GB each"),
    Rule("gpu_memory_utilization", "0.9", {}, "default of vLLM and of TensorRT-LLM's free memory fraction"),
)  # fmt: skip


def corrected(fields: Mapping[str, str]) -> dict[str, str]:
    """The columns after `CORRECTIONS`."""
    result = dict(fields)
    for when, cells, _ in CORRECTIONS:
        if _matches(when, fields):
            result |= cells
    return result


def contradiction(fields: Mapping[str, str]) -> str:
    """Why the row cannot be right as it stands, or nothing."""
    return next((reason for when, reason in CONTRADICTIONS if _matches(when, fields)), "")


def settings(fields: Mapping[str, str]) -> dict[str, str]:
    """Every setting of the table that has a rule for these columns; settings see those found before them."""
    known = dict(fields) | _derived(fields)
    found: dict[str, str] = {}
    for rule in RULES:
        if rule.setting not in found and _matches(rule.when, known):
            found[rule.setting] = known[rule.setting] = rule.value.format_map(known)
    return found


def _derived(fields: Mapping[str, str]) -> dict[str, str]:
    """Numbers that rules may name besides the columns."""
    lengths = [int(fields[name]) if fields[name].isdecimal() else 0 for name in ("isl", "osl")]
    clients = int(fields["load_value"]) if fields["load_value"].isdecimal() else 1
    return {
        "longest": str(sum(lengths)),  # tokens of a finished sequence
        "one_fewer": str(max(1, clients - 1)),
        "prompt_plus_1500": str(lengths[0] + 1500),
        "batch_plus_prompt_plus_1500": str(clients + lengths[0] + 1500),
        "whole_prompt": str(max(TRTLLM_TOKENS, lengths[0] + TRTLLM_BATCH)),
    }


def _matches(when: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    return all(re.fullmatch(pattern, fields.get(column, ""), re.DOTALL) for column, pattern in when.items())
