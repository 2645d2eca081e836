"""Sets the free numbers of an engine profile from the fit half of the published cases, and checks them.

    python -m orrery.scorecard.fit --engine vllm --profile vllm      # search, held-out and leave-one-out errors
    python -m orrery.scorecard.fit --intervals                       # data/serving/intervals.csv, profiles as they are

The search goes through the parameters one by one, steps to the next candidate as long as the loss falls, and
starts again until nothing changes. Loss: mean of |log(simulated / published)|, at most log 2 of each case, over TTFT,
plus that over TPOT, so neither metric decides alone and no case of whatever is not modelled does. Nothing is written
to scenarios/; the numbers are printed.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import pathlib
import re
import shutil
import statistics as stdlib_statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence

from ..simulation import project_root
from ..text_table import aligned
from . import calibration, rules, statistics, text
from .cases import Case, read_cases, select
from .metrics import find
from .outcomes import Outcome, compare
from .parameters import CANDIDATES

# Times to the first token and per token after it; online runs and static batches name them differently.
METRICS = {"TTFT": ("TTFT", "prefill time"), "TPOT": ("TPOT", "decode time")}
CAP = math.log(2)
MAX_ROUNDS = 3
Values = Mapping[str, str]


def extending(profile: str, values: Values) -> str:
    """A profile that takes everything from the one named `profile` but `values`, by "section.key"."""
    sections: dict[str, list[str]] = {}
    for path, value in values.items():
        section, _, key = path.partition(".")
        sections.setdefault(section, []).append(f"  {key}: {value}\n")
    return f"name: {profile}\nextends: {profile}\n" + "".join(
        f"{name}:\n{''.join(lines)}" for name, lines in sections.items()
    )


def value_of(directory: pathlib.Path, profile: str, path: str) -> str | None:
    """The value at "section.key" of a profile in `directory` or of one that it extends; None where none has it."""
    text = (directory / f"{profile}.yaml").read_text(encoding="utf-8")
    section, _, key = path.partition(".")
    body = re.search(rf"^{re.escape(section)}:\n((?:[ #].*\n)*)", text, re.MULTILINE)
    cell = body and re.search(rf"^  {re.escape(key)}: (?:\{{value: )?([^,}}#\n]+)", body[1], re.MULTILINE)
    if cell:
        return cell[1].strip()
    if base := re.search(r"^extends: (\S+)", text, re.MULTILINE):
        return value_of(directory, base[1], path)
    return None


def loss(outcomes: Sequence[Outcome]) -> float:
    """Mean of |log(simulated / published)|, each at most CAP, over TTFT, plus that over TPOT; infinite with neither."""
    logs = [[min(abs(math.log1p(error)), CAP) for error in _errors_of(outcomes, metric)] for metric in METRICS]
    return sum(stdlib_statistics.fmean(found) for found in logs if found) if any(logs) else math.inf


def _errors_of(outcomes: Sequence[Outcome], metric: str) -> list[float]:
    return [c.error for outcome in outcomes for c in outcome.comparisons if c.metric in METRICS[metric]]


def search(cases: Sequence[Case], start: Values, evaluate: Callable[[Values], Sequence[Outcome]]) -> dict[str, str]:
    """Coordinate descent over CANDIDATES from `start`. `evaluate` simulates all cases with given values."""
    ids = {case.case_id for case in cases}
    best = dict(start)
    score = functools.cache(lambda items: loss([o for o in evaluate(dict(items)) if o.case.case_id in ids]))
    for _ in range(MAX_ROUNDS):
        before = dict(best)
        for path in start:
            options = {_number(value): value for value in (best[path], *CANDIDATES[path])}
            ordered = [options[number] for number in sorted(options)]
            best[path] = _descend(ordered, best[path], lambda v, p=path: score(tuple(sorted((best | {p: v}).items()))))
        if best == before:
            break
    return best


def _descend(ordered: Sequence[str], current: str, score: Callable[[str], float]) -> str:
    """Where steps to either side no longer lower the score."""
    at = next(i for i, value in enumerate(ordered) if _number(value) == _number(current))
    for step in (1, -1):
        while 0 <= at + step < len(ordered) and score(ordered[at + step]) < score(ordered[at]):
            at += step
    return ordered[at]


def _number(value: str) -> float:
    """In seconds, or plain."""
    number, _, unit = value.partition(" ")
    return float(number) * {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


def _evaluator(
    cases: Sequence[Case], profile: str, engine: str, folder: pathlib.Path, threads: int
) -> Callable[[Values], Sequence[Outcome]]:
    @functools.cache
    def evaluate(items: tuple[tuple[str, str], ...]) -> Sequence[Outcome]:
        file = folder / "fitted.yaml"
        file.write_text(extending(profile, dict(items)), encoding="utf-8")
        print(".", end="", file=sys.stderr, flush=True)
        return compare(cases, threads=threads, profiles={engine: file})

    return lambda values: evaluate(tuple(sorted(values.items())))


def _cases_of(engine: str, profile: str) -> list[Case]:
    """Published cases that the rules give this profile and that state a time to the first token or per token."""
    labels = {label for names in METRICS.values() for label in names}
    every = select(read_cases(project_root() / "data" / "serving" / "published_serving.csv"), [f"engine={engine}"])
    return [
        case
        for case in every
        if rules.settings(case.fields).get("profile") == profile
        and any((found := find(m.metric, m.unit)) and found.label in labels for m in case.measurements)
    ]


def _fit_profile(engine: str, name: str, threads: int) -> None:
    directory = project_root() / "scenarios" / "engines"
    start = {path: value for path in CANDIDATES if (value := value_of(directory, name, path)) is not None}
    cases = _cases_of(engine, name)
    with tempfile.TemporaryDirectory() as folder:
        for file in directory.glob("*.yaml"):  # a profile extends one that lies beside it
            shutil.copy(file, folder)
        evaluate = _evaluator(cases, name, engine, pathlib.Path(folder), threads)
        cases = [outcome.case for outcome in evaluate(start) if outcome.comparisons]
        fit = [case for case in cases if statistics.half(case.case_id) == "fit"]
        best = search(fit, start, evaluate)
        print(aligned(("parameter", "before", "fitted"), [(path, start[path], best[path]) for path in start]))
        rows = [
            (label, half, *_errors(evaluate(values), lambda o, h=half: statistics.half(o.case.case_id) == h))
            for label, values in (("before", start), ("fitted", best))
            for half in statistics.HALVES
        ]
        print("\n" + aligned(("values", "half", *_HEADER), rows, right=range(2, 8)))
        for column in ("model", "engine_version"):
            if len({case.fields[column] for case in cases}) > 1:
                print("\n" + _leave_one_out(column, cases, start, evaluate))


_HEADER = ("cases", "loss", "TTFT MAPE %", "bias %", "TPOT MAPE %", "bias %")


def _errors(outcomes: Sequence[Outcome], wanted: Callable[[Outcome], bool]) -> tuple[str, ...]:
    chosen = [outcome for outcome in outcomes if not outcome.reason and wanted(outcome)]
    cells = [str(len(chosen)), f"{loss(chosen):.3f}"]
    for metric in METRICS:
        errors = _errors_of(chosen, metric)
        means = (stdlib_statistics.fmean(map(abs, errors)), stdlib_statistics.fmean(errors)) if errors else ()
        cells += [text.percent(means[0]), text.percent(means[1], signed=True)] if means else ["", ""]
    return tuple(cells)


def _leave_one_out(
    column: str, cases: Sequence[Case], start: Values, evaluate: Callable[[Values], Sequence[Outcome]]
) -> str:
    """Errors on the cases of one value of `column`, with the parameters found without them."""
    rows = []
    for value in sorted({case.fields[column] for case in cases}):
        best = search([case for case in cases if case.fields[column] != value], start, evaluate)
        errors = _errors(evaluate(best), lambda o, v=value: o.case.fields[column] == v)
        rows.append((value or "not stated", *errors, ", ".join(best.values())))
    return aligned((f"without {column}", *_HEADER, "fitted without it"), rows, right=range(1, 7))


def _fit_intervals(threads: int) -> None:
    path = project_root() / "data" / "serving"
    errors = statistics.table(compare(read_cases(path / "published_serving.csv"), threads=threads))
    calibration.write(path / "intervals.csv", *calibration.fit(errors[errors["half"] == "fit"]))
    rows = [
        (r["half"], r["metric"], str(r["cases"]), f"{100 * r['inside']:.1f}", f"{r['width']:.2f}")
        for r in calibration.coverage(errors).to_dict("records")
    ]
    print(aligned(("half", "metric", "cases", "inside %", "high / low"), rows, right=range(2, 5)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m orrery.scorecard.fit", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--engine", choices=("vllm", "trtllm", "sglang"), help="engine whose cases are used")
    parser.add_argument("--profile", help="name of its profile in scenarios/engines/ (the engine's name)")
    parser.add_argument("--intervals", action="store_true", help="write data/serving/intervals.csv")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.intervals:
        _fit_intervals(options.threads)
    elif options.engine:
        _fit_profile(options.engine, options.profile or options.engine, options.threads)
    else:
        parser.error("expected --engine or --intervals")


if __name__ == "__main__":
    main()
