"""The plan whose ops the kernels of a trace are matched to."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import tempfile
from typing import Any

from ... import _core
from ...emit import yaml_text
from ...report import resolved_scenario
from ...simulation import project_root
from .matching import PlanOp
from .steps import BatchOf
from .trace import TraceError

# Devices as drivers name them, their directories under topologies/devices, and a machine of one and of several.
DEVICES = {
    "NVIDIA H200": ("h200-sxm", "single-h200", "hgx-h200"),
    "NVIDIA H100 80GB HBM3": ("h100-sxm", "single-h100", "hgx-h100"),
    "NVIDIA A100-SXM4-80GB": ("a100-sxm-80gb", "hgx-a100", "hgx-a100"),
    "NVIDIA B200": ("b200-sxm", "hgx-b200", "hgx-b200"),
    "NVIDIA H20": ("h20", "hgx-h20", "hgx-h20"),
}


@dataclasses.dataclass(frozen=True)
class Deployed:
    """What was served and how, as scenarios say it."""

    model: str  # name of one in models/, or a config.json
    machine: str
    profile: str  # an engine profile: how its plan is lowered
    tp: int = 1
    ep: int = 1
    weights: str = ""
    kv_cache: str = ""
    is_packed: bool = False  # attention of all sequences in one call

    def scenario(self, provider: str = "none") -> _core.Scenario:
        """Raises TraceError with what the scenario's reader says."""
        if not self.is_packed:
            return self._scenario(provider, self.profile)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "packed.yaml"
            path.write_text(yaml_text.block(plain(base_profile(self.profile) | {"attention": {"form": "packed"}})), encoding="utf-8")
            return self._scenario(provider, str(path))

    def _scenario(self, provider: str, profile: str) -> _core.Scenario:
        keys = [f"config: {self._model()}"]
        keys += [f"{key}: {value}" for key, value in (("weights", self.weights), ("activations", self.weights), ("kv_cache", self.kv_cache)) if value]
        expert = f", ep: {self.ep}" if self.ep > 1 else ""
        text = "\n".join(
            (
                f"model: {{{', '.join(keys)}}}",
                f"machine: {self.machine}",
                f"provider: {provider}",
                f"placement: {{replicas: 1, tp: {self.tp}{expert}}}",
                f"engine: {{profile: {profile}, gpu_memory_utilization: 0.95}}",
                "workload: {static_batch: {batch: 1, prompt_tokens: 16, output_tokens: 2}}",
                "seed: 1",
            )
        )
        root = project_root()
        try:
            return _core.Scenario(
                _core.YamlNode.parse(text, "the deployment of the trace"), name="trace", directory=str(pathlib.Path.cwd()), project=str(root)
            )
        except ValueError as error:
            raise TraceError(f"{error} (of --model, --machine, --tp, --weights or --profile)") from None

    def _model(self) -> str:
        path = pathlib.Path(self.model)
        return str(path.resolve()) if path.suffix == ".json" and path.exists() else self.model


def base_profile(name: str) -> dict[str, Any]:
    """A profile of scenarios/engines with what it extends, as plain data."""
    folder = project_root() / "scenarios" / "engines"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
        raise TraceError(f"found the engine profile '{name}'; expected one of {known}")
    content = resolved_scenario.read(path)
    if "extends" in content:
        content = _merged(base_profile(content["extends"]), content)
        content.pop("extends")
    return content


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        is_section = isinstance(value, dict) and isinstance(base.get(key), dict) and "value" not in value
        result[key] = _merged(base[key], value) if is_section else value
    return result


def plain(value: Any) -> Any:
    """Numbers and truth values as such, which the reader keeps as text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return {"true": True, "false": False}[value] if value in ("true", "false") else json.loads(value)
    except ValueError:
        return value


def core_batch(batch: BatchOf) -> _core.Batch:
    ending = len(batch.prefill) - batch.num_cut
    chunks = [_core.PrefillChunk(query=query, context=context, produces_token=index < ending) for index, (query, context) in enumerate(batch.prefill)]
    return _core.Batch(prefill=chunks, num_decodes=batch.num_decodes, decode_context=batch.decode_context)


class Plans:
    """Plans of steps of one deployment, as lists of ops in the order of a rank's stream."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.scenario = deployed.scenario()

    @functools.lru_cache(maxsize=1024)  # noqa: B019  lives as long as the import
    def ops(self, batch: BatchOf) -> tuple[PlanOp, ...]:
        found = _core.plan_ops(_core.simulate_step(self.scenario, core_batch(batch), "representative").plan_text)
        return tuple(_plan_op(op) for op in found if op["body"]["kind"] != "host" and 0 in op["ranks"])


def _plan_op(op: dict[str, Any]) -> PlanOp:
    body = op["body"]
    if body["kind"] == "kernel":
        return PlanOp(op["op"], body["name"], body["dtype"], tuple(body["dims"].items()), op["copy"])
    return PlanOp(op["op"], "comm", body.get("dtype", ""), tuple((key, value) for key, value in body.items() if isinstance(value, int)), op["copy"])
