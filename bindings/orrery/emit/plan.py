"""What is to be launched: the plan of a run, in the words of the scenario, with its numbers as numbers."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from .. import _core
from ..finished_run import FinishedRun
from ..report import resolved_scenario
from ..simulation import project_root

Memory = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Role:
    """The replicas of one kind: all of an aggregated service, or its prefill or decode side."""

    name: str  # server, prefill or decode
    replicas: int
    dp: int
    tp: int
    ep: int
    pp: int
    sp: bool
    num_micro_batches: int
    two_batch_overlap: bool
    expert_comm: str
    num_redundant_experts: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    memory: Memory  # of one GPU, in bytes, as summary.json has it

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.dp * self.tp * self.pp


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    name: str  # of the repository on Hugging Face, or a path
    stored_as: str  # the number format of its weights: bf16, fp8_block, mxfp4, ...
    has_experts: bool
    most_positions: int  # that the model was made for; 0: not said
    weights: str  # the plan's formats
    expert_weights: str
    kv_cache: str

    @property
    def is_stored_so(self) -> bool:
        return self.stored_as in (self.weights, self.expert_weights)


@dataclasses.dataclass(frozen=True)
class Plan:
    run: FinishedRun
    title: str
    checkpoint: Checkpoint
    machine: str
    num_gpus: int
    gpus_per_node: int
    provider: str
    profile: str  # as the scenario names it
    behaviour: Mapping[str, Any]  # what the profile says, with what it extends
    roles: tuple[Role, ...]
    router: str
    block_size: int
    max_model_len: int
    stream_interval: int
    max_prefill_tokens: int  # 0: no such bound
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    scheduler_reserve_full_isl: bool
    seed: int

    @property
    def is_apart(self) -> bool:
        """Whether prefill and decode have replicas of their own."""
        return len(self.roles) > 1

    @property
    def engine(self) -> str:
        """The engine that the profile is of: vllm, sglang, trtllm, orrery or the name of a profile by itself."""
        return str(self.behaviour["lineage"])

    @property
    def policy(self) -> str:
        """How prompts and decodes share steps: mixed, whole_prompts or prefill_first."""
        policy = value(self.behaviour, "scheduler_policy")
        return "whole_prompts" if policy == "mixed" and not self.enable_chunked_prefill else policy


def plan_of(run: FinishedRun, model: str | None = None) -> Plan:
    """The plan of a run; `model` is the checkpoint to serve, where it is not the one that the scenario's config is of."""
    scenario, engine = run.scenario, run.scenario["engine"]
    if "kv_cache" in scenario:
        raise ValueError(f"{run.name}: found tiers of KV blocks (kv_cache), which no engine's options here say; expected a run without")
    if "speculative" in engine:
        raise ValueError(f"{run.name}: found drafts (engine.speculative), which no engine's options here say; expected a run without")
    if "eplb" in scenario.get("moe", {}):
        raise ValueError(f"{run.name}: found experts placed anew (moe.eplb), which no engine's options here say; expected a run without")
    if "autoscaling" in scenario:
        raise ValueError(f"{run.name}: found autoscaling, and what is written here has a fixed number of replicas; expected a run without")
    if sides := scenario.get("disaggregation", {}):
        machines = [str(sides[side]["machine"]["name"]) for side in ("prefill", "decode") if "machine" in sides[side]]
        if machines:
            raise ValueError(f"{run.name}: found prefill on {machines[0]} and decode on {machines[-1]}, machines of their own, and what is"
                             " written here asks for one kind of GPU; expected a run on one machine")  # fmt: skip
    _check_one_checkpoint(scenario)
    if "sessions" in scenario["workload"]:
        raise ValueError(f"{run.name}: found sessions, which the benchmarks written here do not replay; expected a run of another workload")
    machine = _machine(str(scenario["machine"]["name"]))
    num_gpus = int(scenario["machine"]["num_gpus"])
    return Plan(
        run=run,
        title=str(run.summary["question"] or run.summary["scenario"]),
        checkpoint=_checkpoint(scenario["model"], model, _kv_cache(scenario)),
        machine=str(scenario["machine"]["name"]),
        num_gpus=num_gpus,
        gpus_per_node=min(int(machine["gpus_per_node"]), num_gpus),
        provider=str(scenario["provider"]),
        profile=str(engine["profile"]),
        behaviour=_behaviour(str(engine["profile"])),
        roles=_roles(scenario, run.summary),
        router=str(scenario["router"]),
        block_size=int(engine["block_size"]),
        max_model_len=int(engine["max_model_len"]),
        stream_interval=int(engine["stream_interval"]),
        max_prefill_tokens=int(engine.get("max_prefill_tokens", 0)),
        enable_chunked_prefill=_is_true(engine["enable_chunked_prefill"]),
        enable_prefix_caching=_is_true(engine["enable_prefix_caching"]),
        scheduler_reserve_full_isl=_is_true(engine["scheduler_reserve_full_isl"]),
        seed=int(scenario["seed"]),
    )


def value(profile: Mapping[str, Any], key: str) -> str:
    """A value of an engine profile, plain or with its source."""
    found = profile[key]
    return str(found["value"] if isinstance(found, dict) else found)


