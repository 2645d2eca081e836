"""80 % intervals around simulated metrics, from how far published measurements lay from simulated ones.

The logarithm of published over simulated, divided by sqrt(1 + (factor x roofline share)^2), has a 10 % and a
90 % quantile for each metric, engine and kind of load. With few cases these are drawn towards those of the
parent group (metric and engine; metric; unit): a group of n cases counts n, its parent SHRINKAGE. The quantiles
come from the fit half of the published cases (calibration.py, `python -m orrery.scorecard.fit --intervals`) and
stand in data/serving/intervals.csv; `orrery scorecard` prints the share of held-out cases inside.
"""

from __future__ import annotations

import csv
import functools
import math

from ..simulation import project_root

ANY = "any"
Key = tuple[str, str, str]  # metric, engine, load; ANY in the parents
Bounds = tuple[float, float]  # low, high


def interval(simulated: float, *, metric: str, roofline: float, engine: str = ANY, load: str = ANY) -> Bounds | None:
    """(low, high) around a simulated value, in its unit; None for a metric that was never compared.

    `metric` is a label such as "TTFT"; `roofline` the share of simulated time with that basis. An engine or
    load that is not in the table takes the parent's quantiles.
    """
    factor, table = _shipped()
    for key in ((metric, engine, load), (metric, engine, ANY), (metric, ANY, ANY)):
        if key in table:
            low, high = (math.exp(bound * math.hypot(1, factor * roofline)) for bound in table[key])
            return simulated * low, simulated * high
    return None


@functools.cache
def _shipped() -> tuple[float, dict[Key, Bounds]]:
    with (project_root() / "data" / "serving" / "intervals.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = {(r["metric"], r["engine"], r["load"]): (float(r["log_low"]), float(r["log_high"])) for r in rows}
    return float(rows[0]["roofline_factor"]), table
