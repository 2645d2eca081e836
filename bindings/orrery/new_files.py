"""`orrery new scenario|machine NAME`: a file to start from, beside where one works."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from . import files
from .arguments import scenario_file, whole_number
from .scenarios import project_root


@dataclasses.dataclass(frozen=True)
class _Link:
    """Between the GPUs of a node: rate of a GPU in one direction by its data sheet, latency as NCCL assumes it (src/graph/tuning.cc)."""

    rate: str
    latency: str
    source: str

    @property
    def is_pcie(self) -> bool:
        return self.source.startswith("PCIe")

    @property
    def key(self) -> str:
        return "pcie" if self.is_pcie else "nvlink"

    @property
    def kind(self) -> str:
        return "pcie_node    " if self.is_pcie else "nvswitch_node"

    @property
    def about(self) -> str:
        return "each GPU on a slot; lower pcie_rate if the sockets' link holds up all at once" if self.is_pcie else "each GPU with a link of its own to all others"


_LINKS = {
    "pcie4": _Link("32 GB/s", "1 us", "PCIe 4.0 x16"),
    "pcie5": _Link("64 GB/s", "1 us", "PCIe 5.0 x16"),
    "nvlink3": _Link("300 GB/s", "0.6 us", "NVLink 3, 12 links"),
    "nvlink4": _Link("450 GB/s", "0.6 us", "NVLink 4, 18 links"),
    "nvlink5": _Link("900 GB/s", "0.6 us", "NVLink 5, 18 links"),
}
_MACHINE = """# {name}: a node of {gpus} x {device}. Every key: topologies/README.md; use it as `machine: {file}`.
name: {name}
kind: {link.kind}      # {link.about}
device: {device}         # a name that `orrery devices` lists, or your own:
# device: {{like: {device}, name: my-gpu, hbm_capacity: 94 GB, hbm_bandwidth: 3900 GB/s}}
num_gpus: {gpus}
gpus_per_node: {gpus}
{link.key}_rate: {{value: {link.rate}, source: "{link.source}, per GPU and direction"}}
{link.key}_latency: {{value: {link.latency}, source: "NCCL src/graph/tuning.cc, ring LL"}}
# cost: {{usd_per_gpu_hour: 1.2, usd_per_kwh: 0.1, pue: 1.25}}
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="kinds", required=True, metavar="KIND")
    scenario = kinds.add_parser("scenario", help="a copy of a shipped scenario")
    scenario.add_argument("name", type=_name, metavar="NAME", help="writes NAME.yaml")
    scenario.add_argument("--like", type=scenario_file, default="quickstart", metavar="SCENARIO", help="the one to start from (quickstart)")
    scenario.set_defaults(command=_new_scenario)
    machine = kinds.add_parser("machine", help="a node of GPUs")
    machine.add_argument("name", type=_name, metavar="NAME", help="writes NAME.yaml")
    machine.add_argument("--device", default="h200-sxm", metavar="D", help="one that orrery devices lists (h200-sxm)")
    machine.add_argument("--gpus", type=whole_number(1, 16), default=8, metavar="N", help="GPUs of the node (8)")
    machine.add_argument("--link", choices=_LINKS, default="nvlink4", help="between them (nvlink4)")
    machine.set_defaults(command=_new_machine)


def _name(text: str) -> str:
    if not text.strip() or not text.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ValueError(text)
    return text.removesuffix(".yaml")


_name.__name__ = "name of letters, digits, '-', '_' and '.'"


def _new_scenario(options: argparse.Namespace) -> int:
    return _write(options.name, options.like.read_text(encoding="utf-8"), f"orrery run {options.name}.yaml")


def _new_machine(options: argparse.Namespace) -> int:
    known = sorted(file.parent.name for file in (project_root() / "topologies" / "devices").glob("*/device.yaml"))
    if options.device not in known:
        raise ValueError(f"--device: found '{options.device}'; expected one of {', '.join(known)} (the file may say how yours differs)")
    file = f"{options.name}.yaml"
    text = _MACHINE.format(name=options.name, file=file, device=options.device, gpus=options.gpus, link=_LINKS[options.link])
    return _write(options.name, text, f"orrery run llama_8b_closed_loop --set machine=./{file}{_without_tables(options.device)}")


def _without_tables(device: str) -> str:
    """What a run on a device needs besides where kernels of none of its maker's GPUs are measured."""
    devices = project_root() / "topologies" / "devices"
    vendors = {file.parent.name: _vendor(file) for file in devices.glob("*/device.yaml")}
    measured = {vendors[table.parent.parent.name] for table in devices.glob("*/*/gemm.csv")}
    return "" if vendors[device] in measured else " --set provider=none"


def _vendor(device_file: pathlib.Path) -> str:
    lines = device_file.read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("vendor:"))


def _write(name: str, text: str, next_command: str) -> int:
    path = pathlib.Path(f"{name}.yaml")
    if path.exists():
        raise FileExistsError(f"'{path}' exists; expected a new name")
    files.write_text(path, text)
    print(f"{path}; next: {next_command}")
    return 0


__all__ = ["add_options"]
