"""TensorRT-LLM: `trtllm-serve` with a YAML file of LLM API options, and its server for prefill and decode apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import flags
from ..deployment import FIRST_PORT, Engine, Launch
from ..plan import Plan, Role, value
from . import sglang
from .checkpoints import add_weights


def launch(plan: Plan, role: Role, version: str, notes: list[str]) -> Launch:
    command = flags.Command(flags.table("trtllm"), version, "trtllm-serve", plan.checkpoint.name)
    is_built = "trtllm_engine" in plan.behaviour["names"] and plan.engine == "trtllm"
    if is_built and command.has("--backend", "tensorrt"):
        command.add("--backend", "tensorrt")
        notes.append("The profile trtllm_engine is of built engines: build one with trtllm-build and name its directory with --model.")
    else:
        command.add("--backend", "pytorch")
    command.add("--tp_size", role.dp * role.tp).add("--pp_size", role.pp)
    if plan.checkpoint.has_experts:
        command.add("--ep_size", role.ep)
    command.add("--max_batch_size", role.max_num_seqs).add("--max_num_tokens", role.max_num_batched_tokens)
    command.add("--max_seq_len", plan.max_model_len)
    _remarks(plan, role, notes)
    add_weights(command, plan, notes, online={})
    if plan.max_prefill_tokens:
        notes.append(f"TensorRT-LLM has no option for max_prefill_tokens: {plan.max_prefill_tokens}, beyond which a step takes no further prompt.")
    name = "trtllm.yaml" if role.name == "server" else f"trtllm_{role.name}.yaml"
    command.add("--extra_llm_api_options", name)
    return Launch(role, command, file=(name, _nested(command, _options(plan, role))))


def _options(plan: Plan, role: Role) -> dict[str, Any]:
    """Keys of the YAML file, dots between levels."""
    memory = role.memory
    free = memory["kv_cache_bytes"] + (1 - role.gpu_memory_utilization) * memory["hbm_bytes"]
    overlaps = value(plan.behaviour, "async_scheduling") == "true" and role.name != "prefill"
    options: dict[str, Any] = {
        "enable_attention_dp": True if role.dp > 1 else None,
        "enable_chunked_prefill": plan.policy == "mixed",
        "disable_overlap_scheduler": not overlaps,
        "stream_interval": plan.stream_interval if plan.stream_interval > 1 else None,
        "kv_cache_config.dtype": "fp8" if plan.checkpoint.kv_cache == "fp8" else "auto",
        "kv_cache_config.enable_block_reuse": plan.enable_prefix_caching,
        "kv_cache_config.free_gpu_memory_fraction": math.floor(1000 * memory["kv_cache_bytes"] / free) / 1000,
        "kv_cache_config.tokens_per_block": plan.block_size,
        "scheduler_config.capacity_scheduler_policy": "GUARANTEED_NO_EVICT"
        if value(plan.behaviour, "kv_admission") == "full_length"
        else "MAX_UTILIZATION",
    }
    if value(plan.behaviour, "launch_mode") == "graph" and role.name != "prefill":
        options |= {"cuda_graph_config.enable_padding": True, "cuda_graph_config.max_batch_size": role.max_num_seqs}
    if plan.is_apart:
        longest = int(max(plan.run.requests["prompt_tokens"]))
        options |= {"cache_transceiver_config.backend": "DEFAULT", "cache_transceiver_config.max_tokens_in_buffer": 256 * -(-longest // 256)}
    return {key: found for key, found in options.items() if found is not None}


def _nested(command: flags.Command, options: dict[str, Any]) -> dict[str, Any]:
    """The options as they stand in the file, each checked against the table."""
    result: dict[str, Any] = {}
    for path, found in options.items():
        command.table.check(path, command.version, found)
        *parents, key = path.split(".")
        at = result
        for parent in parents:
            at = at.setdefault(parent, {})
        at[key] = found
    return result


def _remarks(plan: Plan, role: Role, notes: list[str]) -> None:
    if role.dp > 1 and role.tp > 1:
        notes.append(f"TensorRT-LLM's attention data parallelism has a rank of attention on each GPU; the plan's dp {role.dp} x tp {role.tp} cannot be"
                     f" said, and what stands here is dp {role.dp * role.tp} x tp 1.")  # fmt: skip
    if role.dp > 1 and not plan.checkpoint.has_experts:
        notes.append(f"TensorRT-LLM's enable_attention_dp copies attention alone and splits what follows over {role.dp * role.tp} ranks; the plan"
                     " copies the whole model. Replicas (placement.replicas) are the nearest it has.")  # fmt: skip
    if role.sp:
        notes.append("TensorRT-LLM has no option that splits norms over tp ranks by tokens: the plan's sp is left out.")
    if role.num_redundant_experts:
        notes.append("Redundant experts need TensorRT-LLM's moe_config.load_balancer with a file of its own; it is left out.")
    if role.dp > 1 and role.expert_comm != "all_to_all":
        notes.append(f"TensorRT-LLM chooses the exchange of experts by itself; the plan's expert_comm {role.expert_comm} is left out.")
    if plan.policy == "prefill_first":
        notes.append("The plan runs prompts in steps of their own before decodes; TensorRT-LLM mixes both in one step.")
    if role.name == "prefill" and value(plan.behaviour, "async_scheduling") == "true":
        notes.append("Prefill replicas run without TensorRT-LLM's overlap scheduler, which they do not support; the plan has it on both sides.")


def listen(command: flags.Command, role: Role, port: int, index: int) -> dict[str, str]:
    command.add("--host", "0.0.0.0").add("--port", port)
    return {}


def span(command: flags.Command, role: Role, nodes: int, rank: int, head: str) -> None:
    """Several nodes are one MPI job, which Slurm starts on all of them."""
    per_node = role.gpus // nodes
    command.words[:0] = ["srun", "-N", str(nodes), "--ntasks-per-node", str(per_node), "--mpi=pmix", "trtllm-llmapi-launch"]


def router(plan: Plan, servers: Sequence[str], decoders: Sequence[str], notes: list[str]) -> tuple[flags.Command, tuple[str, dict[str, Any]] | None]:
    if not decoders:
        notes.append("trtllm-serve has no router for replicas; SGLang's, which takes any OpenAI-compatible server, stands before them.")
        return sglang.ENGINE.router(plan, servers, (), notes)
    if plan.router != "round_robin":
        notes.append(f"trtllm-serve disaggregated chooses replicas in turn here; router: {plan.router} is left out.")
    sides = {"context_servers": servers, "generation_servers": decoders}
    content: dict[str, Any] = {"hostname": "0.0.0.0", "port": FIRST_PORT, "backend": "pytorch"} | {
        side: {"num_instances": len(urls), "urls": [url.removeprefix("http://") for url in urls]} for side, urls in sides.items()
    }
    command = flags.Command(flags.table("trtllm"), flags.table("trtllm").default, "trtllm-serve", "disaggregated", "-c", "trtllm_apart.yaml")
    return command, ("trtllm_apart.yaml", content)


def dynamo(launched: Launch, name: str) -> list[str]:
    """What `python3 -m dynamo.trtllm` takes; the YAML file becomes --override-engine-args."""
    found = flags.table("dynamo")
    command = flags.Command(found, found.default, "python3", "-m", "dynamo.trtllm").add("--model", name)
    words = launched.command.words
    for option, theirs in (("--tp_size", "--tensor-parallel-size"), ("--pp_size", "--pipeline-parallel-size"),
                           ("--ep_size", "--expert-parallel-size"), ("--max_batch_size", "--max-batch-size"),
                           ("--max_num_tokens", "--max-num-tokens"), ("--max_seq_len", "--max-seq-len")):  # fmt: skip
        if option in words:
            command.add(theirs, int(words[words.index(option) + 1]))
    assert launched.file is not None, "trtllm-serve always has its YAML file"
    command.add("--override-engine-args", launched.file[1])
    if launched.role.name != "server":
        command.add("--disaggregation-mode", launched.role.name)
    return command.words


ENGINE = Engine("trtllm", launch, listen, span, router, dynamo, starts_per_node=False)

__all__ = ["ENGINE"]