def _roles(scenario: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[Role, ...]:
    if "disaggregation" not in scenario:
        return (_role("server", scenario["placement"], scenario["engine"], summary["memory_per_gpu"]),)
    sides = ((side, scenario["disaggregation"][side]) for side in ("prefill", "decode"))
    return tuple(
        _role(name, side, {**scenario["engine"], **side}, summary["disaggregation"][name]["memory_per_gpu"]) for name, side in sides
    )


def _role(name: str, mesh: Mapping[str, Any], engine: Mapping[str, Any], memory: Memory) -> Role:
    if int(mesh["ffn_instances"]) > 0:
        raise ValueError(f"found ffn_instances {mesh['ffn_instances']}, FFNs on GPUs of their own, which no launch command here asks for;"
                         " expected a placement without")  # fmt: skip
    if int(mesh["cp"]) > 1:
        raise ValueError(f"found cp {mesh['cp']}, ranks that share contexts, which no launch command here asks for; expected cp 1")
    if str(mesh["dp_rows"]) == "balanced":
        raise ValueError("found dp_rows balanced, even parts of all data-parallel ranks' rows, which no launch command here asks for;"
                         " expected dp_rows own")  # fmt: skip
    return Role(
        name=name,
        **{key: int(mesh[key]) for key in ("replicas", "dp", "tp", "ep", "pp", "num_micro_batches", "num_redundant_experts")},
        sp=_is_true(mesh["sp"]),
        two_batch_overlap=_is_true(mesh["two_batch_overlap"]),
        expert_comm=str(mesh["expert_comm"]),
        max_num_seqs=int(engine["max_num_seqs"]),
        max_num_batched_tokens=int(engine["max_num_batched_tokens"]),
        gpu_memory_utilization=float(engine["gpu_memory_utilization"]),
        memory=memory,
    )


def _machine(name: str) -> dict[str, Any]:
    topologies = project_root() / "topologies"
    file = pathlib.Path(name) if name.endswith(".yaml") else topologies / f"{name}.yaml"
    return _core.machine_summary(str(file), str(topologies))


def _kv_cache(scenario: Mapping[str, Any]) -> str:
    """The format of KV caches, one on all replicas."""
    own = str(scenario["model"]["kv_cache"])
    prefill, decode = (str(scenario.get("disaggregation", {}).get(side, {}).get("kv_cache", own)) for side in ("prefill", "decode"))
    if prefill != decode:
        raise ValueError(
            f"prefill keeps KV caches in {prefill} and decode in {decode}, and engines send them as they are; expected one kv_cache on both sides"
        )
    return prefill


def _check_one_checkpoint(scenario: Mapping[str, Any]) -> None:
    """Sides with formats of their own would load checkpoints of their own, which no option here names."""
    for side in ("prefill", "decode"):
        of_side = scenario.get("disaggregation", {}).get(side, {})
        if own := [key for key in ("weights", "expert_weights", "activations") if key in of_side]:
            raise ValueError(
                f"{side} has {own[0]} of its own, {of_side[own[0]]}, which is a checkpoint of its own; expected the formats of model on both sides"
            )


def _checkpoint(model: Mapping[str, Any], name: str | None, kv_cache: str) -> Checkpoint:
    """The repository that models/OWNER--NAME.config.json is of, and in which format its weights are there."""
    config = str(model["config"])
    path = pathlib.Path(_core.find_model(config, str(pathlib.Path.cwd()), str(project_root())))
    if path.parent == project_root() / "models":
        source = path.name.partition(".config")[0].replace("--", "/", 1)
    elif path.parent.parent.name == "snapshots":
        source = config  # an id on the hub, which engines take as it is
    else:
        source = str(path.parent.resolve())
    content = json.loads(path.read_text(encoding="utf-8"))
    weights = str(model["weights"])
    read = _core.read_model(str(path), str(model.get("as", "")))
    return Checkpoint(
        name=name or source,
        stored_as=_stored_as(content.get("quantization_config") or content.get("text_config", {}).get("quantization_config") or {}),
        has_experts=read.num_experts > 0,
        most_positions=read.max_position_embeddings,
        weights=weights,
        expert_weights=str(model.get("expert_weights", weights)),
        kv_cache=kv_cache,
    )


def _stored_as(quantization: Mapping[str, Any]) -> str:
    method = quantization.get("quant_method")
    if method is None:
        return "bf16"
    return "fp8_block" if method == "fp8" and "weight_block_size" in quantization else str(method)


def _behaviour(profile: str) -> dict[str, Any]:
    """An engine profile with what it extends; `lineage` is the first name of an engine on the way."""
    directory = project_root() / "scenarios" / "engines"
    path = directory / f"{profile}.yaml" if (directory / f"{profile}.yaml").is_file() else pathlib.Path(profile)
    found: dict[str, Any] = {}
    lineage = []
    while True:
        read = resolved_scenario.read(path)
        lineage.append(str(read["name"]))
        found = {**read, **found}
        base = read.get("extends")
        if base is None:
            break
        path = path.with_name(f"{base}.yaml")
    engines = [name.partition("_")[0] for name in lineage]
    found["lineage"] = next((name for name in engines if name in ("vllm", "sglang", "trtllm", "orrery")), lineage[0])
    found["names"] = lineage
    return found


def _is_true(text: object) -> bool:
    return str(text) == "true"


__all__ = ["Checkpoint", "Plan", "Role", "plan_of", "value"]
