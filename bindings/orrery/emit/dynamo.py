"""A deployment as NVIDIA Dynamo's DynamoGraphDeployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import flags, yaml_text
from .deployment import Deployment
from .kubernetes import dns_label

_IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
_MODES = {"round_robin": "round-robin", "least_loaded": "least-loaded", "prefix_aware": "kv", "cache_aware": "kv", "weighted_scores": "kv"}


def manifest(deployment: Deployment, header: Sequence[str], name: str) -> str:
    """One YAML document. Raises ValueError for a replica of several nodes."""
    found = flags.table("dynamo")
    image = f"nvcr.io/nvidia/ai-dynamo/{_IMAGES[deployment.engine.name]}:{found.default}"
    mode = flags.Command(found, found.default).add("--router-mode", _MODES[deployment.plan.router]).words
    frontend = {"image": image, "command": ["python3", "-m", "dynamo.frontend"], "args": mode}
    services: dict[str, Any] = {"Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": frontend}}}
    for launch in deployment.launches:
        if launch.role.gpus > deployment.plan.gpus_per_node:
            raise ValueError(f"found a {launch.role.name} replica of {launch.role.gpus} GPUs on nodes of {deployment.plan.gpus_per_node}; expected --format"
                             " shell: what is written for Dynamo has workers of one node")  # fmt: skip
        words = deployment.engine.dynamo(launch, deployment.plan.checkpoint.name)
        part = {} if launch.role.name == "server" else {"subComponentType": launch.role.name}
        services[launch.role.name] = {
            "envFromSecret": "hf-token-secret",
            "componentType": "worker",
            **part,
            "replicas": launch.role.replicas,
            "resources": {"limits": {"gpu": str(launch.role.gpus)}},
            "extraPodSpec": {"mainContainer": {"image": image, "command": words[:3], "args": words[3:]}},
        }
    document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": dns_label(name)},
        "spec": {"services": services},
    }
    return "".join(f"# {line}".rstrip() + "\n" for line in header) + yaml_text.block(document)


__all__ = ["manifest"]
