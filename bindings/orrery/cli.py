"""The command line: every command, its options and examples, and what `run` prints.

Results go to stdout, progress and warnings to stderr. Exit code 0: done, 1: failed, 2: bad usage or input.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from . import process
from .arguments import scenario_file, whole_number
from .simulation import MOST_THREADS
from .text_table import aligned as _aligned
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
    from . import catalogue, completion

    run = commands.add_parser("run", help="simulate a scenario and write a run directory")
    run.add_argument("file", type=scenario_file, metavar="FILE", help="scenario, or the name of one in scenarios/")
    run.add_argument("-o", "--output", type=pathlib.Path, metavar="DIR",
                     help="run directory (runs/<scenario>, then runs/<scenario>-2 and so on)")  # fmt: skip
    run.add_argument("--force", action="store_true", help="replace an earlier run in DIR")
    run.add_argument("--json", action="store_true", help="print the scenario, summary.json and wall_s instead of a table")
    run.add_argument("-q", "--quiet", action="store_true", help="print the run directory alone, and no warnings")
    run.add_argument("--threads", type=whole_number(1, MOST_THREADS), default=1, metavar="N", help="simulate replicas side by side")
    run.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides",
                     help="replace one value of the scenario, with files from here; may be given several times")  # fmt: skip
    run.add_argument("--no-report", action="store_true", help="do not write report.html")
    run.add_argument("--format", choices=("csv", "parquet"), default="csv",
                     help="parquet: requests.parquet and steps.parquet beside the CSV files (csv)")  # fmt: skip
    run.add_argument("--progress", action="store_true", help="show progress even where stderr is no terminal")
    run.set_defaults(command=_run)

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

    importer = commands.add_parser("import", help="turn published measurements into tables under topologies/")
    formats = importer.add_subparsers(title="formats", required=True, metavar="FORMAT")
    tables = formats.add_parser("aiconfigurator", help="op tables of ai-dynamo/aiconfigurator (CSV, Parquet)")
    tables.add_argument("source", type=pathlib.Path, metavar="DIR", help="directory with the tables")
    tables.add_argument("--engine", metavar="E", help="vllm, sglang or trtllm (all that are found)")
    tables.add_argument("--version", metavar="V", help="version of the engine (all that are found)")
    tables.add_argument("--device", metavar="D", help="directory under topologies/devices (as the rows say)")
    tables.add_argument("--machine", metavar="M", help="machine whose collectives to import (none)")
    tables.add_argument("--into", type=pathlib.Path, metavar="DIR", help="where to write (the project's topologies/)")
    tables.add_argument("--kernels", nargs="+", metavar="K", help="only these kernels")
    tables.add_argument("--force", action="store_true", help="replace tables that are there already")
    tables.set_defaults(command=_import_aiconfigurator)
    from .importers.torch_profile import options as torch_profile

    traces = formats.add_parser("torch-profile", help="an engine from a profiler's traces of it: a provider and an engine profile")
    torch_profile.add_options(traces)
    traces.set_defaults(command=_import_torch_profile)
    card = commands.add_parser("scorecard", help="simulate published measurements and print the errors")
    card.add_argument("--cases", type=pathlib.Path, metavar="FILE.csv", help="cases (data/serving/published_serving.csv)")
    card.add_argument("--filter", action="append", default=[], metavar="KEY=VALUE", dest="filters",
                      help="only cases whose column KEY is VALUE; may be given several times")  # fmt: skip
    card.add_argument("--json", action="store_true", help="print every case and table as JSON")
    card.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write a page with scatter plots and tables")
    card.add_argument("--force", action="store_true", help="replace what is in the way of --html, whatever it is")
    card.add_argument("--threads", type=whole_number(1, MOST_THREADS), metavar="N", help="cases side by side (number of cores)")
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


def _run(options: argparse.Namespace) -> int:
    from . import catalogue, files, run_files, simulation

    began = time.perf_counter()
    scenario = simulation.load(options.file, overrides=options.overrides)
    directory = options.output or pathlib.Path("runs") / scenario.name
    if not options.output and not options.force:
        directory = _free(directory)
    if options.format == "parquet":
        from . import parquet

        parquet.check_installed()
    with files.publishing(directory, run_files.RUN, force=options.force) as folder:
        with _ProgressBar(sys.stderr, shown=options.progress or (sys.stderr.isatty() and not options.quiet)) as bar:
            result = simulation.simulate(scenario, threads=options.threads, progress=bar.update, spill=folder)
        for warning in () if options.quiet else (*result.warnings, *_keeps_up(result.summary)):
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
        print(_table(result.summary, colour=_wants_colour(sys.stdout)))
        print(f"\nsimulated in {wall_s:.2f} s; written to {directory}{os.sep}")
        if not options.no_report:
            print(f"report: {directory / 'report.html'}")
    return 0


def _free(directory: pathlib.Path) -> pathlib.Path:
    """`directory`, or where it is taken the first of DIRECTORY-2, DIRECTORY-3, ... that is not."""
    numbered = (directory.with_name(f"{directory.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([directory], numbered) if not os.path.lexists(path))


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


_MUCH = 0.1  # of a run filling and emptying the service: from here on it is said how to leave that out
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
    from . import files, run_files
    from .search import command as exploration

    reported = files.Kind("run directory or answer", required=(), names=(*run_files.RUN.names, *exploration.ANSWER.names))
    files.restore(options.directory, reported)
    if not options.directory.is_dir():
        raise ValueError(f"found no directory '{options.directory}'; expected one that 'orrery run' or 'orrery explore' wrote")
    if (options.directory / "answer.json").is_file():
        from .search import report as answer_report

        print(answer_report.render(options.directory))
        return 0
    from .report import render, run_directory

    if not run_files.is_sealed(options.directory):
        run_directory.check_counts(run_directory.read(options.directory))
        print(f"warning: {options.directory} has no {run_files.SUMS}; its tables have as many rows as its summary counts, but whether"
              " all its files are of one run cannot be checked", file=sys.stderr)  # fmt: skip
    print(render(options.directory))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from . import calibrate
    from .simulation import project_root

    return calibrate.run(options, project_root())


def _validate(options: argparse.Namespace) -> int:
    from .simulation import project_root
    from .validation import command

    return command.run(options, project_root(), _ProgressBar(sys.stderr, shown=sys.stderr.isatty()))


def _import_aiconfigurator(options: argparse.Namespace) -> int:
    from .importers.aiconfigurator import command
    from .simulation import project_root

    return command.run(options, project_root() / "topologies")


def _import_torch_profile(options: argparse.Namespace) -> int:
    from .importers.torch_profile import command

    return command.run(options)


def _scorecard(options: argparse.Namespace) -> int:
    from .scorecard import command

    with _ProgressBar(sys.stderr, shown=sys.stderr.isatty(), noun="cases") as bar:
        print(command.run(cases=options.cases, filters=options.filters, threads=options.threads, as_json=options.json,
                          html=options.html, force=options.force, progress=bar.update))  # fmt: skip
    return 0


class _ProgressBar:
    """One line on `stream`, rewritten in place; removed when done."""

    _WIDTH = 30

    def __init__(self, stream: TextIO, *, shown: bool, noun: str = "requests") -> None:
        self._stream = stream
        self._noun = noun
        self.update: Callable[[int, int], None] | None = self._update if shown else None

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.update:
            self._stream.write("\r" + " " * (self._WIDTH + 40) + "\r")
            self._stream.flush()

    def _update(self, done: int, total: int) -> None:
        filled = self._WIDTH * done // max(total, 1)
        bar = "█" * filled + "░" * (self._WIDTH - filled)
        self._stream.write(f"\r{bar} {done:,} of {total:,} {self._noun}")
        self._stream.flush()


def _likely(summary: Any) -> list[tuple[str, str]]:
    """Intervals of TTFT and TPOT, mean and p99, from published runs of the same engine; or why there are none."""
    from .scorecard.intervals import of_run

    found = of_run(summary)
    lines = []
    for statistic in ("mean", "p99"):
        entries = [(label, entry) for label, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")) if (entry := found.get(f"{key}.{statistic}"))]
        shown = [f"{label} {_seconds(entry['low'])} to {_seconds(entry['high'])}" for label, entry in entries if "low" in entry]
        reasons = dict.fromkeys(entry["withheld"] for _, entry in entries if "withheld" in entry)
        text = "; ".join([", ".join(shown)] * bool(shown) + [f"withheld: {reason}" for reason in reasons])
        if text:
            lines.append((f"80 % interval, {statistic}", text))
    return lines


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if abs(value) < limit:
            return f"{value * factor:.3g} {unit}" if abs(value * factor) < 999.5 else f"{value * factor:.0f} {unit}"
    return f"{value / 60:.1f} min"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _communication(summary: Any) -> list[tuple[str, str]]:
    """How much of the chosen step it is, where GPUs communicate."""
    of = summary["step"]["communication"]
    if not of["share"]:
        return []
    return [("communication", f"{_percent(of['share'])} of the chosen step, exposed {_percent(of['exposed_share'])}")]


def _disaggregation(summary: Any) -> list[tuple[str, str]]:
    """What prefill and decode replicas did, and what passed between them."""
    if "disaggregation" not in summary:
        return []
    apart = summary["disaggregation"]
    sides = [(side, f"{apart[side]['num_gpus']} of {summary['num_gpus']} GPUs{_on(apart[side])}, {_percent(apart[side]['busy'])} of the time in steps,"
                    f" KV cache {_percent(apart[side]['kv_utilisation']['mean'])} full") for side in ("prefill", "decode")]  # fmt: skip
    moved = apart["transfer"]
    times = ", ".join(f"{_seconds(moved['time_s'][name])} {name}" for name in ("mean", "p50", "p95", "p99"))
    return [*sides, *_cost_of_sides(apart), ("KV transfers", f"{moved['count']:,} of {moved['bytes'] / max(moved['count'], 1) / 2**20:,.0f} MiB on average: "
                                     f"{times}; {_percent(moved['exposed_share'])} of it waited for ({moved['source']})")]  # fmt: skip


def _on(side: Any) -> str:
    """' (h100-sxm of hgx-h100)' of a side with a machine, a provider or a price of its own."""
    return f" ({side['device']} of {printable(side['machine'])})" if "device" in side else ""


def _attention_ffn(summary: Any) -> list[tuple[str, str]]:
    """What attention and FFNs are on, where those are machines of their own."""
    if "attention_ffn" not in summary:
        return []
    apart = summary["attention_ffn"]
    return [(name, f"{apart[name]['num_gpus']} of {summary['num_gpus']} GPUs{_on(apart[name])}") for name in ("attention", "ffn")] + _cost(
        apart, ("attention", "ffn")
    )


def _cost(apart: Any, names: tuple[str, str]) -> list[tuple[str, str]]:
    """What the GPUs of both sides cost."""
    if apart["usd_per_hour"] is None:
        return []
    of_sides = " and ".join(f"{apart[name]['usd_per_hour']:,.2f} for {name}" for name in names)
    tokens = apart["usd_per_million_output_tokens"]
    return [("cost", f"{apart['usd_per_hour']:,.2f} USD an hour ({of_sides})" + (f", {tokens:,.2f} for a million output tokens" if tokens else ""))]


def _cost_of_sides(apart: Any) -> list[tuple[str, str]]:
    """What GPUs of sides with settings of their own cost and draw."""
    sides = [(name, apart[name]) for name in ("prefill", "decode")]
    if "device" not in apart["prefill"]:
        return []
    lines = _cost(apart, ("prefill", "decode"))
    if all(side["energy"] is not None for _, side in sides):
        lines.append(("energy of sides", " and ".join(f"{side['energy']['j_per_output_token']:.2f} J per output token for {name}" for name, side in sides)))
    return lines


def _kv_tiers(summary: Any) -> list[tuple[str, str]]:
    """Where the prefix cache found what it found, and what moving it cost."""
    if "kv_tiers" not in summary:
        return []
    behind = summary["kv_tiers"]
    on_gpu = summary["cached_tokens"] - sum(tier["hit_tokens"] for tier in behind["tiers"])
    hits = [f"{_percent(on_gpu / max(summary['prompt_tokens'], 1))} GPU", *(f"{_percent(t['hit_rate'])} {printable(t['name'])}" for t in behind["tiers"])]
    moved = [f"{printable(t['name'])} {t['loaded_bytes'] / 2**30:,.1f} GiB loaded, {t['written_bytes'] / 2**30:,.1f} written, holds"
             f" {t['held_bytes'] / 2**30:,.1f} of {t['capacity_bytes'] / 2**30:,.1f}" for t in behind["tiers"]]  # fmt: skip
    again = f"; {behind['recomputed_tokens']:,} tokens computed again, predicted faster" if behind["recomputed_tokens"] else ""
    return [
        ("found in", ", ".join(hits) + again),
        ("KV tiers", "; ".join(moved)),
        ("KV blocks on the way", f"steps wait {_seconds(behind['exposed_s'])} for them, {_percent(behind['exposed_share'])} of their time"),
    ]


def _speculative(summary: Any) -> list[tuple[str, str]]:
    """How many tokens a verification makes, and what drafting costs."""
    if "speculative" not in summary:
        return []
    drafts = summary["speculative"]
    return [("speculative", f"{drafts['method']}, {drafts['num_speculative_tokens']} drafts: {drafts['acceptance_length']:.2f} tokens a step of a sequence;"
                            f" drafting takes {_percent(drafts['draft_share'])} of the time of steps and"
                            f" {drafts['draft_weights_bytes'] / 2**30:.2f} GiB of weights a GPU")]  # fmt: skip


def _sessions(summary: Any) -> list[tuple[str, str]]:
    """How long conversations took, and what later turns found of them."""
    if "sessions" not in summary:
        return []
    found = summary["sessions"]
    times = ", ".join(f"{_seconds(found['duration_s'][name])} {name}" for name in ("mean", "p50", "p95", "p99"))
    first, later = (", ".join(f"{_seconds(found[key][name])} {name}" for name in ("mean", "p99")) for key in ("first_ttft_s", "later_ttft_s"))
    return [
        ("sessions", f"{found['count']:,} of {found['mean_turns']:.1f} turns on average, {found['sessions_per_s']:.3g}/s; they take {times}"),
        ("TTFT of turns", f"first {first}; later {later}, {_percent(found['later_cached_share'])} of their prompt tokens found"),
    ]


def _autoscaling(summary: Any) -> list[tuple[str, str]]:
    """How many replicas there were, and what they took."""
    if "autoscaling" not in summary:
        return []
    found = summary["autoscaling"]
    price = f", {found['usd']:,.2f} USD" if found["usd"] is not None else ""
    return [("replicas", f"{found['mean_replicas']:.2f} mean, {found['most_replicas']} at most of {found['min_replicas']} to"
                         f" {found['max_replicas']} ({found['starts']} starts, {found['stops']} stops); {found['gpu_hours']:.3g} GPU-hours{price}"
                         f" in {_seconds(found['time_s'])}")]  # fmt: skip


def _ranks(summary: Any) -> list[tuple[str, str]]:
    """How data-parallel ranks wait for each other."""
    if "data_parallel" not in summary:
        return []
    ranks = summary["data_parallel"]
    longest = max(ranks["wait_s"])
    return [("data-parallel ranks", f"balance {_percent(ranks['balance'])} (time of a rank in a step, mean over slowest); the {len(ranks['wait_s'])}"
                                    f" ranks wait up to {_seconds(longest)} a step on average")]  # fmt: skip


def _expert_balance(summary: Any) -> list[tuple[str, str]]:
    """How even the experts' load was, and what placing experts anew cost."""
    if "expert_balance" not in summary:
        return []
    experts = summary["expert_balance"]
    text = f"balance {_percent(experts['balance'])} (rows of a rank, mean over most; the mean of steps)"
    moves = experts["rebalances"]
    if not moves:
        return [("experts", f"{text}; they stay where they are")]
    before, after = (sum(move[key] for move in moves) / len(moves) for key in ("balance_before", "balance_after"))
    return [("experts", f"{text}; {experts['num_rebalances']:,} rebalances, on average from {_percent(before)} to {_percent(after)}, move"
                        f" {experts['moved_bytes'] / 2**30:,.1f} GiB and hold steps up for {_seconds(experts['held_up_s'])}")]  # fmt: skip


