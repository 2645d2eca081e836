"""A deployment for llm-d: Deployments that its router finds by their labels, and the values of the router's Helm chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import flags, kubernetes, yaml_text
from .deployment import Deployment

CHART = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"
MARK = "#| "  # of the lines of the values, which are no manifest
_SIDECAR_PORT, _DECODE_PORT = 8000, 8200
_SCORERS = {
    "round_robin": ("active-request-scorer",),
    "least_loaded": ("active-request-scorer",),
    **dict.fromkeys(("prefix_aware", "cache_aware", "weighted_scores"), ("prefix-cache-affinity-filter", "token-load-scorer")),
}
_PRODUCERS = {"prefix-cache-affinity-filter": "approx-prefix-cache-producer"}


def manifests(deployment: Deployment, header: Sequence[str], name: str) -> str:
    """YAML documents, and in comments the values of the router. Raises ValueError for what llm-d's guides do not serve so."""
    engine, plan = deployment.engine.name, deployment.plan
    if engine == "trtllm" or (plan.is_apart and engine != "vllm"):
        raise ValueError(f"found {engine}{' with prefill and decode apart' if plan.is_apart else ''}; expected vllm, or sglang with both on the same GPUs:"
                         " --format kubernetes or dynamo write the others")  # fmt: skip
    own = kubernetes.dns_label(name)
    documents = kubernetes.servers(deployment, name)
    for document in documents:
        if document["kind"] == "Deployment":
            _label(document, own, plan.is_apart)
            if document["metadata"]["labels"]["role"] == "decode":
                _add_sidecar(document)
    values = yaml_text.block(_values(deployment, own))
    install = [f"helm install {own}-router {CHART} --version v{flags.table('llmd').default} -f router.values.yaml",
               "where router.values.yaml is: sed -n 's/^#| //p' FILE > router.values.yaml"]  # fmt: skip
    comments = "".join(f"# {line}".rstrip() + "\n" for line in [*header, "", "Router:", *(f"  {line}" for line in install)])
    comments += "".join(f"{MARK}{line}\n" for line in values.splitlines())
    return comments + "---\n".join(["", *(yaml_text.block(document) for document in documents)])


def router_note(deployment: Deployment) -> str:
    """What stands in for the plan's router."""
    if deployment.plan.router != "round_robin" or not deployment.needs_router:
        return ""
    return "llm-d's router scores pods; requests go to the one with the fewest in flight in place of in turn."


def _label(document: dict[str, Any], own: str, is_apart: bool) -> None:
    labels = {"llm-d.ai/inference-serving": "true", "llm-d.ai/guide": own}
    if is_apart:
        labels["llm-d.ai/role"] = document["metadata"]["labels"]["role"]
    document["metadata"]["labels"] |= labels
    document["spec"]["template"]["metadata"]["labels"] = {**document["spec"]["template"]["metadata"]["labels"], **labels}


def _add_sidecar(document: dict[str, Any]) -> None:
    """A decode pod is reached through its sidecar, which has the prompt computed by the prefill pod that the router chose."""
    found = flags.table("llmd")
    command = flags.Command(found, found.default).add("--port", _SIDECAR_PORT).add("--kv-connector", "nixlv2").add("--secure-serving", "false")
    words = [f"{name}={value}" for name, value in zip(command.words[::2], command.words[1::2])]
    spec = document["spec"]["template"]["spec"]
    server = spec["containers"][0]
    server["command"][server["command"].index("--port") + 1] = str(_DECODE_PORT)
    server["ports"] = [{"name": "http", "containerPort": _DECODE_PORT}]
    spec["initContainers"] = [{"name": "routing-proxy", "image": found.image.format(version=found.default), "args": words, "restartPolicy": "Always",
                               "ports": [{"name": "sidecar", "containerPort": _SIDECAR_PORT}]}]  # fmt: skip


def _values(deployment: Deployment, own: str) -> dict[str, Any]:
    file = f"{own}-plugins.yaml"
    return {"router": {
        "extraServicePorts": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}],
        "epp": {"replicas": 1, "pluginsConfigFile": file, "pluginsCustomConfig": {file: yaml_text.block(picker_config(deployment))}},
        "modelServers": {"protocol": "http", "matchLabels": {"llm-d.ai/guide": own}},
    }}  # fmt: skip


def picker_config(deployment: Deployment) -> dict[str, Any]:
    """How the router chooses pods: an EndpointPickerConfig with a profile for each side."""
    found = flags.table("llmd")
    scorers = _SCORERS[deployment.plan.router]
    producers = [_PRODUCERS[name] for name in scorers if name in _PRODUCERS]
    plugins: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []
    if deployment.plan.is_apart:
        plugins += [{"type": "always-disagg-pd-decider"},
                    {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}},
                    {"type": "prefill-filter"}, {"type": "decode-filter"}]  # fmt: skip
    plugins += [{"type": name} for name in dict.fromkeys((*producers, "inflight-load-producer", *scorers, "active-request-scorer", "max-score-picker"))]
    for side in ("prefill", "decode") if deployment.plan.is_apart else ("default",):
        names = [] if side == "default" else [f"{side}-filter"]
        names += ["active-request-scorer"] if side == "decode" else list(scorers)
        profiles.append({"name": side, "plugins": [{"pluginRef": name} for name in (*names, "max-score-picker")]})
    for plugin in plugins:
        found.check("plugin", found.default, plugin["type"])
    return {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": plugins, "schedulingProfiles": profiles}


__all__ = ["CHART", "MARK", "manifests", "picker_config", "router_note"]
