"""`orrery emit`: writes what to type to serve a plan on an engine, and to measure it."""

from __future__ import annotations

import argparse
import pathlib
import sys

from .. import files
from ..text_table import printable

FORMATS = ("shell", "kubernetes", "llm-d", "dynamo")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=pathlib.Path, metavar="RUN", help="run directory, or a scenario, which is simulated")
    parser.add_argument("--engine", required=True, choices=("vllm", "sglang", "trtllm"))
    parser.add_argument("--version", metavar="V", help="of the engine (that of the plan's kernel tables)")
    parser.add_argument("--format", choices=FORMATS, default="shell", help="shell script, or manifest of Kubernetes, llm-d or NVIDIA Dynamo (shell)")
    parser.add_argument("--model", metavar="NAME", help="checkpoint to serve (the repository that the scenario's model is of)")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="FILE", help="write there instead of to stdout")
    parser.add_argument("--requests", type=pathlib.Path, metavar="FILE", help="write the run's requests there, for the benchmark to replay")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides",
                        help="replace one value of a scenario; may be given several times")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from .. import finished_run
    from . import benchmark, plan, written

    for path in filter(None, (options.output, options.requests)):
        if path.exists() and not options.force:
            raise FileExistsError(f"'{path}' exists; expected a new file, or --force to replace it")
    found = plan.plan_of(finished_run.open_run(options.run, options.overrides), options.model)
    text, notes = written.written(found, options.engine, version=options.version, form=options.format)
    if options.requests:
        files.write_text(options.requests, "".join(f"{line}\n" for line in benchmark.request_lines(found)))
    if options.output:
        files.write_text(options.output, text)
        print(options.output)
    else:
        print(text, end="")
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return 0


__all__ = ["add_options", "run"]
