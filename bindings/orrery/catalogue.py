"""What a scenario may name: models, machines, devices, providers, kernels, as tables for people or JSON for programs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from . import _core
from .scenarios import project_root
from .text_table import aligned

SCHEMA_VERSION = 1  # of what --json prints; keys may be added, no key changes its meaning
Entry = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Listing:
    """A command that prints entries: each as JSON has it, and as cells of a table."""

    name: str
    help: str
    entries: Callable[[], list[Entry]]
    header: tuple[str, ...]
    cells: Callable[[Entry], Sequence[str]]
    right: tuple[int, ...] = ()

    def run(self, options: argparse.Namespace) -> int:
        found = self.entries()
        if options.json:
            print(json.dumps({"schema_version": SCHEMA_VERSION, self.name: found}, indent=2))
        else:
            print(aligned(self.header, [self.cells(entry) for entry in found], right=self.right))
        return 0


def _models() -> list[Entry]:
    directory = str(project_root() / "models")
    entries = []
    for name in _core.model_names(directory):
        try:
            model = _core.read_model(_core.model_path(directory, name))
        except ValueError as error:
            entries.append({"name": name, "error": str(error).partition(": ")[2]})
            continue
        entries.append({"name": name, "num_parameters": model.num_parameters, "num_experts": model.num_experts,
                        "num_active_parameters": model.num_active_parameters, "num_layers": model.num_layers,
                        "model_type": model.model_type})  # fmt: skip
    return entries


def _model_cells(model: Entry) -> Sequence[str]:
    if "error" in model:
        return model["name"], "–", "–", "–", model["error"]
    active = f"{model['num_active_parameters'] / 1e9:.1f}" if model["num_experts"] else ""
    return model["name"], f"{model['num_parameters'] / 1e9:.1f}", active, str(model["num_layers"]), model["model_type"]


def machines() -> list[Entry]:
    """What each machine file says, with the providers measured on its device."""
    topologies = project_root() / "topologies"
    names = _core.machine_names(str(topologies))
    return [_core.machine_summary(str(topologies / f"{name}.yaml"), str(topologies)) for name in names]


def _machine_cells(machine: Entry) -> Sequence[str]:
    rate = machine["nvlink_rate_bytes_per_s"]
    return (machine["name"], machine["kind"], machine["device"], f"{machine['num_gpus']:,}", _gib(machine["hbm_capacity_bytes"]),
            f"{rate / 1e9:.0f} GB/s" if rate else "", _dollars(machine["usd_per_hour"]), ", ".join(machine["providers"]) or "none")  # fmt: skip


def devices() -> list[Entry]:
    """What each device's file says, the machines that have it and the providers measured on it."""
    root = project_root() / "topologies" / "devices"
    of_machines = machines()
    entries = []
    for file in sorted(root.glob("*/device.yaml")):
        entry: Entry = _core.device_summary(str(file.parent))
        entry["machines"] = [machine["name"] for machine in of_machines if machine["device"] == entry["name"]]
        entries.append(entry)
    return entries


def _device_cells(device: Entry) -> Sequence[str]:
    flops = device["dense_flops"]
    return (device["name"], device["architecture"], _gib(device["hbm_capacity_bytes"]), f"{device['hbm_bandwidth_bytes_per_s'] / 1e9:,.0f} GB/s",
            *(f"{flops[dtype] / 1e12:,.0f}" if dtype in flops else "" for dtype in ("bf16", "fp8")),
            f"{device['tdp_w']:.0f} W" if device["tdp_w"] else "", _dollars(device["usd_per_hour"]),
            ", ".join(device["machines"]) or "none", ", ".join(device["providers"]) or "none")  # fmt: skip


def _providers() -> list[Entry]:
    entries = []
    seen = set()
    for machine in machines():
        for provider in machine["providers"]:
            directory = pathlib.Path(machine["device_directory"]) / provider
            if directory not in seen:
                seen.add(directory)
                entries.append({"device": machine["device"], "provider": provider, "rows": dict(_core.provider_rows(str(directory)))})
    return entries


def _provider_cells(entry: Entry) -> Sequence[str]:
    rows = entry["rows"]
    return entry["device"], entry["provider"], f"{sum(rows.values()):,}", ", ".join(f"{kernel} {count:,}" for kernel, count in rows.items())


def _gib(capacity: float) -> str:
    return f"{capacity / 2**30:.0f} GiB"


def _dollars(per_hour: float) -> str:
    return f"{per_hour:.2f}" if per_hour else ""


LISTINGS = (
    Listing("models", "list the models that scenarios may name", _models,
            ("model", "parameters, G", "active, G", "layers", "type"), _model_cells, (1, 2, 3)),
    Listing("machines", "list the machines", machines,
            ("machine", "kind", "device", "GPUs", "HBM", "links", "$/h a GPU", "providers"), _machine_cells, (3, 4, 5, 6)),
    Listing("devices", "list the devices that machines are made of", devices,
            ("device", "architecture", "HBM", "HBM rate", "bf16 TFLOP/s", "fp8", "power", "$/h", "machines", "tables"),
            _device_cells, (2, 3, 4, 5, 6, 7)),
    Listing("providers", "list the measured kernel tables of each device", _providers,
            ("device", "provider", "rows", "kernels"), _provider_cells, (2,)),
    Listing("kernels", "list the kernels that plans are made of", lambda: list(_core.kernel_specs()),
            ("kernel", "dims", "what it does"), lambda kernel: (kernel["name"], ", ".join(kernel["dims"]), kernel["summary"])),
)  # fmt: skip

__all__ = ["LISTINGS", "SCHEMA_VERSION", "devices", "machines"]
