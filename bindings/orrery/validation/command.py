"""`orrery validate`: predicts, runs `orrery-gpu execute` and `serve` on the directory, compares, reports.

The three steps also run apart: --plan-only here, `orrery-gpu execute DIR` and `orrery-gpu serve DIR` on a host that has
GPUs and perhaps nothing else, --compare DIR here again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from .. import _core, calibrate, files, simulation
from . import compare, directory, page, recalibrate, terminal, trace
from .child import run_program
from .layers import steps_and_layers
from .routing import is_another_load

RESULTS = ("validation.json", "validation.html", "timelines.trace.json", "recalibrate.ops")
VALIDATION = files.Kind(
    "validation",
    required=("deployment.txt", "scenario.yaml"),
    names=("deployment.txt", "prefill_deployment.txt", "scenario.yaml", "workload.csv", "serve.txt", "block_hashes.txt", "kv_tiers.txt", "steps/*", "predicted/*", "executed/*",
           "recalibration_*/ops.txt", "recalibration_*/tables/*", "recalibration_*/predicted/*", *RESULTS),
)  # fmt: skip
DONE, FAILED, BAD_INPUT = 0, 1, 2


Progress = contextlib.AbstractContextManager[Any]  # what it gives has `update`, a function of done and total, or None


def run(options: argparse.Namespace, root: pathlib.Path, progress: Progress) -> int:
    """Runs the command; returns the exit code. Raises ValueError for bad usage and input."""
    _check_usage(options)
    if options.compare:
        return _report(options, options.compare, root, DONE)
    target = options.output or pathlib.Path("runs") / f"{options.file.stem}.validation"
    scenario = simulation.load(options.file, overrides=options.overrides)
    files.check(target, VALIDATION, force=options.force)
    if options.gpus is not None and options.gpus < scenario.gpus_per_replica:
        raise ValueError(
            f"--gpus: found {options.gpus}; the placement needs {scenario.gpus_per_replica}, one for each rank"
        )
    program = None if options.plan_only else calibrate.find_program(root)  # before anything is written
    with files.publishing(target, VALIDATION, force=options.force) as folder:
        with progress as bar:
            prediction = _core.predict_validation(scenario, bar.update)
        for warning in prediction.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        prediction.write(str(folder))
    if program is None:
        print(_next_steps(prediction, target))
        return DONE
    try:
        code = _execute(program, target, options, scenario.validation_repeats, serves=prediction.serves)
    except KeyboardInterrupt:
        if not _has_results(target):
            raise
        print("\ninterrupted; what was measured until then:", file=sys.stderr)
        code = FAILED
    if code != DONE and not _has_results(target):
        return code
    return _report(options, target, root, code)


def _check_usage(options: argparse.Namespace) -> None:
    if (options.file is None) == (options.compare is None):
        raise ValueError(
            "found neither FILE nor --compare DIR; expected one of them"
            if options.file is None
            else "found both FILE and --compare DIR; the directory has its own scenario"
        )
    if options.compare and (options.plan_only or options.overrides or options.output or options.gpus is not None):
        raise ValueError("--compare DIR goes with --recalibrate, --rounds, --measured and --json alone")
    if options.measured and not (options.compare and options.recalibrate and options.rounds == 1):
        raise ValueError("--measured DIR goes with --compare DIR --recalibrate, once")
    if options.plan_only and options.recalibrate:
        raise ValueError("--plan-only measures nothing; --recalibrate needs what was executed")


def _next_steps(prediction: _core.ValidationPrediction, target: pathlib.Path) -> str:
    lines = [
        terminal.predicted_table(prediction.steps),
        "",
        f"written to {target}/; next, on a host with GPUs:",
        f"  orrery-gpu execute {target} --repeats {prediction.scenario.validation_repeats}",
    ]
    if prediction.serves:
        lines.append(f"  orrery-gpu serve {target}")
    return "\n".join([*lines, "then, with executed/ back beside steps/:", f"  orrery validate --compare {target}"])


def _execute(
    program: pathlib.Path, target: pathlib.Path, options: argparse.Namespace, repeats: int, *, serves: bool
) -> int:
    """Runs the program's two commands; what they print goes to stderr. Returns 0, or the first failure's exit code."""
    gpus = [] if options.gpus is None else ["--gpus", str(options.gpus)]
    code = run_program([str(program), "execute", str(target), "--repeats", str(repeats), *gpus])
    if code == DONE and serves:
        code = run_program([str(program), "serve", str(target), *gpus])
        if code != DONE:
            status = target / "executed" / "status.txt"
            if not status.is_file() or status.read_text(encoding="utf-8").strip() == directory.COMPLETE:
                files.write_text(status, f"failed serve: exit code {code}\n")
    return code


def _has_results(target: pathlib.Path) -> bool:
    steps = target / "executed" / "steps.csv"
    has_steps = steps.is_file() and len(steps.read_text(encoding="utf-8").splitlines()) > 1
    return has_steps or (target / "executed" / "requests.csv").is_file()


def _report(options: argparse.Namespace, target: pathlib.Path, root: pathlib.Path, code: int) -> int:
    """Compares, recalibrates if asked to, writes the results and prints them; returns the exit code."""
    case = directory.read(target)
    results = [compare.compare(case)]
    result = finished(case, results)
    write_results(case, result)  # before measuring again, which may fail or be stopped
    if options.recalibrate and code == DONE:
        program = None if options.measured else calibrate.find_program(root)
        first = recalibrate.next_number(target)
        for number in range(first, first + options.rounds):
            if number > first and not recalibrate.chosen(results[-1]["recalibrate"]):
                print("every kernel call that explains the error has been measured again", file=sys.stderr)
                break
            if program:
                tables = recalibrate.measure(program, target, results[-1], number)
            else:
                tables = recalibrate.taken(options.measured, target, number)
            case = recalibrate.predict_again(target, tables, root / "topologies", number)
            results.append(compare.compare(case))
            result = finished(case, results)
            write_results(case, result)
    print(json.dumps(result, indent=2, allow_nan=False) if options.json else terminal.tables(result, shows_launches=options.launches))
    if not options.json and (target / RESULTS[1]).is_file():
        print(f"\nreport: {target / RESULTS[1]}")
    others = [step["name"] for step in steps_and_layers(result) if step["routing"] and is_another_load(step["routing"])]
    if others:
        print(f"warning: tokens chose experts by another load than the predicted one in {', '.join(others)}", file=sys.stderr)
    if not case.is_complete:
        print(f"warning: partial results: {case.status}", file=sys.stderr)
    elif case.measured_service and (served := len(case.measured_service.requests["id"])) < case.num_requests:
        print(f"warning: {served:,} of the workload's {case.num_requests:,} requests were served", file=sys.stderr)
    return code if code != DONE or case.is_complete else FAILED


def finished(case: directory.Case, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last comparison with what it is of, and the errors of those before it."""
    rounds = [
        {
            "round": number,
            "errors": result["errors"],
            "causes": compare.summed_causes(steps_and_layers(result)),
            "calibration_revisions": result["calibration_revisions"],
            "steps": [
                {key: step[key] for key in ("name", "predicted_s", "measured_s", "error")} for step in steps_and_layers(result)
            ],
        }
        for number, result in enumerate(results)
    ]
    last = {**results[-1], "rounds": rounds, "causes": compare.summed_causes(steps_and_layers(results[-1]))}
    return {"scenario": case.directory.name, **_without_nan(last)}


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_results(case: directory.Case, result: dict[str, Any]) -> None:
    """validation.json, validation.html, timelines.trace.json and the calls to measure again, into the case's directory.

    All is made before the first of them is replaced. Without the package jinja2 there is no page, and a warning: what was
    measured is worth more than that.
    """
    texts = {
        RESULTS[0]: json.dumps(result, indent=1, allow_nan=False) + "\n",
        RESULTS[2]: trace.text(case),
        RESULTS[3]: recalibrate.calls_text(result),
    }
    try:
        texts[RESULTS[1]] = page.html(case, result)
    except ModuleNotFoundError as error:
        (case.directory / RESULTS[1]).unlink(missing_ok=True)
        print(f"warning: no {case.directory / RESULTS[1]}: {error}", file=sys.stderr)
    for name, text in texts.items():
        files.write_text(case.directory / name, text)


__all__ = ["RESULTS", "VALIDATION", "finished", "run", "write_results"]
