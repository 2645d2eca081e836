"""`orrery compare`: runs with each other, or a run with what a benchmark measured."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from ..text_table import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=pathlib.Path, metavar="RUN", help="run directory, or a scenario, which is simulated")
    parser.add_argument("others", type=pathlib.Path, nargs="+", metavar="RUN_OR_BENCH",
                        help="further runs; or files of vllm bench serve, SGLang's bench_serving, GuideLLM or AIPerf")  # fmt: skip
    parser.add_argument("--sort", metavar="KEY", help="order of runs: a figure of summary.json such as tpot_s.p99; --sort=-KEY for the largest first")
    parser.add_argument("--fit", type=pathlib.Path, metavar="PROFILE.yaml",
                        help="fit the run's engine profile to the first benchmark and write it there; a second one is held out")  # fmt: skip
    parser.add_argument("--any-model", action="store_true", help="compare with a benchmark of another model, too")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write the runs side by side as a page, for a browser")
    parser.add_argument("--force", action="store_true", help="replace PROFILE.yaml, or FILE")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options: argparse.Namespace) -> int:
    from .. import finished_run
    from . import runs, terminal

    is_run = [path.is_dir() or path.suffix in (".yaml", ".yml") or not path.exists() for path in options.others]
    if not all(is_run):
        return _with_benches(options)
    if options.fit:
        raise ValueError("found --fit without a benchmark; expected a file that one wrote, after RUN")
    if options.html and options.html.exists() and not options.force:
        raise FileExistsError(f"'{options.html}' exists; expected a new file, or --force to replace it")
    found = [finished_run.open_run(path) for path in (options.run, *options.others)]
    result = runs.compare(found, options.sort)
    if options.html:
        from . import report

        print(f"written: {printable(str(report.render(found, options.html, options.sort)))}", file=sys.stderr)
    print(json.dumps(result, indent=2) if options.json else terminal.of_runs(result))
    return 0


def _with_benches(options: argparse.Namespace) -> int:
    from .. import finished_run
    from . import against_bench, bench_files, fit, terminal

    if options.html:
        raise ValueError("found --html with a benchmark; expected it with runs alone")
    if options.sort:
        raise ValueError("found --sort with a benchmark; expected it with runs alone")
    if options.fit and len(options.others) > 2:
        raise ValueError(f"found {len(options.others)} benchmarks with --fit; expected one to fit to and at most one to hold out")
    if options.fit and options.fit.exists() and not options.force:
        raise FileExistsError(f"'{options.fit}' exists; expected a new file, or --force to replace it")
    for path in options.others:
        if path.is_dir():
            raise ValueError(f"found the directory '{path}' beside a benchmark; expected one run and the files of benchmarks, or runs alone")
    benches = [bench_files.read(path) for path in options.others]
    found = finished_run.open_run(options.run)
    results = [against_bench.compare(found, bench, any_model=options.any_model) for bench in benches]
    fitted = fit.fit(found, benches[0], benches[1] if len(benches) > 1 else None) if options.fit else None
    if options.json:
        content = {"benchmarks": results} | ({"fit": fitted.to_dict()} if fitted else {})
        print(json.dumps(content, indent=2))
    else:
        texts = [terminal.of_bench(result) for result in results]
        print("\n\n".join(texts + ([terminal.of_fit(fitted)] if fitted else [])))
    if fitted:
        from .. import files

        files.write_text(options.fit, fit.profile_text(found, fitted, benches[0]))
        print(f"written: {printable(str(options.fit))}; use it as engine.profile", file=sys.stderr)
    return 0


__all__ = ["add_options", "run"]
