"""The command line: every command, with examples.

Results go to stdout, progress and warnings to stderr. Exit code 0: done, 1: failed, 2: bad usage or input.
"""

from __future__ import annotations

import argparse
import difflib
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from . import process
from .progress_bar import ProgressBar
from .text_table import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return process.exit_code(lambda: _command(words))


def _command(words: list[str]) -> int:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:  # it could not stand in a summary or a report either
            shown = os.fsencode(word).decode("utf-8", "backslashreplace")
            raise ValueError(f"found '{shown}' on the command line; expected text in UTF-8") from None
    if words[:1] == ["bench"]:  # has options of its own
        from . import bench

        return bench.main(words[1:]) or 0
    parser = _parser()
    if not words:
        parser.print_help()
        return 0
    options = parser.parse_args(words)
    return options.command(options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if found := re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            near = difflib.get_close_matches(found[1], re.findall(r"\w+", found[2]), n=1, cutoff=0)
            message = f"unknown command '{found[1][:100]}'; did you mean '{near[0]}'? Known: {found[2].replace(chr(39), '')}"
        super().error(message)

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable(message, keep="\n\t"), file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="orrery", description="Simulates how a large language model is served.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    from . import catalogue, completion, run_command

    run = commands.add_parser("run", help="simulate a scenario and write a run directory")
    run_command.add_options(run)
    run.set_defaults(command=run_command.run)

    from . import explain

    explanation = commands.add_parser("explain", help="print where the time of each op of a step is from and what corrected it")
    explain.add_options(explanation)
    explanation.set_defaults(command=explain.run)

    from . import alternatives

    choices = commands.add_parser("alternatives", help="price one step under each choice of where weights and collectives stand")
    alternatives.add_options(choices)
    choices.set_defaults(command=alternatives.run)

    from . import scaling

    curves = commands.add_parser("scaling", help="how attention grows with the context, and FFNs or experts with the tokens")
    scaling.add_options(curves)
    curves.set_defaults(command=scaling.run)

    from .search import command as exploration

    explore = commands.add_parser("explore", aliases=["plan"], help="find the plan that meets an SLO at the least cost")
    exploration.add_options(explore)
    explore.set_defaults(command=exploration.run)
    saturate = commands.add_parser("saturate", help="find the highest load that holds the SLO, and what limits it")
    exploration.add_saturate_options(saturate)
    saturate.set_defaults(command=exploration.saturate)

    report = commands.add_parser("report", help="write report.html of a run directory, or of an answer of explore, again")
    report.add_argument("directory", type=pathlib.Path, metavar="RUN_DIR")
    report.set_defaults(command=_report)

    from . import calibrate

    calibration = commands.add_parser("calibrate", help="time the kernels on the GPU here, for the provider orrery")
    calibrate.add_options(calibration)
    calibration.set_defaults(command=_calibrate)

    from .emit import command as emit

    emission = commands.add_parser("emit", help="write the commands that serve a plan on an engine, and measure it")
    emit.add_options(emission)
    emission.set_defaults(command=emit.run)

    from .compare import command as compare

    comparison = commands.add_parser("compare", help="put runs beside each other, or a run beside what a benchmark measured")
    compare.add_options(comparison)
    comparison.set_defaults(command=compare.run)

    from .perfetto import command as perfetto

    traced = commands.add_parser("trace", help="write a service, or a step, as a trace for Perfetto")
    perfetto.add_options(traced)

    from .profiling import command as profiling

    profiled = commands.add_parser("profile", help="what to trace of an engine, and a load on its server")
    profiling.add_options(profiled)
    from .validation import options as validation

    validate = commands.add_parser("validate", help="run on the GPUs here what was simulated, and report the difference")
    validation.add_options(validate)
    validate.set_defaults(command=_validate)

    from .importers import command as importers

    importer = commands.add_parser("import", help="turn published measurements into tables under topologies/")
    importers.add_options(importer)

    from .scorecard import options as published

    card = commands.add_parser("scorecard", help="simulate published measurements and print the errors")
    published.add_options(card)
    card.set_defaults(command=_scorecard)

    from . import moe

    experts = commands.add_parser("moe", help="compare designs of routed experts on one layer")
    moe.add_options(experts)
    experts.set_defaults(command=moe.run)

    commands.add_parser("bench", help="measure the simulator itself", add_help=False)
    for listing in catalogue.LISTINGS:
        listed = commands.add_parser(listing.name, help=listing.help)
        listed.add_argument("--json", action="store_true", help="print the entries as JSON")
        listed.set_defaults(command=listing.run)

    from . import doctor

    checkup = commands.add_parser("doctor", help="say what is here, and which commands can run with it")
    doctor.add_options(checkup)
    checkup.set_defaults(command=doctor.run)

    from . import new_files

    beginning = commands.add_parser("new", help="write a scenario or a machine to start from")
    new_files.add_options(beginning)

    from .scenarios import SCHEMAS

    schema = commands.add_parser("schema", help="print the JSON Schema of scenario, machine or engine profile files, for editors")
    schema.add_argument("of", choices=list(SCHEMAS), help="which files")
    schema.set_defaults(command=_schema)

    complete = commands.add_parser("completion", help="print a script that completes commands in a shell")
    complete.add_argument("shell", choices=completion.SHELLS, help="whose script")
    complete.set_defaults(command=lambda options: _completion(options.shell, commands.choices))
    _add_examples(commands.choices)
    from ._core import __version__

    parser.add_argument("--version", action="version", version=f"orrery {__version__}")
    return parser


def _schema(options: argparse.Namespace) -> int:
    import json

    from .scenarios import schema

    print(json.dumps(schema(options.of), indent=2))
    return 0


def _completion(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> int:
    from . import completion
    from .scenarios import shipped_scenarios

    print(completion.script(shell, parsers, tuple(shipped_scenarios())), end="")
    return 0


_EXAMPLES = {
    "run": ("orrery run quickstart", "orrery run quickstart --set placement.tp=8 --set placement.replicas=1 --json",
            "orrery run mine.yaml --set 'workload={trace: bench.json}' -o runs/mine"),
    "explain": ("orrery explain quickstart --decodes 64 --context 2000",),
    "explore": ("orrery explore explore/llama_70b_chat", "orrery explore --model llama-3.1-70b --weights fp8 --gpu h200-sxm --rate 20"
                " --prompt 2000 --output 300 --ttft p99=1s --tpot p99=40ms"),
    "saturate": ("orrery saturate quickstart",),
    "report": ("orrery report runs/quickstart",),
    "calibrate": ("orrery calibrate --quick",),
    "validate": ("orrery validate validate/llama_8b --gpus 1", "orrery validate validate/llama_8b --plan-only"),
    "emit": ("orrery emit runs/quickstart --engine vllm",),
    "compare": ("orrery compare runs/a runs/b", "orrery compare runs/a bench.json"),
    "trace": ("orrery trace service runs/quickstart --from 600 --to 660", "orrery trace step quickstart --decodes 64 --context 2000"),
    "import": ("orrery import aiconfigurator systems/data",),
    "scorecard": ("orrery scorecard --filter engine=vllm",),
    "moe": ("orrery moe qwen3-30b-a3b --tokens 1 64 1024",),
    "new": ("orrery new scenario mine --like qwen3_30b_poisson", "orrery new machine mine --device l40s --gpus 4 --link pcie4"),
    "schema": ("orrery schema scenario > scenario.schema.json",),
    "completion": ('eval "$(orrery completion bash)"',),
}  # fmt: skip


def _add_examples(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    for command, examples in _EXAMPLES.items():
        parsers[command].formatter_class = argparse.RawDescriptionHelpFormatter
        parsers[command].epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])


def _report(options: argparse.Namespace) -> int:
    from .report import command

    return command.run(options)


def _calibrate(options: argparse.Namespace) -> int:
    from . import calibrate
    from .simulation import project_root

    return calibrate.run(options, project_root())


def _validate(options: argparse.Namespace) -> int:
    from .simulation import project_root
    from .validation import command

    return command.run(options, project_root(), ProgressBar(sys.stderr, shown=sys.stderr.isatty()))


def _scorecard(options: argparse.Namespace) -> int:
    from .scorecard import command

    with ProgressBar(sys.stderr, shown=sys.stderr.isatty(), noun="cases") as bar:
        print(command.run(cases=options.cases, filters=options.filters, threads=options.threads, as_json=options.json,
                          html=options.html, force=options.force, progress=bar.update))  # fmt: skip
    return 0
