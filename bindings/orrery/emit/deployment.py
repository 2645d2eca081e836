"""The processes of a deployment and where they run, before they become a script or a manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import flags, yaml_text
from .plan import Plan, Role

# vllm/envs.py of 0.24.0, python/sglang/srt/environ.py of 0.5.14.
_LONGER = {"vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}
FIRST_PORT = 8000  # clients talk to this one


@dataclasses.dataclass(frozen=True)
class Launch:
    """How one replica of a role is started, wherever that is."""

    role: Role
    command: flags.Command
    file: tuple[str, Mapping[str, Any]] | None = None  # a YAML file that the command reads: name and content


@dataclasses.dataclass(frozen=True)
class Engine:
    """What is particular to an engine; functions that add sentences to `notes` about what it cannot do."""

    name: str  # vllm, sglang, trtllm: also its table of flags
    launch: Callable[[Plan, Role, str, list[str]], Launch]
    listen: Callable[[flags.Command, Role, int, int], dict[str, str]]  # port and index of the replica; returns variables
    span: Callable[[flags.Command, Role, int, int, str], None]  # number of nodes, which of them this is, address of the first
    router: Callable[[Plan, Sequence[str], Sequence[str], list[str]], tuple[flags.Command, tuple[str, Mapping[str, Any]] | None]]
    dynamo: Callable[[Launch, str], list[str]]
    starts_per_node: bool = True  # one command on each node of a replica that spans several


@dataclasses.dataclass(frozen=True)
class Process:
    name: str
    node: int  # of the cluster
    gpus: tuple[int, ...]  # of the node; empty: none, or all of it
    port: int
    words: tuple[str, ...]
    env: Mapping[str, str]
    file: tuple[str, str] | None  # written before: name and content
    address: str  # where others reach it; empty for all but the first node of a replica


@dataclasses.dataclass(frozen=True)
class Deployment:
    plan: Plan
    engine: Engine
    version: str
    launches: tuple[Launch, ...]
    notes: tuple[str, ...]

    @property
    def image(self) -> str:
        return flags.table(self.engine.name).image.format(version=self.version)

    @property
    def needs_router(self) -> bool:
        return sum(launch.role.replicas for launch in self.launches) > 1


def deployment_of(plan: Plan, engine: Engine, version: str | None) -> Deployment:
    """The deployment of `plan` on `engine`; of the version that the plan's tables are of unless another is given."""
    found = flags.table(engine.name)
    notes: list[str] = []
    provider, _, provider_version = plan.provider.rpartition("/")[2].partition("-")
    if version is None and provider == engine.name and provider_version:
        version = provider_version
    known, remark = found.nearest(version)
    notes += [remark] * bool(remark)
    notes += _general(plan, engine, provider)
    launches = tuple(engine.launch(plan, role, known, notes) for role in plan.roles)
    return Deployment(plan, engine, version or known, launches, tuple(dict.fromkeys(notes)))


def _general(plan: Plan, engine: Engine, provider: str) -> list[str]:
    """What of the plan no flag says, whatever the engine."""
    notes = []
    title = flags.table(engine.name).program
    if plan.engine != engine.name:
        notes.append(f"The run was simulated with the engine profile {plan.profile}, not with {title}'s: its latencies are not those of"
                     f" what stands here. Simulate again with engine.profile={engine.name} to predict this.")  # fmt: skip
    elif provider in ("vllm", "sglang", "trtllm", "orrery") and provider != engine.name:
        notes.append(f"Kernels were priced by the tables of {plan.provider}, which are not {title}'s.")
    most = plan.checkpoint.most_positions
    if most and plan.max_model_len > most:
        variable = _LONGER.get(engine.name)
        notes.append(f"The plan has requests of up to {plan.max_model_len:,} tokens, the model was made for {most:,}."
                     + (f" {title} refuses that unless {variable}=1 is set." if variable else ""))  # fmt: skip
    moe = plan.run.scenario["moe"]
    design = moe["design"] + (f" in {moe['chunks']} chunks" if "chunks" in moe else "")
    if plan.checkpoint.has_experts and design != "fused":
        notes.append(f"Routed experts were simulated as moe.design={design}; {title} has kernels of its own for them.")
    for role in plan.roles:
        if role.pp > 1 and role.num_micro_batches > 1:
            notes.append(f"The plan cuts a step of {role.name} into {role.num_micro_batches} micro-batches; {title} chooses by itself how many"
                         " batches are in its pipeline.")  # fmt: skip
        if role.two_batch_overlap:
            notes.append(f"The plan runs a step of {role.name} in two halves that overlap, which what stands here does not ask for: SGLang has"
                         " --enable-two-batch-overlap, vLLM --enable-dbo, for some models and exchanges.")  # fmt: skip
    return notes


