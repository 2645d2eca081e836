"""The command `orrery import aiconfigurator`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .collectives import import_collectives, is_collective
from .kernels import import_provider
from .reading import Listing, TableError, find_tables, read_rows
from .sources import KERNELS
from .writing import Written, staging

# Devices as the tables name them, and the directories under topologies/devices.
_DEVICES = {
    "NVIDIA B200": "b200-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H200": "h200-sxm",
}
_KERNEL_OPS = {op for kernel in KERNELS for op in kernel.ops}


def run(options: argparse.Namespace, topologies: Path) -> int:
    """Runs the command on parsed options; `topologies` is where to write without --into. Throws TableError."""
    known = [kernel.name for kernel in KERNELS]
    for name in options.kernels or []:
        if name not in known:
            raise TableError(f"found kernel '{name}'; expected one of {', '.join(known)}")
    if options.version and not options.engine:
        raise TableError(f"found --version {options.version} without --engine; expected both")
    listing = find_tables(options.source)
    topologies = options.into or topologies
    providers = _wanted(listing, options)
    if not providers and not options.machine:
        raise TableError(f"{options.source} holds no kernel table; expected --machine for its collectives")
    if not options.engine:
        _print_listing(listing)
    written: dict[str, dict[str, Written]] = {}
    with staging(topologies, force=options.force) as staged:
        for engine, version in providers:
            device = options.device or _device(listing, engine, version)
            tables = import_provider(listing, staged, engine=engine, version=version, device=device, kernels=options.kernels)
            written[f"{device}/{engine}-{version}"] = tables
        if options.machine:
            written[options.machine] = import_collectives(listing, staged, machine=options.machine)
    for name, tables in written.items():
        _print_written(name, tables)
    return 0


def _wanted(listing: Listing, options: argparse.Namespace) -> list[tuple[str, str]]:
    """Engines and versions to import, each with at least one table of a wanted kernel."""
    ops = {op for kernel in KERNELS if not options.kernels or kernel.name in options.kernels for op in kernel.ops}
    tables = [table for table in listing.tables if table.op in ops]
    found = sorted({(table.engine, table.version) for table in tables})
    wanted = [each for each in found if options.engine in (None, each[0]) and (options.version or each[1]) == each[1]]
    if options.engine and not wanted:
        asked = f"{options.engine} {options.version or ''}".strip()
        names = ", ".join(" ".join(each) for each in found) or "none"
        raise TableError(f"{options.source} holds no such table of {asked}; found {names}")
    return wanted


def _device(listing: Listing, engine: str, version: str) -> str:
    """The device directory that the first row of a provider's tables names."""
    table = next(each for each in listing.tables if (each.engine, each.version) == (engine, version))
    line, row = next(read_rows(table.path), (2, {}))
    name = row.get("device", "")
    if name not in _DEVICES:
        raise TableError(f"{table.path}:{line}: device '{name}'; expected one of {', '.join(_DEVICES)}, or --device")
    return _DEVICES[name]


def _print_listing(listing: Listing) -> None:
    by_source: dict[tuple[str, str, str], list[str]] = {}
    for table in listing.tables:
        kind = "kernels" if table.op in _KERNEL_OPS else "collectives" if is_collective(table) else "not imported"
        by_source.setdefault((table.engine, table.version, kind), []).append(table.op)
    print("found")
    for (engine, version, kind), ops in by_source.items():
        print(f"  {engine} {version} {kind}: {', '.join(ops)}")


def _print_written(name: str, tables: dict[str, Written]) -> None:
    print(name)
    for table, written in tables.items():
        left_out = f", {sum(written.left_out.values()):,} left out" if written.left_out else ""
        print(f"  {table}: {written.rows:,} rows{left_out}")
