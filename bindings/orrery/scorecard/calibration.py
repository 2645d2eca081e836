"""Quantiles of the intervals, from the errors of left-out groups, and how many published values lie inside.

The quantiles of one group are those of the others, so coverage is of intervals that know nothing of it. The widths of each kind
of metric are stretched by one number such that LEVEL of its values lie inside, half by groups that count once whatever their
size and half by values; of a kind with few cells as those of all together.
"""

from __future__ import annotations

import csv
import io
import itertools
import pathlib

import numpy as np
import pandas

from .. import files
from .choice import FULL_CELL
from . import intervals
from .intervals import ANY, CARRIED, CARRIED_AS, COLUMNS, NEAR, Bounds, Factors, Key, Row, Table, interval
from .statistics import standing

LEVEL = 0.8
SHRINKAGE = 3  # cells that a parent's quantiles count as
FEW = 3  # cells; of fewer, an interval also holds the parent's
# Candidates; the roofline share is never 0, so that rooflines are never as sure as measurements.
FACTORS = [Factors(*found) for found in itertools.product((0.5, 1.0, 2.0, 4.0), (0.0, 0.5, 1.0), (0.0, 0.5, 1.0), (0.0, 0.15, 0.3))]
MOST_STRETCH = 4.0


def fit(left: pandas.DataFrame) -> tuple[Table, pandas.DataFrame, pandas.DataFrame]:
    """The table to ship, and `left` (rows of left-out groups, see left_out.judged) with a column `inside`: whether the
    published value is in the interval made without its group. Last, the table's cells and values by key."""
    rows = _prepared(left)
    factors = min(FACTORS, key=lambda found: _pinball(rows, found))
    widths = factors.width(rows).to_numpy()
    rows = rows.assign(z=rows["residual"] / widths)
    bounds = np.full((len(rows), 2), np.nan)
    for (kind, group), index in rows.groupby(["kind", "group"]).indices.items():
        others = rows[(rows["kind"] == kind) & (rows["group"] != group)]
        bounds[index] = _bounds_of(rows.iloc[index], _quantiles(others))
    z, weights = rows["z"].to_numpy(), _of_groups_and_values(rows)
    kinds = rows["metric"].map(_kind)
    stretches = {kind: _stretch(z[index], bounds[index], weights[index]) if _num_cells(rows.iloc[index]) >= FEW
                 else _stretch(z, bounds, weights) for kind, index in rows.groupby(kinds).indices.items()}  # fmt: skip
    judged = left.assign(inside=_inside(z, bounds, kinds.map(stretches).to_numpy()))
    counts = {key: group for key, group in _keyed(rows).groupby(level=0)}
    table = {
        key: Row(_stretched(found, stretches[_kind(key[0])]), *_validated(counts[key])) for key, found in _quantiles(rows).items()
    }  # fmt: skip
    sizes = pandas.DataFrame(
        {"cells": {key: group["cell"].nunique() for key, group in counts.items()},
         "values": {key: len(group.drop_duplicates(["case_id", "metric"])) for key, group in counts.items()}}
    )  # fmt: skip
    return Table(factors, table), judged, sizes


def write(path: pathlib.Path, table: Table, sizes: pandas.DataFrame) -> None:
    """The CSV that `intervals.read` reads."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    factors = [getattr(table.factors, name) for name in intervals.FACTORS]
    for key, row in sorted(table.rows.items()):
        cells, values = sizes.loc[[key], ["cells", "values"]].iloc[0]
        bounds = (f"{bound:.4f}" for bound in row.bounds)
        writer.writerow((*key, cells, values, *bounds, f"{row.most_roofline:.3f}", row.most_nodes, *factors))
    files.write_text(path, text.getvalue())


def coverage(errors: pandas.DataFrame) -> pandas.DataFrame:
    """Share of published values inside the shipped intervals, median high / low, and values without one, by metric."""
    rows = []
    for row in errors.to_dict("records"):
        found = interval(row["simulated"], row["metric"], standing(row))
        rows.append(
            {
                "metric": row["metric"],
                "inside": found[0] <= row["published"] <= found[1] if found else np.nan,
                "width": found[1] / found[0] if found else np.nan,
            }
        )
    table = pandas.DataFrame(rows, columns=["metric", "inside", "width"]).astype({"inside": float, "width": float})
    groups = pandas.concat([table.assign(metric="all"), table]).groupby("metric")
    counts = groups["inside"].count()
    return pandas.DataFrame(
        {"cases": counts, "withheld": groups.size() - counts, "inside": groups["inside"].mean(), "width": groups["width"].median()}
    ).reset_index()


def _prepared(left: pandas.DataFrame) -> pandas.DataFrame:
    return left.assign(
        engine=left["engine"].str.partition(" ")[0],
        tables=np.where(left["is_carried"], CARRIED, NEAR),
        residual=np.log(left["published"] / left["simulated"]),
    ).reset_index(drop=True)


def _equal(rows: pandas.DataFrame, *columns: str) -> np.ndarray:
    """Weights by which the groups of `columns` count alike; those of fewer than FULL_CELL cases less."""
    groups = rows.groupby(list(columns))["case_id"]
    return (np.minimum(1, groups.transform("nunique") / FULL_CELL) / groups.transform("size")).to_numpy()


def _of_groups_and_values(rows: pandas.DataFrame) -> np.ndarray:
    """Weights of which half count groups alike and half values, each kind of left-out groups as much."""
    groups = _equal(rows, "kind", "group")
    values = 1 / rows.groupby("kind")["case_id"].transform("size").to_numpy()
    shares = [part / pandas.Series(part).groupby(rows["kind"].to_numpy()).transform("sum").to_numpy() for part in (groups, values)]
    return sum(shares) / 2


def _kind(metric: str) -> str:
    """What metrics are stretched together: those of a first token, of a token, of throughput, or a metric of its own."""
    kind = CARRIED_AS.get(metric.removesuffix(" p50").removesuffix(" p99"), metric)
    return f"{kind} p99" if metric.endswith(" p99") else kind


def _levels(metric: str, tables: str, engine: str, load: str) -> list[Key]:
    """The keys that a row belongs to, parents first."""
    if tables == CARRIED:
        return [(CARRIED_AS.get(metric, metric), tables, ANY, ANY)]
    return [(metric, tables, ANY, ANY), (metric, tables, engine, ANY), (metric, tables, engine, load)]


def _keyed(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Every row under each of its keys."""
    keys = [_levels(*found) for found in zip(rows["metric"], rows["tables"], rows["engine"], rows["load"])]
    lengths = [len(found) for found in keys]
    again = rows.loc[np.repeat(rows.index, lengths)]
    again.index = pandas.Index([key for found in keys for key in found], tupleize_cols=False)
    return again


