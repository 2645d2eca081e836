"""`orrery scorecard`: reads published cases, simulates them, prints and writes the comparison."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import pandas

from ..simulation import project_root
from ..text_table import printable
from . import calibration, explain, intervals, rules, statistics, text
from .cases import read_cases, select
from .outcomes import Outcome, Progress, compare


def run(
    *,
    cases: pathlib.Path | None,
    filters: Sequence[str],
    threads: int | None,
    as_json: bool,
    html: pathlib.Path | None,
    force: bool = False,
    progress: Progress | None,
) -> str:
    """What stdout shows. Throws ValueError for bad input."""
    path = cases or project_root() / "data" / "serving" / "published_serving.csv"
    if not path.is_file():
        raise ValueError(f"found no file '{path}'; expected a CSV of published cases")
    if html:
        from . import page

        page.check_target(html, force=force)
    chosen = select(read_cases(path), filters)
    outcomes = compare(chosen, threads=threads or os.cpu_count() or 1, progress=progress)
    if html:
        page.write(html, outcomes)
    return json.dumps(to_dict(outcomes), indent=1, allow_nan=False) if as_json else printable(text.render(outcomes))


def to_dict(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything as plain dicts and lists; times in seconds, rates per second, errors as shares of 1."""
    errors = statistics.table(outcomes)
    keys = ("metric", "engine", "model", "parallelism", "phase")
    return {
        "cases": [_case(outcome) for outcome in outcomes],
        "errors": {}
        if errors.empty
        else {
            "metric": _records(statistics.errors_by(errors, "metric")),
            "metric, no setting inferred": _records(statistics.errors_by(statistics.from_evidence(errors), "metric")),
            " x ".join(keys): _records(statistics.errors_by(errors, *keys)),
            **{f"metric x {c}": _records(statistics.errors_by(errors, "metric", c)) for c in ("family", "quality")},
        },
        "intervals": [] if errors.empty else _records(calibration.coverage(errors)),
        "rankings": _records(statistics.rankings(outcomes)),
        "worst": [
            {
                "case_id": f.outcome.case.case_id,
                "metric": f.comparison.metric,
                "error": f.comparison.error,
                "explanation": list(f.sentences),
            }
            for f in explain.worst(outcomes)
        ],
    }


def _records(table: pandas.DataFrame) -> list[dict[str, Any]]:
    return [{k: None if pandas.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


def _case(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "case_id": case.case_id,
        "family": case.family,
        "line": case.line,
        "cannot_be_simulated": outcome.reason or None,
        "metrics_left_out": list(outcome.left_out),
        "metrics": [
            {
                "metric": c.metric,
                "unit": c.unit,
                "published": c.published,
                "simulated": c.simulated,
                "error": c.error,
                **interval,
            }
            for c, interval in zip(outcome.comparisons, _intervals(outcome))
        ],
        "settings": {} if case.problem else {name: dataclasses.asdict(choice) for name, choice in rules.choices(case.fields).items()},
        "num_inferred": 0 if case.problem else rules.num_inferred(case.fields),
        "basis": dict(outcome.basis),
        "split": dict(outcome.split),
    }


def _intervals(outcome: Outcome) -> list[dict[str, Any]]:
    """Of each comparison; where it is withheld with the reason."""
    found = []
    for row in statistics.table([outcome]).to_dict("records"):
        standing = statistics.standing(row)
        bounds = intervals.interval(row["simulated"], row["metric"], standing)
        found.append({"interval": list(bounds)} if bounds else {"interval": None, "withheld": intervals.withheld(row["metric"], standing)})
    return found
