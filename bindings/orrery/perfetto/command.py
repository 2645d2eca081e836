"""`orrery trace service|step|instructions|layer`: writes a file for https://ui.perfetto.dev."""

from __future__ import annotations

import argparse
import math
import pathlib

from .. import explain
from ..arguments import scenario_file


def add_options(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="kinds", required=True, metavar="KIND")
    whole = kinds.add_parser("service", help="requests, steps and KV blocks of a run")
    whole.add_argument("file", type=scenario_file, metavar="RUN", help="run directory, or a scenario, which is simulated")
    whole.add_argument("--from", type=_seconds, default=0.0, metavar="S", dest="from_s", help="only what ends after this time (0)")
    whole.add_argument("--to", type=_seconds, default=math.inf, metavar="S", dest="to_s", help="only what begins before it (the end)")
    whole.set_defaults(command=_service)
    one = kinds.add_parser("step", help="ops of one step, by layer, rank, stream and link")
    explain.add_step_options(one)
    one.set_defaults(command=_step)
    of_sms = kinds.add_parser("instructions", help="when the instructions of a decode step that is one kernel ran on a GPU, by SM")
    of_sms.add_argument("file", type=pathlib.Path, metavar="FILE", help="that orrery-gpu megakernel --instructions DIRECTORY wrote")
    of_sms.set_defaults(command=_instructions)
    of_blocks = kinds.add_parser("layer", help="when the blocks of a layer of experts that is one kernel ran on GPUs, by SM")
    of_blocks.add_argument("file", type=pathlib.Path, metavar="FILE", help="that orrery-gpu moe_trace -o DIR wrote")
    of_blocks.set_defaults(command=_layer)
    for kind in (whole, one, of_sms, of_blocks):
        kind.add_argument("-o", "--output", type=pathlib.Path, metavar="FILE", help="what to write (NAME.KIND.trace.json)")
        kind.add_argument("--force", action="store_true", help="replace FILE")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


_seconds.__name__ = "number of seconds from 0"


def _service(options: argparse.Namespace) -> int:
    from .. import finished_run
    from .service import service

    output = _output(options, "service")
    if options.from_s >= options.to_s:
        raise ValueError(f"found --from {options.from_s:g} and --to {options.to_s:g}; expected a later time for --to")
    return _written(service(finished_run.open_run(options.file), options.from_s, options.to_s).text(), output)


def _step(options: argparse.Namespace) -> int:
    from ..simulation import load, step_result
    from . import instructions
    from .step import step

    output = _output(options, "step")
    file = options.file / "scenario.yaml" if options.file.is_dir() else options.file
    scenario = load(file, overrides=options.overrides)
    result = step_result(scenario, explain.chosen_batch(scenario, options))
    if of_sms := instructions.simulated(result.timeline.instruction_columns()):
        print(instructions.shares_text(of_sms))
    return _written(step(result).text(), output)


def _instructions(options: argparse.Namespace) -> int:
    from . import instructions
    from .events import Trace

    output = _output(options, "instructions")
    of_sms = instructions.measured(options.file)
    trace = Trace()
    instructions.add_instructions(trace, of_sms, 0, "SMs")
    print(instructions.shares_text(of_sms))
    return _written(trace.text(), output)


def _layer(options: argparse.Namespace) -> int:
    from .. import layer_trace
    from .events import Trace
    from .layer import add_blocks

    output = _output(options, "layer")
    blocks = layer_trace.read(options.file)
    trace = Trace()
    for rank in sorted({span.rank for span in blocks}):
        add_blocks(trace, [span for span in blocks if span.rank == rank], rank, f"rank {rank}")
    print(layer_trace.text(layer_trace.splits(blocks)))
    return _written(trace.text(), output)


def _output(options: argparse.Namespace, kind: str) -> pathlib.Path:
    output = options.output or pathlib.Path(f"{options.file.name if options.file.is_dir() else options.file.stem}.{kind}.trace.json")
    if output.exists() and not options.force:
        raise FileExistsError(f"'{output}' exists; expected a new file, or --force to replace it")
    return output


def _written(text: str, output: pathlib.Path) -> int:
    from .. import files

    files.write_text(output, text)
    print(f"{output}; open it at https://ui.perfetto.dev")
    return 0


__all__ = ["add_options"]
