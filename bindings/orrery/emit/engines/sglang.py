"""SGLang: `python -m sglang.launch_server`, its router."""

from __future__ import annotations

from collections.abc import Sequence

from .. import flags
from ..deployment import FIRST_PORT, Engine, Launch
from ..plan import Plan, Role, value
from .checkpoints import add_weights

POLICIES = {"round_robin": "round_robin", "least_loaded": "power_of_two", "prefix_aware": "cache_aware",
            "cache_aware": "cache_aware", "weighted_scores": "cache_aware"}  # fmt: skip
BOOTSTRAP = 8998  # first port on which prefill replicas meet decode replicas


def launch(plan: Plan, role: Role, version: str, notes: list[str]) -> Launch:
    command = flags.Command(flags.table("sglang"), version, "python3", "-m", "sglang.launch_server")
    command.add("--model-path", plan.checkpoint.name)
    ranks = _parallelism(command, plan, role, notes)
    if role.pp > 1:
        command.add("--pp-size", role.pp)
    if role.sp:
        notes.append("SGLang has no option that splits norms over tp ranks by tokens: the plan's sp is left out.")
    add_weights(command, plan, notes, online={"fp8": "fp8"})
    command.add("--kv-cache-dtype", "fp8_e4m3" if plan.checkpoint.kv_cache == "fp8" else "auto")
    command.add("--max-running-requests", role.max_num_seqs * ranks)
    if ranks > 1:
        notes.append(f"SGLang shares --max-running-requests and --chunked-prefill-size out over {ranks} data-parallel ranks; the plan's"
                     f" {role.max_num_seqs} and {role.max_num_batched_tokens:,} are of one rank, so they stand times {ranks}.")  # fmt: skip
    command.add("--chunked-prefill-size", role.max_num_batched_tokens * ranks if plan.enable_chunked_prefill else -1)
    command.add("--context-length", plan.max_model_len)
    memory = role.memory
    command.add("--mem-fraction-static", int(1000 * (memory["weights_bytes"] + memory["kv_cache_bytes"]) / memory["hbm_bytes"]) / 1000)
    command.add("--page-size", plan.block_size)
    _scheduling(command, plan, notes)
    if plan.is_apart:
        command.add("--disaggregation-mode", role.name).add("--disaggregation-transfer-backend", "nixl")
    return Launch(role, command)


def _parallelism(command: flags.Command, plan: Plan, role: Role, notes: list[str]) -> int:
    """Adds tp, dp and ep; returns over how many ranks SGLang shares out limits that the plan has of each."""
    if role.dp == 1 or not plan.checkpoint.has_experts:
        command.add("--tp-size", role.tp)
        if role.dp > 1:
            command.add("--dp-size", role.dp)
            notes.append(f"--dp-size {role.dp} of a dense model are {role.dp} whole copies behind SGLang's own balancer, each with its own"
                         " scheduler; the plan's ranks step together.")  # fmt: skip
            return 1
    else:
        command.add("--tp-size", role.dp * role.tp).add("--dp-size", role.dp).add("--enable-dp-attention", True)
    if role.ep > 1:
        _experts(command, role, notes)
    return role.dp


def _experts(command: flags.Command, role: Role, notes: list[str]) -> None:
    command.add("--ep-size", role.ep)
    if command.has("--enable-ep-moe"):
        command.add("--enable-ep-moe", True)
    if role.dp > 1 and role.expert_comm != "all_gather":
        if role.ep == role.dp * role.tp and command.has("--moe-a2a-backend", "deepep"):
            command.add("--moe-a2a-backend", "deepep")
            notes.append(f"expert_comm {role.expert_comm} of the plan stands as --moe-a2a-backend deepep, which needs DeepEP installed.")
        else:
            notes.append(f"SGLang {command.version} exchanges rows by deepep only where ep is tp x dp; the plan's expert_comm"
                         f" {role.expert_comm} is left out.")  # fmt: skip
    if role.num_redundant_experts:
        command.add("--enable-eplb", True).add("--ep-num-redundant-experts", role.num_redundant_experts)


def _scheduling(command: flags.Command, plan: Plan, notes: list[str]) -> None:
    if not plan.enable_prefix_caching:
        command.add("--disable-radix-cache", True)
    if plan.policy == "mixed":
        command.add("--enable-mixed-chunk", True)
    elif plan.policy == "whole_prompts":
        notes.append("The plan puts decodes and whole prompts in one step; SGLang without --enable-mixed-chunk runs prompts by themselves first.")
    if value(plan.behaviour, "async_scheduling") != "true":
        command.add("--disable-overlap-schedule", True)
    if not plan.scheduler_reserve_full_isl:
        notes.append("SGLang has no option for scheduler_reserve_full_isl: it admits a prompt when all of it fits.")
    if plan.max_prefill_tokens:
        command.add("--max-prefill-tokens", plan.max_prefill_tokens)
    if plan.stream_interval > 1:
        command.add("--stream-interval", plan.stream_interval)


def listen(command: flags.Command, role: Role, port: int, index: int) -> dict[str, str]:
    command.add("--host", "0.0.0.0").add("--port", port)
    if role.name == "prefill":
        command.add("--disaggregation-bootstrap-port", BOOTSTRAP + index)
    return {}


def span(command: flags.Command, role: Role, nodes: int, rank: int, head: str) -> None:
    command.add("--nnodes", nodes).add("--node-rank", rank).add("--dist-init-addr", f"{head}:5000")


def router(plan: Plan, servers: Sequence[str], decoders: Sequence[str], notes: list[str]) -> tuple[flags.Command, None]:
    found = flags.table("sglang_router")
    command = flags.Command(found, found.default, "python3", "-m", "sglang_router.launch_router")
    if decoders:
        command.add("--pd-disaggregation", True)
        for index, url in enumerate(servers):
            command.add("--prefill", [url, BOOTSTRAP + index])
        for url in decoders:
            command.add("--decode", url)
    else:
        command.add("--worker-urls", servers)
    command.add("--policy", POLICIES[plan.router]).add("--host", "0.0.0.0").add("--port", FIRST_PORT)
    if plan.router == "least_loaded":
        notes.append("router: least_loaded stands as power_of_two, the less loaded of two replicas drawn at random: sglang-router does not look"
                     " at all of them.")  # fmt: skip
    return command, None


def dynamo(launched: Launch, name: str) -> list[str]:
    """What `python3 -m dynamo.sglang` takes: the options of the server."""
    words = ["python3", "-m", "dynamo.sglang", *launched.command.words[3:]]
    return words + (["--disaggregation-bootstrap-port", str(BOOTSTRAP)] if launched.role.name == "prefill" else [])


ENGINE = Engine("sglang", launch, listen, span, router, dynamo)

__all__ = ["ENGINE", "POLICIES"]
