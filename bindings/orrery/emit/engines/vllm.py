"""vLLM: `vllm serve`, `vllm-router`."""

from __future__ import annotations

from collections.abc import Sequence

from .. import flags
from ..deployment import FIRST_PORT, Engine, Launch
from ..plan import Plan, Role, value
from .checkpoints import add_weights

# vLLM picks sequence parallelism as a pass of its compiler; the name changed after 0.11 (vllm/config/compilation.py).
_SEQUENCE_PARALLELISM = (("0.14.0", "enable_sp"), ("0.11.0", "enable_sequence_parallelism"))
_POLICIES = {"round_robin": "round_robin", "least_loaded": "power_of_two", "prefix_aware": "cache_aware",
             "cache_aware": "cache_aware", "weighted_scores": "cache_aware"}  # fmt: skip
_SIDE_CHANNEL = 5600  # first port of the handshake of NIXL, one for each replica and data-parallel rank


def launch(plan: Plan, role: Role, version: str, notes: list[str]) -> Launch:
    command = flags.Command(flags.table("vllm"), version, "vllm", "serve", plan.checkpoint.name)
    command.add("--tensor-parallel-size", role.tp)
    if role.pp > 1:
        command.add("--pipeline-parallel-size", role.pp)
    if role.dp > 1:
        command.add("--data-parallel-size", role.dp)
        if not plan.checkpoint.has_experts:
            notes.append(f"--data-parallel-size {role.dp} of a dense model are {role.dp} whole copies behind vLLM's own balancer, each with its own"
                         " scheduler; the plan's ranks step together.")  # fmt: skip
    _experts(command, plan, role, notes)
    _sequence_parallelism(command, role, notes)
    add_weights(command, plan, notes, online={"fp8": "fp8", "fp8_block": "fp8_per_block"})
    command.add("--kv-cache-dtype", "fp8" if plan.checkpoint.kv_cache == "fp8" else "auto")
    command.add("--max-num-seqs", role.max_num_seqs)
    command.add("--max-num-batched-tokens", role.max_num_batched_tokens)
    command.add("--max-model-len", plan.max_model_len)
    command.add("--gpu-memory-utilization", role.gpu_memory_utilization)
    command.add("--block-size", plan.block_size)
    _scheduling(command, plan, notes)
    if plan.is_apart:
        command.add("--kv-transfer-config", {"kv_connector": "NixlConnector", "kv_role": "kv_both"})
    return Launch(role, command)


def _experts(command: flags.Command, plan: Plan, role: Role, notes: list[str]) -> None:
    if not plan.checkpoint.has_experts:
        return
    group = role.dp * role.tp
    if role.ep > 1:
        command.add("--enable-expert-parallel", True)
        if role.ep != group:
            notes.append(f"vLLM spreads experts over all {group} ranks (tp x dp) or over none; the plan's ep {role.ep} cannot be said, and"
                         f" what stands here is ep {group}.")  # fmt: skip
        if role.dp > 1:
            _exchange(command, role, notes)
    if role.num_redundant_experts:
        command.add("--enable-eplb", True)
        command.add("--eplb-config", {"num_redundant_experts": role.num_redundant_experts})


def _exchange(command: flags.Command, role: Role, notes: list[str]) -> None:
    """How rows reach their experts on other data-parallel ranks."""
    backend = "allgather_reducescatter"
    if role.expert_comm != "all_gather":
        backend = "deepep_low_latency" if role.name == "decode" else "deepep_high_throughput"
        notes.append(f"expert_comm {role.expert_comm} of the plan stands as --all2all-backend {backend}, which needs DeepEP installed.")
    if command.has("--all2all-backend", backend):
        command.add("--all2all-backend", backend)
    else:
        notes.append(f"vLLM {command.version} takes the exchange of experts from the variable VLLM_ALL2ALL_BACKEND: set it to {backend}.")


