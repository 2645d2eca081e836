"""Errors of AIConfigurator's estimates and of simulated services on the same published cases.

    PYTHONPATH=bindings .venv/bin/python docs/tools/beside_aiconfigurator_errors.py data/serving/published_serving.csv estimates.csv

`estimates.csv` is what docs/tools/beside_aiconfigurator.py wrote. Cases that either of the two cannot do are counted and left out.
"""

from __future__ import annotations

import csv
import pathlib
import statistics
import sys

from orrery.scorecard import cases, outcomes


def main(published: str, estimated: str) -> int:
    with open(estimated, encoding="utf-8", newline="") as file:
        estimates = {row["case_id"]: row for row in csv.DictReader(file)}
    chosen = [case for case in cases.read_cases(pathlib.Path(published)) if case.case_id in estimates]
    errors: dict[tuple[str, str], list[float]] = {}
    left_out = {"aiconfigurator": 0, "orrery": 0}
    for case, outcome in zip(chosen, outcomes.compare(chosen, threads=1)):
        estimate = estimates[case.case_id]
        left_out["aiconfigurator"] += bool(estimate["problem"])
        left_out["orrery"] += bool(outcome.reason)
        if estimate["problem"] or outcome.reason:
            continue
        for comparison in outcome.comparisons:
            label = comparison.metric.removesuffix(" p50")
            if label not in ("TTFT", "TPOT"):
                continue
            theirs = float(estimate[f"{label.lower()}_ms"]) / 1e3
            errors.setdefault((label, "aiconfigurator"), []).append(theirs / comparison.published - 1)
            errors.setdefault((label, "orrery"), []).append(comparison.error)
    print(f"{len(chosen)} cases; cannot do: {left_out}")
    for (label, who), found in sorted(errors.items()):
        sizes = sorted(abs(error) for error in found)
        print(f"{label} {who:15s} n {len(found):4d}  median |error| {100 * statistics.median(sizes):5.1f} %  90 % within {100 * sizes[int(0.9 * len(sizes))]:6.1f} %"
              f"  median error {100 * statistics.median(found):+6.1f} %")  # fmt: skip
    seconds = [float(row["cpu_s"]) for row in estimates.values()]
    print(f"aiconfigurator: {statistics.median(seconds):.2f} s of CPU an estimate (median)")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
