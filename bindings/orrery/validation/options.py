"""Options of `orrery validate`; imports nothing that takes time."""

from __future__ import annotations

import argparse
import pathlib

from ..arguments import scenario_file, whole_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("file", type=scenario_file, nargs="?", metavar="FILE", help="scenario, or the name of one in scenarios/")
    parser.add_argument(
        "--gpus", type=whole_number(1, 1_000_000), metavar="N", help="GPUs of this host to use (as many as the plan has ranks)"
    )
    parser.add_argument(
        "-o", "--output", type=pathlib.Path, metavar="DIR", help="where everything goes (runs/<scenario>.validation)"
    )
    parser.add_argument("--plan-only", action="store_true", help="predict and write plans into DIR; measure nothing")
    parser.add_argument(
        "--compare", type=pathlib.Path, metavar="DIR", help="compare a directory that orrery-gpu has executed"
    )
    parser.add_argument(
        "--recalibrate",
        action="store_true",
        help="measure the kernel calls that explain most of the error, then predict and compare again",
    )
    parser.add_argument(
        "--measured",
        type=pathlib.Path,
        metavar="DIR",
        help="with --compare --recalibrate: rows that 'orrery-gpu calibrate -o DIR --ops FILE' measured on another host",
    )
    parser.add_argument("--rounds", type=whole_number(1, 1000), default=1, metavar="N", help="of --recalibrate (1)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        dest="overrides",
        help="replace one value of the scenario; may be given several times",
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier validation in DIR")
    parser.add_argument("--launches", action="store_true", help="print launches and time by kernel and stream of each step as well")
    parser.add_argument("--json", action="store_true", help="print validation.json instead of tables")
