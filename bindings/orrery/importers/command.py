"""`orrery import`: the formats that it reads; imports nothing that takes time."""

from __future__ import annotations

import argparse
import pathlib

from .torch_profile import options as torch_profile


def add_options(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_subparsers(title="formats", required=True, metavar="FORMAT")
    tables = formats.add_parser("aiconfigurator", help="op tables of ai-dynamo/aiconfigurator (CSV, Parquet)")
    tables.add_argument("source", type=pathlib.Path, metavar="DIR", help="directory with the tables")
    tables.add_argument("--engine", metavar="E", help="vllm, sglang or trtllm (all that are found)")
    tables.add_argument("--version", metavar="V", help="version of the engine (all that are found)")
    tables.add_argument("--device", metavar="D", help="directory under topologies/devices (as the rows say)")
    tables.add_argument("--machine", metavar="M", help="machine whose collectives to import (none)")
    tables.add_argument("--into", type=pathlib.Path, metavar="DIR", help="where to write (the project's topologies/)")
    tables.add_argument("--kernels", nargs="+", metavar="K", help="only these kernels")
    tables.add_argument("--force", action="store_true", help="replace tables that are there already")
    tables.set_defaults(command=_aiconfigurator)
    traces = formats.add_parser("torch-profile", help="an engine from a profiler's traces of it: a provider and an engine profile")
    torch_profile.add_options(traces)
    traces.set_defaults(command=_torch_profile)


def _aiconfigurator(options: argparse.Namespace) -> int:
    from ..simulation import project_root
    from .aiconfigurator import command

    return command.run(options, project_root() / "topologies")


def _torch_profile(options: argparse.Namespace) -> int:
    from .torch_profile import command

    return command.run(options)
