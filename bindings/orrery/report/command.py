"""`orrery report`: writes the report of a run directory, or of an answer of `orrery explore`, again."""

from __future__ import annotations

import argparse
import sys

from .. import files, run_files
from ..search import command as exploration
from . import render, run_directory


def run(options: argparse.Namespace) -> int:
    reported = files.Kind("run directory or answer", required=(), names=(*run_files.RUN.names, *exploration.ANSWER.names))
    files.restore(options.directory, reported)
    if not options.directory.is_dir():
        raise ValueError(f"found no directory '{options.directory}'; expected one that 'orrery run' or 'orrery explore' wrote")
    if (options.directory / "answer.json").is_file():
        from ..search import report as answer_report

        print(answer_report.render(options.directory))
        return 0
    if not run_files.is_sealed(options.directory):
        run_directory.check_counts(run_directory.read(options.directory))
        print(f"warning: {options.directory} has no {run_files.SUMS}; its tables have as many rows as its summary counts, but whether"
              " all its files are of one run cannot be checked", file=sys.stderr)  # fmt: skip
    print(render(options.directory))
    return 0
