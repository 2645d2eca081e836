"""`orrery run`: simulates a scenario and writes a run directory."""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sys
import time
from typing import TextIO

from .arguments import scenario_file, whole_number
from .progress_bar import ProgressBar
from .simulation import MOST_THREADS
from .text_table import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=scenario_file, metavar="FILE", help="scenario, or the name of one in scenarios/")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="DIR",
                        help="run directory (runs/<scenario>, then runs/<scenario>-2 and so on)")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace an earlier run in DIR")
    parser.add_argument("--json", action="store_true", help="print the scenario, summary.json and wall_s instead of a table")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the run directory alone, and no warnings")
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), default=1, metavar="N", help="simulate replicas side by side")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides",
                        help="replace one value of the scenario, with files from here; may be given several times")  # fmt: skip
    parser.add_argument("--no-report", action="store_true", help="do not write report.html")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv",
                        help="parquet: requests.parquet and steps.parquet beside the CSV files (csv)")  # fmt: skip
    parser.add_argument("--progress", action="store_true", help="show progress even where stderr is no terminal")


def run(options: argparse.Namespace) -> int:
    from . import catalogue, files, run_files, run_table, simulation

    began = time.perf_counter()
    scenario = simulation.load(options.file, overrides=options.overrides)
    directory = options.output or pathlib.Path("runs") / scenario.name
    if not options.output and not options.force:
        directory = _free(directory)
    if options.format == "parquet":
        from . import parquet

        parquet.check_installed()
    with files.publishing(directory, run_files.RUN, force=options.force) as folder:
        with ProgressBar(sys.stderr, shown=options.progress or (sys.stderr.isatty() and not options.quiet)) as bar:
            result = simulation.simulate(scenario, threads=options.threads, progress=bar.update, spill=folder)
        for warning in () if options.quiet else (*result.warnings, *run_table.keeps_up(result.summary)):
            print(f"warning: {printable(warning)}", file=sys.stderr)
        simulation.write_files(result, folder, report=not options.no_report, parquet=options.format == "parquet")
    wall_s = time.perf_counter() - began
    if options.json:
        import json

        inputs = {"schema_version": catalogue.SCHEMA_VERSION, "inputs": scenario.to_dict(resolved=True)}
        print(json.dumps(inputs | result.to_dict() | {"wall_s": wall_s}, indent=2, default=list))
    elif options.quiet:
        print(directory)
    else:
        print(run_table.table(result.summary, colour=_wants_colour(sys.stdout)))
        print(f"\nsimulated in {wall_s:.2f} s; written to {directory}{os.sep}")
        if not options.no_report:
            print(f"report: {directory / 'report.html'}")
    return 0


def _free(directory: pathlib.Path) -> pathlib.Path:
    """`directory`, or where it is taken the first of DIRECTORY-2, DIRECTORY-3, ... that is not."""
    numbered = (directory.with_name(f"{directory.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([directory], numbered) if not os.path.lexists(path))


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
