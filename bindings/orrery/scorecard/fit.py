"""Sets the fitted numbers of the engine profiles from published cases, and judges them on groups that are left out.

    python -m orrery.scorecard.fit

One command does all of it and writes what is shipped: the numbers in scenarios/engines/, the errors on left-out groups in
data/serving/left_out.csv, the intervals in data/serving/intervals.csv, and the tables of docs/accuracy.md.

Logarithms of simulated over published are nearly linear in the numbers. So they are made linear once, with one simulation of
the cases per parameter; every choice of numbers, with whichever group left out, is then arithmetic (choice.py). What is
judged is simulated again with the numbers chosen.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

import pandas

from ..simulation import project_root
from ..text_table import aligned
from . import calibration, choice, left_out, profiles, record, rules, scenarios
from .cases import Case, read_cases
from .evaluations import Evaluations
from .left_out import Numbers
from .outcomes import profile_of
from .parameters import PARAMETERS

STEP = 0.5  # deviations by which a parameter is moved to see what it does
ROUNDS = 2  # of choosing numbers and simulating with them


def owners(cases: Sequence[Case], engines: pathlib.Path) -> dict[str, str]:
    """By case id the fitted profile that it runs with; without cases that cannot be simulated or run with none."""
    found = {}
    for case in cases:
        try:
            profile = profile_of(scenarios.scenario_text(case))
        except scenarios.CannotSimulate:
            continue
        if not case.problem and (name := profiles.owner(engines, profile)):
            found[case.case_id] = name
    return found


def problem_of(cases: Sequence[Case], at: Numbers, owner: Mapping[str, str], evaluate: left_out.Evaluate) -> choice.Problem:
    """Residuals of the cases made linear: simulated with the numbers `at`, and with each fitted parameter moved in all profiles."""
    base = evaluate(cases, at)
    stepped, steps = [], []
    for parameter in PARAMETERS:
        if not parameter.is_fitted:
            stepped.append(base)  # no slope
            steps.append(dict.fromkeys(at, 1.0))
            continue
        _tell(f"with {parameter.path} moved")
        moved, step = {}, {}
        for name, values in at.items():
            amount = STEP * parameter.deviation
            amount = amount if values[parameter.path] + amount <= parameter.high else -amount
            moved[name] = {**values, parameter.path: values[parameter.path] + amount}
            exact = parameter.number(parameter.text(moved[name][parameter.path]))  # as the profile's file states it
            step[name] = (exact - values[parameter.path]) / parameter.deviation
        stepped.append(evaluate(cases, moved))
        steps.append(step)
    return left_out.problem(base, stepped, at, steps, owner)


def fitted(cases: Sequence[Case], start: Numbers, owner: Mapping[str, str],
           evaluate: left_out.Evaluate) -> tuple[choice.Problem, dict[str, dict[str, float]], choice.Trust]:  # fmt: skip
    """The linear residuals, the numbers that all cases together choose, and the trust in priors that these chose.

    Of the numbers of each round and those that the profiles have, each generation keeps the ones that it is simulated best
    with: where a server saturates, what is linear about one point says little of another.
    """
    names = list(start)
    found = problem_of(cases, start, owner, evaluate)
    tried = [({name: dict(values) for name, values in start.items()}, found)]
    for _ in range(ROUNDS):
        trust = choice.trust(found, names)
        numbers = choice.numbers(choice.chosen(found, names, trust))
        _tell("with the numbers chosen")
        found = left_out.moved_to(found, evaluate(cases, numbers), numbers)
        tried.append((numbers, found))
    kept = {}
    for generation in choice.generations(names):
        best, _ = min(tried, key=lambda point: left_out.loss_at(point[1], point[0], generation))
        kept |= {name: best[name] for name in generation}
    return found, {name: kept[name] for name in names}, trust


def run(*, published: pathlib.Path, engines: pathlib.Path, threads: int, kept: pathlib.Path | None) -> record.Record:
    """Everything that the command finds. Throws ValueError for bad input."""
    cases = read_cases(published)
    evaluate = Evaluations(engines, threads=threads, kept=kept)
    start = {name: profiles.values(engines, name) for name in profiles.fitted(engines)}
    owner = owners(cases, engines)
    cases = [case for case in cases if case.case_id in owner]
    consistent = [case for case in cases if not case.contradiction]
    contradictory = [case for case in cases if case.contradiction]
    found, numbers, trust = fitted(left_out.sample(consistent, left_out.CHOSEN), start, owner, evaluate)
    _tell("with the numbers chosen")
    shipped = left_out.table(evaluate(cases, numbers))
    # Rows that do not count in the errors (but do in the intervals) take the place of none that does.
    chosen = [*left_out.sample(consistent, left_out.JUDGED), *left_out.sample(contradictory, left_out.JUDGED)]
    judged = list(left_out.judged(chosen, found, list(start), evaluate, _tell))
    left = pandas.concat(judged, ignore_index=True)
    return record.Record(numbers, trust, found, shipped, left, calibration.fit(left))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m orrery.scorecard.fit", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=pathlib.Path, metavar="FILE", help="SQLite file of outcomes that need not be simulated again")
    parser.add_argument("--dry-run", action="store_true", help="print the numbers and errors, write nothing")
    options = parser.parse_args(arguments)
    root = project_root()
    found = run(published=root / "data" / "serving" / "published_serving.csv", engines=root / "scenarios" / "engines",
                threads=options.threads, kept=options.kept)  # fmt: skip
    header = ("parameter", *found.numbers)
    print(aligned(header, [(p.path, *(p.text(values[p.path]) for values in found.numbers.values())) for p in PARAMETERS]))
    for title, names, rows in found.tables():
        print("\n" + title + "\n" + aligned(names, rows, right=range(1, len(names))))
    if not options.dry_run:
        found.write(root)


if __name__ == "__main__":
    main()