def _sequence_parallelism(command: flags.Command, role: Role, notes: list[str]) -> None:
    if role.sp:
        key = next(name for since, name in _SEQUENCE_PARALLELISM if flags.order(since) <= flags.order(command.version))
        command.add("--compilation-config", {"pass_config": {key: True}})
        notes.append("vLLM's sequence parallelism is a pass of its compiler, which decides by batch size where it applies; the plan has it in"
                     " every step.")  # fmt: skip


def _scheduling(command: flags.Command, plan: Plan, notes: list[str]) -> None:
    command.add("--enable-prefix-caching", plan.enable_prefix_caching)
    command.add("--enable-chunked-prefill", plan.enable_chunked_prefill)
    if plan.policy == "prefill_first":
        notes.append("The plan runs prompts in steps of their own before decodes; vLLM mixes both in one step.")
    if command.has("--scheduler-reserve-full-isl"):
        command.add("--scheduler-reserve-full-isl", plan.scheduler_reserve_full_isl)
    elif not plan.scheduler_reserve_full_isl:
        notes.append(f"vLLM {command.version} has no option for scheduler_reserve_full_isl: false.")
    command.add("--async-scheduling", value(plan.behaviour, "async_scheduling") == "true")
    if value(plan.behaviour, "launch_mode") == "eager":
        command.add("--enforce-eager", True)
    if plan.max_prefill_tokens:
        notes.append(f"vLLM has no option for max_prefill_tokens: {plan.max_prefill_tokens}, beyond which a step takes no further prompt.")
    if plan.stream_interval > 1:
        if command.has("--stream-interval"):
            command.add("--stream-interval", plan.stream_interval)
        else:
            notes.append(f"vLLM {command.version} sends every token by itself; the plan sends {plan.stream_interval} at a time.")


def listen(command: flags.Command, role: Role, port: int, index: int) -> dict[str, str]:
    command.add("--host", "0.0.0.0").add("--port", port)
    if role.name == "server":
        return {}
    first = _SIDE_CHANNEL + (1000 if role.name == "decode" else 0)
    return {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(first + index * role.dp)}


def span(command: flags.Command, role: Role, nodes: int, rank: int, head: str) -> None:
    if role.dp % nodes == 0:
        local = role.dp // nodes
        command.add("--data-parallel-size-local", local).add("--data-parallel-address", head).add("--data-parallel-rpc-port", 13345)
        if rank:
            command.add("--data-parallel-start-rank", rank * local)
    else:
        command.add("--nnodes", nodes).add("--node-rank", rank).add("--master-addr", head)
    if rank:
        command.add("--headless", True)


def router(plan: Plan, servers: Sequence[str], decoders: Sequence[str], notes: list[str]) -> tuple[flags.Command, None]:
    found = flags.table("vllm_router")
    command = flags.Command(found, found.default, "vllm-router")
    if decoders:
        command.add("--vllm-pd-disaggregation", True)
        for url in servers:
            command.add("--prefill", url)
        for url in decoders:
            command.add("--decode", url)
    else:
        command.add("--worker-urls", servers)
    command.add("--policy", _POLICIES[plan.router]).add("--host", "0.0.0.0").add("--port", FIRST_PORT)
    if plan.router == "least_loaded":
        notes.append("router: least_loaded stands as power_of_two, the less loaded of two replicas drawn at random: vllm-router does not look at"
                     " all of them.")  # fmt: skip
    return command, None


def dynamo(launched: Launch, name: str) -> list[str]:
    """What `python3 -m dynamo.vllm` takes: the options of `vllm serve`."""
    found = flags.table("dynamo")
    command = flags.Command(found, found.default, "python3", "-m", "dynamo.vllm").add("--model", name)
    command.words += launched.command.words[3:]
    if launched.role.name != "server":
        command.add("--disaggregation-mode", launched.role.name)
    return command.words


ENGINE = Engine("vllm", launch, listen, span, router, dynamo)

__all__ = ["ENGINE"]
