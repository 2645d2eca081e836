"""Quantiles of the intervals, set on given cases, and how many published values lie inside the shipped ones."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Mapping

import numpy as np
import pandas

from .. import files
from .intervals import ANY, Bounds, Key, interval

LEVEL = 0.8
SHRINKAGE = 10
# Candidates for the weight of the roofline share; never 0, so that rooflines are never as sure as measurements.
FACTORS = (0.5, 1.0, 2.0, 4.0)


def fit(errors: pandas.DataFrame) -> tuple[float, dict[Key, tuple[int, Bounds]]]:
    """Factor of the roofline share, and number of cases with quantiles by group, of a `statistics.table`.

    The factor is the candidate with the least pinball loss, a proper score of quantiles.
    """
    fits = [(factor, _quantiles(errors, factor)) for factor in FACTORS]
    return min(fits, key=lambda item: _pinball(errors, *item))


def write(path: pathlib.Path, factor: float, table: Mapping[Key, tuple[int, Bounds]]) -> None:
    """The CSV that `intervals.interval` reads."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("metric", "engine", "load", "cases", "log_low", "log_high", "roofline_factor"))
    for key, (count, (low, high)) in sorted(table.items()):
        writer.writerow((*key, count, f"{low:.4f}", f"{high:.4f}", factor))
    files.write_text(path, text.getvalue())


def coverage(errors: pandas.DataFrame) -> pandas.DataFrame:
    """Share of published values inside the shipped intervals, and median high / low, by half and metric."""
    rows = []
    for row in errors.to_dict("records"):
        found = interval(
            row["simulated"],
            metric=row["metric"],
            roofline=row["roofline"],
            engine=row["engine"].partition(" ")[0],
            load=row["load"],
        )
        if found:
            rows.append(
                {
                    "half": row["half"],
                    "metric": row["metric"],
                    "inside": found[0] <= row["published"] <= found[1],
                    "width": found[1] / found[0],
                }
            )
    table = pandas.DataFrame(rows, columns=["half", "metric", "inside", "width"])
    every = table.assign(metric="all")
    groups = pandas.concat([every, table]).groupby(["half", "metric"])
    return pandas.DataFrame(
        {"cases": groups.size(), "inside": groups["inside"].mean(), "width": groups["width"].median()}
    ).reset_index()


def _width(factor: float, roofline: float | np.ndarray) -> float | np.ndarray:
    return np.sqrt(1 + (factor * roofline) ** 2)


def _groups(errors: pandas.DataFrame) -> pandas.DataFrame:
    return errors.assign(
        engine=errors["engine"].str.partition(" ")[0], residual=np.log(errors["published"] / errors["simulated"])
    )


def _quantiles(errors: pandas.DataFrame, factor: float) -> dict[Key, tuple[int, Bounds]]:
    errors = _groups(errors)
    scaled = errors.assign(z=errors["residual"] / _width(factor, errors["roofline"]))
    found: dict[Key, tuple[int, Bounds]] = {}
    for unit, of_unit in scaled.groupby("unit"):
        parent_of_unit = _bounds(of_unit["z"].to_numpy())
        for metric, of_metric in of_unit.groupby("metric"):
            top = _add(found, (metric, ANY, ANY), of_metric, parent_of_unit)
            for engine, of_engine in of_metric.groupby("engine"):
                middle = _add(found, (metric, engine, ANY), of_engine, top)
                for load, of_load in of_engine.groupby("load"):
                    _add(found, (metric, engine, load), of_load, middle)
    return found


def _add(found: dict[Key, tuple[int, Bounds]], key: Key, group: pandas.DataFrame, parent: Bounds) -> Bounds:
    own, count = _bounds(group["z"].to_numpy()), len(group)
    mixed = tuple((count * a + SHRINKAGE * b) / (count + SHRINKAGE) for a, b in zip(own, parent))
    found[key] = (count, (mixed[0], mixed[1]))
    return found[key][1]


def _bounds(values: np.ndarray) -> Bounds:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _pinball(errors: pandas.DataFrame, factor: float, table: Mapping[Key, tuple[int, Bounds]]) -> float:
    tail, loss = (1 - LEVEL) / 2, 0.0
    for row in _groups(errors).to_dict("records"):
        low, high = table[row["metric"], row["engine"], row["load"]][1]
        width = _width(factor, row["roofline"])
        for bound, share in ((low * width, tail), (high * width, 1 - tail)):
            gap = row["residual"] - bound
            loss += gap * (share if gap > 0 else share - 1)
    return loss
