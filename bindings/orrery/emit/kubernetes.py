"""A deployment as Kubernetes manifests: a Deployment and a Service for each role, and the router that finds their pods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import flags, yaml_text
from .deployment import FIRST_PORT, Deployment, Launch, processes

_PORT = 8000  # of every server in its own pod
_ROUTER_IMAGE = "python:3.12-slim"


def manifests(deployment: Deployment, header: Sequence[str], name: str) -> str:
    """YAML documents. Raises ValueError for a replica of several nodes, which a Deployment cannot start."""
    documents = servers(deployment, name)
    if deployment.needs_router:
        documents += _routing(deployment, name)
    comments = "".join(f"# {line}".rstrip() + "\n" for line in header)
    return comments + "---\n".join(["", *(yaml_text.block(document) for document in documents)])


def servers(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    """A Deployment and a Service for each role, with what they read. Raises ValueError as `manifests`."""
    _check_nodes(deployment)
    return [document for launch in deployment.launches for document in _server(deployment, launch, name)]


def _check_nodes(deployment: Deployment) -> None:
    for launch in deployment.launches:
        if launch.role.gpus > deployment.plan.gpus_per_node:
            raise ValueError(f"found a {launch.role.name} replica of {launch.role.gpus} GPUs on nodes of {deployment.plan.gpus_per_node}; a Kubernetes"
                             " Deployment starts pods of one node, so expected --format shell, or a plan whose replicas fit on a node")  # fmt: skip


def role_name(deployment: Deployment, launch: Launch, name: str) -> str:
    """Of the Deployment and the Service of a role."""
    return f"{dns_label(name)}-{launch.role.name}" if deployment.plan.is_apart else dns_label(name)


def dns_label(name: str) -> str:
    """`name` as Kubernetes takes names (RFC 1123): small letters, digits and dashes, at most 40 here."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "orrery"


def _server(deployment: Deployment, launch: Launch, name: str) -> list[dict[str, Any]]:
    own = role_name(deployment, launch, name)
    labels = {"app": dns_label(name), "role": launch.role.name}
    first = next(process for process in processes(deployment) if process.name.startswith(launch.role.name))
    words = [*first.words]
    words[words.index("--port") + 1] = str(_PORT)
    env: list[dict[str, Any]] = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}},
        *({"name": key, "value": text} for key, text in first.env.items()),
    ]
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" in first.env:
        env.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    container: dict[str, Any] = {
        "name": deployment.engine.name,
        "image": deployment.image,
        "command": words,
        "env": env,
        "ports": [{"name": "http", "containerPort": _PORT}],
        "resources": {"limits": {"nvidia.com/gpu": launch.role.gpus}},
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]  # NCCL between processes of one pod
    documents = []
    if first.file:
        file, content = first.file
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": own}, "data": {file: content}})
        words[words.index(file)] = f"/config/{file}"
        container["volumeMounts"].append({"name": "config", "mountPath": "/config"})
        volumes.append({"name": "config", "configMap": {"name": own}})
    metadata: dict[str, Any] = {"labels": labels}
    if "--disaggregation-bootstrap-port" in words:  # where sglang-router looks for it
        metadata["annotations"] = {"sglang.ai/bootstrap-port": words[words.index("--disaggregation-bootstrap-port") + 1]}
    template = {"metadata": metadata, "spec": {"containers": [container], "volumes": volumes}}
    deployed = {"replicas": launch.role.replicas, "selector": {"matchLabels": labels}, "template": template}
    documents.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": own, "labels": labels}, "spec": deployed})
    documents.append(_service(own, labels, _PORT))
    return documents


def _service(name: str, labels: dict[str, str], port: int) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "targetPort": "http"}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": labels, "ports": ports}}


def _routing(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    """The router with the right to watch pods; trtllm-serve's own reads Services from its file instead."""
    app = dns_label(name)
    own = f"{app}-router"
    labels = {"app": app, "role": "router"}
    router = processes(deployment)[-1]
    documents: list[dict[str, Any]] = []
    if router.file:
        sides = {launch.role.name: role_name(deployment, launch, name) for launch in deployment.launches}
        command, file = deployment.engine.router(
            deployment.plan, [f"http://{sides['prefill']}:{_PORT}"], [f"http://{sides['decode']}:{_PORT}"], []
        )
        assert file is not None, "the router has a file here"
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": own}, "data": {file[0]: yaml_text.block(file[1])}})
        words = [f"/config/{word}" if word == file[0] else word for word in command.words]
        pod: dict[str, Any] = {"volumes": [{"name": "config", "configMap": {"name": own}}]}
        container = {"name": "router", "image": deployment.image, "command": words, "ports": [{"name": "http", "containerPort": FIRST_PORT}],
                     "volumeMounts": [{"name": "config", "mountPath": "/config"}]}  # fmt: skip
    else:
        documents += _rights(own)
        pod = {"serviceAccountName": own}
        container = {"name": "router", "image": _ROUTER_IMAGE, "command": ["bash", "-c", _found_by_labels(deployment, list(router.words), app)],
                     "ports": [{"name": "http", "containerPort": FIRST_PORT}],
                     "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]}  # fmt: skip
    template = {"metadata": {"labels": labels}, "spec": {**pod, "containers": [container]}}
    deployed = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    documents.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": own, "labels": labels}, "spec": deployed})
    return [*documents, _service(own, labels, FIRST_PORT)]


def _found_by_labels(deployment: Deployment, words: list[str], app: str) -> str:
    """The router's command with labels of pods in the place of addresses, after installing it."""
    is_vllm = words[0] == "vllm-router"
    found = flags.table("vllm_router" if is_vllm else "sglang_router")
    command = flags.Command(found, found.default, *(words[:1] if is_vllm else words[:3]))
    command.add("--service-discovery").add("--service-discovery-port", _PORT)
    if deployment.plan.is_apart:
        command.add("--vllm-pd-disaggregation" if is_vllm else "--pd-disaggregation")
        for side in ("prefill", "decode"):
            command.add(f"--{side}-selector", [f"app={app}", f"role={side}"])
    else:
        command.add("--selector", [f"app={app}", "role=server"])
    command.words += words[words.index("--policy") :]
    package = f"{'vllm-router' if is_vllm else 'sglang-router'}=={found.default}"
    return f'pip install --quiet {package} && exec {" ".join(command.words)} --service-discovery-namespace "$NAMESPACE"'


def _rights(name: str) -> list[dict[str, Any]]:
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": name},
         "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]},
        {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": name}, "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
         "subjects": [{"kind": "ServiceAccount", "name": name}]},
    ]  # fmt: skip


__all__ = ["dns_label", "manifests", "servers"]