def processes(deployment: Deployment) -> list[Process]:
    """All processes with their GPUs, prefill first as in the simulation, and the router last."""
    found: list[Process] = []
    place = _Place(deployment.plan.gpus_per_node)
    port = FIRST_PORT
    for launch in deployment.launches:
        for index in range(launch.role.replicas):
            port += deployment.needs_router
            found += _replica(deployment, launch, index, port, place.of(launch.role.gpus))
    if deployment.needs_router:
        found.append(_router(deployment, found))
    return found


def _replica(deployment: Deployment, launch: Launch, index: int, port: int, nodes: list[tuple[int, tuple[int, ...]]]) -> list[Process]:
    role, engine = launch.role, deployment.engine
    several = len(nodes) > 1
    name = f"{role.name}-{index}"
    result = []
    for rank, (node, gpus) in enumerate(nodes):
        if rank and not engine.starts_per_node:
            break
        command = flags.Command(launch.command.table, launch.command.version, *launch.command.words)
        env = engine.listen(command, role, port, index)
        if several:
            engine.span(command, role, len(nodes), rank, _host(deployment.plan, nodes[0][0]))
        uses_all = len(gpus) == deployment.plan.gpus_per_node
        result.append(
            Process(
                name=f"{name}-node-{rank}" if several else name,
                node=node,
                gpus=() if uses_all else gpus,
                port=port,
                words=tuple(command.words),
                env=env,
                file=_text(launch.file),
                address="" if rank else f"http://{_host(deployment.plan, node)}:{port}",
            )
        )
    return result


def _router(deployment: Deployment, servers: Sequence[Process]) -> Process:
    sides = {
        name: [server.address for server in servers if server.address and server.name.startswith(name)]
        for name in ("server", "prefill", "decode")
    }
    command, file = deployment.engine.router(deployment.plan, sides["server"] or sides["prefill"], sides["decode"], [])
    return Process("router", 0, (), FIRST_PORT, tuple(command.words), {}, _text(file), f"http://127.0.0.1:{FIRST_PORT}")


def router_notes(deployment: Deployment) -> list[str]:
    """What the router cannot do of what the plan says."""
    notes: list[str] = []
    if deployment.needs_router:
        deployment.engine.router(deployment.plan, ["http://a:1"], ["http://b:1"] if deployment.plan.is_apart else [], notes)
    return notes


def num_nodes(deployment: Deployment) -> int:
    return 1 + max(process.node for process in processes(deployment))


def _text(file: tuple[str, Mapping[str, Any]] | None) -> tuple[str, str] | None:
    return (file[0], yaml_text.block(file[1])) if file else None


def _host(plan: Plan, node: int) -> str:
    """Every node but the first by a variable, since only its owner knows its name."""
    is_one = plan.num_gpus <= plan.gpus_per_node
    return "127.0.0.1" if is_one else f"$NODE_{node}"


class _Place:
    """Hands out GPUs in order; a replica that fits on one node is not cut."""

    def __init__(self, gpus_per_node: int) -> None:
        self._size = gpus_per_node
        self._next = 0

    def of(self, gpus: int) -> list[tuple[int, tuple[int, ...]]]:
        """Nodes with the GPUs on each."""
        left = -self._next % self._size
        if left and gpus > left:
            self._next += left
        result = []
        while gpus > 0:
            node, first = divmod(self._next, self._size)
            taken = min(gpus, self._size - first)
            result.append((node, tuple(range(first, first + taken))))
            self._next += taken
            gpus -= taken
        return result


__all__ = ["FIRST_PORT", "Deployment", "Engine", "Launch", "Process", "deployment_of", "num_nodes", "processes", "router_notes"]