def _keeps_up(summary: Any) -> list[str]:
    """What to know of a service that does not."""
    from .search.checks import overload_words

    return [text] if (text := overload_words(summary["load"])) else []


def _energy(summary: Any) -> list[tuple[str, str]]:
    energy = summary.get("energy")
    if not energy:
        return []
    per_token, error = energy["j_per_output_token"], energy["error"]
    return [("energy of the GPUs", f"{per_token:.3g} J per output token ({per_token * (1 - error):.3g} to {per_token * (1 + error):.3g}),"
                                   f" {energy['j_per_request']:.3g} J per request, {energy['mean_w_per_gpu']:.0f} W a GPU (model; docs/data.md)")]  # fmt: skip


def _phases(summary: Any) -> list[tuple[str, str]]:
    """How long the run filled and emptied the service, and what of it is left out or could be."""
    from .report.content import left_out

    phases = summary["phases"]
    if not phases:
        return []
    share = (phases["ramp_s"] + phases["drain_s"]) / phases["run_s"]
    text = f"{_seconds(phases['ramp_s'])} and {_seconds(phases['drain_s'])}, {_percent(share)} of the run"
    if cut := left_out(phases["warmup_requests"], phases["drain_requests"]):
        text += f"; no figure has {cut}"
    elif share > _MUCH and phases["ramp_requests"] + phases["drained_requests"] < summary["requests"]:
        text += f"; without: workload.warmup_requests={phases['ramp_requests']} and drain_requests={phases['drained_requests']}"
    return [("ramp up and drain", text)]