def _quantiles(rows: pandas.DataFrame) -> dict[Key, Bounds]:
    """Of every key, drawn towards its parent by SHRINKAGE cells; the highest parents are of unit and kind of tables."""
    found: dict[Key, Bounds] = {}
    top = {key: _bounds(group) for key, group in rows.groupby(["unit", "tables"])}
    by_key = sorted(_keyed(rows).groupby(level=0), key=lambda item: sum(part != ANY for part in item[0]))
    for key, group in by_key:
        metric, tables, engine, load = key
        parents = [(metric, tables, engine, ANY), (metric, tables, ANY, ANY)]
        parent = next((found[p] for p in parents if p != key and p in found), None)
        parent = parent or top[group["unit"].iloc[0], tables]
        cells, own = _num_cells(group), _bounds(group)
        mixed = tuple((cells * a + SHRINKAGE * b) / (cells + SHRINKAGE) for a, b in zip(own, parent))
        few = cells < FEW
        found[key] = (min(mixed[0], parent[0], own[0]) if few else mixed[0], max(mixed[1], parent[1], own[1]) if few else mixed[1])
    return found


def _num_cells(group: pandas.DataFrame) -> float:
    return float(np.minimum(1, group.groupby("cell")["case_id"].nunique() / FULL_CELL).sum())


def _bounds(group: pandas.DataFrame) -> Bounds:
    tail = (1 - LEVEL) / 2
    order = np.argsort(group["z"].to_numpy())
    z, weights = group["z"].to_numpy()[order], _equal(group, "cell")[order]
    shares = (np.cumsum(weights) - weights / 2) / weights.sum()
    low, high = np.interp([tail, 1 - tail], shares, z)
    return float(low), float(high)


def _bounds_of(rows: pandas.DataFrame, table: dict[Key, Bounds]) -> np.ndarray:
    """[rows, 2] of the nearest key that the table has; not a number where it has none."""
    found = []
    for row in zip(rows["metric"], rows["tables"], rows["engine"], rows["load"]):
        key = next((key for key in reversed(_levels(*row)) if key in table), None)
        found.append(table[key] if key else (np.nan, np.nan))
    return np.array(found).reshape(len(rows), 2)


def _stretched(bounds: Bounds, stretch: float) -> Bounds:
    """About the middle."""
    middle, half = (bounds[0] + bounds[1]) / 2, stretch * (bounds[1] - bounds[0]) / 2
    return middle - half, middle + half


def _inside(z: np.ndarray, bounds: np.ndarray, stretch: np.ndarray) -> np.ndarray:
    """1, 0, or not a number where there is no interval."""
    middle, half = bounds.mean(axis=1), stretch * (bounds[:, 1] - bounds[:, 0]) / 2
    return np.where(np.isnan(middle), np.nan, np.abs(z - middle) <= half)


def _stretch(z: np.ndarray, bounds: np.ndarray, weights: np.ndarray) -> float:
    """The least by which LEVEL of the weight lies inside; MOST_STRETCH at most."""
    middle, half = bounds.mean(axis=1), (bounds[:, 1] - bounds[:, 0]) / 2
    needed = np.abs(z - middle) / np.maximum(half, 1e-9)
    order = np.argsort(np.where(np.isnan(needed), np.inf, needed))
    covered = np.cumsum(weights[order]) / weights[~np.isnan(needed)].sum()
    return float(min(needed[order][np.searchsorted(covered, LEVEL)], MOST_STRETCH))


def _validated(group: pandas.DataFrame) -> tuple[float, int]:
    return round(float(group["roofline"].max()), 3), int(group["nodes"].max())


def _pinball(rows: pandas.DataFrame, factors: Factors) -> float:
    """A proper score of quantiles, of those of all rows."""
    tail = (1 - LEVEL) / 2
    width = factors.width(rows).to_numpy()
    scaled = rows.assign(z=rows["residual"] / width)
    bounds = _bounds_of(scaled, _quantiles(scaled)) * width[:, None]
    gaps = rows["residual"].to_numpy()[:, None] - bounds
    share = np.array([tail, 1 - tail])
    return float(_equal(rows, "cell") @ np.where(gaps > 0, gaps * share, gaps * (share - 1)).sum(axis=1))
