"""What an answer stands on: whose prices, kernel tables, host times and draws."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from .. import _core
from ..report import resolved_scenario
from ..simulation import project_root

if TYPE_CHECKING:
    from .driver import Exploration


def basis(found: Exploration, candidate: int) -> dict[str, Any]:
    """Of one candidate: machine, device, price and power with the sources that the device's file names, provider, profile, seed."""
    scenario = found.space.scenario(candidate)
    resolved = resolved_scenario.parse(scenario.to_yaml(), pathlib.Path("scenario.yaml"))
    engine = resolved.get("engine")
    result: dict[str, Any] = {
        "machine": scenario.machine, "provider": scenario.provider, "seed": scenario.seed,
        "engine": engine.get("profile") if isinstance(engine, dict) else None, "step_level": resolved.get("step_level"),
    }  # fmt: skip
    topologies = project_root() / "topologies"
    file = topologies / f"{scenario.machine}.yaml"
    if not file.is_file():
        return result
    machine = _core.machine_summary(str(file), str(topologies))
    directory = pathlib.Path(machine["device_directory"])
    result |= {"device": machine["device"], "usd_per_hour": machine["usd_per_hour"] or None, "tdp_w": machine["tdp_w"] or None}
    power = machine["power"] or {}
    result |= {f"energy_{key}": power.get(key) for key in ("basis", "error", "waiting_w", "hbm_w", "arithmetic_w")}
    device = resolved_scenario.read(directory / "device.yaml")
    for key, name in (("usd_per_hour", "price_source"), ("tdp", "tdp_source")):
        if isinstance(value := device.get(key), dict):
            result[name] = value.get("source")
    if found.costs.get("usd_per_gpu_hour"):
        result |= {"usd_per_hour": found.costs["usd_per_gpu_hour"], "price_source": "the owner's, cost of the scenario or machine"}
    result |= {key: found.costs.get(key) for key in ("usd_per_kwh", "pue")}
    meta = directory / scenario.provider / "meta.yaml"
    if meta.is_file():
        tables = resolved_scenario.read(meta)
        result |= {f"tables_{key}": tables[key] for key in ("device", "source_repository", "licence") if isinstance(tables.get(key), str)}
    return result