def _slo(summary: Any) -> list[tuple[str, str]]:
    from .search.checks import check_name, check_value

    if not summary["slo"]:
        return [("SLO", "none given")]
    checks = [f"{check_name(c)} {check_value(c, 'value')} of {check_value(c, 'limit')}{'' if c['is_met'] else ' (missed)'}" for c in summary["slo"]]
    found = [("SLO", ", ".join(checks))]
    if any(check["name"] == "attainment" for check in summary["slo"]):  # limits of each request
        found.insert(0, ("goodput", f"{summary['goodput']:.2f} requests/s, {_percent(summary['slo_attainment'])} of requests meet the SLO"))
    return found


def _formats(summary: Any) -> list[tuple[str, str]]:
    """The number formats, where the checkpoint chose them and not the scenario."""
    text = str(summary["provenance"].get("precision", ""))
    return [("number formats", printable(text))] if "(checkpoint" in text else []


def _table(summary: Any, *, colour: bool) -> str:
    """The summary as people read it."""
    from .scorecard.intervals import basis_words

    bold, plain = ("\033[1m", "\033[0m") if colour else ("", "")
    labels = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL"), ("e2e_s", "end to end"))
    quantiles = ("mean", "p50", "p90", "p95", "p99", "max")
    latency = [(label, *(_seconds(summary[key][name]) for name in quantiles)) for key, label in labels]
    memory = summary["memory_per_gpu"]
    used = ("weights", "kv_cache", "activations", "graphs", "communication")
    parts = ", ".join(f"{name.replace('_', ' ')} {memory[name + '_bytes'] / 2**30:.1f}" for name in used)
    basis = summary["basis"]
    words = basis_words(summary)
    facts = [
        ("requests", f"{summary['requests']:,} in {_seconds(summary['duration_s'])}, {summary['requests_per_s']:.2f}/s"),
        *_phases(summary),
        ("tokens", f"{summary['prompt_tokens']:,} prompt, {summary['output_tokens']:,} output"),
        ("prefix cache", f"{_percent(summary['cached_tokens'] / max(summary['prompt_tokens'], 1))} of prompt tokens found"),
        *_kv_tiers(summary),
        *_sessions(summary),
        *_autoscaling(summary),
        ("output tokens/s", f"{summary['output_tokens_per_s']:,.0f}, {summary['output_tokens_per_s_per_gpu']:,.0f} per GPU"
                            f" ({summary['num_gpus']} GPUs)"),
        *_slo(summary),
        *([("load", text) for text in _keeps_up(summary)]),
        ("KV utilisation", f"{_percent(summary['kv_utilisation']['mean'])} mean, {_percent(summary['kv_utilisation']['max'])} max"
                           f" of {summary['num_kv_blocks']:,} blocks per replica"),
        ("preemptions", f"{summary['preemptions']:,}"),
        *_energy(summary),
        *_formats(summary),
        ("memory per GPU", f"{parts} of {memory['hbm_bytes'] / 2**30:.1f} GiB"),
        ("simulated time is", ", ".join(f"{_percent(basis[name])} {words[name]}" for name in words if basis.get(name) or name == "measured")),
        *_communication(summary),
        *_disaggregation(summary),
        *_attention_ffn(summary),
        *_speculative(summary),
        *_ranks(summary),
        *_expert_balance(summary),
        *_likely(summary),
    ]  # fmt: skip
    lines = [f"{bold}{printable(summary['question'] or summary['scenario'])}{plain}", ""]
    lines += _aligned(("", *quantiles), latency, right=range(1, len(quantiles) + 1)).splitlines()
    lines += ["", *_aligned((), facts).splitlines()]
    return "\n".join(lines)
