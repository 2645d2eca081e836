"""The whole text of a deployment in one of the formats, with what must be known about it at its top."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from .. import _core
from ..text_table import printable
from . import dynamo, flags, kubernetes, llmd, shell
from .benchmark import REQUESTS, Benchmark, benchmark_of
from .deployment import Deployment, deployment_of, router_notes
from .engines import ENGINES
from .plan import Plan, Role

_WIDTH = 118


def written(plan: Plan, engine: str, *, version: str | None = None, form: str = "shell") -> tuple[str, list[str]]:
    """What serves `plan` on an engine, and the sentences about what it does not do as the plan says.

    Raises ValueError for what cannot be written at all, flags.UnknownFlag for an option that the version has not.
    """
    deployment = deployment_of(plan, ENGINES[engine], version)
    benchmark = benchmark_of(deployment)
    notes = [*deployment.notes, *_routing(deployment, form), *_of_format(deployment, form)]
    header = _header(deployment, benchmark, notes, form)
    name = str(plan.run.summary["scenario"])
    if form == "kubernetes":
        return kubernetes.manifests(deployment, header, name), notes
    if form == "llm-d":
        return llmd.manifests(deployment, header, name), notes
    if form == "dynamo":
        return dynamo.manifest(deployment, header, name), notes
    return shell.script(deployment, benchmark, header), notes


def _routing(deployment: Deployment, form: str) -> list[str]:
    if form == "llm-d":
        return [note] if (note := llmd.router_note(deployment)) else []
    return [] if form == "dynamo" else router_notes(deployment)


def _of_format(deployment: Deployment, form: str) -> list[str]:
    if form == "kubernetes" and deployment.needs_router:
        return ["The router is installed from PyPI when its pod starts; without a network, build an image that has it."] * (
            deployment.engine.name != "trtllm" or not deployment.plan.is_apart
        ) + ["trtllm-serve disaggregated reaches the replicas of a side through one Service, which spreads connections, not requests."] * (
            deployment.engine.name == "trtllm" and deployment.plan.is_apart
        )
    if form == "dynamo":
        found = flags.table("dynamo")
        title = flags.table(deployment.engine.name).program
        return [f"The image of Dynamo {found.default} brings a {title} of its own; look whether it is {deployment.version}, whose options stand here."]
    return []


def _header(deployment: Deployment, benchmark: Benchmark, notes: Sequence[str], form: str) -> list[str]:
    plan, table = deployment.plan, flags.table(deployment.engine.name)
    run = shlex.quote(plan.run.name)
    roles = "; ".join(_role(launch.role) for launch in deployment.launches)
    lines = [
        f"{plan.checkpoint.name} on {table.program} {deployment.version}: {roles}, on {plan.machine}",
        *_filled(plan.title, "  "),
        f"Written by orrery {_core.__version__} from {plan.run.name}.",
    ]
    if form == "shell":
        lines += ["", f"Serve: bash FILE. Measure, in a second terminal: bash FILE bench. Then: orrery compare {run} {benchmark.writes}"]
    if benchmark.needs_requests:
        lines.append(f"The benchmark replays {REQUESTS}: orrery emit {run} --engine {deployment.engine.name} --requests {REQUESTS} -o FILE")
    if notes:
        lines += ["", "Other than the plan:"]
        lines += [line for note in notes for line in _filled(note, "- ")]
    if benchmark.notes:
        lines += ["", "About the benchmark:"]
        lines += [line for note in benchmark.notes for line in _filled(note, "- ")]
    if form != "shell":
        lines += ["", "Benchmark, where port 8000 of the entry is forwarded to this host:"]
        lines += [f"  {line}" for line in shell.wrapped(benchmark.commands[0].words, {}).splitlines()]
    lines += ["", *_filled(f"Options checked against {table.program} {deployment.launches[0].command.version}: {table.source}", "")]
    return [printable(line, keep="") for line in lines]  # a name with a line break must not leave its comment


def _role(role: Role) -> str:
    ways = [f"tp {role.tp}", *(f"{name} {ways}" for name, ways in (("pp", role.pp), ("dp", role.dp), ("ep", role.ep)) if ways > 1)]
    return f"{role.replicas} x {role.name} of {role.gpus} GPU{'s' * (role.gpus > 1)} ({', '.join(ways)})"


def _filled(text: str, bullet: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False)


__all__ = ["written"]
